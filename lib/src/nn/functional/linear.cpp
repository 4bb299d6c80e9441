// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/matmul.hpp"

#include "common.hpp"

namespace apex::nn::functional {

namespace {

Dims product_sizes(const char* op, const Tensor& a, const Tensor& b) {
  if (a.dim() < 2 || b.dim() < 2 || a.size(-1) != b.size(-2))
    fail(Kind::argument, concat(op, ": sizes ", a.sizes(), " and ", b.sizes(), " do not fit"));
  Dims left = a.sizes(), right = b.sizes();
  left[a.dim() - 1] = b.size(-1);
  right[b.dim() - 2] = a.size(-2);
  return broadcast_shapes(left, right, op);
}

/// x [..., features] as a matrix [rows, features].
Tensor as_rows(const Tensor& x) {
  if (x.dim() == 2) return x;
  std::int64_t rows = 1;
  for (int d = 0; d + 1 < x.dim(); ++d) rows *= x.sizes()[d];
  return reshape(x, {rows, x.size(-1)});
}

/// Gradients of a b with respect to a and b, made of recorded ops.
Tensor left_gradient(const Tensor& dc, const Tensor& a, const Tensor& b) {
  return unbroadcast(matmul(dc, transpose(b, -1, -2)), a.sizes());
}
Tensor right_gradient(const Tensor& dc, const Tensor& a, const Tensor& b) {
  if (b.dim() == 2 && a.dim() > 2)  // the product sums over the batch
    return matmul(transpose(as_rows(a), 0, 1), as_rows(dc));
  return unbroadcast(matmul(transpose(a, -1, -2), dc), b.sizes());
}

/// Out of differentiable ops.
Gradients linear_gradients(const Tensor& dy, const Tensor& x, const Tensor& weight, std::span<const bool> needs) {
  Gradients g(3);
  if (needs[0]) g[0] = matmul(dy, weight);
  if (needs[1]) g[1] = matmul(transpose(dy, 0, 1), x);
  if (needs[2]) g[2] = sum(dy, {0});
  return g;
}

Tensor linear_rows(const OpScope& op, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  Tensor y = empty({x.size(0), weight.size(0)}, x.dtype(), x.device());
  kernels::linear_forward(x.context(), y.view(), x.view(), weight.view(), bias.view());
  return op.record(y, {x, weight, bias}, {{"x", x}, {"weight", weight}},
                   [x, weight](const Tensor& dy_in, std::span<const bool> needs) -> Gradients {
                     if (grad_mode()) return linear_gradients(dy_in, x, weight, needs);
                     const Tensor dy = with_format(dy_in, MemoryFormat::contiguous);
                     Gradients g(3);
                     if (needs[0]) {
                       g[0] = empty(x.sizes(), x.dtype(), x.device());
                       kernels::linear_backward_data(dy.context(), g[0].view(), dy.view(), weight.view());
                     }
                     if (needs[1]) g[1] = empty(weight.sizes(), weight.dtype(), weight.device());
                     if (needs[2]) g[2] = empty({weight.size(0)}, weight.dtype(), weight.device());
                     if (needs[1] || needs[2])
                       kernels::linear_backward_weight(dy.context(), g[1].view(), g[2].view(), dy.view(), x.view());
                     return g;
                   });
}

}  // namespace

Tensor matmul(const Tensor& a_in, const Tensor& b_in) {
  if (a_in.defined() && b_in.defined() && (a_in.dim() == 1 || b_in.dim() == 1)) {  // a row, a column
    const Tensor a = a_in.dim() == 1 ? reshape(a_in, {1, a_in.size(0)}) : a_in,
                 b = b_in.dim() == 1 ? reshape(b_in, {b_in.size(0), 1}) : b_in, c = matmul(a, b);
    Dims sizes;
    for (int d = 0; d < c.dim(); ++d)
      if (!(d == c.dim() - 2 && a_in.dim() == 1) && !(d == c.dim() - 1 && b_in.dim() == 1)) sizes.push_back(c.size(d));
    return reshape(c, sizes);
  }
  Tensor a = a_in, b = b_in;
  OpScope op(Op::matmul, {&a, &b});
  if (!b.defined()) fail(Kind::argument, "matmul: b is an undefined tensor");
  Tensor c = empty(product_sizes("matmul", a, b), a.dtype(), a.device());
  kernels::matmul(c.context(), c.view(), a.view(), b.view());
  return op.record(c, {a, b}, {{"a", a}, {"b", b}}, [a, b](const Tensor& dc, std::span<const bool> needs) -> Gradients {
    return {needs[0] ? left_gradient(dc, a, b) : Tensor(), needs[1] ? right_gradient(dc, a, b) : Tensor()};
  });
}

Tensor bmm(const Tensor& a, const Tensor& b) {
  if (a.defined() && b.defined() && (a.dim() != 3 || b.dim() != 3 || a.size(0) != b.size(0)))
    fail(Kind::argument,
         concat("bmm: sizes ", a.sizes(), " and ", b.sizes(), ", wanted [batch, m, k] and [batch, k, n]"));
  return matmul(a, b);
}

Tensor baddbmm(const Tensor& input_in, const Tensor& a_in, const Tensor& b_in, double beta, double alpha) {
  Tensor input = input_in, a = a_in, b = b_in;
  OpScope op(Op::baddbmm, {&input, &a, &b});
  if (!a.defined() || !b.defined()) fail(Kind::argument, "baddbmm: a or b is an undefined tensor");
  if (input.dtype() != a.dtype())
    fail(Kind::argument, concat("baddbmm: input is ", input.dtype(), ", a is ", a.dtype()));
  const Dims sizes = product_sizes("baddbmm", a, b);
  Tensor c = empty(sizes, a.dtype(), a.device());
  broadcast_strides(input.sizes(), input.strides(), sizes, "baddbmm");  // a check, without beta too
  if (beta != 0.0) copy_of(views::expand(input, sizes), c);
  kernels::matmul(c.context(), c.view(), a.view(), b.view(), {.alpha = alpha, .beta = beta});
  return op.record(
      c, {input, a, b}, {{"a", a}, {"b", b}},
      [a, b, beta, alpha, from = input.sizes()](const Tensor& dc, std::span<const bool> needs) -> Gradients {
        Gradients g(3);
        if (needs[0]) g[0] = scale(unbroadcast(dc, from), beta);
        if (needs[1]) g[1] = scale(left_gradient(dc, a, b), alpha);
        if (needs[2]) g[2] = scale(right_gradient(dc, a, b), alpha);
        return g;
      });
}

Tensor linear(const Tensor& x_in, const Tensor& weight_in, const Tensor& bias_in) {
  Tensor x = x_in, weight = weight_in, bias = bias_in;
  OpScope op(Op::linear, {&x, &weight, &bias});
  if (x.dim() < 1 || weight.dim() != 2 || x.size(-1) != weight.size(1))
    fail(Kind::argument, concat("linear: x ", x.sizes(), " does not fit weight ", weight.sizes(), " [out, in]"));
  if (bias.defined() && (bias.dim() != 1 || bias.size(0) != weight.size(0)))
    fail(Kind::argument, concat("linear: bias ", bias.sizes(), " does not fit weight ", weight.sizes(), " [out, in]"));
  Tensor y = linear_rows(op, as_rows(x), weight, bias);
  if (x.dim() == 2) return y;
  Dims sizes = x.sizes();
  sizes[x.dim() - 1] = weight.size(0);
  return reshape(y, sizes);
}

}  // namespace apex::nn::functional
