// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/contrib/optimizers/fused_sgd.hpp"

#include "../../optimizers/sgd_update.hpp"

namespace apex::contrib::optimizers {

using apex::optimizers::HyperMap;
using apex::optimizers::ParamGroup;

namespace {

HyperMap defaults_from(const SGDOptions& o) {
  return {{"lr", o.lr},
          {"momentum", o.momentum},
          {"dampening", o.dampening},
          {"weight_decay", o.weight_decay},
          {"nesterov", o.nesterov},
          {"wd_after_momentum", o.wd_after_momentum}};
}

}  // namespace

FusedSGD::FusedSGD(std::vector<Tensor> params, const SGDOptions& options)
    : FusedSGD(std::vector<ParamGroup>{{.params = std::move(params)}}, options) {}

FusedSGD::FusedSGD(std::vector<ParamGroup> groups, const SGDOptions& o)
    : WithArguments(defaults_from(o), {.set_grad_none = false}) {
  check_hyper(defaults_from(o));
  for (auto& group : groups) add_param_group(std::move(group));
}

void FusedSGD::check_hyper(const HyperMap& hyper) const {
  apex::optimizers::check_sgd_hyper("contrib.FusedSGD", hyper);
}

std::vector<apex::optimizers::Optimizer::StateKey> FusedSGD::state_keys(const Tensor& param) const {
  return {{.name = "momentum_buffer", .dtype = param.dtype()}};
}

void FusedSGD::step(const StepArguments& arguments) {
  for (const auto& [name, lists] : {std::pair("grads", &arguments.grads), {"output_params", &arguments.output_params}})
    if (lists->empty())
      fail(Kind::state, concat("contrib.FusedSGD: a step needs ", name, "; let FP16_Optimizer make the steps"));
  const Given given(*this, arguments);
  Optimizer::step(apex::optimizers::StepScaling{});
}

void FusedSGD::add_state(Bucket& bucket, const ParamGroup& group, const Tensor& param) {
  if (group.number("momentum") == 0.0) return;
  const bool first = !mutable_state(param).contains("momentum_buffer");
  const Tensor buffer = state_tensor(param, state_keys(param).front());
  bucket.kept.push_back(buffer);
  bucket.state.resize(1);
  bucket.state[0].push_back(buffer.view());
  bucket.first_run.push_back(first ? 1 : 0);
  buffer.raise_version();
}

void FusedSGD::update(const Bucket& bucket, const ParamGroup& group) {
  apex::optimizers::sgd_update(bucket, group, 1.0 / divisor(group));
}

}  // namespace apex::contrib::optimizers
