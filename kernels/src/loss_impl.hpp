// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/loss.hpp"

// What a backend provides for this family; the front has checked the arguments. Declared-only functions of a backend
// that is not built are never referenced.

namespace apex::kernels {

/// [N, C, ...] without C.
inline Dims without_classes(const Dims& dims) {
  Dims out;
  for (int d = 0; d < dims.size(); ++d)
    if (d != 1) out.push_back(dims[d]);
  return out;
}

namespace cpu {
void pointwise_loss(const Context& ctx, View loss, ConstView x, ConstView target, ConstView weight,
                    ConstView pos_weight, const PointwiseLoss& options);
void pointwise_loss_backward(const Context& ctx, View dx, View dtarget, ConstView dloss, ConstView x, ConstView target,
                             ConstView weight, ConstView pos_weight, const PointwiseLoss& options);
void nll_loss(const Context& ctx, View loss, View total_weight, ConstView x, ConstView labels, ConstView weight,
              const NllOptions& options);
void nll_loss_backward(const Context& ctx, View dx, ConstView dloss, ConstView labels, ConstView weight,
                       ConstView total_weight, const NllOptions& options);
}  // namespace cpu

namespace cuda {
void pointwise_loss(const Context& ctx, View loss, ConstView x, ConstView target, ConstView weight,
                    ConstView pos_weight, const PointwiseLoss& options);
void pointwise_loss_backward(const Context& ctx, View dx, View dtarget, ConstView dloss, ConstView x, ConstView target,
                             ConstView weight, ConstView pos_weight, const PointwiseLoss& options);
void nll_loss(const Context& ctx, View loss, View total_weight, ConstView x, ConstView labels, ConstView weight,
              const NllOptions& options);
void nll_loss_backward(const Context& ctx, View dx, ConstView dloss, ConstView labels, ConstView weight,
                       ConstView total_weight, const NllOptions& options);
}  // namespace cuda

}  // namespace apex::kernels
