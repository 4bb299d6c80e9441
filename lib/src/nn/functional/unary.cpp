// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <numbers>

#include "apex/kernels/elementwise.hpp"
#include "common.hpp"

namespace apex::nn::functional {

Tensor where_above(const Tensor& x, double threshold) {
  const Tensor mask = empty(x.sizes(), DType::boolean, x.device(), x.memory_format());
  const Tensor bound = full({}, threshold, x.dtype(), x.device());
  kernels::compare(mask.context(), mask.view(), x.view(), bound.view(), kernels::CompareOp::gt);
  return mask;
}

Tensor sign_of(const Tensor& x) {
  const Tensor sign = empty_like(x);
  kernels::unary(sign.context(), sign.view(), x.view(), kernels::UnaryOp::sign);
  return sign;
}

namespace {

using kernels::UnaryOp;

/// dy * op'(x) out of differentiable ops; `saved` is the input or the output as saves_of(kind) says.
Tensor differentiable_backward(UnaryOp kind, const Tensor& dy, const Tensor& saved) {
  switch (kind) {
    case UnaryOp::neg: return neg(dy);
    case UnaryOp::abs: return mul(dy, sign_of(saved));
    case UnaryOp::relu: return where(where_above(saved, 0.0), dy, zeros({}, dy.dtype(), dy.device()));
    case UnaryOp::erf: return mul(dy, scale(exp(neg(square(saved))), 2 * std::numbers::inv_sqrtpi));
    case UnaryOp::exp: return mul(dy, saved);
    case UnaryOp::log: return div(dy, saved);
    case UnaryOp::sqrt: return scale(div(dy, saved), 0.5);
    case UnaryOp::rsqrt: return scale(mul(dy, mul(saved, square(saved))), -0.5);
    case UnaryOp::reciprocal: return neg(mul(dy, square(saved)));
    case UnaryOp::square: return scale(mul(dy, saved), 2.0);
    case UnaryOp::tanh: return mul(dy, scale(square(saved), -1.0, 1.0));
    case UnaryOp::sigmoid: return mul(dy, mul(saved, scale(saved, -1.0, 1.0)));
    default: fail(Kind::unsupported, concat(name_of(kind), " is not twice differentiable"));
  }
}

Gradients unary_gradient(UnaryOp kind, BackwardCall& call, const Tensor& saved) {
  Tensor& dy = call.grads[0];
  if (grad_mode())
    return {differentiable_backward(kind, dy, saves_of(kind) == kernels::Saves::output ? call.attached(saved) : saved)};
  Tensor dx = exclusive(dy) ? std::move(dy) : Tensor();
  if (dx.defined()) {
    kernels::unary_backward(dx.context(), dx.view(), dx.view(), saved.view(), kind);
  } else {
    dx = empty_like(dy);
    kernels::unary_backward(dx.context(), dx.view(), dy.view(), saved.view(), kind);
  }
  return {dx};
}

Tensor unary(Op which, UnaryOp kind, Tensor x) {
  OpScope op(which, {&x});
  Tensor y = empty_like(x);
  kernels::unary(x.context(), y.view(), x.view(), kind);
  Tensor saved;
  const auto saves = saves_of(kind);
  if (saves == kernels::Saves::input) saved = x;
  if (saves == kernels::Saves::output) saved = y.detach();
  const char* name = saves == kernels::Saves::input ? "input" : "output";
  return op.record(y, {x}, {{name, saved}},
                   [kind, saved](BackwardCall& call) -> Gradients { return unary_gradient(kind, call, saved); });
}

}  // namespace

Tensor neg(const Tensor& x) { return unary(Op::neg, UnaryOp::neg, x); }
Tensor abs(const Tensor& x) { return unary(Op::abs, UnaryOp::abs, x); }
Tensor exp(const Tensor& x) { return unary(Op::exp, UnaryOp::exp, x); }
Tensor log(const Tensor& x) { return unary(Op::log, UnaryOp::log, x); }
Tensor sqrt(const Tensor& x) { return unary(Op::sqrt, UnaryOp::sqrt, x); }
Tensor rsqrt(const Tensor& x) { return unary(Op::rsqrt, UnaryOp::rsqrt, x); }
Tensor reciprocal(const Tensor& x) { return unary(Op::reciprocal, UnaryOp::reciprocal, x); }
Tensor square(const Tensor& x) { return unary(Op::square, UnaryOp::square, x); }
Tensor tanh(const Tensor& x) { return unary(Op::tanh, UnaryOp::tanh, x); }
Tensor sigmoid(const Tensor& x) { return unary(Op::sigmoid, UnaryOp::sigmoid, x); }
Tensor relu(const Tensor& x) { return unary(Op::relu, UnaryOp::relu, x); }
Tensor erf(const Tensor& x) { return unary(Op::erf, UnaryOp::erf, x); }

}  // namespace apex::nn::functional
