// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"

// f64, f32, f16, bf16; 16 bits are computed in f32 and rounded once. Any strides. Operands with one dimension of
// stride 1, transposed views among them, go to the vendor library as they are. On the CPU f64, and f32 of other
// strides, take our own loops, which sum in a fixed order for every thread count; on CUDA other strides are copied
// first.

namespace apex::kernels {

struct MatmulOptions {
  double alpha = 1.0;
  double beta = 0.0;  ///< 0 overwrites c without reading it
};

/// c = alpha * a b + beta * c
///
/// @param c  [..., m, n]  rank 2 or more; any floating dtype; no stride 0; shares no memory with a or b
/// @param a  [..., m, k]  c's dtype; leading dimensions broadcast to c's, from the right: those of size 1 (or stride 0)
///                        and those it lacks are one matrix for all
/// @param b  [..., k, n]  as a
/// k == 0 gives beta * c. Leading dimensions that lie one behind the other are one batch, whatever their number; where
/// all of a batch share b, and the rows of a and c continue one another, it is one product.
/// @throws Kind::argument when shapes, dtypes or devices do not fit; Kind::unsupported for integer dtypes
void matmul(const Context& ctx, View c, ConstView a, ConstView b, const MatmulOptions& options = {});

/// y = x w^T + bias
///
/// @param y     [n, out]
/// @param x     [n, in]
/// @param w     [out, in]
/// @param bias  [out], or undefined
void linear_forward(const Context& ctx, View y, ConstView x, ConstView w, ConstView bias);

/// dx = dy w
void linear_backward_data(const Context& ctx, View dx, ConstView dy, ConstView w);

/// dw = dy^T x, db = sum of dy over rows; either may be undefined. n == 0 gives zeros.
void linear_backward_weight(const Context& ctx, View dw, View db, ConstView dy, ConstView x);

}  // namespace apex::kernels
