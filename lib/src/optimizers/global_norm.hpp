// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "apex/core/tensor.hpp"
#include "apex/optimizers/optimizer.hpp"

namespace apex::optimizers {

/// The 2-norm of all tensors together, after scaling, into `norm` (one element on the first tensor's device; f64 when
/// one of the tensors is). `norm` keeps its memory when it fits. Nothing waits for a device.
void global_norm(const std::vector<Tensor>& tensors, const StepScaling& scaling, Tensor& norm);

/// target = value, converted, wherever the two lie.
void write_near(const Tensor& target, const Tensor& value);

}  // namespace apex::optimizers
