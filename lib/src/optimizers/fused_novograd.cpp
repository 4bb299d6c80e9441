// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/optimizers/fused_novograd.hpp"

#include <algorithm>
#include <array>

#include "apex/tensor_ops.hpp"
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

using States = std::vector<std::map<std::string, Tensor>>;

/// Gives the norms that Apex keeps by group to the parameters they belong to.
void spread_norms(const std::vector<Tensor>& arrays, const OptimizerState::Group& group,
                  const std::vector<Tensor>& params, States& states,
                  const std::function<void(std::string_view)>& refuse) {
  std::vector<std::size_t> all, used;
  for (std::size_t i = 0; i < params.size(); ++i) {
    const auto number = static_cast<std::size_t>(group.params[i]);
    if (number >= states.size()) return refuse(concat("names parameter ", number));
    all.push_back(i);
    if (!states[number].empty()) used.push_back(i);
  }
  const auto length = [&](std::size_t k) { return k < arrays.size() && arrays[k].defined() ? arrays[k].numel() : 0; };
  const auto narrow = [&](std::size_t i) { return is_16bit(params[i].dtype()); };
  const std::int64_t first = length(0), second = length(1);
  for (const auto* owners : {&all, &used}) {
    const auto count = static_cast<std::int64_t>(owners->size());
    const auto narrow_ones = static_cast<std::int64_t>(std::count_if(owners->begin(), owners->end(), narrow));
    const bool in_one = first + second == count && (first == 0 || second == 0);
    if (!in_one && (first != narrow_ones || second != count - narrow_ones)) continue;
    std::array<std::int64_t, 2> next{};
    for (const std::size_t i : *owners) {
      const std::size_t k = in_one ? (first == 0 ? 1 : 0) : (narrow(i) ? 0 : 1);
      const Tensor flat = views::reshape(arrays[k], {arrays[k].numel()});
      states[static_cast<std::size_t>(group.params[i])]["norm"] = views::narrow(flat, 0, next[k]++, 1);
    }
    return;
  }
  refuse(concat("has exp_avg_sq of ", first, " and ", second, " norms for ", all.size(), " parameters, ", used.size(),
                " of them with state"));
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

void FusedNovoGrad::load_state_dict(const OptimizerState& from) {
  OptimizerState own = from;
  for (std::size_t g = 0; g < own.groups.size(); ++g) {
    auto& group = own.groups[g];
    const auto refuse = [&](std::string_view what) {
      fail(Kind::data, concat("FusedNovoGrad: group ", g, " of the state ", what));
    };
    if (const auto kind = group.hyper.find("norm_type"); kind != group.hyper.end()) {
      const double stored = std::visit([](auto v) { return static_cast<double>(v); }, kind->second);
      if (stored != norm_type_) refuse(concat("has norm_type ", stored, ", this optimizer ", norm_type_));
      group.hyper.erase(kind);
    }
    group.hyper.erase("init_zero");  // says how the first step starts, which these norms have behind them
    const auto found = group.arrays.find("exp_avg_sq");
    if (found == group.arrays.end()) continue;
    if (g < groups().size() && groups()[g].params.size() == group.params.size())  // else the base refuses it
      spread_norms(found->second, group, groups()[g].params, own.state, refuse);
    group.arrays.erase(found);
  }
  Optimizer::load_state_dict(own);
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
