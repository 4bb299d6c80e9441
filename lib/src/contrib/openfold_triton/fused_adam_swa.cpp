// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/contrib/openfold_triton/fused_adam_swa.hpp"

#include <optional>

#include "../../optimizers/common.hpp"
#include "apex/autograd.hpp"

namespace apex::contrib::openfold_triton {

using apex::optimizers::HyperMap;
using apex::optimizers::ParamGroup;
using apex::optimizers::StepScaling;

namespace {

constexpr const char* kName = "FusedAdamSWA";

HyperMap defaults_from(const AdamSWAOptions& o) {
  return {{"lr", o.lr},
          {"beta1", o.beta1},
          {"beta2", o.beta2},
          {"eps", o.eps},
          {"weight_decay", o.weight_decay},
          {"bias_correction", o.bias_correction},
          {"swa_decay_rate", o.swa_decay_rate},
          {"n_averaged", std::int64_t{0}}};
}

void check_beside(const std::vector<Tensor>& params, const std::vector<Tensor>& list, const char* name,
                  bool same_dtype) {
  if (list.empty()) fail(Kind::argument, concat(kName, ": ", name, " is empty"));
  if (list.size() != params.size())
    fail(Kind::argument, concat(kName, ": ", list.size(), ' ', name, " for ", params.size(), " params"));
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto refuse = [&](std::string_view why) {
      fail(Kind::argument, concat(kName, ": ", name, '[', i, "] ", why));
    };
    if (!list[i].defined() || !params[i].defined()) refuse("or its parameter is undefined");
    if (list[i].sizes() != params[i].sizes())
      refuse(concat("is ", list[i].sizes(), ", the parameter ", params[i].sizes()));
    if (same_dtype && list[i].dtype() != params[i].dtype())
      refuse(concat("is ", list[i].dtype(), ", the parameter ", params[i].dtype()));
    if (!list[i].is_contiguous()) refuse("is not contiguous");
    if (!params[i].is_contiguous()) refuse("belongs to a parameter that is not contiguous");
  }
}

void refuse(bool wanted, const char* option) {
  if (wanted) fail(Kind::unsupported, concat(kName, ": ", option, " true is not there; leave it out"));
}

}  // namespace

FusedAdamSWA::FusedAdamSWA(std::vector<Tensor> params, std::vector<Tensor> compute_params,
                           std::vector<Tensor> swa_params, const AdamSWAOptions& o)
    : Optimizer(defaults_from(o), {.set_grad_none = o.set_grad_none}), mode_(o.adam_math_mode) {
  apex::optimizers::refuse_amsgrad(kName, o.amsgrad);
  refuse(o.capturable, "capturable");
  refuse(o.master_weights, "master_weights");
  if (mode_ != AdamMathType::apex_adam && mode_ != AdamMathType::apex_adam_w && mode_ != AdamMathType::pytorch_adam)
    fail(Kind::argument, concat(kName, ": adam_math_mode ", static_cast<int>(mode_), " is not known"));
  check_hyper(defaults_from(o));
  check_beside(params, compute_params, "compute_params", false);
  check_beside(params, swa_params, "swa_params", true);
  for (std::size_t i = 0; i < params.size(); ++i) {
    compute_[params[i].id()] = compute_params[i];
    swa_[params[i].id()] = swa_params[i];
  }
  Optimizer::add_param_group({.params = std::move(params)});
}

