// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/conv.hpp"

// What a backend provides for this family; the front has checked the arguments. Declared-only functions of a backend
// that is not built are never referenced. conv2d_backward_data adds bias [C], if defined, to dx before it rounds: what
// it computes is also the transposed convolution.

namespace apex::kernels {
/// A bias [C] as it lies along the channels of an image.
inline ConstView along_channels(ConstView bias) {
  bias.sizes = {1, bias.size(0), 1, 1};
  bias.strides = {0, 1, 0, 0};
  return bias;
}
}  // namespace apex::kernels

namespace apex::kernels::cpu {
void conv2d_forward(const Context& ctx, View y, ConstView x, ConstView w, ConstView bias, const Conv2dOptions& options);
void conv2d_backward_data(const Context& ctx, View dx, ConstView dy, ConstView w, ConstView bias,
                          const Conv2dOptions& options);
void conv2d_backward_weight(const Context& ctx, View dw, View db, ConstView dy, ConstView x,
                            const Conv2dOptions& options);
}  // namespace apex::kernels::cpu

namespace apex::kernels::cuda {
void conv2d_forward(const Context& ctx, View y, ConstView x, ConstView w, ConstView bias, const Conv2dOptions& options);
void conv2d_backward_data(const Context& ctx, View dx, ConstView dy, ConstView w, ConstView bias,
                          const Conv2dOptions& options);
void conv2d_backward_weight(const Context& ctx, View dw, View db, ConstView dy, ConstView x,
                            const Conv2dOptions& options);
}  // namespace apex::kernels::cuda
