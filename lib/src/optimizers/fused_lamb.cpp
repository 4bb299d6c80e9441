// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/optimizers/fused_lamb.hpp"

#include <algorithm>

#include "apex/autograd.hpp"
#include "apex/nn/functional.hpp"
#include "apex/tensor_ops.hpp"
#include "common.hpp"
#include "global_norm.hpp"

namespace apex::optimizers {

namespace {

HyperMap defaults_from(const LambOptions& o) {
  return {{"lr", o.lr},
          {"beta1", o.beta1},
          {"beta2", o.beta2},
          {"eps", o.eps},
          {"weight_decay", o.weight_decay},
          {"bias_correction", o.bias_correction},
          {"adam_w_mode", o.adam_w_mode},
          {"grad_averaging", o.grad_averaging},
          {"use_nvlamb", o.use_nvlamb}};
}

LambOptions plain(const MixedPrecisionLambOptions& o) {
  return {.lr = o.lr,
          .bias_correction = o.bias_correction,
          .beta1 = o.beta1,
          .beta2 = o.beta2,
          .eps = o.eps,
          .weight_decay = o.weight_decay,
          .amsgrad = o.amsgrad,
          .adam_w_mode = o.adam_w_mode,
          .grad_averaging = o.grad_averaging,
          .max_grad_norm = o.max_grad_norm,
          .use_nvlamb = o.use_nvlamb,
          .capturable = true};
}

}  // namespace

FusedLAMB::FusedLAMB(std::vector<Tensor> params, const LambOptions& options)
    : FusedLAMB(std::vector<ParamGroup>{{.params = std::move(params)}}, options) {}

FusedLAMB::FusedLAMB(std::vector<ParamGroup> groups, const LambOptions& o)
    : FusedLAMB(std::move(groups), o, "FusedLAMB") {}

FusedLAMB::FusedLAMB(std::vector<ParamGroup> groups, const LambOptions& o, std::string_view type)
    : Optimizer(defaults_from(o), {.set_grad_none = o.set_grad_none,
                                   .master_weights = o.master_weights,
                                   .capturable = o.capturable,
                                   .group_step = o.group_step}),
      type_(type),
      max_grad_norm_(o.max_grad_norm) {
  refuse_amsgrad(type, o.amsgrad);
  if (std::isnan(max_grad_norm_)) fail(Kind::argument, concat(type, ": max_grad_norm nan is not a number"));
  FusedLAMB::check_hyper(defaults_from(o));  // also without a group
  for (auto& group : groups) add_param_group(std::move(group));
}

HyperMap FusedLAMB::options() const {
  auto out = Optimizer::options();
  out["max_grad_norm"] = max_grad_norm_;
  return out;
}

void FusedLAMB::init_state() {
  Optimizer::init_state();
  if (norm_.defined()) return;
  const Tensor* first = nullptr;
  DType dtype = DType::f32;
  for (const auto& group : groups()) {
    for (const auto& p : group.params) {
      if (first == nullptr) first = &p;
      if (p.dtype() == DType::f64) dtype = DType::f64;
    }
  }
  if (first != nullptr) norm_ = zeros({1}, dtype, first->device());
}

void FusedLAMB::check_hyper(const HyperMap& hyper) const {
  check_not_negative(type(), hyper, {"lr", "eps", "weight_decay"});
  check_betas(type(), hyper);
}

std::vector<Optimizer::StateKey> FusedLAMB::state_keys(const Tensor& param) const {
  return {{.name = "exp_avg", .dtype = wide(param)}, {.name = "exp_avg_sq", .dtype = wide(param)}};
}

void FusedLAMB::before_step(const StepScaling& scaling) {
  std::vector<Tensor> gradients;
  for (const auto& group : groups())
    for (const auto& p : group.params)
      if (const Tensor g = gradient_of(p); g.defined()) gradients.push_back(g);
  if (gradients.empty()) return;
  global_norm(gradients, scaling, norm_);
  for (const auto& copy : on_other_) write_near(copy, norm_);
}

Tensor FusedLAMB::skip_sign() const {
  const Tensor given = Optimizer::skip_sign();
  if (!norm_.defined()) return given;
  NoGradGuard no_grad;
  const Tensor own = nn::functional::scale(norm_, 0.0);  // not a number unless the norm is finite
  return given.defined() ? nn::functional::add(own, nn::functional::to(given, own.dtype())) : own;
}

bool FusedLAMB::skipped_by_itself() const { return norm_.defined() && !std::isfinite(norm_.item()); }

void FusedLAMB::update(const Bucket& bucket, const ParamGroup& group) {
  kernels::LambOptions options;
  options.in = inputs_of(bucket);
  options.lr = group.number("lr");
  options.beta1 = group.number("beta1");
  options.beta2 = group.number("beta2");
  options.eps = group.number("eps");
  options.weight_decay = group.number("weight_decay");
  options.bias_correction = group.flag("bias_correction");
  options.adam_w_mode = group.flag("adam_w_mode");
  options.grad_averaging = group.flag("grad_averaging");
  options.use_nvlamb = group.flag("use_nvlamb");
  options.max_grad_norm = max_grad_norm_;
  options.step = bucket.step;
  Tensor norm = norm_;
  if (norm.defined() && norm.device() != bucket.device) {
    const auto there =
        std::find_if(on_other_.begin(), on_other_.end(), [&](const Tensor& t) { return t.device() == bucket.device; });
    if (there == on_other_.end()) {
      on_other_.push_back(empty({1}, norm.dtype(), bucket.device));
      write_near(on_other_.back(), norm_);
      norm = on_other_.back();
    } else {
      norm = *there;
    }
  }
  options.grad_norm = norm.view();
  kernels::multi_tensor_lamb(Context::current(bucket.device), bucket.weights, bucket.state[0], bucket.state[1],
                             bucket.copies, bucket.grads, bucket.steps, options);
}

FusedMixedPrecisionLamb::FusedMixedPrecisionLamb(std::vector<Tensor> params, const MixedPrecisionLambOptions& options)
    : FusedMixedPrecisionLamb(std::vector<ParamGroup>{{.params = std::move(params)}}, options) {}

FusedMixedPrecisionLamb::FusedMixedPrecisionLamb(std::vector<ParamGroup> groups_given,
                                                 const MixedPrecisionLambOptions& o)
    : FusedLAMB(std::move(groups_given), plain(o), "FusedMixedPrecisionLamb"), reduced_(o.reduced_precision_dtype) {
  if (reduced_ && !is_16bit(*reduced_))
    fail(Kind::argument,
         concat("FusedMixedPrecisionLamb: reduced_precision_dtype ", *reduced_, " is neither f16 nor bf16"));
  if (o.step < 0) fail(Kind::argument, concat("FusedMixedPrecisionLamb: step ", o.step, " is below 0"));
  if (o.step == 0) return;
  const Tensor step = full({1}, static_cast<double>(o.step), DType::i32);
  for (const auto& group : groups())
    for (const auto& p : group.params) set_state(p, "step", step);
}

}  // namespace apex::optimizers
