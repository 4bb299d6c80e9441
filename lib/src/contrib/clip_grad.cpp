// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/contrib/clip_grad.hpp"

#include <algorithm>
#include <cmath>

#include "../optimizers/global_norm.hpp"
#include "apex/autograd.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/kernels/elementwise.hpp"
#include "apex/kernels/multi_tensor_optimizers.hpp"
#include "apex/kernels/reduce.hpp"
#include "apex/nn/functional.hpp"
#include "apex/tensor_ops.hpp"

namespace apex::contrib::clip_grad {

namespace {

using optimizers::write_near;

bool is_wide(const std::vector<Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return t.dtype() == DType::f64; });
}

/// x = x^exponent for a one-element tensor.
void raise(const Tensor& x, double exponent) {
  const Tensor by = full(x.sizes(), exponent, x.dtype(), x.device());
  kernels::binary(x.context(), x.view(), x.view(), by.view(), kernels::BinaryOp::pow);
}

/// The norm of each tensor, or its p-th power, on the device of the first: a row of numbers.
template <class F>
Tensor row_of(const std::vector<Tensor>& tensors, F&& each) {
  const DType dtype = is_wide(tensors) ? DType::f64 : DType::f32;
  const Tensor row = empty({static_cast<std::int64_t>(tensors.size())}, dtype, tensors.front().device());
  for (std::size_t i = 0; i < tensors.size(); ++i)
    write_near(views::narrow(row, 0, static_cast<std::int64_t>(i), 1), each(tensors[i]));
  return row;
}

Tensor largest(const std::vector<Tensor>& tensors) {
  const auto of = [](const Tensor& t) {
    const Tensor flag = zeros({1}, DType::i32, t.device());
    const Tensor norm = empty({1}, t.dtype() == DType::f64 ? DType::f64 : DType::f32, t.device());
    const std::vector<ConstView> list{t.view()};
    kernels::multi_tensor_max_norm(t.context(), flag.view(), norm.view(), View(), list);
    return norm;
  };
  return of(row_of(tensors, of));
}

/// Sum of the p-th powers of all magnitudes.
Tensor power_sum(const std::vector<Tensor>& tensors, double p) {
  const Tensor row = row_of(tensors, [&](const Tensor& t) {
    const DType dtype = t.dtype() == DType::f64 ? DType::f64 : DType::f32;
    const Tensor x = empty_like(t, dtype), sum = zeros({1}, dtype, t.device());
    if (t.numel() == 0) return sum;
    const auto ctx = t.context();
    kernels::copy(ctx, x.view(), t.view());
    kernels::unary(ctx, x.view(), x.view(), kernels::UnaryOp::abs);
    if (p != 1.0) {
      const Tensor by = views::expand(full(Dims::filled(x.dim(), 1), p, dtype, t.device()), x.sizes());
      kernels::binary(ctx, x.view(), x.view(), by.view(), kernels::BinaryOp::pow);
    }
    const Tensor flat = views::as_strided(x, {x.numel()}, {1}, x.storage_offset());
    kernels::reduce(ctx, sum.view(), flat.view(), {0}, kernels::ReduceOp::sum);
    return sum;
  });
  const Tensor total = empty({1}, row.dtype(), row.device());
  kernels::reduce(row.context(), total.view(), row.view(), {0}, kernels::ReduceOp::sum);
  return total;
}

Tensor norm_of(const std::vector<Tensor>& gradients, const ClipGradOptions& options) {
  const double p = options.norm_type;
  if (std::isinf(p)) {
    const Tensor norm = largest(gradients);
    if (options.group) options.group.all_reduce(norm, dist::ReduceOp::max, "clip_grad_norm_").wait();
    return norm;
  }
  Tensor norm;
  if (p == 2.0) {
    optimizers::global_norm(gradients, {}, norm);
    if (!options.group) return norm;
    raise(norm, 2.0);
  } else {
    norm = power_sum(gradients, p);
  }
  if (options.group) options.group.all_reduce(norm, dist::ReduceOp::sum, "clip_grad_norm_").wait();
  raise(norm, 1.0 / p);
  return norm;
}

/// All gradients of one dtype and device in one call.
void scale_all(std::vector<Tensor> gradients, const Tensor& norm, double max_norm) {
  while (!gradients.empty()) {
    const Device device = gradients.front().device();
    const DType dtype = gradients.front().dtype();
    std::vector<View> list;
    std::erase_if(gradients, [&](const Tensor& g) {
      if (g.device() != device || g.dtype() != dtype) return false;
      g.raise_version();
      list.push_back(g.view());
      return true;
    });
    const Tensor near = empty({1}, dtype == DType::f64 ? DType::f64 : DType::f32, device);
    write_near(near, norm);
    kernels::multi_tensor_clip(Context::current(device), list, near.view(), max_norm);
  }
}

}  // namespace

Tensor clip_grad_norm_(const std::vector<Tensor>& params, double max_norm, const ClipGradOptions& options) {
  if (!(max_norm >= 0.0)) fail(Kind::argument, concat("clip_grad_norm_: max_norm ", max_norm, " is not a number >= 0"));
  if (!(options.norm_type > 0.0))
    fail(Kind::argument, concat("clip_grad_norm_: norm_type ", options.norm_type, " is not a number above 0"));
  const NoGradGuard no_grad;
  std::vector<Tensor> gradients;
  for (const auto& p : params)
    if (const Tensor g = grad(p); g.defined()) gradients.push_back(g);
  Tensor norm;
  if (gradients.empty()) {
    if (!options.group) return zeros({});
    // The others of the group wait for this rank's part, which is nothing.
    gradients.push_back(zeros({1}, DType::f32, params.empty() ? kCpu : params.front().device()));
  }
  norm = norm_of(gradients, options);
  if (options.error_if_nonfinite && !std::isfinite(norm.item()))
    fail(Kind::numerical, concat("clip_grad_norm_: the norm of order ", options.norm_type, " of the gradients is ",
                                 norm.item(), ", so they cannot be clipped; nothing was changed"));
  scale_all(gradients, norm, max_norm);
  return views::reshape(norm, {});
}

Tensor clip_grad_norm_(const Tensor& param, double max_norm, const ClipGradOptions& options) {
  return clip_grad_norm_(std::vector<Tensor>{param}, max_norm, options);
}

}  // namespace apex::contrib::clip_grad
