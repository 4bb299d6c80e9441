// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"

// Batch normalisation (Ioffe and Szegedy 2015, arXiv:1502.03167), whole and in the pieces that a version synchronised
// over ranks puts a collective between.
//
// Shapes and layouts: x is [N, C, ...] of rank 2 to 5, dense row-major or dense channels-last; y, residual, dy, dx and
// dresidual have x's sizes, dtype and strides. Per-channel views are [C] with stride 1: weight, bias and their
// gradients in x's dtype or in A, everything else in A = accum_dtype(x), f64 for f64, else f32. weight and bias may be
// undefined (1 and 0). running_mean and running_var may be x's dtype or A. x may be f64, f32, f16 or bf16. Statistics
// are merged from blocks as (count, mean, M2), never as E[x^2] - E[x]^2, in an order that depends on the sizes only.
// All ops throw Kind::argument when shapes, strides, dtypes or devices do not fit.

namespace apex::kernels {

struct BatchNormOptions {
  double eps = 1e-5;        ///< added to the variance; > 0
  bool relu = false;        ///< y = max(., 0), fused; NaN stays NaN
  View batches_tracked{};   ///< i64, one element, on ctx.device: batch_norm_forward raises it by one, unless the
                            ///< batch is empty (no value per channel); may be undefined. The other ops ignore it
  bool cumulative = false;  ///< batch_norm_forward's momentum is 1 / (batches_tracked + 1), read on the device: running
                            ///< statistics are the plain average of all batches with a value in them. Needs
                            ///< batches_tracked
  /// A second term of the gradient, x's sizes, dtype and strides: batch_norm_backward and
  /// batch_norm_inference_backward work with dy + more_dy, rounded to x's dtype. Where a residual branches off, the sum
  /// of its gradients then needs no pass of its own. May be undefined; dx may be it.
  ConstView more_dy{};
};

/// Training forward.
///
///   mean[c] = mean of x over all but c, var[c] = mean of (x - mean)^2 (biased), inv_std = 1 / sqrt(var + eps)
///   y = (x - mean) * inv_std * weight + bias (+ residual), then ReLU if asked
///   running_mean = (1 - momentum) running_mean + momentum mean; running_var alike with var * n / (n - 1)
///
/// @param y              may be x itself or residual itself
/// @param mean, inv_std  [C], saved for backward
/// @param residual       added before the ReLU; may be undefined
/// @param running_mean, running_var  updated in place; both undefined: not tracked
/// @throws Kind::argument when each channel has exactly one value (no variance). An empty batch: running
///         statistics and batches_tracked stay
void batch_norm_forward(const Context& ctx, View y, View mean, View inv_std, View running_mean, View running_var,
                        ConstView x, ConstView weight, ConstView bias, ConstView residual, double momentum,
                        const BatchNormOptions& options = {});

/// Forward with given statistics: y = (x - running_mean) / sqrt(running_var + eps) * weight + bias (+ residual), ReLU.
/// @param y  may be x itself or residual itself
void batch_norm_inference(const Context& ctx, View y, ConstView x, ConstView running_mean, ConstView running_var,
                          ConstView weight, ConstView bias, ConstView residual, const BatchNormOptions& options = {});

/// Backward of batch_norm_forward. With g = dy, or dy where the output is positive and 0 elsewhere if options.relu:
///
///   dbias = sum g, dweight = inv_std * sum g (x - mean), dresidual = g
///   dx = (g - dbias / n - (x - mean) inv_std^2 (sum g (x - mean)) / n) * weight * inv_std
///
/// @param dx, dresidual, dweight, dbias  each may be undefined (not wanted). dx or dresidual may be dy itself, dx only
///                       when dresidual is undefined
/// @param y              output of forward. With options.relu: needed if there was a residual; without one it may be
///                       undefined and the mask is recomputed from x, which saves reading it. Else ignored
/// @param bias           as in forward; read only to recompute the mask
void batch_norm_backward(const Context& ctx, View dx, View dresidual, View dweight, View dbias, ConstView dy,
                         ConstView y, ConstView x, ConstView weight, ConstView bias, ConstView mean, ConstView inv_std,
                         const BatchNormOptions& options = {});

/// Backward of batch_norm_inference: statistics are constants, dx = g * weight / sqrt(running_var + eps).
void batch_norm_inference_backward(const Context& ctx, View dx, View dresidual, View dweight, View dbias, ConstView dy,
                                   ConstView y, ConstView x, ConstView weight, ConstView bias, ConstView running_mean,
                                   ConstView running_var, const BatchNormOptions& options = {});

/// mean[c] and biased var[c] of x; zeros for an empty x.
void batch_norm_statistics(const Context& ctx, View mean, View var, ConstView x);

/// inv_std = 1 / sqrt(var + eps) and, if given, running statistics moved by momentum; n values per channel in all.
/// n <= 1 uses var as it is (there is no unbiased one); callers refuse that case where it matters.
void batch_norm_finish_statistics(const Context& ctx, View inv_std, View running_mean, View running_var, ConstView mean,
                                  ConstView var, double n, double momentum, double eps);

/// y = (x - mean) * inv_std * weight + bias (+ residual), ReLU if asked.
void batch_norm_apply(const Context& ctx, View y, ConstView x, ConstView mean, ConstView inv_std, ConstView weight,
                      ConstView bias, ConstView residual, bool relu);

/// sum_dy[c] = sum g, sum_dy_xmu[c] = sum g (x - mean), and dresidual = g if defined. y as in batch_norm_backward.
void batch_norm_backward_reduce(const Context& ctx, View sum_dy, View sum_dy_xmu, View dresidual, ConstView dy,
                                ConstView y, ConstView x, ConstView weight, ConstView bias, ConstView mean,
                                ConstView inv_std, bool relu);

/// dx from the sums over all n values per channel (of all ranks). `dy` is masked again as in backward_reduce when relu;
/// pass dresidual for dy and relu = false when it was written.
void batch_norm_backward_apply(const Context& ctx, View dx, ConstView dy, ConstView y, ConstView x, ConstView weight,
                               ConstView bias, ConstView mean, ConstView inv_std, ConstView sum_dy,
                               ConstView sum_dy_xmu, double n, bool relu);

}  // namespace apex::kernels
