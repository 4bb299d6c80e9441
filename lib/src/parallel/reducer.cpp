// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/parallel/reducer.hpp"

#include <algorithm>

#include "apex/autograd.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/parallel/flatten.hpp"
#include "apex/tensor_ops.hpp"
#include "ddp_setup.hpp"
#include "gradient_bucket.hpp"

namespace apex::parallel {
namespace {

dist::ProcessGroup ddp_channel(const dist::ProcessGroup& group) {
  return (group ? group : dist::ProcessGroup::world()).channel(dist::Purpose::ddp);
}

}  // namespace

Reducer::Reducer(std::shared_ptr<nn::Module> module, const dist::ProcessGroup& group)
    : group_(ddp_channel(group)), module_(std::move(module)) {
  if (!module_) fail(Kind::argument, "Reducer: the module is null");
  detail::check_same_parameters(module_->named_parameters(), group_);
  const auto parameters = module_->parameters();
  detail::broadcast_coalesced(parameters, 0, group_, "initial parameters");
  for (const Tensor& p : parameters) p.raise_version();
}

Reducer::Reducer(std::vector<Tensor> tensors, const dist::ProcessGroup& group)
    : group_(ddp_channel(group)), tensors_(std::move(tensors)) {
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    if (!tensors_[i].defined()) fail(Kind::argument, concat("Reducer: tensor ", i, " is undefined"));
}

void Reducer::reduce() {
  std::vector<Tensor> targets = tensors_;
  if (module_) {
    const auto parameters = module_->parameters();
    const Tensor used = zeros({static_cast<std::int64_t>(parameters.size())}, DType::u8);
    for (std::size_t i = 0; i < parameters.size(); ++i) used.data<std::uint8_t>()[i] = grad(parameters[i]).defined();
    group_.in_stream().all_reduce(used, dist::ReduceOp::max, "gradients that exist").wait();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (used.data<std::uint8_t>()[i] == 0) continue;
      if (!grad(parameters[i]).defined()) set_grad(parameters[i], zeros_like(parameters[i]));
      targets.push_back(grad(parameters[i]));
    }
  }
  std::vector<DType> dtypes;
  for (const Tensor& t : targets)
    if (std::find(dtypes.begin(), dtypes.end(), t.dtype()) == dtypes.end()) dtypes.push_back(t.dtype());
  for (const DType dtype : dtypes) {
    std::vector<Tensor> list;
    for (const Tensor& t : targets)
      if (t.dtype() == dtype) list.push_back(t);
    const Tensor flat = flatten(list);
    group_.in_stream().all_reduce(flat, dist::ReduceOp::avg, "reducer").wait();
    const auto parts = unflatten(flat, list);
    for (std::size_t i = 0; i < list.size(); ++i)
      if (list[i].numel() > 0) kernels::copy(flat.context(), list[i].view(), parts[i].view());
  }
}

}  // namespace apex::parallel
