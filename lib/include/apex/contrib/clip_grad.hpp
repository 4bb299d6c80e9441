// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "apex/collectives/process_group.hpp"
#include "apex/core/tensor.hpp"

namespace apex::contrib::clip_grad {

struct ClipGradOptions {
  double norm_type = 2.0;           ///< above 0; infinity is the largest magnitude
  bool error_if_nonfinite = false;  ///< waits for the device
  /// Ranks that hold other parts of the same model: the norm is that of all of them. Then collective. Null: this rank.
  dist::ProcessGroup group = {};
};

/// Scales the gradients of `params` in place so that their norm, taken as one vector, is at most max_norm:
///   grad *= min(1, max_norm / (norm + 1e-6))
/// The coefficient stays on the device: nothing waits. Gradients may be of any floating dtypes and on several devices;
/// parameters without gradient are passed over. A norm of infinity makes finite gradients 0 and infinite ones NaN, a
/// NaN makes all NaN.
/// @returns the norm before clipping, no dimensions, f32 (f64 when a gradient is), on the device of the first gradient;
///          0 on the CPU when there is none
/// @throws Kind::argument for max_norm < 0 or NaN, norm_type <= 0 or NaN; Kind::numerical with error_if_nonfinite, and
///         then the gradients are as they were
Tensor clip_grad_norm_(const std::vector<Tensor>& params, double max_norm, const ClipGradOptions& options = {});
Tensor clip_grad_norm_(const Tensor& param, double max_norm, const ClipGradOptions& options = {});

}  // namespace apex::contrib::clip_grad
