// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"

// Every op here takes any strides (stride 0 included for inputs). Inputs broadcast to the sizes of the output. An
// output may be one of the inputs itself (same address, sizes and strides); any other overlap is the caller's error.
// 16-bit types are computed in f32 and rounded once. All throw Kind::argument for sizes, dtypes or devices that do not
// fit and Kind::unsupported for a dtype an op does not do. NaN goes through every op, minimum, maximum and relu
// included.

namespace apex::kernels {

enum class BinaryOp { add, sub, mul, div, minimum, maximum, pow };
const char* name_of(BinaryOp op) noexcept;

/// out = a op b. All of one dtype: floating, or (not div, pow) i64, i32, u8.
void binary(const Context& ctx, View out, ConstView a, ConstView b, BinaryOp op);

enum class CompareOp { eq, ne, lt, le, gt, ge };

/// out = a op b as boolean; a and b of one dtype, any. A comparison with NaN is false, except ne.
void compare(const Context& ctx, View out, ConstView a, ConstView b, CompareOp op);

enum class UnaryOp { neg, abs, sign, exp, log, sqrt, rsqrt, reciprocal, square, tanh, sigmoid, relu, erf };
const char* name_of(UnaryOp op) noexcept;

/// out = op(x). One floating dtype; neg, abs, sign, square and relu also for i64 and i32.
void unary(const Context& ctx, View out, ConstView x, UnaryOp op);

/// What unary_backward reads: the op's input, its output, or neither.
enum class Saves { nothing, input, output };
Saves saves_of(UnaryOp op) noexcept;

/// dx = dy * op'(x), from the input x or the output y as saves_of(op) says ("saved"; undefined for Saves::nothing).
/// One floating dtype. abs and sign have derivative 0 at 0; relu passes where y > 0. A y of 16 bits is a rounded one.
void unary_backward(const Context& ctx, View dx, ConstView dy, ConstView saved, UnaryOp op);

/// dx = y > 0 ? dy : 0: backward of relu from its output, in whatever op it was fused.
void relu_backward(const Context& ctx, View dx, ConstView dy, ConstView y);

/// out = x * scale + shift. Floating; scalars are narrowed once to the accumulation type.
void scale_shift(const Context& ctx, View out, ConstView x, double scale, double shift = 0.0);

/// out = a + alpha * b. Floating.
void add_scaled(const Context& ctx, View out, ConstView a, double alpha, ConstView b);

/// dst += src, in dst's dtype. Floating; the dtypes may differ (16-bit gradients into an f32 sum). src broadcasts.
void accumulate(const Context& ctx, View dst, ConstView src);

/// out = condition ? a : b. condition boolean (or u8), a, b and out of one dtype, any.
void where(const Context& ctx, View out, ConstView condition, ConstView a, ConstView b);

}  // namespace apex::kernels
