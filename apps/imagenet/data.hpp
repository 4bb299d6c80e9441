// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/collectives/session.hpp"
#include "apex/io/data/loader.hpp"
#include "options.hpp"

namespace imagenet {

/// The data set as this run uses it. `side` is that of the network's square input (or its height and width, where the
/// data have a small size of their own).
struct Data {
  apex::io::DatasetPair sets;
  apex::io::TransformOptions train_transform, eval_transform;
  int channels = 3;
};

/// Opens DIR on every rank alike. Collective: a failure on one is a failure on all.
Data open_data(const Options& options, const apex::dist::Session& session);

std::unique_ptr<apex::io::Loader> train_loader(const Data& data, const Options& options, std::int64_t batch_size,
                                               const apex::dist::Session& session);
/// Null when there is no validation part.
std::unique_ptr<apex::io::Loader> validation_loader(const Data& data, const Options& options, std::int64_t batch_size,
                                                    const apex::dist::Session& session);

}  // namespace imagenet
