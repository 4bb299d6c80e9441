// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "apex/io/data/loader.hpp"

namespace apex::train {

/// What one program teaches: everything the loop does not know.
///
/// Batches come with images and labels on the model's device and ids on the host. Figures go into `sums`, f64 on that
/// device: loss, number of samples, then one per name of metrics(), each summed over the real samples. Nothing here
/// waits for the device: the loop reads the sums when they are there, and may run a training step inside a capture.
class Task {
 public:
  virtual ~Task() = default;

  /// What is counted beside the loss, e.g. {"prec1", "prec5"}: numbers of samples, reported as percentages.
  virtual std::vector<std::string> metrics() const = 0;
  /// Forward, loss times `weight`, backward. The gradients are in place afterwards; the optimizer is the loop's.
  /// Adds to `sums` the loss without `weight`.
  virtual void train_step(const io::Batch& batch, double weight, const Tensor& sums) = 0;
  /// Forward and loss with gradients off, added to `sums`. Rows from batch.valid on do not count; a batch may have no
  /// valid row.
  virtual void evaluate(const io::Batch& batch, const Tensor& sums) = 0;
  /// Training or evaluation mode of the model.
  virtual void set_training(bool on) = 0;

  /// How many sums there are.
  std::int64_t figures() const { return 2 + static_cast<std::int64_t>(metrics().size()); }
};

}  // namespace apex::train
