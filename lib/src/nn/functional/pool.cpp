// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/pool.hpp"

#include "common.hpp"

namespace apex::nn::functional {

namespace {

void check_rank(const OpScope& op, const Tensor& x) {
  if (x.dim() != 4) fail(Kind::argument, concat(op.row().name, ": x of sizes ", x.sizes(), " is not [N, C, H, W]"));
}

}  // namespace

Tensor max_pool2d(const Tensor& x_in, const PoolOptions& pool) {
  Tensor source = x_in;
  OpScope op(Op::max_pool2d, {&source});
  check_rank(op, source);
  const Tensor x = dense(source);
  const kernels::Pool2dOptions options{
      .kernel = pool.kernel, .stride = pool.stride, .padding = pool.padding, .ceil_mode = pool.ceil_mode};
  const Like like(x);
  Tensor y = empty(kernels::pool2d_output_sizes(x.sizes(), options), x.dtype(), x.device(), like.format);
  const bool differentiate = grad_mode() && requires_grad(source);
  Tensor indices = differentiate ? empty_like(y, DType::i32) : Tensor();
  kernels::max_pool2d(x.context(), y.view(), indices.view(), x.view(), options);
  return op.record(y, {source}, {{"indices", indices}}, [indices, options, like](const Tensor& dy) -> Gradients {
    Tensor dx = like.empty_beside(dy);
    kernels::max_pool2d_backward(dy.context(), dx.view(), with_strides_of(dy, indices).view(), indices.view(), options);
    return {dx};
  });
}

Tensor avg_pool2d(const Tensor& x_in, const AvgPoolOptions& options) {
  Tensor source = x_in;
  OpScope op(Op::avg_pool2d, {&source});
  check_rank(op, source);
  const Tensor x = dense(source);
  const Like like(x);
  Tensor y = empty(kernels::pool2d_output_sizes(x.sizes(), options), x.dtype(), x.device(), like.format);
  kernels::avg_pool2d(x.context(), y.view(), x.view(), options);
  return op.record(y, {source}, {}, [options, like](const Tensor& dy) -> Gradients {
    Tensor dx = like.empty_beside(dy);
    kernels::avg_pool2d_backward(dy.context(), dx.view(), with_format(dy, like.format).view(), options);
    return {record_linear("avg_pool2d", dx, dy, [options](const Tensor& g) { return avg_pool2d(g, options); })};
  });
}

Tensor adaptive_avg_pool2d(const Tensor& x_in, std::array<std::int64_t, 2> output) {
  Tensor source = x_in;
  OpScope op(Op::adaptive_avg_pool2d, {&source});
  check_rank(op, source);
  if (output[0] < 1 || output[1] < 1)
    fail(Kind::argument, concat("adaptive_avg_pool2d: output ", output[0], " x ", output[1], " must be positive"));
  const Tensor x = dense(source);
  const Like like(x);
  Tensor y = empty({x.size(0), x.size(1), output[0], output[1]}, x.dtype(), x.device(), like.format);
  kernels::adaptive_avg_pool2d(x.context(), y.view(), x.view());
  return op.record(y, {source}, {}, [like, output](const Tensor& dy) -> Gradients {
    Tensor dx = like.empty_beside(dy);
    kernels::adaptive_avg_pool2d_backward(dy.context(), dx.view(), with_format(dy, like.format).view());
    return {record_linear("adaptive_avg_pool2d", dx, dy,
                          [output](const Tensor& g) { return adaptive_avg_pool2d(g, output); })};
  });
}

}  // namespace apex::nn::functional
