// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/activation.hpp"

#include <limits>
#include <numbers>

#include "apex/kernels/elementwise.hpp"
#include "common.hpp"

namespace apex::nn::functional {

namespace {

using kernels::Activation;
using kernels::ActivationKind;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRootTwoOverPi = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;

Tensor one_minus(const Tensor& t) { return scale(t, -1.0, 1.0); }

/// Where a function with corners passes its gradient on.
Tensor where_passing(const Activation& f, const Tensor& x) {
  const Tensor one = ones({}, x.dtype(), x.device());
  Tensor slope = empty_like(x);
  kernels::activation_backward(x.context(), slope.view(), one.view(), x.view(), f);
  return where_above(slope, 0.0);
}

/// f'(x) of gelu, gelu_tanh and silu, whose formulas are not taken further out than where f' is 0 or 1.
Tensor smooth_slope(ActivationKind kind, const Tensor& x) {
  if (kind == ActivationKind::silu) {
    const Tensor w = clamp(x, -800.0, 800.0), s = sigmoid(w);
    return mul(s, scale(mul(w, one_minus(s)), 1.0, 1.0));
  }
  const Tensor w = clamp(x, -40.0, 40.0);
  if (kind == ActivationKind::gelu) {
    const Tensor distribution = scale(erf(scale(w, 1 / std::numbers::sqrt2)), 0.5, 0.5);
    const Tensor density = scale(exp(scale(square(w), -0.5)), std::numbers::inv_sqrtpi / std::numbers::sqrt2);
    return add(distribution, mul(w, density));
  }
  constexpr double kCubic = 0.044715;
  const Tensor s = sigmoid(scale(add(w, scale(mul(w, square(w)), kCubic)), 2 * kRootTwoOverPi));
  const Tensor inner = scale(square(w), 6 * kRootTwoOverPi * kCubic, 2 * kRootTwoOverPi);
  return add(s, mul(mul(w, mul(s, one_minus(s))), inner));
}

/// dy f'(x) out of differentiable ops.
Tensor differentiable_backward(const Activation& f, const Tensor& dy, const Tensor& x) {
  const Tensor zero = zeros({}, dy.dtype(), dy.device());
  switch (f.kind) {
    case ActivationKind::gelu:
    case ActivationKind::gelu_tanh:
    case ActivationKind::silu: return mul(dy, smooth_slope(f.kind, x));
    case ActivationKind::leaky_relu: return where(where_above(x, 0.0), dy, scale(dy, f.a));
    case ActivationKind::elu:
      return where(where_above(x, 0.0), dy, mul(dy, scale(exp(clamp(x, -kInfinity, 0.0)), f.a)));
    case ActivationKind::softplus: return where(where_above(x, f.b / f.a), dy, mul(dy, sigmoid(scale(x, f.a))));
    case ActivationKind::clamp:
    case ActivationKind::hardtanh: return where(where_passing(f, x), dy, zero);
    case ActivationKind::log_sigmoid: return mul(dy, sigmoid(neg(x)));
  }
  fail(Kind::unsupported, concat(name_of(f.kind), " is not twice differentiable"));
}

Tensor activation(Op which, const Activation& f, Tensor x) {
  OpScope op(which, {&x});
  Tensor y = empty_like(x);
  kernels::activation(x.context(), y.view(), x.view(), f);
  return op.record(y, {x}, {{"input", x}}, [f, x](BackwardCall& call) -> Gradients {
    Tensor& dy = call.grads[0];
    if (grad_mode()) return {differentiable_backward(f, dy, x)};
    Tensor dx = exclusive(dy) ? std::move(dy) : Tensor();
    const Tensor from = dx.defined() ? dx : dy;
    if (!dx.defined()) dx = empty_like(dy);
    kernels::activation_backward(dx.context(), dx.view(), from.view(), x.view(), f);
    return {dx};
  });
}

}  // namespace

Tensor gelu(const Tensor& x, GeluForm form) {
  return activation(Op::gelu, {form == GeluForm::exact ? ActivationKind::gelu : ActivationKind::gelu_tanh}, x);
}
Tensor silu(const Tensor& x) { return activation(Op::silu, {ActivationKind::silu}, x); }
Tensor leaky_relu(const Tensor& x, double slope) {
  return activation(Op::leaky_relu, {ActivationKind::leaky_relu, slope}, x);
}
Tensor elu(const Tensor& x, double alpha) { return activation(Op::elu, {ActivationKind::elu, alpha}, x); }
Tensor softplus(const Tensor& x, double beta, double threshold) {
  return activation(Op::softplus, {ActivationKind::softplus, beta, threshold}, x);
}
Tensor clamp(const Tensor& x, double low, double high) {
  return activation(Op::clamp, {ActivationKind::clamp, low, high}, x);
}
Tensor hardtanh(const Tensor& x, double low, double high) {
  return activation(Op::hardtanh, {ActivationKind::hardtanh, low, high}, x);
}
Tensor log_sigmoid(const Tensor& x) { return activation(Op::log_sigmoid, {ActivationKind::log_sigmoid}, x); }

}  // namespace apex::nn::functional
