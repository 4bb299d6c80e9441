// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "apex/core/tensor.hpp"

namespace apex::optimizers {

using HyperValue = std::variant<bool, std::int64_t, double>;
using HyperMap = std::map<std::string, HyperValue, std::less<>>;

/// Parameters that share hyper-parameters. Values left out take the optimizer's defaults.
struct ParamGroup {
  std::vector<Tensor> params = {};
  HyperMap hyper = {};
  Tensor lr_on_device = {};  ///< set by Optimizer::set_lr_source; not part of any saved state

  double number(std::string_view key) const;  ///< @throws Kind::argument when there is no such key
  bool flag(std::string_view key) const;
};

/// What one step may be told from outside, as one-element tensors on the parameters' device so that nobody waits for
/// them: a non-zero `found_inf` (f32 or i32) leaves everything unchanged; gradients are multiplied by `inv_scale` (f32)
/// as they are read.
struct StepScaling {
  Tensor found_inf = {};
  Tensor inv_scale = {};
};

/// State in its logical form: for each parameter (counted through all groups) its tensors by key, and for each group
/// its hyper-parameters and the numbers of its parameters.
struct OptimizerState {
  struct Group {
    HyperMap hyper;
    std::vector<std::int64_t> params;
  };
  std::string type;
  std::vector<std::map<std::string, Tensor>> state;
  std::vector<Group> groups;
};

/// Base of the optimizers: groups, state by the parameters' identity, and the logical state dictionary.
/// Parameters keep their place when they are cast or moved (Tensor::set_data).
class Optimizer {
 public:
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer();

  /// The class: "FusedSGD".
  virtual std::string_view type() const = 0;

  /// Works at any time; an empty group is fine.
  /// @throws Kind::argument for a parameter already held, one that is not a leaf, not floating or has gaps in memory,
  /// an
  ///         unknown or invalid hyper-parameter
  void add_param_group(ParamGroup group);
  const std::vector<ParamGroup>& groups() const { return groups_; }
  /// Sets a hyper-parameter of one group. @throws Kind::argument for an unknown key, group or an invalid value
  void set_hyper(std::size_t group, std::string_view key, HyperValue value);
  /// Sets the learning rate of every group.
  void set_lr(double lr);
  /// From now on steps read the learning rate of every group (or of one) from `lr` (f64, one element, on the
  /// parameters' device) when the kernel runs, instead of the hyper-parameter "lr": a captured step can then be
  /// replayed with another rate. The same number gives the same bits either way. The hyper-parameter stays what is
  /// saved and printed, so keep it up by set_lr. An undefined tensor goes back to it.
  /// @throws Kind::argument for another dtype or size
  void set_lr_source(const Tensor& lr);
  void set_lr_source(std::size_t group, const Tensor& lr);

  /// One update of every parameter that has a gradient; raises the version of what it changes. With a closure: it runs
  /// first, with gradients on, and its result is returned; else the result is undefined.
  /// On CUDA nothing here waits for the device, so a step can be captured once all state exists.
  Tensor step(const std::function<Tensor()>& closure = {});
  virtual void step(const StepScaling& scaling);
  /// Whether the last step (replays of a captured one count) was skipped because found_inf was set. Waits for the
  /// device.
  bool last_step_skipped() const;

  /// Drops the gradients or fills them with zeros; the default is the constructor's.
  virtual void zero_grad(std::optional<bool> set_to_none = {});

  /// Makes parameters whose values are still on their way (an optimizer that spreads its work over ranks) arrive. Call
  /// it before they are read by anything but ops; checkpoint::save does.
  virtual void synchronize() {}

  /// The tensors kept for `param` by key ("momentum_buffer", ...); empty before its first step.
  const std::map<std::string, Tensor>& state_of(const Tensor& param) const;
  /// f(param, key, tensor) for all state, groups and parameters in order, keys in alphabetical order.
  void for_each_state(
      const std::function<void(const Tensor& param, const std::string& key, const Tensor& value)>& f) const;
  /// Puts a tensor into the state of `param`, copied, on its device, in the optimizer's dtype for that key.
  /// @throws Kind::argument when the optimizer does not hold the parameter or knows no such key; Kind::data when sizes
  /// differ
  void set_state(const Tensor& param, const std::string& key, const Tensor& value);

  OptimizerState state_dict() const;
  /// A deep copy of `state` into this optimizer. Nothing changes when it throws.
  /// @throws Kind::data when type, number of groups, a group's number of parameters (naming the group) or sizes differ
  void load_state_dict(const OptimizerState& state);

 protected:
  /// @param defaults every hyper-parameter there is, with the value groups take when they do not say
  Optimizer(HyperMap defaults, bool set_grad_none);

  virtual void check_hyper(const HyperMap& hyper) const = 0;
  /// One update of all groups: step_group for each. On the CPU a skipped step never comes here; on a device the kernels
  /// must read scaling.found_inf themselves.
  virtual void update(const StepScaling& scaling);
  virtual void step_group(ParamGroup& group, const StepScaling& scaling) = 0;
  /// The dtype of the state `key` of `param`; nothing for an unknown key.
  virtual std::optional<DType> state_dtype(const Tensor& param, std::string_view key) const = 0;
  std::map<std::string, Tensor>& mutable_state(const Tensor& param) { return state_[param.id()]; }

 private:
  void note_found_inf(const Tensor& found_inf);
  void check_params(const ParamGroup& group) const;
  HyperMap completed(const HyperMap& given, Kind kind) const;

  HyperMap defaults_;
  bool set_grad_none_;
  std::vector<ParamGroup> groups_;
  std::unordered_map<const void*, std::map<std::string, Tensor>> state_;
  Tensor skipped_;  ///< found_inf as the last step saw it, a persistent copy on its device; undefined: no step had one
  bool had_found_inf_ = false;
};

/// The class and every group's size and hyper-parameters, one line each.
std::string to_string(const Optimizer& optimizer);

}  // namespace apex::optimizers
