// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/contrib/optimizers/fused_adam.hpp"

#include "../../optimizers/common.hpp"

namespace apex::contrib::optimizers {

using apex::optimizers::HyperMap;
using apex::optimizers::ParamGroup;

namespace {

HyperMap defaults_from(const AdamOptions& o) {
  return {{"lr", o.lr},
          {"beta1", o.beta1},
          {"beta2", o.beta2},
          {"eps", o.eps},
          {"weight_decay", o.weight_decay},
          {"bias_correction", o.bias_correction}};
}

}  // namespace

FusedAdam::FusedAdam(std::vector<Tensor> params, const AdamOptions& options)
    : FusedAdam(std::vector<ParamGroup>{{.params = std::move(params)}}, options) {}

FusedAdam::FusedAdam(std::vector<ParamGroup> groups, const AdamOptions& o)
    : WithArguments(defaults_from(o), {.group_step = o.use_mt}),
      eps_inside_sqrt_(o.eps_inside_sqrt),
      max_grad_norm_(o.max_grad_norm),
      use_mt_(o.use_mt),
      amp_scale_adjustment_(o.amp_scale_adjustment) {
  apex::optimizers::refuse_amsgrad("contrib.FusedAdam", o.amsgrad);
  if (!(max_grad_norm_ >= 0.0))
    fail(Kind::argument, concat("contrib.FusedAdam: max_grad_norm ", max_grad_norm_, " is not a number >= 0"));
  if (!(amp_scale_adjustment_ > 0.0) || std::isinf(amp_scale_adjustment_))
    fail(Kind::argument,
         concat("contrib.FusedAdam: amp_scale_adjustment ", amp_scale_adjustment_, " is not a finite number above 0"));
  check_hyper(defaults_from(o));
  for (auto& group : groups) add_param_group(std::move(group));
}

HyperMap FusedAdam::options() const {
  auto out = WithArguments::options();
  out["eps_inside_sqrt"] = eps_inside_sqrt_;
  out["max_grad_norm"] = max_grad_norm_;
  out["use_mt"] = use_mt_;
  out["amp_scale_adjustment"] = amp_scale_adjustment_;
  return out;
}

void FusedAdam::check_hyper(const HyperMap& hyper) const {
  apex::optimizers::check_not_negative("contrib.FusedAdam", hyper, {"lr", "eps", "weight_decay"});
  apex::optimizers::check_betas("contrib.FusedAdam", hyper);
}

std::vector<apex::optimizers::Optimizer::StateKey> FusedAdam::state_keys(const Tensor& param) const {
  return {{.name = "exp_avg", .dtype = wide(param)}, {.name = "exp_avg_sq", .dtype = wide(param)}};
}

void FusedAdam::step(const StepArguments& arguments) {
  const Given given(*this, arguments);
  std::vector<double> divisors(groups().size(), arguments.scale);
  if (max_grad_norm_ > 0.0) {
    if (arguments.grad_norms.size() != groups().size())
      fail(Kind::argument, concat("contrib.FusedAdam: grad_norms for ", arguments.grad_norms.size(), " of ",
                                  groups().size(), " groups, which max_grad_norm ", max_grad_norm_, " needs"));
    for (std::size_t g = 0; g < divisors.size(); ++g) {
      const double clip = (arguments.grad_norms[g] / arguments.scale + 1e-6) / max_grad_norm_;
      if (clip > 1.0) divisors[g] = clip * arguments.scale;
    }
  }
  set_divisors(std::move(divisors));
  step(apex::optimizers::StepScaling{});
}

void FusedAdam::step(const apex::optimizers::StepScaling& scaling) {
  if (use_mt_)
    for (std::size_t g = 0; g < groups().size(); ++g)
      for (const auto& p : groups()[g].params)
        if (const Device first = groups()[g].params.front().device(); p.device() != first)
          fail(Kind::argument, concat("contrib.FusedAdam: use_mt and parameters of group ", g, " on ", first, " and ",
                                      p.device(), "; make a group for each device"));
  auto adjusted = scaling;
  if (scaling.inv_scale.defined()) adjusted.grad_scale /= amp_scale_adjustment_;
  Optimizer::step(adjusted);
}

void FusedAdam::update(const Bucket& bucket, const ParamGroup& group) {
  kernels::AdamOptions options;
  options.in = apex::optimizers::inputs_of(bucket);
  options.in.grad_scale /= divisor(group);
  options.lr = group.number("lr");
  options.beta1 = group.number("beta1");
  options.beta2 = group.number("beta2");
  options.eps = group.number("eps");
  options.weight_decay = group.number("weight_decay");
  options.mode = eps_inside_sqrt_ ? kernels::AdamMode::legacy_eps_inside : kernels::AdamMode::legacy;
  options.bias_correction = group.flag("bias_correction");
  options.step = bucket.step;
  kernels::multi_tensor_adam(Context::current(bucket.device), bucket.weights, bucket.state[0], bucket.state[1],
                             bucket.copies, bucket.grads, bucket.steps, options);
}

}  // namespace apex::contrib::optimizers
