// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/optimizers/fused_adagrad.hpp"

#include "common.hpp"

namespace apex::optimizers {

namespace {

HyperMap defaults_from(const AdagradOptions& o) {
  return {{"lr", o.lr}, {"eps", o.eps}, {"weight_decay", o.weight_decay}, {"adagrad_w_mode", o.adagrad_w_mode}};
}

}  // namespace

FusedAdagrad::FusedAdagrad(std::vector<Tensor> params, const AdagradOptions& options)
    : FusedAdagrad(std::vector<ParamGroup>{{.params = std::move(params)}}, options) {}

FusedAdagrad::FusedAdagrad(std::vector<ParamGroup> groups, const AdagradOptions& o)
    : Optimizer(defaults_from(o),
                {.set_grad_none = o.set_grad_none, .master_weights = o.master_weights, .capturable = o.capturable}),
      lr_decay_(o.lr_decay),
      initial_(o.initial_accumulator_value) {
  check_not_negative("FusedAdagrad", {{"lr_decay", lr_decay_}, {"initial_accumulator_value", initial_}},
                     {"lr_decay", "initial_accumulator_value"});
  if (lr_decay_ != 0.0 && o.capturable)
    fail(Kind::argument,
         concat("FusedAdagrad: lr_decay ", lr_decay_,
                " is applied on the host, so the optimizer cannot be capturable; let a schedule do it"));
  check_hyper(defaults_from(o));
  for (auto& group : groups) add_param_group(std::move(group));
}

HyperMap FusedAdagrad::options() const {
  auto out = Optimizer::options();
  out["lr_decay"] = lr_decay_;
  out["initial_accumulator_value"] = initial_;
  return out;
}

void FusedAdagrad::check_hyper(const HyperMap& hyper) const {
  check_not_negative("FusedAdagrad", hyper, {"lr", "eps", "weight_decay"});
}

std::vector<Optimizer::StateKey> FusedAdagrad::state_keys(const Tensor& param) const {
  return {{.name = "sum", .dtype = wide(param), .initial = initial_}};
}

void FusedAdagrad::update(const Bucket& bucket, const ParamGroup& group) {
  kernels::AdagradOptions options;
  options.in = inputs_of(bucket);
  options.lr = group.number("lr");
  if (lr_decay_ != 0.0) {
    if (bucket.lr.defined())
      fail(Kind::unsupported, "FusedAdagrad: lr_decay does not go with a learning rate on the device");
    options.lr /= 1.0 + static_cast<double>(bucket.step - 1) * lr_decay_;
  }
  options.eps = group.number("eps");
  options.weight_decay = group.number("weight_decay");
  options.adagrad_w_mode = group.flag("adagrad_w_mode");
  kernels::multi_tensor_adagrad(Context::current(bucket.device), bucket.weights, bucket.state[0], bucket.copies,
                                bucket.grads, options);
}

}  // namespace apex::optimizers
