// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "../conv_impl.hpp"

// Convolution by our own kernels: any floating type, any dense strides, groups, dilation; sums in an order that depends
// on the sizes only. For f64, and for what cuDNN has no plan for.

namespace apex::kernels::cuda::direct {

void forward(const Context& ctx, View y, ConstView x, ConstView w, ConstView bias, const Conv2dOptions& options);
void backward_data(const Context& ctx, View dx, ConstView dy, ConstView w, ConstView bias,
                   const Conv2dOptions& options);
void backward_weight(const Context& ctx, View dw, ConstView dy, ConstView x, const Conv2dOptions& options);

}  // namespace apex::kernels::cuda::direct
