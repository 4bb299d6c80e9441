// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// State of the parameters: where it lies, how it follows them, and the state dictionary.
#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "apex/autograd.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/nn/functional.hpp"
#include "apex/optimizers/optimizer.hpp"
#include "apex/tensor_ops.hpp"
#include "layout.hpp"

namespace apex::optimizers {

namespace {

constexpr const char* kMaster = "master";
constexpr const char* kStep = "step";
constexpr std::int64_t kLeastBlock = 64;

/// Entries of other libraries' parameter groups that say nothing here.
bool is_foreign(const std::string& key) {
  static const std::unordered_set<std::string> keys = {
      kStep, "foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay", "initial_lr"};
  return keys.contains(key);
}

/// A number of updates. @throws Kind::data for what counts nothing
std::int64_t whole_count(double value, std::string_view type, std::string_view where) {
  if (!(value >= 0.0 && value <= 2147483647.0) || value != std::floor(value))
    fail(Kind::data,
         concat(type, ": ", where, " says step ", value, "; a whole number from 0 to 2147483647 is needed"));
  return static_cast<std::int64_t>(value);
}

void write(const Tensor& target, const Tensor& value) {
  const Tensor near = nn::functional::to(value.detach(), target.device());
  if (near.sizes() == target.sizes()) {
    kernels::copy(target.context(), target.view(), near.view());
  } else {  // one element each
    kernels::copy(target.context(), target.view(), views::reshape(near, target.sizes()).view());
  }
  target.raise_version();
}

}  // namespace

std::optional<Optimizer::StateKey> Optimizer::key_of(const Tensor& param, std::string_view name) const {
  if (name == kStep && counts_steps()) return StateKey{.name = kStep, .dtype = DType::i32, .scalar = true};
  if (name == kMaster && has_master(param)) return StateKey{.name = kMaster, .dtype = DType::f32};
  for (const auto& key : state_keys(param))
    if (key.name == name) return key;
  return std::nullopt;
}

/// A new zero of its own, beside others of its kind.
Tensor Optimizer::scalar_slot(Device device, DType dtype) {
  for (auto& block : blocks_) {
    if (block.memory.device() == device && block.memory.dtype() == dtype && block.used < block.memory.numel())
      return views::narrow(block.memory, 0, block.used++, 1);
  }
  std::int64_t held = 0;
  for (const auto& group : groups_)
    held +=
        std::count_if(group.params.begin(), group.params.end(), [&](const auto& p) { return p.device() == device; });
  blocks_.push_back({.memory = zeros({std::max(held, kLeastBlock)}, dtype, device), .used = 1});
  return views::narrow(blocks_.back().memory, 0, 0, 1);
}

/// The state of `param` under `key`, made when it is missing. A parameter may have been cast, moved or re-laid since
/// its last step: its state follows.
Tensor& Optimizer::state_tensor(const Tensor& param, const StateKey& key) {
  auto& tensors = state_[param.id()].tensors;
  const auto found = tensors.find(std::string(key.name));
  const bool there = found != tensors.end();
  if (there) {
    const Tensor& now = found->second;
    if (now.dtype() == key.dtype && now.device() == param.device() && (key.scalar || same_order(param, now)))
      return found->second;
  }
  Tensor fresh = key.scalar ? scalar_slot(param.device(), key.dtype) : empty_like(param, key.dtype);
  if (there)
    write(fresh, found->second);
  else if (!key.scalar || key.initial != 0.0)
    kernels::fill(fresh.context(), fresh.view(), key.initial);
  Tensor& kept = tensors[std::string(key.name)];
  kept = fresh;
  return kept;
}

/// The f32 master of `param`, made from it at its first step.
Tensor Optimizer::master_of(const Tensor& param) {
  const bool fresh = !mutable_state(param).contains(kMaster);
  Tensor& master = state_tensor(param, {.name = kMaster, .dtype = DType::f32});
  if (fresh) kernels::copy(param.context(), master.view(), param.view());
  return master;
}

void Optimizer::refresh_masters() {
  const NoGradGuard no_grad;
  for (const auto& group : groups_)
    for (const auto& p : group.params)
      if (has_master(p) && mutable_state(p).contains(kMaster)) write(master_of(p), p);
}

void Optimizer::init_state() {
  const NoGradGuard no_grad;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (const auto& p : groups_[g].params) {
      if (has_master(p)) master_of(p);
      for (const auto& key : state_keys(p)) state_tensor(p, key);
      if (counts_steps()) step_slot(p);
      if (options_.capturable) lr_of(g, p.device());
      if (!skipped_.defined()) skipped_ = zeros({1}, DType::f32, p.device());
    }
  }
}

