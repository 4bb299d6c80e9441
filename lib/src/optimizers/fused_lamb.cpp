// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/optimizers/fused_lamb.hpp"

#include <algorithm>

#include "apex/autograd.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/kernels/elementwise.hpp"
#include "apex/nn/functional.hpp"
#include "apex/tensor_ops.hpp"
#include "common.hpp"
#include "global_norm.hpp"
#include "layout.hpp"

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
      max_grad_norm_(o.max_grad_norm),
      overwrites_(o.apex_overwrite_grad) {
  refuse_amsgrad(type, o.amsgrad);
  if (std::isnan(max_grad_norm_)) fail(Kind::argument, concat(type, ": max_grad_norm nan is not a number"));
  FusedLAMB::check_hyper(defaults_from(o));  // also without a group
  for (auto& group : groups) add_param_group(std::move(group));
}

HyperMap FusedLAMB::options() const {
  auto out = Optimizer::options();
  out["max_grad_norm"] = max_grad_norm_;
  out["apex_overwrite_grad"] = overwrites_;
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
  return given.defined() ? nn::functional::add(own, nn::functional::cast(given, own.dtype())) : own;
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
  std::vector<Tensor> decays;
  if (overwrites_) decays = decays_of(bucket, options.adam_w_mode ? options.weight_decay : 0.0);
  kernels::multi_tensor_lamb(Context::current(bucket.device), bucket.weights, bucket.state[0], bucket.state[1],
                             bucket.copies, bucket.grads, bucket.steps, options);
  if (overwrites_) write_updates(bucket, decays, options);
}

/// weight_decay * p of the parameters as they are before the step.
std::vector<Tensor> FusedLAMB::decays_of(const Bucket& bucket, double weight_decay) const {
  const auto ctx = Context::current(bucket.device);
  std::vector<Tensor> decays;
  for (std::size_t i = 0; i < bucket.params.size(); ++i) {
    const Tensor& out = decays.emplace_back(empty_like(bucket.params[i], wide(bucket.params[i])));
    if (weight_decay == 0.0) {
      kernels::fill(ctx, out.view(), 0.0);
      continue;
    }
    kernels::copy(ctx, out.view(), bucket.weights[i]);
    kernels::scale_shift(ctx, out.view(), out.view(), weight_decay, 0.0);
  }
  return decays;
}

/// u is a LAMB step of rate -1 without decay and trust ratio from weight_decay * p on; its copies are the gradients.
/// So one kernel forms it both times, and what skips the step leaves the gradients alone.
void FusedLAMB::write_updates(const Bucket& bucket, const std::vector<Tensor>& decays,
                              kernels::LambOptions options) const {
  const auto ctx = Context::current(bucket.device);
  options.lr = -1.0;
  options.in.lr_on_device = {};
  options.weight_decay = 0.0;
  options.use_nvlamb = false;
  std::vector<Tensor> gradients, targets;
  std::vector<View> from, to;
  for (std::size_t i = 0; i < bucket.params.size(); ++i) {
    const Tensor gradient = gradient_of(bucket.params[i]);
    Tensor target = gradient;
    if (!same_order(bucket.params[i], gradient)) {
      target = empty_like(bucket.params[i], gradient.dtype());
      kernels::copy(ctx, target.view(), gradient.view());
    }
    from.push_back(decays[i].view());
    to.push_back(target.view());
    gradients.push_back(gradient);
    targets.push_back(target);
  }
  const Tensor no_norms = zeros({static_cast<std::int64_t>(decays.size()), 2}, DType::f64, bucket.device);
  const std::vector<ConstView> m(bucket.state[0].begin(), bucket.state[0].end()),
      v(bucket.state[1].begin(), bucket.state[1].end());
  kernels::multi_tensor_lamb_apply(ctx, from, to, m, v, {}, bucket.steps, no_norms.view(), options);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!targets[i].is_same(gradients[i])) kernels::copy(ctx, gradients[i].view(), targets[i].view());
    gradients[i].raise_version();
  }
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
