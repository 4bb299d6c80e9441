// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"

namespace apex::kernels {

enum class ActivationKind { gelu, gelu_tanh, silu, leaky_relu, elu, softplus, clamp, hardtanh, log_sigmoid };
const char* name_of(ActivationKind kind) noexcept;

/// An activation function f and its derivative f' (where f has a corner: what f' is there).
///
///   gelu         x Phi(x), Phi the normal distribution function (Hendrycks and Gimpel 2016, arXiv:1606.08415)
///   gelu_tanh    x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
///   silu         x sigmoid(x)
///   leaky_relu   x > 0 ? x : a x                         f'(0) = a
///   elu          x > 0 ? x : a (e^x - 1)                 f'(0) = a
///   softplus     ln(1 + e^(a x)) / a, and x where a x > b (a > 0)
///   clamp        x within [a, b], else the nearer end    f' = 1 at the ends (a <= b)
///   hardtanh     the same                                f' = 0 at the ends
///   log_sigmoid  ln sigmoid(x)
///
/// gelu, gelu_tanh and silu give 0 at -infinity, their limit. No intermediate result overflows. NaN gives NaN; its
/// derivative is what the formula comes to (0 or 1 for clamp and hardtanh).
struct Activation {
  ActivationKind kind = ActivationKind::gelu;
  double a = 0, b = 0;
};

/// y = f(x). One floating dtype, any strides; y may be x itself; x broadcasts to y. 16-bit types are computed in f32
/// and rounded once.
/// @throws Kind::argument for sizes, dtypes, devices or parameters that do not fit, Kind::unsupported for other dtypes
void activation(const Context& ctx, View y, ConstView x, const Activation& f);

/// dx = dy f'(x), 0 where f' is 0 for a corner's sake (leaky_relu with a = 0, clamp, hardtanh) whatever dy is. dx may
/// be dy or x itself.
void activation_backward(const Context& ctx, View dx, ConstView dy, ConstView x, const Activation& f);

}  // namespace apex::kernels
