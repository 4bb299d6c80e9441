// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/conv.hpp"
#include "apex/kernels/matmul.hpp"
#include "common.hpp"

namespace apex::nn::functional {

namespace {

Dims product_sizes(const Tensor& a, const Tensor& b) {
  const int rank = a.dim();
  const bool fits = (rank == 2 || rank == 3) && b.dim() == rank && a.size(-1) == b.size(-2) &&
                    (rank == 2 || a.size(0) == b.size(0) || a.size(0) == 1 || b.size(0) == 1);
  if (!fits) fail(Kind::argument, concat("matmul: sizes ", a.sizes(), " and ", b.sizes(), " do not fit"));
  if (rank == 2) return {a.size(0), b.size(1)};
  return {a.size(0) == 1 ? b.size(0) : a.size(0), a.size(1), b.size(2)};
}

/// x [..., features] as a matrix [rows, features].
Tensor as_rows(const Tensor& x) {
  if (x.dim() == 2) return x;
  std::int64_t rows = 1;
  for (int d = 0; d + 1 < x.dim(); ++d) rows *= x.sizes()[d];
  return reshape(x, {rows, x.size(-1)});
}

Tensor linear_rows(const OpScope& op, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  Tensor y = empty({x.size(0), weight.size(0)}, x.dtype(), x.device());
  kernels::linear_forward(x.context(), y.view(), x.view(), weight.view(), bias.view());
  return op.record(y, {x, weight, bias}, {{"x", x}, {"weight", weight}},
                   [x, weight](const Tensor& dy_in, std::span<const bool> needs) -> Gradients {
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
  Tensor a = a_in, b = b_in;
  OpScope op(Op::matmul, {&a, &b});
  Tensor c = empty(product_sizes(a, b), a.dtype(), a.device());
  kernels::matmul(c.context(), c.view(), a.view(), b.view());
  return op.record(c, {a, b}, {{"a", a}, {"b", b}}, [a, b](const Tensor& dc, std::span<const bool> needs) -> Gradients {
    Gradients g(2);
    if (needs[0]) g[0] = unbroadcast(matmul(dc, transpose(b, -1, -2)), a.sizes());
    if (needs[1]) g[1] = unbroadcast(matmul(transpose(a, -1, -2), dc), b.sizes());
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

Tensor conv2d(const Tensor& x_in, const Tensor& weight_in, const Tensor& bias_in, const Conv2dOptions& options) {
  Tensor x = x_in, weight = weight_in, bias = bias_in;
  OpScope op(Op::conv2d, {&x, &weight, &bias});
  const Tensor image = dense(x), kernel = dense(weight);
  const Tensor shift = bias.defined() ? dense(bias) : Tensor();
  const MemoryFormat format = image.memory_format();
  Tensor y = empty(kernels::conv2d_output_sizes(image.sizes(), kernel.sizes(), options), x.dtype(), x.device(), format);
  kernels::conv2d_forward(x.context(), y.view(), image.view(), kernel.view(), shift.view(), options);
  return op.record(y, {x, weight, bias}, {{"x", image}, {"weight", kernel}},
                   [image, kernel, options, format](const Tensor& dy_in, std::span<const bool> needs) -> Gradients {
                     const Tensor dy = with_format(dy_in, format);
                     Gradients g(3);
                     if (needs[1]) g[1] = empty_like(kernel);
                     if (needs[2]) g[2] = empty({kernel.size(0)}, kernel.dtype(), kernel.device());
                     if (needs[1] || needs[2])
                       kernels::conv2d_backward_weight(dy.context(), g[1].view(), g[2].view(), dy.view(), image.view(),
                                                       options);
                     if (needs[0]) {
                       g[0] = empty_like(image);
                       kernels::conv2d_backward_data(dy.context(), g[0].view(), dy.view(), kernel.view(), options);
                     }
                     return g;
                   });
}

}  // namespace apex::nn::functional
