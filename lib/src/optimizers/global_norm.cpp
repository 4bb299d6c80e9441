// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "global_norm.hpp"

#include <algorithm>

#include "apex/kernels/copy.hpp"
#include "apex/kernels/elementwise.hpp"
#include "apex/kernels/multi_tensor.hpp"
#include "apex/kernels/multi_tensor_optimizers.hpp"
#include "apex/nn/functional.hpp"
#include "apex/tensor_ops.hpp"

namespace apex::optimizers {

namespace {

struct Part {
  Device device;
  DType dtype;
  std::vector<ConstView> tensors;
};

std::vector<Part> parts_of(const std::vector<Tensor>& tensors) {
  std::vector<Part> parts;
  for (const auto& t : tensors) {
    auto part = std::find_if(parts.begin(), parts.end(),
                             [&](const Part& p) { return p.device == t.device() && p.dtype == t.dtype(); });
    if (part == parts.end()) part = parts.insert(part, {.device = t.device(), .dtype = t.dtype(), .tensors = {}});
    part->tensors.push_back(t.view());
  }
  return parts;
}

/// The norm of one dtype on one device, into one element of that device.
void norm_of(const Part& part, const StepScaling& scaling, const Tensor& norm) {
  const auto ctx = Context::current(part.device);
  const Tensor flag = zeros({1}, DType::i32, part.device);
  if (scaling.inv_scale.defined()) {
    const Tensor inv_scale = nn::functional::to(scaling.inv_scale, part.device);
    kernels::multi_tensor_unscale_l2norm(ctx, flag.view(), norm.view(), View(), part.tensors, inv_scale.view());
  } else {
    kernels::multi_tensor_l2norm(ctx, flag.view(), norm.view(), View(), part.tensors);
  }
  if (scaling.grad_scale != 1.0) kernels::scale_shift(ctx, norm.view(), norm.view(), scaling.grad_scale);
}

DType norm_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace

void write_near(const Tensor& target, const Tensor& value) {
  const Tensor near = nn::functional::to(value, target.device());
  kernels::copy(target.context(), target.view(), near.view());
}

void global_norm(const std::vector<Tensor>& tensors, const StepScaling& scaling, Tensor& norm) {
  const auto parts = parts_of(tensors);
  const Device home = parts.front().device;
  const bool f64 = std::any_of(parts.begin(), parts.end(), [](const Part& p) { return p.dtype == DType::f64; });
  const DType dtype = f64 ? DType::f64 : DType::f32;
  if (!norm.defined() || norm.device() != home || norm.dtype() != dtype) norm = empty({1}, dtype, home);
  if (parts.size() == 1) return norm_of(parts.front(), scaling, norm);
  const Tensor all = empty({static_cast<std::int64_t>(parts.size())}, dtype, home);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Tensor one = empty({1}, norm_dtype(parts[i].dtype), parts[i].device);
    norm_of(parts[i], scaling, one);
    write_near(views::narrow(all, 0, static_cast<std::int64_t>(i), 1), one);
  }
  const Tensor flag = zeros({1}, DType::i32, home);
  const std::vector<ConstView> list{all.view()};
  kernels::multi_tensor_l2norm(Context::current(home), flag.view(), norm.view(), View(), list);
}

}  // namespace apex::optimizers
