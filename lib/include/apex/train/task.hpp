// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "apex/io/data/loader.hpp"

namespace apex::train {

/// Sums over the real samples of one micro-batch: loss, number of samples, then one per name of Task::metrics().
using Sums = std::vector<double>;

/// What one program teaches: everything the loop does not know.
class Task {
 public:
  virtual ~Task() = default;

  /// What is counted beside the loss, e.g. {"prec1", "prec5"}: numbers of samples, reported as percentages.
  virtual std::vector<std::string> metrics() const = 0;
  /// Forward, loss times `weight`, backward. The gradients are in place afterwards; the optimizer is the loop's.
  /// The returned loss is the sum over samples, without `weight`.
  virtual Sums train_step(const io::Batch& batch, double weight) = 0;
  /// Forward and loss with gradients off. Rows from batch.valid on do not count; a batch may have no valid row.
  virtual Sums evaluate(const io::Batch& batch) = 0;
  /// Training or evaluation mode of the model.
  virtual void set_training(bool on) = 0;
};

}  // namespace apex::train
