// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "conv_gradients.hpp"

#include "apex/kernels/conv.hpp"

namespace apex::nn::functional {

namespace {

// y = conv(x, w), dx = data(dy, w), dw = filter(dy, x): each is linear in both of its arguments, and
//   <y, dy> = <x, data(dy, w)> = <w, filter(dy, x)>
// gives the gradients of each in terms of the other two.

Tensor filter_gradient(const Tensor& dy, const Tensor& x, const Tensor& weight, const Conv2dOptions& options);

/// dx. `x` gives sizes and format.
Tensor data_gradient(const Tensor& dy, const Tensor& weight, const Tensor& x, const Conv2dOptions& options) {
  const Tensor like = dense(x), kernel = dense(weight);
  Tensor dx = empty_like(like);
  kernels::conv2d_backward_data(dy.context(), dx.view(), with_format(dy, like.memory_format()).view(), kernel.view(),
                                options);
  return record(dx, {.name = "conv2d",
                     .inputs = {dy, weight},
                     .saved = {{"dy", dy}, {"weight", weight}},
                     .backward = [=](const Tensor& g, std::span<const bool> needs) -> Gradients {
                       Gradients out(2);
                       if (needs[0]) out[0] = conv2d(g, weight, {}, options);
                       if (needs[1]) out[1] = filter_gradient(dy, g, weight, options);
                       return out;
                     },
                     .double_differentiable = true});
}

/// dw. `weight` gives sizes and format.
Tensor filter_gradient(const Tensor& dy, const Tensor& x, const Tensor& weight, const Conv2dOptions& options) {
  const Tensor image = dense(x);
  Tensor dw = empty_like(dense(weight));
  kernels::conv2d_backward_weight(dy.context(), dw.view(), {}, with_format(dy, image.memory_format()).view(),
                                  image.view(), options);
  return record(dw, {.name = "conv2d",
                     .inputs = {dy, x},
                     .saved = {{"dy", dy}, {"x", x}},
                     .backward = [=](const Tensor& g, std::span<const bool> needs) -> Gradients {
                       Gradients out(2);
                       if (needs[0]) out[0] = conv2d(x, g, {}, options);
                       if (needs[1]) out[1] = data_gradient(dy, g, x, options);
                       return out;
                     },
                     .double_differentiable = true});
}

}  // namespace

Gradients conv2d_gradients(const Tensor& dy, const Tensor& x, const Tensor& weight, const Conv2dOptions& options,
                           std::span<const bool> needs) {
  Gradients g(3);
  if (needs[0]) g[0] = data_gradient(dy, weight, x, options);
  if (needs[1]) g[1] = filter_gradient(dy, x, weight, options);
  if (needs[2]) g[2] = sum(dy, {0, 2, 3});
  return g;
}

}  // namespace apex::nn::functional
