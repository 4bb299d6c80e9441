// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/elementwise.hpp"

// What a backend provides for this family; the front has checked the arguments. Declared-only functions of a backend
// that is not built are never referenced.

namespace apex::kernels::cpu {
void binary(const Context& ctx, View out, ConstView a, ConstView b, BinaryOp op);
void compare(const Context& ctx, View out, ConstView a, ConstView b, CompareOp op);
void unary(const Context& ctx, View out, ConstView x, UnaryOp op);
void unary_backward(const Context& ctx, View dx, ConstView dy, ConstView saved, UnaryOp op);
void relu_backward(const Context& ctx, View dx, ConstView dy, ConstView y);
void scale_shift(const Context& ctx, View out, ConstView x, double scale, double shift);
void add_scaled(const Context& ctx, View out, ConstView a, double alpha, ConstView b);
void accumulate(const Context& ctx, View dst, ConstView src);
void where(const Context& ctx, View out, ConstView condition, ConstView a, ConstView b);
}  // namespace apex::kernels::cpu

namespace apex::kernels::cuda {
void binary(const Context& ctx, View out, ConstView a, ConstView b, BinaryOp op);
void compare(const Context& ctx, View out, ConstView a, ConstView b, CompareOp op);
void unary(const Context& ctx, View out, ConstView x, UnaryOp op);
void unary_backward(const Context& ctx, View dx, ConstView dy, ConstView saved, UnaryOp op);
void relu_backward(const Context& ctx, View dx, ConstView dy, ConstView y);
void scale_shift(const Context& ctx, View out, ConstView x, double scale, double shift);
void add_scaled(const Context& ctx, View out, ConstView a, double alpha, ConstView b);
void accumulate(const Context& ctx, View dst, ConstView src);
void where(const Context& ctx, View out, ConstView condition, ConstView a, ConstView b);
}  // namespace apex::kernels::cuda
