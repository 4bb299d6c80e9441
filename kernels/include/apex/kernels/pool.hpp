// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"

// x is [N, C, H, W] and y [N, C, H', W'], each dense NCHW or dense channels-last, both the same; f64, f32, f16 or bf16
// (sums in f32, rounded once). Backward ops overwrite dx; dx has x's layout rules. N == 0 or C == 0 does nothing.
// All throw Kind::argument when shapes, strides, dtypes, devices or options do not fit.

namespace apex::kernels {

/// Pairs are {vertical, horizontal}.
struct Pool2dOptions {
  std::array<std::int64_t, 2> kernel{2, 2};   ///< >= 1
  std::array<std::int64_t, 2> stride{2, 2};   ///< >= 1
  std::array<std::int64_t, 2> padding{0, 0};  ///< 0 to kernel / 2
  bool ceil_mode = false;                     ///< round sizes up; a window never starts in the right-hand padding
  bool count_include_pad = true;              ///< average pooling: padding counts in the divisor
};

/// H' = floor or ceil((H + 2 padding - kernel) / stride) + 1, less one if the last window would start past H + padding.
Dims pool2d_output_sizes(const Dims& x, const Pool2dOptions& options);

/// y = largest of each window (padding is -infinity), NaN if any is; indices = its position h * W + w in the plane, the
/// first among equals.
/// @param indices  i32, y's sizes and strides; may be undefined when no backward follows
void max_pool2d(const Context& ctx, View y, View indices, ConstView x, const Pool2dOptions& options);
/// dx[p] = sum of dy over the outputs whose index is p.
void max_pool2d_backward(const Context& ctx, View dx, ConstView dy, ConstView indices, const Pool2dOptions& options);

/// y = sum of each window / divisor; the divisor counts the window inside x, or inside x and its padding.
void avg_pool2d(const Context& ctx, View y, ConstView x, const Pool2dOptions& options);
void avg_pool2d_backward(const Context& ctx, View dx, ConstView dy, const Pool2dOptions& options);

/// Mean over rows floor(i H / H') to ceil((i + 1) H / H') and columns alike; H', W' are y's. H' = W' = 1: global mean.
void adaptive_avg_pool2d(const Context& ctx, View y, ConstView x);
void adaptive_avg_pool2d_backward(const Context& ctx, View dx, ConstView dy);

}  // namespace apex::kernels