std::unique_ptr<FusedAdamSWA> FusedAdamSWA::from_optim(const apex::optimizers::FusedAdam& adam,
                                                       std::vector<Tensor> params, std::vector<Tensor> compute_params,
                                                       std::vector<Tensor> swa_params, double swa_decay_rate) {
  if (adam.groups().size() != 1)
    fail(Kind::argument, concat(kName, ": the Adam has ", adam.groups().size(), " groups, not one"));
  const auto& group = adam.groups()[0];
  if (group.params.size() != params.size())
    fail(Kind::argument, concat(kName, ": ", params.size(), " params for an Adam of ", group.params.size()));
  auto out = std::make_unique<FusedAdamSWA>(
      params, std::move(compute_params), std::move(swa_params),
      AdamSWAOptions{.swa_decay_rate = swa_decay_rate,
                     .lr = group.number("lr"),
                     .bias_correction = group.flag("bias_correction"),
                     .beta1 = group.number("beta1"),
                     .beta2 = group.number("beta2"),
                     .eps = group.number("eps"),
                     .adam_math_mode = group.flag("adam_w_mode") ? AdamMathType::apex_adam_w : AdamMathType::apex_adam,
                     .weight_decay = group.number("weight_decay")});
  std::optional<double> common;
  for (std::size_t i = 0; i < params.size(); ++i) {
    const auto& state = adam.state_of(group.params[i]);
    const auto step = state.find("step");
    const double count = step == state.end() ? 0.0 : step->second.item();
    if (common && *common != count)
      fail(Kind::argument,
           concat(kName, ": parameter ", i, " of the Adam has made ", count, " steps, the first ", *common));
    common = count;
    for (const char* key : {"exp_avg", "exp_avg_sq", "step"})
      if (const auto found = state.find(key); found != state.end()) out->set_state(params[i], key, found->second);
  }
  return out;
}

std::int64_t FusedAdamSWA::n_averaged() const { return static_cast<std::int64_t>(groups()[0].number("n_averaged")); }

void FusedAdamSWA::add_param_group(ParamGroup) {
  fail(Kind::unsupported, concat(kName, " has one group; hand all parameters to the constructor"));
}

void FusedAdamSWA::check_hyper(const HyperMap& hyper) const {
  apex::optimizers::check_not_negative(kName, hyper, {"lr", "eps", "weight_decay", "n_averaged"});
  apex::optimizers::check_betas(kName, hyper);
  const double decay = ParamGroup{.params = {}, .hyper = hyper}.number("swa_decay_rate");
  if (!(decay >= 0.0 && decay <= 1.0))
    fail(Kind::argument, concat(kName, ": swa_decay_rate ", decay, " is not in [0, 1]"));
}

std::vector<apex::optimizers::Optimizer::StateKey> FusedAdamSWA::state_keys(const Tensor& param) const {
  return {{.name = "exp_avg", .dtype = wide(param)}, {.name = "exp_avg_sq", .dtype = wide(param)}};
}

Tensor FusedAdamSWA::gradient_of(const Tensor& param) const { return grad(compute_.at(param.id())); }
Tensor FusedAdamSWA::copy_of(const Tensor& param) const { return compute_.at(param.id()); }

void FusedAdamSWA::before_step(const StepScaling& scaling) {
  if (scaling.found_inf.defined() && scaling.found_inf.device().is_cuda())
    fail(Kind::unsupported, concat(kName, ": found_inf on a device: n_averaged is counted on the host"));
  updated_ = false;
}

void FusedAdamSWA::after_step() {
  if (updated_) set_hyper(0, "n_averaged", n_averaged() + 1);
}

void FusedAdamSWA::update(const Bucket& bucket, const ParamGroup& group) {
  kernels::AdamOptions options;
  options.in = apex::optimizers::inputs_of(bucket);
  options.lr = group.number("lr");
  options.beta1 = group.number("beta1");
  options.beta2 = group.number("beta2");
  options.eps = group.number("eps");
  options.weight_decay = group.number("weight_decay");
  options.mode = mode_ == AdamMathType::apex_adam     ? kernels::AdamMode::l2
                 : mode_ == AdamMathType::apex_adam_w ? kernels::AdamMode::decoupled
                                                      : kernels::AdamMode::torch_order;
  options.bias_correction = group.flag("bias_correction");
  options.step = bucket.step;
  std::vector<View> swa;
  for (const auto& p : bucket.params) {
    const Tensor& average = swa_.at(p.id());
    swa.push_back(average.view());
    average.raise_version();
  }
  kernels::multi_tensor_adam_swa(Context::current(bucket.device), bucket.weights, bucket.state[0], bucket.state[1],
                                 bucket.copies, swa, bucket.grads, bucket.steps, options,
                                 group.number("swa_decay_rate"), n_averaged());
  updated_ = true;
}

}  // namespace apex::contrib::openfold_triton
