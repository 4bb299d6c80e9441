// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/contrib/optimizers/step_arguments.hpp"

#include "apex/autograd.hpp"

namespace apex::contrib::optimizers {

namespace {

using Lists = std::vector<std::vector<Tensor>>;

void check_lists(const apex::optimizers::Optimizer& optimizer, const char* name, const Lists& lists) {
  const auto& groups = optimizer.groups();
  if (lists.size() != groups.size())
    fail(Kind::argument, concat(optimizer.type(), ": ", name, " for ", lists.size(), " of ", groups.size(), " groups"));
  for (std::size_t g = 0; g < groups.size(); ++g)
    if (lists[g].size() != groups[g].params.size())
      fail(Kind::argument, concat(optimizer.type(), ": ", lists[g].size(), ' ', name, " for the ",
                                  groups[g].params.size(), " parameters of group ", g));
}

}  // namespace

WithArguments::Given::Given(WithArguments& optimizer, const StepArguments& arguments) : optimizer_(optimizer) {
  if (!(arguments.scale > 0.0))
    fail(Kind::argument, concat(optimizer.type(), ": scale ", arguments.scale, " is not a number above 0"));
  const auto& groups = optimizer.groups();
  const auto take = [&](const char* name, const Lists& lists, auto& into) {
    if (lists.empty()) return;
    check_lists(optimizer, name, lists);
    for (std::size_t g = 0; g < groups.size(); ++g)
      for (std::size_t i = 0; i < groups[g].params.size(); ++i) into[groups[g].params[i].id()] = lists[g][i];
  };
  std::unordered_map<const void*, Tensor> grads, outputs;
  take("grads", arguments.grads, grads);
  take("output_params", arguments.output_params, outputs);
  optimizer.grads_ = std::move(grads);
  optimizer.outputs_ = std::move(outputs);
  optimizer.handed_ = !arguments.grads.empty();
  optimizer.divisors_.assign(groups.size(), arguments.scale);
}

WithArguments::Given::~Given() {
  optimizer_.grads_.clear();
  optimizer_.outputs_.clear();
  optimizer_.divisors_.clear();
  optimizer_.handed_ = false;
}

Tensor WithArguments::gradient_of(const Tensor& param) const {
  if (!handed_) return grad(param);
  const auto found = grads_.find(param.id());
  return found == grads_.end() ? Tensor() : found->second;
}

Tensor WithArguments::copy_of(const Tensor& param) const {
  const auto found = outputs_.find(param.id());
  return found == outputs_.end() ? Tensor() : found->second;
}

double WithArguments::divisor(const apex::optimizers::ParamGroup& group) const {
  const auto index = static_cast<std::size_t>(&group - groups().data());
  return index < divisors_.size() ? divisors_[index] : 1.0;
}

}  // namespace apex::contrib::optimizers
