// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/tensor_ops.hpp"

#include "apex/autograd.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/kernels/elementwise.hpp"

namespace apex {

namespace {

void check_writable(const Tensor& t, const char* op) {
  if (grad_mode() && requires_grad(t))
    fail(Kind::state, concat(op, ": a tensor that requires a gradient is written in place; do it under a NoGradGuard, ",
                             "on detach(), or use the op without the underscore"));
}

Tensor filled(Tensor t, double value) {
  kernels::fill(t.context(), t.view(), value);
  return t;
}

}  // namespace

Tensor full(const Dims& sizes, double value, DType dtype, Device device, MemoryFormat format) {
  return filled(empty(sizes, dtype, device, format), value);
}
Tensor zeros(const Dims& sizes, DType dtype, Device device, MemoryFormat format) {
  return full(sizes, 0.0, dtype, device, format);
}
Tensor ones(const Dims& sizes, DType dtype, Device device, MemoryFormat format) {
  return full(sizes, 1.0, dtype, device, format);
}
Tensor arange(std::int64_t count, DType dtype, Device device, double start, double step) {
  Tensor t = empty({count}, dtype, device);
  kernels::arange(t.context(), t.view(), start, step);
  return t;
}
Tensor zeros_like(const Tensor& like) { return filled(empty_like(like), 0.0); }
Tensor ones_like(const Tensor& like) { return filled(empty_like(like), 1.0); }

Tensor clone(const Tensor& t) {
  Tensor out = empty_like(t);
  kernels::copy(t.context(), out.view(), t.view());
  return out;
}

Tensor to_format(const Tensor& t, MemoryFormat format) {
  const bool ranked = t.dim() == 4 || t.dim() == 5;
  if (!ranked) format = MemoryFormat::contiguous;
  if (t.is_contiguous(format))
    return views::as_strided(t, t.sizes(), strides_for(t.sizes(), format), t.storage_offset());
  Tensor out = empty(t.sizes(), t.dtype(), t.device(), format);
  kernels::copy(t.context(), out.view(), t.view());
  return out;
}

void copy_(const Tensor& t, const Tensor& source) {
  check_writable(t, "copy_");
  if (t.device() != source.device())
    fail(Kind::argument, concat("copy_: from ", source.device(), " to ", t.device(), " needs to() first"));
  // The kernel takes no source that shares memory with what it writes, unless both are the same view.
  const bool shares =
      t.storage() == source.storage() && !(t.storage_offset() == source.storage_offset() &&
                                           t.sizes() == source.sizes() && t.strides() == source.strides());
  kernels::copy(t.context(), t.view(), (shares ? clone(source) : source).view());
  t.raise_version();
}

void fill_(const Tensor& t, double value) {
  check_writable(t, "fill_");
  kernels::fill(t.context(), t.view(), value);
  t.raise_version();
}

void add_(const Tensor& t, const Tensor& other, double alpha) {
  check_writable(t, "add_");
  kernels::add_scaled(t.context(), t.view(), t.view(), alpha, other.view());
  t.raise_version();
}

void mul_(const Tensor& t, double factor) {
  check_writable(t, "mul_");
  kernels::scale_shift(t.context(), t.view(), t.view(), factor);
  t.raise_version();
}

}  // namespace apex