/// "step" of `param`; while the host counts, its value is written when somebody asks for it.
Tensor& Optimizer::step_slot(const Tensor& param) {
  return state_tensor(param, {.name = kStep, .dtype = DType::i32, .scalar = true});
}

void Optimizer::publish_counts() const {
  if (counts_published_) return;
  for (const auto& [id, state] : state_) {
    const auto found = state.tensors.find(kStep);
    if (found != state.tensors.end())
      kernels::fill(found->second.context(), found->second.view(), static_cast<double>(state.updates));
  }
  counts_published_ = true;
}

const std::map<std::string, Tensor>& Optimizer::state_of(const Tensor& param) const {
  static const std::map<std::string, Tensor> none;
  publish_counts();
  const auto found = state_.find(param.id());
  return found == state_.end() ? none : found->second.tensors;
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
  const auto known = key_of(param, key);
  if (!known) fail(Kind::argument, concat(type(), " keeps no state '", key, '\''));
  if (known->scalar ? value.numel() != 1 : value.sizes() != param.sizes())
    fail(Kind::data,
         concat(type(), ": state '", key, "' of sizes ", value.sizes(), " for a parameter of ", param.sizes()));
  const NoGradGuard no_grad;
  publish_counts();
  if (key == kStep) state_[param.id()].updates = whole_count(value.item(), type(), "set_state");
  write(state_tensor(param, *known), value);
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

HyperMap Optimizer::hyper_of_state(const OptimizerState& from, std::size_t g) const {
  HyperMap given = from.groups[g].hyper;
  if (const auto amsgrad = given.find("amsgrad"); amsgrad != given.end()) {
    if (std::visit([](auto v) { return static_cast<double>(v); }, amsgrad->second) != 0.0)
      fail(Kind::data, concat(type(), ": group ", g, " of the state is of amsgrad, which this optimizer has not"));
    given.erase(amsgrad);
  }
  std::erase_if(given, [&](const auto& entry) { return is_foreign(entry.first) && !defaults_.contains(entry.first); });
  return completed(given, Kind::data);
}

void Optimizer::for_each_part(const std::function<void(const StatePart& part)>&) const {
  fail(Kind::state, concat(type(), ": state does not lie in parts"));
}

Tensor Optimizer::part_to_keep(const Tensor&, std::string_view, const Tensor& whole) const { return whole; }

void Optimizer::load_state_dict(const OptimizerState& from) {
  if (!takes_type(from.type))
    fail(Kind::data, concat("the state is of a ", from.type, ", this optimizer is a ", type()));
  if (from.groups.size() != groups_.size())
    fail(Kind::data,
         concat(type(), ": the state has ", from.groups.size(), " parameter groups, the optimizer ", groups_.size()));
  struct Entry {
    Tensor param;
    StateKey key;
    Tensor value;
  };
  std::vector<HyperMap> hyper;
  std::vector<Entry> entries;
  std::unordered_map<const void*, std::int64_t> counts;
  std::unordered_set<std::int64_t> taken;
  std::int64_t without_master = 0, without_step = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto& params = groups_[g].params;
    if (from.groups[g].params.size() != params.size())
      fail(Kind::data, concat(type(), ": group ", g, " of the state has ", from.groups[g].params.size(),
                              " parameters, the optimizer's ", params.size()));
    const auto group_step = from.groups[g].hyper.find(kStep);
    std::optional<std::int64_t> group_count;
    if (group_step != from.groups[g].hyper.end())
      group_count = whole_count(std::visit([](auto v) { return static_cast<double>(v); }, group_step->second), type(),
                                concat("group ", g, " of the state"));
    if (const auto& arrays = from.groups[g].arrays; !arrays.empty())
      fail(Kind::data, concat(type(), ": group ", g, " of the state has arrays '", arrays.begin()->first,
                              "', which this optimizer keeps with each parameter, if at all"));
    hyper.push_back(hyper_of_state(from, g));
    for (std::size_t i = 0; i < params.size(); ++i) {
      const std::int64_t number = from.groups[g].params[i];
      if (number < 0 || number >= static_cast<std::int64_t>(from.state.size()) || !taken.insert(number).second)
        fail(Kind::data, concat(type(), ": group ", g, " of the state names parameter ", number,
                                taken.contains(number) ? " a second time" : ", which it does not hold"));
      const auto& state = from.state[static_cast<std::size_t>(number)];
      const auto keys = state_keys(params[i]);
      const auto given = [&](const StateKey& key) { return state.contains(std::string(key.name)); };
      if (std::any_of(keys.begin(), keys.end(), given))
        for (const auto& key : keys)
          if (!given(key))
            fail(Kind::data,
                 concat(type(), ": the state of parameter ", i, " in group ", g, " lacks '", key.name, '\''));
      for (const auto& [name, value] : state) {
        const auto key = key_of(params[i], name);
        if (!key) fail(Kind::data, concat(type(), " keeps no state '", name, '\''));
        if (key->scalar ? value.numel() != 1 : value.sizes() != params[i].sizes())
          fail(Kind::data, concat(type(), ": state '", name, "' of parameter ", i, " in group ", g, " is ",
                                  value.sizes(), ", the parameter ", params[i].sizes()));
        entries.push_back({params[i], *key, value});
        if (name == kStep)
          counts[params[i].id()] =
              whole_count(value.item(), type(), concat("the state of parameter ", i, " in group ", g));
      }
      if (state.empty() || !counts_steps() || state.contains(kStep)) {
        without_master += !state.empty() && has_master(params[i]) && !state.contains(kMaster);
        continue;
      }
      without_master += has_master(params[i]) && !state.contains(kMaster);
      if (group_count)
        counts[params[i].id()] = *group_count;
      else
        ++without_step;
    }
  }
  const NoGradGuard no_grad;
  publish_counts();
  // What comes from this optimizer itself must not be overwritten before it is read.
  std::unordered_set<const void*> ours;
  for (const auto& [id, state] : state_)
    for (const auto& [name, value] : state.tensors) ours.insert(value.storage().get());
  for (auto& entry : entries)
    if (ours.contains(entry.value.storage().get())) entry.value = clone(entry.value);

  std::unordered_map<const void*, std::unordered_set<std::string>> loaded;
  for (const auto& entry : entries) {
    write(state_tensor(entry.param, entry.key), entry.value);
    loaded[entry.param.id()].insert(std::string(entry.key.name));
  }
  for (const auto& group : groups_) {
    for (const auto& p : group.params) {
      auto& state = state_[p.id()];
      const auto& keys = loaded[p.id()];
      const auto count = counts.find(p.id());
      state.updates = count == counts.end() ? 0 : count->second;
      const bool counted = count != counts.end() || (!keys.empty() && counts_steps());
      if (counted && !keys.contains(kStep)) {
        Tensor& slot = step_slot(p);
        kernels::fill(slot.context(), slot.view(), static_cast<double>(state.updates));
      }
      std::erase_if(state.tensors,
                    [&](const auto& e) { return !keys.contains(e.first) && !(counted && e.first == kStep); });
    }
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    groups_[g].hyper = std::move(hyper[g]);
    write_lr(g);
  }
  if (without_master > 0)
    log_warning(concat(type(), ": the state loaded has no masters for ", without_master,
                       " parameters; they are made from the parameters at the next step"));
  if (without_step > 0)
    log_warning(concat(type(), ": the state loaded has no step counts for ", without_step,
                       " parameters; they are counted from 0"));
}

}  // namespace apex::optimizers
