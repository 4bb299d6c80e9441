// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/contrib/optimizers/distributed_fused_adam.hpp"

#include <cmath>

#include "apex/kernels/multi_tensor_optimizers.hpp"

namespace apex::contrib::optimizers {
namespace {

apex::optimizers::HyperMap defaults_from(const DistributedFusedAdamOptions& o) {
  return {{"lr", o.lr},
          {"beta1", o.beta1},
          {"beta2", o.beta2},
          {"eps", o.eps},
          {"weight_decay", o.weight_decay},
          {"bias_correction", o.bias_correction},
          {"adam_w_mode", o.adam_w_mode},
          {"maximize", o.maximize}};
}

}  // namespace

DistributedFusedAdam::DistributedFusedAdam(std::vector<Tensor> params, const DistributedFusedAdamOptions& options)
    : DistributedFusedAdam(std::vector<apex::optimizers::ParamGroup>{{.params = std::move(params)}}, options) {}

DistributedFusedAdam::DistributedFusedAdam(std::vector<apex::optimizers::ParamGroup> groups,
                                           const DistributedFusedAdamOptions& options)
    : ShardedOptimizer(defaults_from(options), options.sharding, "DistributedFusedAdam", true) {
  if (options.amsgrad)
    fail(Kind::unsupported, "DistributedFusedAdam: amsgrad true: there is no AMSGrad variant; leave it out");
  check_hyper(defaults_from(options));
  for (auto& group : groups) add_param_group(std::move(group));
  start();
}

void DistributedFusedAdam::check_hyper(const apex::optimizers::HyperMap& hyper) const { check_adam_hyper(hyper); }

void DistributedFusedAdam::update_parts(const std::vector<Parts>& parts, const StepScaling& scaling, double factor) {
  for (std::size_t g = 0; g < parts.size(); ++g) {
    const Parts& p = parts[g];
    const auto& group = groups()[g];
    kernels::AdamOptions options;
    options.in = inputs(group, scaling, factor);
    options.lr = group.number("lr");
    options.beta1 = group.number("beta1");
    options.beta2 = group.number("beta2");
    options.eps = group.number("eps");
    options.weight_decay = group.number("weight_decay");
    options.mode = group.flag("adam_w_mode") ? kernels::AdamMode::decoupled : kernels::AdamMode::l2;
    options.bias_correction = group.flag("bias_correction");
    options.maximize = group.flag("maximize");
    const Context ctx = Context::current(device());
    if (sharding().store_param_remainders)
      kernels::multi_tensor_adam_remainders(ctx, p.params, p.remainders, p.exp_avg, p.exp_avg_sq, p.copies, p.grads,
                                            p.steps, options);
    else
      kernels::multi_tensor_adam(ctx, p.params, p.exp_avg, p.exp_avg_sq, p.copies, p.grads, p.steps, options);
  }
}

}  // namespace apex::contrib::optimizers
