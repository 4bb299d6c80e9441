// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <span>

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"

namespace apex::kernels {

/// Pairs are {vertical, horizontal}.
struct Conv2dOptions {
  std::array<std::int64_t, 2> stride{1, 1};    ///< >= 1
  std::array<std::int64_t, 2> padding{0, 0};   ///< >= 0, zeros on both sides
  std::array<std::int64_t, 2> dilation{1, 1};  ///< >= 1
  std::int64_t groups = 1;                     ///< divides both channel counts
};

/// Sizes of y for x [N, C, H, W] and w [K, C/groups, R, S]:
///   H' = floor((H + 2 padding - dilation (R - 1) - 1) / stride) + 1, W' alike.
/// @throws Kind::argument naming what does not fit, or a size that int64 cannot hold
Dims conv2d_output_sizes(const Dims& x, const Dims& w, const Conv2dOptions& options);

/// What sizes of a convolution depend on beside x and w, in any number of spatial dimensions.
struct ConvSizing {
  const char* op;  ///< what messages call it
  std::span<const std::int64_t> stride, padding, dilation;
  std::span<const std::int64_t> output_padding = {};  ///< of a transposed one
  std::int64_t groups = 1;
};
/// As conv2d_output_sizes, for x [N, C, ...] and w [K, C/groups, ...] with as many spatial dimensions as there are
/// strides.
Dims conv_output_sizes(const Dims& x, const Dims& w, const ConvSizing& sizing);
/// As conv_transpose2d_output_sizes.
Dims conv_transpose_output_sizes(const Dims& x, const Dims& w, const ConvSizing& sizing);

/// Cross-correlation, as every deep learning library understands convolution:
///
///   y[n,k,i,j] = bias[k] + sum over c, r, s of
///                x[n, c, i stride + r dilation - padding, j stride + s dilation - padding] * w[k,c,r,s]
///
/// with c over the channels of k's group and zeros outside x.
/// @param y     [N, K, H', W'], dense NCHW or dense channels-last
/// @param x     [N, C, H, W], dense NCHW or dense channels-last, whatever y is
/// @param w     [K, C/groups, R, S], dense row-major or dense channels-last
/// @param bias  [K] with stride 1, or undefined
/// All operands have one floating dtype; 16 bits are computed in f32 and rounded once. On the CPU f32 goes through the
/// vendor library, f64 sums in a fixed order, the same for every thread count; deterministic for a thread count. On
/// CUDA see backend.hpp. N == 0 does nothing.
/// @throws Kind::argument when shapes, strides, dtypes or devices do not fit; Kind::unsupported for other dtypes
void conv2d_forward(const Context& ctx, View y, ConstView x, ConstView w, ConstView bias,
                    const Conv2dOptions& options = {});

/// dx = gradient of sum(dy * y) with respect to x. Strides as in conv2d_forward. Overwrites dx.
void conv2d_backward_data(const Context& ctx, View dx, ConstView dy, ConstView w, const Conv2dOptions& options = {});

/// dw and db alike; db (or dw) may be undefined. dw may have either weight layout. N == 0 gives zeros.
void conv2d_backward_weight(const Context& ctx, View dw, View db, ConstView dy, ConstView x,
                            const Conv2dOptions& options = {});

/// Pairs are {vertical, horizontal}.
struct ConvTranspose2dOptions {
  std::array<std::int64_t, 2> stride{1, 1};          ///< >= 1
  std::array<std::int64_t, 2> padding{0, 0};         ///< >= 0, cut off on both sides
  std::array<std::int64_t, 2> output_padding{0, 0};  ///< >= 0 and less than the stride or the dilation; rows and
                                                     ///< columns more at the end
  std::array<std::int64_t, 2> dilation{1, 1};        ///< >= 1
  std::int64_t groups = 1;                           ///< divides both channel counts
};

/// Sizes of y for x [N, C, H, W] and w [C, K/groups, R, S]:
///   H' = (H - 1) stride - 2 padding + dilation (R - 1) + output_padding + 1, W' alike.
/// @throws Kind::argument naming what does not fit, or a size that int64 cannot hold
Dims conv_transpose2d_output_sizes(const Dims& x, const Dims& w, const ConvTranspose2dOptions& options);

/// Transposed convolution: the gradient of conv2d's input as an op of its own, from a small image to a large one.
///
///   y[n,k,h,w] = bias[k] + sum over all c, i, j, r, s with h = i stride + r dilation - padding and
///                w = j stride + s dilation - padding of x[n,c,i,j] * w[c,k,r,s]
///
/// with c over the channels of k's group.
/// @param y     [N, K, H', W'], dense NCHW or dense channels-last
/// @param x     [N, C, H, W], dense NCHW or dense channels-last, whatever y is
/// @param w     [C, K/groups, R, S], dense row-major or dense channels-last
/// @param bias  [K] with stride 1, or undefined
/// Types, rounding and errors as in conv2d_forward, but for one thing: on CUDA a 16-bit y is rounded once more, before
/// the bias is added, where cuDNN has no engine for both. N == 0 does nothing.
void conv_transpose2d_forward(const Context& ctx, View y, ConstView x, ConstView w, ConstView bias,
                              const ConvTranspose2dOptions& options = {});

/// dx = gradient of sum(dy * y) with respect to x: a plain convolution of dy. Overwrites dx.
void conv_transpose2d_backward_data(const Context& ctx, View dx, ConstView dy, ConstView w,
                                    const ConvTranspose2dOptions& options = {});

/// dw and db alike; db (or dw) may be undefined. dw may have either weight layout. N == 0 gives zeros.
void conv_transpose2d_backward_weight(const Context& ctx, View dw, View db, ConstView dy, ConstView x,
                                      const ConvTranspose2dOptions& options = {});

}  // namespace apex::kernels
