// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/optimizers/fused_sgd.hpp"

#include <cmath>

#include "apex/autograd.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/kernels/multi_tensor.hpp"
#include "apex/nn/functional.hpp"
#include "apex/tensor_ops.hpp"

namespace apex::optimizers {

namespace {

constexpr const char* kBuffer = "momentum_buffer";
constexpr const char* kMaster = "master";

HyperMap defaults_from(const SGDOptions& o) {
  return {{"lr", o.lr},
          {"momentum", o.momentum},
          {"dampening", o.dampening},
          {"weight_decay", o.weight_decay},
          {"nesterov", o.nesterov},
          {"wd_after_momentum", o.wd_after_momentum}};
}

/// Tensors that one kernel call takes: parameters, or their masters with the parameters as copies.
struct Bucket {
  Device device;
  DType model, grad;
  std::vector<Tensor> relaid;  ///< keeps copies alive until the call
  std::vector<View> params, momenta, copies;
  std::vector<ConstView> grads;
  std::vector<std::uint8_t> first_run;
};

Bucket& bucket_for(std::vector<Bucket>& buckets, const Tensor& p, const Tensor& g) {
  for (auto& b : buckets)
    if (b.device == p.device() && b.model == p.dtype() && b.grad == g.dtype()) return b;
  Bucket& fresh = buckets.emplace_back();
  fresh.device = p.device();
  fresh.model = p.dtype();
  fresh.grad = g.dtype();
  return fresh;
}

bool same_order(const Tensor& p, const Tensor& g) {
  for (int d = 0; d < p.dim(); ++d)
    if (p.sizes()[d] != 1 && p.strides()[d] != g.strides()[d]) return false;
  return true;
}

/// A parameter may have been cast, moved or re-laid since its last step: its state follows.
void fit_state(Tensor& state, const Tensor& p, DType dtype) {
  if (state.dtype() == dtype && state.device() == p.device() && same_order(p, state)) return;
  const Tensor near = nn::functional::to(state, p.device());
  Tensor fitted = empty_like(p, dtype);
  kernels::copy(p.context(), fitted.view(), near.view());
  state = fitted;
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
    : Optimizer(defaults_from(options), options.set_grad_none), master_weights_(options.master_weights) {
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
  if (key == kMaster && has_master(param)) return DType::f32;
  if (key == kBuffer) return has_master(param) ? DType::f32 : param.dtype();
  return std::nullopt;
}

/// The f32 master of `p`, made from it at its first step.
Tensor FusedSGD::master_of(const Tensor& p) {
  Tensor& master = mutable_state(p)[kMaster];
  if (master.defined()) {
    fit_state(master, p, DType::f32);
  } else {
    master = empty_like(p, DType::f32);
    kernels::copy(p.context(), master.view(), p.view());
  }
  return master;
}

/// The momentum of `p`, and whether the kernel is to start it from the gradient.
std::pair<Tensor, bool> FusedSGD::momentum_of(const Tensor& p, double dampening, const StepScaling& scaling) {
  const DType dtype = *state_dtype(p, kBuffer);
  auto& state = mutable_state(p);
  const auto found = state.find(kBuffer);
  if (found != state.end()) {
    fit_state(found->second, p, dtype);
    return {found->second, false};
  }
  Tensor buffer = empty_like(p, dtype);
  // On a device nobody knows yet whether this first step will be skipped. Zeros make the next one a first step just the
  // same, as long as the gradient enters undamped; with dampening this step waits for the answer.
  bool first = true;
  if (scaling.found_inf.defined() && !p.device().is_cpu()) {
    first = dampening != 0.0 && scaling.found_inf.item() == 0.0;
    if (dampening != 0.0 && !first) return {buffer, true};  // skipped: the kernel leaves it alone, and it is not kept
    if (!first) zero_(buffer);
  }
  state[kBuffer] = buffer;
  return {buffer, first};
}

void FusedSGD::step_group(ParamGroup& group, const StepScaling& scaling) {
  kernels::SgdOptions options;
  options.lr = group.number("lr");
  options.momentum = group.number("momentum");
  options.dampening = group.number("dampening");
  options.weight_decay = group.number("weight_decay");
  options.nesterov = group.flag("nesterov");
  options.wd_after_momentum = group.flag("wd_after_momentum");
  options.lr_on_device = group.lr_on_device.view();
  options.inv_scale = scaling.inv_scale.view();
  View flag;
  if (scaling.found_inf.defined()) {
    if (scaling.found_inf.dtype() == DType::i32)
      flag = scaling.found_inf.view();
    else
      options.found_inf = scaling.found_inf.view();
  }
  std::vector<Bucket> buckets;
  for (const auto& p : group.params) {
    const Tensor g = grad(p);
    if (!g.defined()) continue;
    const bool masters = has_master(p);
    const Tensor weight = masters ? master_of(p) : p;
    Bucket& bucket = bucket_for(buckets, p, g);
    const Tensor gradient = laid_out_like(p, g);
    bucket.relaid.push_back(gradient);
    bucket.params.push_back(weight.view());
    bucket.grads.push_back(gradient.view());
    if (masters) {
      bucket.copies.push_back(p.view());
      weight.raise_version();
    } else {
      mutable_state(p).erase(kMaster);  // left over from before the parameter was cast: it would go stale
    }
    p.raise_version();
    if (options.momentum == 0.0) continue;
    const auto [momentum, first] = momentum_of(p, options.dampening, scaling);
    bucket.relaid.push_back(momentum);
    bucket.momenta.push_back(momentum.view());
    bucket.first_run.push_back(first ? 1 : 0);
    momentum.raise_version();
  }
  for (const auto& b : buckets)
    kernels::multi_tensor_sgd(Context::current(b.device), flag, b.params, b.momenta, b.copies, b.grads, b.first_run,
                              options);
}

}  // namespace apex::optimizers
