// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/matmul.hpp"

// What a backend provides for this family; the front has checked the arguments. Declared-only functions of a backend
// that is not built are never referenced. For matmul all operands are of rank 2, or all of rank 3 with a batch of c's
// size (at most 2^31 - 1) or of 1.

namespace apex::kernels::cpu {
void matmul(const Context& ctx, View c, ConstView a, ConstView b, const MatmulOptions& options);
void linear_forward(const Context& ctx, View y, ConstView x, ConstView w, ConstView bias);
void linear_backward_data(const Context& ctx, View dx, ConstView dy, ConstView w);
void linear_backward_weight(const Context& ctx, View dw, View db, ConstView dy, ConstView x);
}  // namespace apex::kernels::cpu

namespace apex::kernels::cuda {
void matmul(const Context& ctx, View c, ConstView a, ConstView b, const MatmulOptions& options);
void linear_forward(const Context& ctx, View y, ConstView x, ConstView w, ConstView bias);
void linear_backward_data(const Context& ctx, View dx, ConstView dy, ConstView w);
void linear_backward_weight(const Context& ctx, View dw, View db, ConstView dy, ConstView x);
}  // namespace apex::kernels::cuda
