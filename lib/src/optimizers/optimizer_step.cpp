// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// One step: what a multi-tensor call takes is put together, and updates are counted.
#include <algorithm>
#include <cmath>

#include "apex/autograd.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/nn/functional.hpp"
#include "apex/optimizers/optimizer.hpp"
#include "apex/tensor_ops.hpp"
#include "layout.hpp"

namespace apex::optimizers {

namespace {

Tensor laid_out_like(const Tensor& p, const Tensor& g) {
  if (same_order(p, g)) return g;
  Tensor out = empty_like(p, g.dtype());
  kernels::copy(g.context(), out.view(), g.view());
  return out;
}

Tensor on(Device device, const Tensor& t) {
  return !t.defined() || t.device() == device ? t : nn::functional::to(t, device);
}

}  // namespace

Tensor Optimizer::step(const std::function<Tensor()>& closure) {
  Tensor loss;
  if (closure) {
    EnableGradGuard grad_on;
    loss = closure();
  }
  step(StepScaling{});
  return loss;
}

/// The caller writes the next step's result into the same tensor, so what this step saw is kept apart. The copy has its
/// place for good: under capture it is written by the graph.
void Optimizer::note_found_inf(const Tensor& found_inf) {
  had_found_inf_ = found_inf.defined();
  if (!had_found_inf_) return;
  if ((found_inf.dtype() != DType::f32 && found_inf.dtype() != DType::i32) || found_inf.numel() != 1)
    fail(Kind::argument, concat("step: found_inf is ", found_inf.dtype(), ' ', found_inf.sizes(),
                                "; one element of f32 or i32 is needed"));
  if (!skipped_.defined() || skipped_.dtype() != found_inf.dtype() || skipped_.device() != found_inf.device())
    skipped_ = empty({1}, found_inf.dtype(), found_inf.device());
  kernels::copy(skipped_.context(), skipped_.view(), found_inf.view());
}

Tensor Optimizer::gradient_of(const Tensor& param) const { return grad(param); }

bool Optimizer::last_step_skipped() const { return (had_found_inf_ && skipped_.item() != 0.0) || skipped_by_itself(); }

/// The host counts as long as it knows of every step whether it was made; from the first step on of which only the
/// device knows, the device counts.
void Optimizer::choose_counts(const StepScaling& scaling) {
  if (counts_on_device_ || !counts_steps() || counts_on_host()) return;
  counts_on_device_ = options_.capturable || skips_by_itself() ||
                      (scaling.found_inf.defined() && scaling.found_inf.device().is_cuda()) ||
                      std::any_of(groups_.begin(), groups_.end(), [](const ParamGroup& g) {
                        return g.lr_on_device.defined() && g.lr_on_device.device().is_cuda();
                      });
  if (counts_on_device_) publish_counts();
}

void Optimizer::step(const StepScaling& scaling) {
  NoGradGuard no_grad;
  if (!std::isfinite(scaling.grad_scale))
    fail(Kind::argument, concat(type(), "::step: grad_scale ", scaling.grad_scale, " is not a finite number"));
  note_found_inf(scaling.found_inf);
  // On the host a skipped step ends here, before any state is made: a skipped first step is no first step.
  const bool knows = had_found_inf_ && (skipped_.device().is_cpu() || (counts_steps() && counts_on_host()));
  if (knows && skipped_.item() != 0.0) return;
  choose_counts(scaling);
  before_step(scaling);
  update_all(scaling);
  after_step();
}

void Optimizer::update_all(const StepScaling& scaling) {
  for (std::size_t g = 0; g < groups_.size(); ++g) step_group(g, scaling);
}

/// The learning rate that kernels on `device` read for a group; undefined when they are told a number.
Tensor Optimizer::lr_of(std::size_t group, Device device) {
  if (groups_[group].lr_on_device.defined()) return on(device, groups_[group].lr_on_device);
  if (!options_.capturable) return {};
  auto& own = own_lr_[group];
  const auto found = std::find_if(own.begin(), own.end(), [&](const Tensor& t) { return t.device() == device; });
  if (found != own.end()) return *found;
  own.push_back(full({1}, groups_[group].number("lr"), DType::f64, device));
  return own.back();
}

/// Captured steps read it, so it is written where it lies.
void Optimizer::write_lr(std::size_t group) {
  for (const auto& t : own_lr_[group]) kernels::fill(t.context(), t.view(), groups_[group].number("lr"));
}

Optimizer::Bucket& Optimizer::bucket_for(std::vector<Bucket>& buckets, const Tensor& p, const Tensor& g,
                                         const Tensor& copy, std::int64_t step) {
  const auto copies = copy.defined() ? std::optional(copy.dtype()) : std::nullopt;
  for (auto& b : buckets)
    if (b.device == p.device() && b.model == p.dtype() && b.grad == g.dtype() && b.copy == copies && b.step == step)
      return b;
  Bucket& fresh = buckets.emplace_back();
  fresh.device = p.device();
  fresh.model = p.dtype();
  fresh.grad = g.dtype();
  fresh.copy = copies;
  fresh.step = step;
  return fresh;
}

void Optimizer::add_state(Bucket& bucket, const ParamGroup&, const Tensor& param) {
  const auto keys = state_keys(param);
  bucket.state.resize(keys.size());
  for (std::size_t k = 0; k < keys.size(); ++k) {
    const Tensor& state = state_tensor(param, keys[k]);
    bucket.kept.push_back(state);
    bucket.state[k].push_back(state.view());
    state.raise_version();
  }
}

void Optimizer::step_group(std::size_t index, const StepScaling& scaling) {
  const auto& group = groups_[index];
  std::vector<Bucket> buckets;
  std::int64_t group_count = 0;
  if (options_.group_step)
    for (const auto& p : group.params) group_count = std::max(group_count, state_[p.id()].updates);
  for (const auto& p : group.params) {
    const Tensor g = gradient_of(p);
    if (!g.defined()) continue;
    std::int64_t step = 0;
    if (counts_steps() && !counts_on_device_) step = 1 + (options_.group_step ? group_count : state_[p.id()].updates);
    const bool masters = has_master(p);
    const Tensor copy = masters ? p : copy_of(p);
    Bucket& bucket = bucket_for(buckets, p, g, copy, step);
    if (bucket.params.empty()) {
      bucket.scaling = {.found_inf = on(p.device(), scaling.found_inf),
                        .inv_scale = on(p.device(), scaling.inv_scale),
                        .grad_scale = scaling.grad_scale};
      bucket.lr = lr_of(index, p.device());
    }
    const Tensor weight = masters ? master_of(p) : p;
    const Tensor gradient = laid_out_like(p, g);
    bucket.params.push_back(p);
    bucket.kept.push_back(gradient);
    bucket.kept.push_back(weight);
    bucket.weights.push_back(weight.view());
    bucket.grads.push_back(gradient.view());
    if (copy.defined()) {
      bucket.copies.push_back(copy.view());
      copy.raise_version();
    }
    if (masters) {
      weight.raise_version();
    } else {
      mutable_state(p).erase("master");  // left over from before the parameter was cast: it would go stale
    }
    p.raise_version();
    add_state(bucket, group, p);
    if (!counts_steps()) continue;
    const Tensor& slot = step_slot(p);
    if (counts_on_device_) {
      bucket.steps.push_back(slot.view());
      slot.raise_version();
    }
  }
  for (const auto& bucket : buckets) {
    update(bucket, group);
    if (!counts_steps() || counts_on_device_) continue;
    for (const auto& p : bucket.params) state_[p.id()].updates = bucket.step;
    counts_published_ = false;
  }
  if (options_.group_step && counts_steps() && !buckets.empty()) count_group(group);
}

/// Parameters without a gradient are counted like the rest of their group.
void Optimizer::count_group(const ParamGroup& group) {
  const auto used = std::find_if(group.params.begin(), group.params.end(),
                                 [this](const Tensor& p) { return gradient_of(p).defined(); });
  if (!counts_on_device_) {
    for (const auto& p : group.params) {
      step_slot(p);
      state_[p.id()].updates = state_[used->id()].updates;
    }
    return;
  }
  const Tensor count = step_slot(*used);
  for (const auto& p : group.params) {
    if (gradient_of(p).defined()) continue;
    const Tensor slot = step_slot(p);
    const Tensor near = on(p.device(), count);
    kernels::copy(slot.context(), slot.view(), near.view());
    slot.raise_version();
  }
}

}  // namespace apex::optimizers
