// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/optimizers/fused_novograd.hpp"

#include "common.hpp"

namespace apex::optimizers {

namespace {

HyperMap defaults_from(const NovoGradOptions& o) {
  return {{"lr", o.lr},
          {"beta1", o.beta1},
          {"beta2", o.beta2},
          {"eps", o.eps},
          {"weight_decay", o.weight_decay},
          {"bias_correction", o.bias_correction},
          {"grad_averaging", o.grad_averaging},
          {"reg_inside_moment", o.reg_inside_moment}};
}

}  // namespace

FusedNovoGrad::FusedNovoGrad(std::vector<Tensor> params, const NovoGradOptions& options)
    : FusedNovoGrad(std::vector<ParamGroup>{{.params = std::move(params)}}, options) {}

FusedNovoGrad::FusedNovoGrad(std::vector<ParamGroup> groups, const NovoGradOptions& o)
    : Optimizer(defaults_from(o), {.set_grad_none = o.set_grad_none,
                                   .master_weights = o.master_weights,
                                   .capturable = o.capturable,
                                   .group_step = o.group_step}),
      norm_type_(o.norm_type),
      init_zero_(o.init_zero) {
  refuse_amsgrad("FusedNovoGrad", o.amsgrad);
  if (norm_type_ != 0 && norm_type_ != 2)
    fail(Kind::argument, concat("FusedNovoGrad: norm_type ", norm_type_, " is neither 2 nor 0 (largest magnitude)"));
  check_hyper(defaults_from(o));
  for (auto& group : groups) add_param_group(std::move(group));
}

HyperMap FusedNovoGrad::options() const {
  auto out = Optimizer::options();
  out["norm_type"] = static_cast<std::int64_t>(norm_type_);
  out["init_zero"] = init_zero_;
  return out;
}

void FusedNovoGrad::check_hyper(const HyperMap& hyper) const {
  check_not_negative("FusedNovoGrad", hyper, {"lr", "eps", "weight_decay"});
  check_betas("FusedNovoGrad", hyper);
}

std::vector<Optimizer::StateKey> FusedNovoGrad::state_keys(const Tensor& param) const {
  return {{.name = "exp_avg", .dtype = wide(param)}, {.name = "norm", .dtype = wide(param), .scalar = true}};
}

void FusedNovoGrad::update(const Bucket& bucket, const ParamGroup& group) {
  kernels::NovoGradOptions options;
  options.in = inputs_of(bucket);
  options.lr = group.number("lr");
  options.beta1 = group.number("beta1");
  options.beta2 = group.number("beta2");
  options.eps = group.number("eps");
  options.weight_decay = group.number("weight_decay");
  options.norm_type = norm_type_ == 2 ? kernels::NormType::l2 : kernels::NormType::inf;
  options.bias_correction = group.flag("bias_correction");
  options.grad_averaging = group.flag("grad_averaging");
  options.reg_inside_moment = group.flag("reg_inside_moment");
  options.init_zero = init_zero_;
  options.step = bucket.step;
  kernels::multi_tensor_novograd(Context::current(bucket.device), bucket.weights, bucket.state[0], bucket.state[1],
                                 bucket.copies, bucket.grads, bucket.steps, options);
}

}  // namespace apex::optimizers
