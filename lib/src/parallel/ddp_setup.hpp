// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "apex/parallel/distributed_data_parallel.hpp"

namespace apex::parallel::detail {

/// @throws Kind::argument for options that contradict each other or are out of range
void check_options(const DistributedDataParallelOptions& options);
/// @throws Kind::argument naming the first parameter that is not where the others are
void check_one_device(const std::vector<nn::NamedTensor>& parameters);
BucketRule bucket_rule(const DistributedDataParallelOptions& options);

/// Throws on every rank, naming the first parameter that differs from rank 0's in name, sizes, layout, dtype or
/// requires_grad.
void check_same_parameters(const std::vector<nn::NamedTensor>& parameters, const dist::ProcessGroup& group);

/// The groups that buckets are reduced in, turn by turn. Collective where groups are made.
std::vector<dist::ProcessGroup> bucket_groups(const dist::ProcessGroup& group,
                                              const DistributedDataParallelOptions& options);

}  // namespace apex::parallel::detail
