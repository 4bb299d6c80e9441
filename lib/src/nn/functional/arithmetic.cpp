// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/elementwise.hpp"
#include "apex/tensor_ops.hpp"
#include "common.hpp"

namespace apex::nn::functional {

namespace {

/// An output for a op b: the layout of the operand that already has the output's sizes.
Tensor broadcast_output(const Tensor& a, const Tensor& b, const char* op, DType dtype) {
  const Dims sizes = broadcast_shapes(a.sizes(), b.sizes(), op);
  if (a.sizes() == sizes) return empty_like(a, dtype);
  if (b.sizes() == sizes) return empty_like(b, dtype);
  return empty(sizes, dtype, a.device());
}

Tensor compute(const OpScope& op, const Tensor& a, const Tensor& b, kernels::BinaryOp kind) {
  Tensor out = broadcast_output(a, b, op.row().name, a.dtype());
  kernels::binary(out.context(), out.view(), a.view(), b.view(), kind);
  return out;
}

Tensor sum_or_difference(Op which, kernels::BinaryOp kind, Tensor a, Tensor b) {
  OpScope op(which, {&a, &b});
  const double sign = which == Op::add ? 1.0 : -1.0;
  return op.record(compute(op, a, b, kind), {a, b}, {},
                   [as = a.sizes(), bs = b.sizes(), sign](const Tensor& dy, std::span<const bool> needs) -> Gradients {
                     Gradients g(2);
                     if (needs[0]) g[0] = unbroadcast(dy, as);
                     if (needs[1]) g[1] = unbroadcast(sign > 0 ? dy : neg(dy), bs);
                     return g;
                   });
}

/// `better(a, b)`: the gradient goes to a.
Tensor extremum(Op which, kernels::BinaryOp kind, Tensor (*better)(const Tensor&, const Tensor&), Tensor a, Tensor b) {
  OpScope op(which, {&a, &b});
  return op.record(compute(op, a, b, kind), {a, b}, {{"a", a}, {"b", b}},
                   [a, b, better](const Tensor& dy, std::span<const bool> needs) -> Gradients {
                     const Tensor mask = better(a, b), zero = zeros({}, dy.dtype(), dy.device());
                     Gradients g(2);
                     if (needs[0]) g[0] = unbroadcast(where(mask, dy, zero), a.sizes());
                     if (needs[1]) g[1] = unbroadcast(where(mask, zero, dy), b.sizes());
                     return g;
                   });
}

}  // namespace

Tensor unbroadcast(const Tensor& g, const Dims& sizes) {
  if (g.sizes() == sizes) return g;
  const int lead = g.dim() - sizes.size();
  Dims summed;
  for (int d = 0; d < g.dim(); ++d)
    if (d < lead || (sizes[d - lead] == 1 && g.sizes()[d] != 1)) summed.push_back(d);
  return reshape(sum(g, summed, true), sizes);
}

Tensor add(const Tensor& a, const Tensor& b) { return sum_or_difference(Op::add, kernels::BinaryOp::add, a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return sum_or_difference(Op::sub, kernels::BinaryOp::sub, a, b); }

Tensor mul(const Tensor& a_in, const Tensor& b_in) {
  Tensor a = a_in, b = b_in;
  OpScope op(Op::mul, {&a, &b});
  return op.record(compute(op, a, b, kernels::BinaryOp::mul), {a, b}, {{"a", a}, {"b", b}},
                   [a, b](const Tensor& dy, std::span<const bool> needs) -> Gradients {
                     Gradients g(2);
                     if (needs[0]) g[0] = unbroadcast(mul(dy, b), a.sizes());
                     if (needs[1]) g[1] = unbroadcast(mul(dy, a), b.sizes());
                     return g;
                   });
}

Tensor div(const Tensor& a_in, const Tensor& b_in) {
  Tensor a = a_in, b = b_in;
  OpScope op(Op::div, {&a, &b});
  return op.record(compute(op, a, b, kernels::BinaryOp::div), {a, b}, {{"a", a}, {"b", b}},
                   [a, b](const Tensor& dy, std::span<const bool> needs) -> Gradients {
                     Gradients g(2);
                     const Tensor da = div(dy, b);
                     if (needs[0]) g[0] = unbroadcast(da, a.sizes());
                     if (needs[1]) g[1] = unbroadcast(neg(mul(da, div(a, b))), b.sizes());
                     return g;
                   });
}

Tensor minimum(const Tensor& a, const Tensor& b) { return extremum(Op::minimum, kernels::BinaryOp::minimum, le, a, b); }
Tensor maximum(const Tensor& a, const Tensor& b) { return extremum(Op::maximum, kernels::BinaryOp::maximum, ge, a, b); }

Tensor scale(const Tensor& x_in, double factor, double shift) {
  Tensor x = x_in;
  OpScope op(Op::scale, {&x});
  Tensor y = empty_like(x);
  kernels::scale_shift(x.context(), y.view(), x.view(), factor, shift);
  return op.record(y, {x}, {}, [factor](const Tensor& dy) -> Gradients { return {scale(dy, factor)}; });
}

Tensor where(const Tensor& condition_in, const Tensor& a_in, const Tensor& b_in) {
  Tensor condition = condition_in, a = a_in, b = b_in;
  OpScope op(Op::where, {&condition, &a, &b});
  const Dims sizes = broadcast_shapes(condition.sizes(), broadcast_shapes(a.sizes(), b.sizes(), "where"), "where");
  Tensor out = a.sizes() == sizes   ? empty_like(a)
               : b.sizes() == sizes ? empty_like(b)
                                    : empty(sizes, a.dtype(), a.device());
  kernels::where(out.context(), out.view(), condition.view(), a.view(), b.view());
  return op.record(
      out, {condition, a, b}, {{"condition", condition}},
      [condition, as = a.sizes(), bs = b.sizes()](const Tensor& dy, std::span<const bool> needs) -> Gradients {
        const Tensor zero = zeros({}, dy.dtype(), dy.device());
        Gradients g(3);
        if (needs[1]) g[1] = unbroadcast(where(condition, dy, zero), as);
        if (needs[2]) g[2] = unbroadcast(where(condition, zero, dy), bs);
        return g;
      });
}

namespace {
Tensor compared(const Tensor& a_in, const Tensor& b_in, kernels::CompareOp kind) {
  Tensor a = a_in, b = b_in;
  OpScope op(Op::compare, {&a, &b});
  Tensor out = broadcast_output(a, b, op.row().name, DType::boolean);
  kernels::compare(out.context(), out.view(), a.view(), b.view(), kind);
  return out;
}
}  // namespace

Tensor eq(const Tensor& a, const Tensor& b) { return compared(a, b, kernels::CompareOp::eq); }
Tensor ne(const Tensor& a, const Tensor& b) { return compared(a, b, kernels::CompareOp::ne); }
Tensor lt(const Tensor& a, const Tensor& b) { return compared(a, b, kernels::CompareOp::lt); }
Tensor le(const Tensor& a, const Tensor& b) { return compared(a, b, kernels::CompareOp::le); }
Tensor gt(const Tensor& a, const Tensor& b) { return compared(a, b, kernels::CompareOp::gt); }
Tensor ge(const Tensor& a, const Tensor& b) { return compared(a, b, kernels::CompareOp::ge); }

}  // namespace apex::nn::functional
