// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/contrib/optimizers/fp16_optimizer.hpp"

#include <algorithm>
#include <cmath>

#include "../../optimizers/global_norm.hpp"
#include "apex/autograd.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/kernels/multi_tensor_optimizers.hpp"
#include "apex/nn/functional.hpp"
#include "apex/tensor_ops.hpp"

namespace apex::contrib::optimizers {

FP16_Optimizer::FP16_Optimizer(WithArguments& optimizer, const FP16Options& options) : optimizer_(optimizer) {
  const double scale = options.static_loss_scale;
  if (!(scale > 0.0) || std::isinf(scale))
    fail(Kind::argument, concat("FP16_Optimizer: static_loss_scale ", scale, " is not a finite number above 0"));
  state_.dynamic_loss_scale = options.dynamic_loss_scale;
  state_.cur_scale = options.dynamic_loss_scale ? 65536.0 : scale;
  const NoGradGuard no_grad;
  for (std::size_t g = 0; g < optimizer_.groups().size(); ++g) {
    model_.push_back(optimizer_.groups()[g].params);
    std::vector<Tensor> masters;
    for (const auto& p : model_.back()) {
      const Tensor master = empty_like(p, DType::f32);
      copy_(master, p);
      masters.push_back(master);
    }
    optimizer_.replace_params(g, std::move(masters));
  }
}

void FP16_Optimizer::backward(const Tensor& loss) {
  const Tensor wide = loss.dtype() == DType::f32 ? loss : nn::functional::cast(loss, DType::f32);
  apex::backward(nn::functional::scale(wide, state_.cur_scale));
}

void FP16_Optimizer::step() {
  const NoGradGuard no_grad;
  StepArguments arguments{.output_params = model_, .scale = state_.cur_scale};
  overflow_ = false;
  for (const auto& group : model_) {
    std::vector<Tensor> all, present;
    for (const auto& p : group) {
      all.push_back(grad(p));
      if (all.back().defined()) present.push_back(all.back());
    }
    Tensor norm;
    if (!present.empty()) apex::optimizers::global_norm(present, {}, norm);
    arguments.grad_norms.push_back(norm.defined() ? norm.item() : 0.0);
    overflow_ |= !std::isfinite(arguments.grad_norms.back());
    arguments.grads.push_back(std::move(all));
  }
  if (!overflow_) optimizer_.step(arguments);
  update_scale();
}

void FP16_Optimizer::update_scale() {
  if (state_.dynamic_loss_scale) {
    if (overflow_) {
      state_.cur_scale = std::max(state_.cur_scale / state_.scale_factor, 1.0);
      state_.last_overflow_iter = state_.cur_iter;
    } else if ((state_.cur_iter - state_.last_overflow_iter) % state_.scale_window == 0) {
      state_.cur_scale *= state_.scale_factor;
    }
  }
  ++state_.cur_iter;
}

void FP16_Optimizer::zero_grad(bool set_to_none) {
  const NoGradGuard no_grad;
  for (const auto& group : model_) {
    for (const auto& p : group) {
      const Tensor g = grad(p);
      if (!g.defined()) continue;
      if (set_to_none)
        set_grad(p, {});
      else
        zero_(g);
    }
  }
}

FP16State FP16_Optimizer::state_dict() const {
  FP16State out = state_;
  out.optimizer = optimizer_.state_dict();
  for (const auto& group : optimizer_.groups()) out.fp32_groups.push_back(group.params);
  return out;
}

void FP16_Optimizer::load_state_dict(const FP16State& from) {
  const auto& groups = optimizer_.groups();
  const auto refuse = [](std::string_view what) { fail(Kind::data, concat("FP16_Optimizer: ", what)); };
  if (from.fp32_groups.size() != groups.size())
    refuse(concat("the state has ", from.fp32_groups.size(), " groups of masters, the optimizer ", groups.size()));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (from.fp32_groups[g].size() != groups[g].params.size())
      refuse(concat("group ", g, " of the state has ", from.fp32_groups[g].size(), " masters, the optimizer's ",
                    groups[g].params.size()));
    for (std::size_t i = 0; i < groups[g].params.size(); ++i)
      if (from.fp32_groups[g][i].sizes() != groups[g].params[i].sizes())
        refuse(concat("master ", i, " of group ", g, " is ", from.fp32_groups[g][i].sizes(), ", the parameter ",
                      groups[g].params[i].sizes()));
  }
  optimizer_.load_state_dict(from.optimizer);
  const NoGradGuard no_grad;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t i = 0; i < groups[g].params.size(); ++i) {
      const Tensor& master = groups[g].params[i];
      copy_(master, nn::functional::to(from.fp32_groups[g][i].detach(), master.device()));
      copy_(model_[g][i], master);
    }
  }
  state_ = from;
  state_.optimizer = {};
  state_.fp32_groups = {};
}

void maybe_cast(const Tensor& flag, const std::vector<Tensor>& in, const std::vector<Tensor>& out) {
  if (!flag.defined()) fail(Kind::argument, "maybe_cast: flag is undefined");
  std::vector<ConstView> from;
  std::vector<View> to;
  for (const auto& t : in) from.push_back(t.view());
  for (const auto& t : out) to.push_back(t.view());
  kernels::multi_tensor_maybe_cast(flag.context(), flag.view(), to, from);
  for (const auto& t : out) t.raise_version();
}

}  // namespace apex::contrib::optimizers
