// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/optimizers/optimizer.hpp"

#include <sstream>
#include <unordered_set>

#include "apex/autograd.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/nn/functional.hpp"
#include "apex/tensor_ops.hpp"

namespace apex::optimizers {

namespace {

/// `value` in the type that `like` holds; whole numbers and flags become numbers where one is wanted.
HyperValue converted(const HyperValue& value, const HyperValue& like) {
  const double number = std::visit([](auto v) { return static_cast<double>(v); }, value);
  if (std::holds_alternative<double>(like)) return number;
  if (std::holds_alternative<bool>(like)) return number != 0.0;
  return static_cast<std::int64_t>(number);
}

const HyperValue& at(const ParamGroup& group, std::string_view key) {
  const auto found = group.hyper.find(key);
  if (found == group.hyper.end()) fail(Kind::argument, concat("a parameter group has no hyper-parameter '", key, '\''));
  return found->second;
}

/// A copy of `value` as state of `param`: on its device, in its layout when the sizes are its.
Tensor state_copy(const Tensor& param, const Tensor& value, DType dtype) {
  Tensor out = value.sizes() == param.sizes() ? empty_like(param, dtype) : empty(value.sizes(), dtype, param.device());
  const Tensor near = nn::functional::to(value.detach(), param.device());
  kernels::copy(out.context(), out.view(), near.view());
  return out;
}

void check_lr_source(const Tensor& lr) {
  if (lr.defined() && (lr.dtype() != DType::f64 || lr.numel() != 1))
    fail(Kind::argument,
         concat("set_lr_source: the learning rate is ", lr.dtype(), ' ', lr.sizes(), "; one f64 element is needed"));
}

}  // namespace

double ParamGroup::number(std::string_view key) const {
  return std::visit([](auto v) { return static_cast<double>(v); }, at(*this, key));
}
bool ParamGroup::flag(std::string_view key) const { return number(key) != 0.0; }

Optimizer::Optimizer(HyperMap defaults, bool set_grad_none)
    : defaults_(std::move(defaults)), set_grad_none_(set_grad_none) {}
Optimizer::~Optimizer() = default;

void Optimizer::check_params(const ParamGroup& group) const {
  std::unordered_set<const void*> held;
  for (const auto& g : groups_)
    for (const auto& p : g.params) held.insert(p.id());
  for (std::size_t i = 0; i < group.params.size(); ++i) {
    const Tensor& p = group.params[i];
    const auto refuse = [&](const char* why) {
      fail(Kind::argument, concat(type(), ": parameter ", i, " of the new group ", why));
    };
    if (!p.defined()) refuse("is an undefined tensor");
    if (!is_floating(p.dtype())) refuse("is not floating");
    if (!is_leaf(p)) refuse("is the result of an op, not a leaf");
    if (!is_non_overlapping_and_dense(p.sizes(), p.strides())) refuse("has gaps or overlaps in memory");
    if (!held.insert(p.id()).second) refuse("is already held by this optimizer");
  }
}

/// Every hyper-parameter: those given, the defaults for the rest.
HyperMap Optimizer::completed(const HyperMap& given, Kind kind) const {
  HyperMap all = defaults_;
  for (const auto& [key, value] : given) {
    const auto found = all.find(key);
    if (found == all.end()) fail(kind, concat(type(), " has no hyper-parameter '", key, '\''));
    found->second = converted(value, found->second);
  }
  check_hyper(all);
  return all;
}

void Optimizer::add_param_group(ParamGroup group) {
  check_params(group);
  group.hyper = completed(group.hyper, Kind::argument);
  groups_.push_back(std::move(group));
}

void Optimizer::set_hyper(std::size_t group, std::string_view key, HyperValue value) {
  if (group >= groups_.size())
    fail(Kind::argument, concat(type(), ": group ", group, " of ", groups_.size(), " parameter groups"));
  HyperMap changed = groups_[group].hyper;
  changed.insert_or_assign(std::string(key), value);
  groups_[group].hyper = completed(changed, Kind::argument);
}

void Optimizer::set_lr(double lr) {
  for (std::size_t g = 0; g < groups_.size(); ++g) set_hyper(g, "lr", lr);
}

void Optimizer::set_lr_source(const Tensor& lr) {
  check_lr_source(lr);
  for (auto& group : groups_) group.lr_on_device = lr;
}

void Optimizer::set_lr_source(std::size_t group, const Tensor& lr) {
  check_lr_source(lr);
  if (group >= groups_.size())
    fail(Kind::argument, concat(type(), ": group ", group, " of ", groups_.size(), " parameter groups"));
  groups_[group].lr_on_device = lr;
}

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

bool Optimizer::last_step_skipped() const { return had_found_inf_ && skipped_.item() != 0.0; }

void Optimizer::step(const StepScaling& scaling) {
  NoGradGuard no_grad;
  note_found_inf(scaling.found_inf);
  // On the host a skipped step ends here, before any state is made: a skipped first step is no first step.
  if (had_found_inf_ && skipped_.device().is_cpu() && last_step_skipped()) return;
  update(scaling);
}

void Optimizer::update(const StepScaling& scaling) {
  for (auto& group : groups_) step_group(group, scaling);
}

void Optimizer::zero_grad(std::optional<bool> set_to_none) {
  NoGradGuard no_grad;
  const bool drop = set_to_none.value_or(set_grad_none_);
  for (const auto& group : groups_) {
    for (const auto& p : group.params) {
      const Tensor gradient = grad(p);
      if (!gradient.defined()) continue;
      if (drop) {
        set_grad(p, {});
      } else {
        zero_(gradient);
      }
    }
  }
}

const std::map<std::string, Tensor>& Optimizer::state_of(const Tensor& param) const {
  static const std::map<std::string, Tensor> none;
  const auto found = state_.find(param.id());
  return found == state_.end() ? none : found->second;
}

void Optimizer::for_each_state(
    const std::function<void(const Tensor& param, const std::string& key, const Tensor& value)>& f) const {
  for (const auto& group : groups_)
    for (const auto& p : group.params)
      for (const auto& [key, value] : state_of(p)) f(p, key, value);
}

void Optimizer::set_state(const Tensor& param, const std::string& key, const Tensor& value) {
  bool held = false;
  for (const auto& group : groups_)
    for (const auto& p : group.params) held |= p.is_same(param);
  if (!held) fail(Kind::argument, concat(type(), "::set_state: the tensor is no parameter of this optimizer"));
  const auto dtype = state_dtype(param, key);
  if (!dtype) fail(Kind::argument, concat(type(), " keeps no state '", key, '\''));
  if (value.sizes() != param.sizes())
    fail(Kind::data,
         concat(type(), ": state '", key, "' of sizes ", value.sizes(), " for a parameter of ", param.sizes()));
  state_[param.id()][key] = state_copy(param, value, *dtype);
}

OptimizerState Optimizer::state_dict() const {
  OptimizerState out;
  out.type = type();
  for (const auto& group : groups_) {
    OptimizerState::Group& g = out.groups.emplace_back();
    g.hyper = group.hyper;
    for (const auto& p : group.params) {
      g.params.push_back(static_cast<std::int64_t>(out.state.size()));
      out.state.push_back(state_of(p));
    }
  }
  return out;
}

void Optimizer::load_state_dict(const OptimizerState& from) {
  if (from.type != type()) fail(Kind::data, concat("the state is of a ", from.type, ", this optimizer is a ", type()));
  if (from.groups.size() != groups_.size())
    fail(Kind::data,
         concat(type(), ": the state has ", from.groups.size(), " parameter groups, the optimizer ", groups_.size()));
  std::vector<HyperMap> hyper;
  std::unordered_map<const void*, std::map<std::string, Tensor>> state;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto& params = groups_[g].params;
    if (from.groups[g].params.size() != params.size())
      fail(Kind::data, concat(type(), ": group ", g, " of the state has ", from.groups[g].params.size(),
                              " parameters, the optimizer's ", params.size()));
    hyper.push_back(completed(from.groups[g].hyper, Kind::data));
    for (std::size_t i = 0; i < params.size(); ++i) {
      const auto number = static_cast<std::size_t>(from.groups[g].params[i]);
      if (number >= from.state.size()) fail(Kind::data, concat(type(), ": the state names parameter ", number));
      for (const auto& [key, value] : from.state[number]) {
        const auto dtype = state_dtype(params[i], key);
        if (!dtype) fail(Kind::data, concat(type(), " keeps no state '", key, '\''));
        if (value.sizes() != params[i].sizes())
          fail(Kind::data, concat(type(), ": state '", key, "' of parameter ", i, " in group ", g, " is ",
                                  value.sizes(), ", the parameter ", params[i].sizes()));
        state[params[i].id()][key] = state_copy(params[i], value, *dtype);
      }
    }
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) groups_[g].hyper = std::move(hyper[g]);
  state_ = std::move(state);
}

std::string to_string(const Optimizer& optimizer) {
  std::ostringstream out;
  out << optimizer.type();
  for (std::size_t g = 0; g < optimizer.groups().size(); ++g) {
    const auto& group = optimizer.groups()[g];
    out << "\n  group " << g << ": " << group.params.size() << " parameters";
    for (const auto& [key, value] : group.hyper) {
      out << ", " << key << ' ';
      if (const bool* flag = std::get_if<bool>(&value)) {
        out << (*flag ? "true" : "false");
      } else {
        out << group.number(key);
      }
    }
  }
  return out.str();
}

}  // namespace apex::optimizers
