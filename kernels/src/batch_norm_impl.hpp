// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/batch_norm.hpp"

// What a backend provides for this family; the front has checked the arguments. Declared-only functions of a backend
// that is not built are never referenced.

namespace apex::kernels::cpu {
void batch_norm_forward(const Context& ctx, View y, View mean, View inv_std, View running_mean, View running_var,
                        ConstView x, ConstView weight, ConstView bias, ConstView residual, double momentum,
                        const BatchNormOptions& options);
void batch_norm_inference(const Context& ctx, View y, ConstView x, ConstView running_mean, ConstView running_var,
                          ConstView weight, ConstView bias, ConstView residual, const BatchNormOptions& options);
void batch_norm_backward(const Context& ctx, View dx, View dresidual, View dweight, View dbias, ConstView dy,
                         ConstView y, ConstView x, ConstView weight, ConstView bias, ConstView mean, ConstView inv_std,
                         const BatchNormOptions& options);
void batch_norm_inference_backward(const Context& ctx, View dx, View dresidual, View dweight, View dbias, ConstView dy,
                                   ConstView y, ConstView x, ConstView weight, ConstView bias, ConstView running_mean,
                                   ConstView running_var, const BatchNormOptions& options);
void batch_norm_statistics(const Context& ctx, View mean, View var, ConstView x);
void batch_norm_finish_statistics(const Context& ctx, View inv_std, View running_mean, View running_var, ConstView mean,
                                  ConstView var, double n, double momentum, double eps);
void batch_norm_apply(const Context& ctx, View y, ConstView x, ConstView mean, ConstView inv_std, ConstView weight,
                      ConstView bias, ConstView residual, bool relu);
void batch_norm_backward_reduce(const Context& ctx, View sum_dy, View sum_dy_xmu, View dresidual, ConstView dy,
                                ConstView y, ConstView x, ConstView weight, ConstView bias, ConstView mean,
                                ConstView inv_std, bool relu);
void batch_norm_backward_apply(const Context& ctx, View dx, ConstView dy, ConstView y, ConstView x, ConstView weight,
                               ConstView bias, ConstView mean, ConstView inv_std, ConstView sum_dy,
                               ConstView sum_dy_xmu, double n, bool relu);
}  // namespace apex::kernels::cpu

namespace apex::kernels::cuda {
void batch_norm_forward(const Context& ctx, View y, View mean, View inv_std, View running_mean, View running_var,
                        ConstView x, ConstView weight, ConstView bias, ConstView residual, double momentum,
                        const BatchNormOptions& options);
void batch_norm_inference(const Context& ctx, View y, ConstView x, ConstView running_mean, ConstView running_var,
                          ConstView weight, ConstView bias, ConstView residual, const BatchNormOptions& options);
void batch_norm_backward(const Context& ctx, View dx, View dresidual, View dweight, View dbias, ConstView dy,
                         ConstView y, ConstView x, ConstView weight, ConstView bias, ConstView mean, ConstView inv_std,
                         const BatchNormOptions& options);
void batch_norm_inference_backward(const Context& ctx, View dx, View dresidual, View dweight, View dbias, ConstView dy,
                                   ConstView y, ConstView x, ConstView weight, ConstView bias, ConstView running_mean,
                                   ConstView running_var, const BatchNormOptions& options);
void batch_norm_statistics(const Context& ctx, View mean, View var, ConstView x);
void batch_norm_finish_statistics(const Context& ctx, View inv_std, View running_mean, View running_var, ConstView mean,
                                  ConstView var, double n, double momentum, double eps);
void batch_norm_apply(const Context& ctx, View y, ConstView x, ConstView mean, ConstView inv_std, ConstView weight,
                      ConstView bias, ConstView residual, bool relu);
void batch_norm_backward_reduce(const Context& ctx, View sum_dy, View sum_dy_xmu, View dresidual, ConstView dy,
                                ConstView y, ConstView x, ConstView weight, ConstView bias, ConstView mean,
                                ConstView inv_std, bool relu);
void batch_norm_backward_apply(const Context& ctx, View dx, ConstView dy, ConstView y, ConstView x, ConstView weight,
                               ConstView bias, ConstView mean, ConstView inv_std, ConstView sum_dy,
                               ConstView sum_dy_xmu, double n, bool relu);
}  // namespace apex::kernels::cuda
