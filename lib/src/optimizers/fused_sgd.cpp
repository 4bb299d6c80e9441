// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/optimizers/fused_sgd.hpp"

#include <cmath>

#include "apex/kernels/multi_tensor.hpp"

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
                                         .capturable = options.capturable}) {
  check_hyper(defaults_from(options));
  for (auto& group : groups) add_param_group(std::move(group));
}

void FusedSGD::check_hyper(const HyperMap& hyper) const {
  const ParamGroup group{.params = {}, .hyper = hyper};
  for (const char* key : {"lr", "momentum", "weight_decay"})
    if (!(group.number(key) >= 0.0) || std::isinf(group.number(key)))
      fail(Kind::argument, concat("FusedSGD: ", key, ' ', group.number(key), " is not a finite number >= 0"));
  if (!std::isfinite(group.number("dampening")))
    fail(Kind::argument, concat("FusedSGD: dampening ", group.number("dampening"), " is not finite"));
  if (group.flag("nesterov") && (group.number("momentum") <= 0.0 || group.number("dampening") != 0.0))
    fail(Kind::argument, concat("FusedSGD: nesterov needs momentum > 0 and dampening 0, not ", group.number("momentum"),
                                " and ", group.number("dampening")));
}

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

void FusedSGD::update(const Bucket& bucket, const ParamGroup& group) {
  kernels::SgdOptions options;
  options.lr = group.number("lr");
  options.momentum = group.number("momentum");
  options.dampening = group.number("dampening");
  options.weight_decay = group.number("weight_decay");
  options.nesterov = group.flag("nesterov");
  options.wd_after_momentum = group.flag("wd_after_momentum");
  options.lr_on_device = bucket.lr.view();
  options.inv_scale = bucket.scaling.inv_scale.view();
  options.scale = bucket.scaling.grad_scale;
  View flag;
  if (bucket.scaling.found_inf.defined()) {
    if (bucket.scaling.found_inf.dtype() == DType::i32)
      flag = bucket.scaling.found_inf.view();
    else
      options.found_inf = bucket.scaling.found_inf.view();
  }
  const std::vector<View> none;
  kernels::multi_tensor_sgd(Context::current(bucket.device), flag, bucket.weights,
                            bucket.state.empty() ? none : bucket.state[0], bucket.copies, bucket.grads,
                            bucket.first_run, options);
}

}  // namespace apex::optimizers
