// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/tensor_ops.hpp"
#include "common.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#endif

namespace apex::nn::functional {

Tensor reshape(const Tensor& x_in, const Dims& sizes) {
  Tensor x = x_in;
  OpScope op(Op::reshape, {&x});
  const Dims wanted = views::infer_sizes(sizes, x.numel());
  Tensor y = views::can_reshape(x, wanted)
                 ? views::reshape(x, wanted)
                 : views::reshape(copy_of(x, empty(x.sizes(), x.dtype(), x.device())), wanted);
  return op.record(y, {x}, {}, [from = x.sizes()](const Tensor& dy) -> Gradients { return {reshape(dy, from)}; });
}

Tensor flatten(const Tensor& x, int start, int end) {
  if (x.dim() == 0) return reshape(x, {1});
  const int first = wrap_dim(start, x.dim(), "flatten"), last = wrap_dim(end, x.dim(), "flatten");
  if (first > last) fail(Kind::argument, concat("flatten: dimensions ", start, " to ", end, " of sizes ", x.sizes()));
  Dims sizes, joined;
  for (int d = 0; d < x.dim(); ++d) {
    if (d < first || d > last) {
      sizes.push_back(x.sizes()[d]);
      continue;
    }
    joined.push_back(x.sizes()[d]);
    if (d == last) sizes.push_back(element_count(joined));
  }
  return reshape(x, sizes);
}

Tensor permute(const Tensor& x_in, const Dims& order) {
  Tensor x = x_in;
  OpScope op(Op::permute, {&x});
  Tensor y = views::permute(x, order);
  Dims back = Dims::filled(x.dim(), 0);
  for (int d = 0; d < x.dim(); ++d) back[static_cast<int>(order[d] < 0 ? order[d] + x.dim() : order[d])] = d;
  return op.record(y, {x}, {}, [back](const Tensor& dy) -> Gradients { return {permute(dy, back)}; });
}

Tensor transpose(const Tensor& x, int a, int b) {
  Dims order;
  for (int d = 0; d < x.dim(); ++d) order.push_back(d);
  std::swap(order[wrap_dim(a, x.dim(), "transpose")], order[wrap_dim(b, x.dim(), "transpose")]);
  return permute(x, order);
}

Tensor narrow(const Tensor& x_in, int dim, std::int64_t start, std::int64_t length) {
  Tensor x = x_in;
  OpScope op(Op::narrow, {&x});
  Tensor y = views::narrow(x, dim, start, length);
  return op.record(y, {x}, {}, [like = Like(x), dim, start, length](const Tensor& dy) -> Gradients {
    Tensor dx = like.zeros_beside(dy);
    copy_of(dy, views::narrow(dx, dim, start, length));
    return {record_linear("narrow", dx, dy, [=](const Tensor& g) { return narrow(g, dim, start, length); })};
  });
}

Tensor expand(const Tensor& x_in, const Dims& sizes) {
  Tensor x = x_in;
  OpScope op(Op::expand, {&x});
  Tensor y = views::expand(x, sizes);
  return op.record(y, {x}, {}, [from = x.sizes()](const Tensor& dy) -> Gradients { return {unbroadcast(dy, from)}; });
}

Tensor contiguous(const Tensor& x_in, MemoryFormat format) {
  Tensor x = x_in;
  OpScope op(Op::contiguous, {&x});
  Tensor y = with_format(x, format);
  if (y.is_same(x)) return x;
  return op.record(y, {x}, {}, [](const Tensor& dy) -> Gradients { return {dy}; });
}

Tensor cast(const Tensor& x_in, DType dtype) {
  Tensor x = x_in;
  OpScope op(Op::cast, {&x});
  if (x.dtype() == dtype) return x;
  Tensor y = copy_of(x, empty_like(x, dtype));
  if (!is_floating(dtype)) return y;
  return op.record(y, {x}, {}, [from = x.dtype()](const Tensor& dy) -> Gradients { return {cast(dy, from)}; });
}

Tensor to(const Tensor& x_in, Device device) {
  Tensor x = x_in;
  OpScope op(Op::to_device, {&x});
  if (x.device() == device) return x;
  if (!has_cuda) throw_not_built("to", device.is_cuda() ? device : x.device());
  const Device home = x.device();
  Tensor y = empty_like(x, x.dtype(), device);
#ifdef APEX_HAS_CUDA
  if (home.is_cuda() && device.is_cuda()) {  // queued on the receiver's stream, after what makes x
    cuda::order(x.context(), y.context());
    cuda::record_use(x.storage(), y.context());
  }
#endif
  kernels::transfer(device.is_cuda() ? y.context() : x.context(), y.view(), x.view());
#ifdef APEX_HAS_CUDA
  // From page-locked memory the copy is only queued, and the caller may let go of x.
  if (home.is_cpu()) cuda::synchronize(y.context());
#endif
  return op.record(y, {x}, {}, [home](const Tensor& dy) -> Gradients { return {to(dy, home)}; });
}

}  // namespace apex::nn::functional
