// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/optimizers/fused_sgd.hpp"

#include "sgd_update.hpp"

namespace apex::optimizers {

namespace {

constexpr const char* kBuffer = "momentum_buffer";

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

FusedSGD::FusedSGD(std::vector<ParamGroup> groups, const SGDOptions& options)
    : Optimizer(defaults_from(options), {.set_grad_none = options.set_grad_none,
                                         .master_weights = options.master_weights,
                                         .capturable = options.capturable}),
      materialize_master_grads_(options.materialize_master_grads) {
  check_hyper(defaults_from(options));
  for (auto& group : groups) add_param_group(std::move(group));
}

HyperMap FusedSGD::options() const {
  auto out = Optimizer::options();
  out["materialize_master_grads"] = materialize_master_grads_;
  return out;
}

void FusedSGD::check_hyper(const HyperMap& hyper) const { check_sgd_hyper("FusedSGD", hyper); }

std::vector<Optimizer::StateKey> FusedSGD::state_keys(const Tensor& param) const {
  return {{.name = kBuffer, .dtype = has_master(param) ? DType::f32 : param.dtype()}};
}

void FusedSGD::init_state() {
  Optimizer::init_state();
  for (const auto& group : groups())
    if (group.number("momentum") == 0.0 || group.number("dampening") != 0.0)
      for (const auto& p : group.params) mutable_state(p).erase(kBuffer);
}

void FusedSGD::add_state(Bucket& bucket, const ParamGroup& group, const Tensor& param) {
  if (group.number("momentum") == 0.0) return;
  const double dampening = group.number("dampening");
  auto& state = mutable_state(param);
  bool first = !state.contains(kBuffer);
  const Tensor buffer = state_tensor(param, state_keys(param).front());  // zeros when it is new
  // On a device nobody knows yet whether this first step will be skipped. Zeros make the next one a first step just the
  // same, as long as the gradient enters undamped; with dampening this step waits for the answer.
  const Tensor& found_inf = bucket.scaling.found_inf;
  if (first && found_inf.defined() && !param.device().is_cpu()) {
    if (dampening == 0.0)
      first = false;
    else if (found_inf.item() != 0.0)
      state.erase(kBuffer);  // skipped: the kernel leaves it alone, and it is not kept
  }
  bucket.kept.push_back(buffer);
  bucket.state.resize(1);
  bucket.state[0].push_back(buffer.view());
  bucket.first_run.push_back(first ? 1 : 0);
  buffer.raise_version();
}

void FusedSGD::update(const Bucket& bucket, const ParamGroup& group) { sgd_update(bucket, group); }

}  // namespace apex::optimizers
