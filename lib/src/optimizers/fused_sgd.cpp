// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/optimizers/fused_sgd.hpp"

#include <cmath>

#include "apex/autograd.hpp"
#include "apex/kernels/copy.hpp"
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

/// Tensors that one kernel call takes.
struct Bucket {
  Device device;
  DType param, grad;
  std::vector<Tensor> relaid;  ///< keeps copies alive until the call
  std::vector<View> params, momenta;
  std::vector<ConstView> grads;
  std::vector<std::uint8_t> first_run;
};

Bucket& bucket_for(std::vector<Bucket>& buckets, const Tensor& p, const Tensor& g) {
  for (auto& b : buckets)
    if (b.device == p.device() && b.param == p.dtype() && b.grad == g.dtype()) return b;
  Bucket& fresh = buckets.emplace_back();
  fresh.device = p.device();
  fresh.param = p.dtype();
  fresh.grad = g.dtype();
  return fresh;
}

bool same_order(const Tensor& p, const Tensor& g) {
  for (int d = 0; d < p.dim(); ++d)
    if (p.sizes()[d] != 1 && p.strides()[d] != g.strides()[d]) return false;
  return true;
}

/// A parameter may have been cast or re-laid since its last step: its buffer follows.
void fit_buffer(Tensor& buffer, const Tensor& p) {
  if (!buffer.defined()) {
    buffer = empty_like(p);
  } else if (buffer.dtype() != p.dtype() || !same_order(p, buffer)) {
    Tensor fitted = empty_like(p);
    kernels::copy(p.context(), fitted.view(), buffer.view());
    buffer = fitted;
  }
}

Tensor laid_out_like(const Tensor& p, const Tensor& g) {
  if (same_order(p, g)) return g;
  Tensor out = empty_like(p, g.dtype());
  kernels::copy(g.context(), out.view(), g.view());
  return out;
}

}  // namespace

FusedSGD::FusedSGD(std::vector<Tensor> params, const SGDOptions& options)
    : FusedSGD(std::vector<ParamGroup>{{.params = std::move(params)}}, options) {}

FusedSGD::FusedSGD(std::vector<ParamGroup> groups, const SGDOptions& options)
    : Optimizer(defaults_from(options), options.set_grad_none) {
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

std::optional<DType> FusedSGD::state_dtype(const Tensor& param, std::string_view key) const {
  return key == kBuffer ? std::optional(param.dtype()) : std::nullopt;
}

void FusedSGD::step_group(ParamGroup& group, const StepScaling& scaling) {
  kernels::SgdOptions options;
  options.lr = group.number("lr");
  options.momentum = group.number("momentum");
  options.dampening = group.number("dampening");
  options.weight_decay = group.number("weight_decay");
  options.nesterov = group.flag("nesterov");
  options.wd_after_momentum = group.flag("wd_after_momentum");
  if (scaling.inv_scale.defined()) options.inv_scale = scaling.inv_scale.view();
  const bool with_momentum = options.momentum != 0.0;
  std::vector<Bucket> buckets;
  for (const auto& p : group.params) {
    const Tensor g = grad(p);
    if (!g.defined()) continue;
    Bucket& bucket = bucket_for(buckets, p, g);
    const Tensor gradient = laid_out_like(p, g);
    bucket.relaid.push_back(gradient);
    bucket.params.push_back(p.view());
    bucket.grads.push_back(gradient.view());
    p.raise_version();
    if (!with_momentum) continue;
    Tensor& buffer = mutable_state(p)[kBuffer];
    bucket.first_run.push_back(buffer.defined() ? 0 : 1);
    fit_buffer(buffer, p);
    bucket.momenta.push_back(buffer.view());
    buffer.raise_version();
  }
  for (const auto& b : buckets)
    kernels::multi_tensor_sgd(Context::current(b.device), View{}, b.params, b.momenta, {}, b.grads, b.first_run,
                              options);
}

}  // namespace apex::optimizers
