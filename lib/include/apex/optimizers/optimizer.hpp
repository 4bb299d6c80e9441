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
#include <utility>
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
  double grad_scale = 1.0;  ///< multiplies gradients too
};

/// State in its logical form: for each parameter (counted through all groups) its tensors by key, and for each group
/// its hyper-parameters and the numbers of its parameters.
struct OptimizerState {
  struct Group {
    HyperMap hyper;
    std::vector<std::int64_t> params;
    /// What Apex keeps for a group as a whole, "exp_avg_sq" of FusedNovoGrad. Read by the classes that say so, written
    /// by none.
    std::map<std::string, std::vector<Tensor>> arrays = {};
  };
  std::string type;
  std::vector<std::map<std::string, Tensor>> state;
  std::vector<Group> groups;
};

/// What every optimizer can be asked for, beside its hyper-parameters.
struct CommonOptions {
  bool set_grad_none = true;    ///< what zero_grad() does without an argument
  bool master_weights = false;  ///< 16-bit parameters are updated through f32 masters
  bool capturable = false;      ///< learning rates and step counts lie on the device, so that a captured step can be
                                ///< replayed
  bool group_step = false;      ///< one step count for all parameters of a group, as in Apex
};

/// Base of the optimizers: groups, state by the parameters' identity, and the logical state dictionary.
/// Parameters keep their place when they are cast or moved (Tensor::set_data), and their state follows.
///
/// State "step" (i32, one element) of optimizers that correct for it is the number of updates a parameter has had: one
/// first used in the third call is then at its first. All of a device lie in one array. With group_step a call that
/// finds a gradient in the group counts for all of its parameters. Skipped steps do not count.
///
/// With master_weights a 16-bit parameter has an f32 state "master", made from its value at its first step, and its
/// other state is f32. Steps update the master; the parameter becomes its rounded copy in the same pass, so what else
/// is written into the parameter afterwards is lost, unless refresh_masters() takes it up. Masters are a matter of the
/// optimizer, not of a group: a loaded state without them is fine (they are made at the next step, and a warning says
/// so), one with them is refused where they are not asked for.
///
/// Graphs: a step can be captured when all state exists (a step before, or init_state()), gradients keep their place
/// (zero_grad(false)) and the optimizer is capturable or its learning rate comes from set_lr_source. set_lr and
/// load_state_dict then write into the tensors that the graph reads.
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
  /// Puts other tensors in the place of a group's parameters, one for each: f32 copies of 16-bit ones, say. State of
  /// those that go is dropped. @throws Kind::argument as add_param_group; for another number of them
  void replace_params(std::size_t group, std::vector<Tensor> params);
  /// Sets a hyper-parameter of one group. @throws Kind::argument for an unknown key, group or an invalid value
  void set_hyper(std::size_t group, std::string_view key, HyperValue value);
  /// The options beside the hyper-parameters, for printing.
  virtual HyperMap options() const;
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
  /// Whether the last step (replays of a captured one count) was skipped: found_inf was set, or the optimizer found
  /// gradients it could not use. Waits for the device.
  bool last_step_skipped() const;
  /// The same without a wait: one element on the parameters' device that is 0, or not 0 (or not a number) when the last
  /// step was skipped; undefined when nothing could have skipped it.
  virtual Tensor skip_sign() const { return had_found_inf_ ? skipped_ : Tensor(); }

  /// Makes all state there will be, for parameters without gradient too, so that a capture allocates nothing that
  /// stays. A found_inf is then taken to be an f32 on the first parameter's device.
  virtual void init_state();
  /// Reads the parameters into the masters that exist, after somebody else wrote into the parameters.
  void refresh_masters();

  /// Drops the gradients or fills them with zeros; the default is the constructor's.
  virtual void zero_grad(std::optional<bool> set_to_none = {});

  /// Makes parameters whose values are still on their way (an optimizer that spreads its work over ranks) arrive. Call
  /// it before they are read by anything but ops; checkpoint::save does.
  virtual void synchronize() const {}

  /// The tensors kept for `param` by key ("momentum_buffer", ...); empty before its first step.
  const std::map<std::string, Tensor>& state_of(const Tensor& param) const;
  /// f(param, key, tensor) for all state, groups and parameters in order, keys in alphabetical order.
  virtual void for_each_state(
      const std::function<void(const Tensor& param, const std::string& key, const Tensor& value)>& f) const;
  /// Puts a tensor into the state of `param`, copied, on its device, in the optimizer's dtype for that key.
  /// @throws Kind::argument when the optimizer does not hold the parameter or knows no such key; Kind::data when sizes
  /// differ (of state that is one number: when it is not one element)
  virtual void set_state(const Tensor& param, const std::string& key, const Tensor& value);

  virtual OptimizerState state_dict() const;
  /// A deep copy of `state` into this optimizer; tensors that fit keep their memory. What a group leaves out takes the
  /// default. Step counts may stand in the groups as "step" (Apex's form) or, of any type, with the parameters. Nothing
  /// changes when it throws.
  /// @throws Kind::data when type, number of groups, a group's number of parameters (naming the group) or sizes differ
  virtual void load_state_dict(const OptimizerState& state);

  /// For checkpoints of optimizers that keep a part of their state on every rank.
  struct StatePart {
    Tensor param;
    std::string key;
    Dims sizes;              ///< of the whole
    std::int64_t begin = 0;  ///< of this part in the whole, in row-major order
    Tensor values;           ///< on the host, one dimension
    bool whole = false;      ///< values are all there is, the same on every rank
  };
  /// Whether state goes to files by for_each_part instead of for_each_state.
  virtual bool in_parts() const { return false; }
  /// f(part) for all state; collective, parts of all ranks cover the whole.
  virtual void for_each_part(const std::function<void(const StatePart& part)>& f) const;
  /// What is to be kept until load_state_dict of a tensor that was read, so that no rank needs all of them.
  virtual Tensor part_to_keep(const Tensor& param, std::string_view key, const Tensor& whole) const;
  /// Called when a checkpoint has been loaded, parameters included, after load_state_dict.
  virtual void parameters_loaded() {}
  /// The class whose state this is: what a file says, so that optimizers which differ in how they work alone read each
  /// other's.
  virtual std::string_view state_type() const { return type(); }
  /// What makes the steps around this optimizer and changes what its state means ("LARC"); empty: nothing. Checkpoint
  /// files hold it, and state of the one is refused by the other.
  const std::string& wrapper() const noexcept { return wrapper_; }
  void set_wrapper(std::string name) { wrapper_ = std::move(name); }

 protected:
  /// One key of the state.
  struct StateKey {
    std::string_view name;
    DType dtype;
    bool scalar = false;  ///< one element, whatever the parameter's sizes
    double initial = 0.0;
  };

  /// What one multi-tensor call takes: parameters of one device, dtype, gradient dtype and step count.
  struct Bucket {
    Device device;
    DType model, grad;
    std::optional<DType> copy;             ///< of copies; none: there are none
    std::int64_t step = 0;                 ///< of this update; 0 where `steps` are given
    std::vector<Tensor> params, kept;      ///< kept: alive until the call
    std::vector<View> weights, copies;     ///< parameters, or masters with parameters as copies
    std::vector<std::vector<View>> state;  ///< in the order of state_keys()
    std::vector<View> steps;
    std::vector<ConstView> grads;
    std::vector<std::uint8_t> first_run;
    StepScaling scaling;  ///< on this device
    Tensor lr;            ///< on this device; undefined: the hyper-parameter
  };

  /// @param defaults every hyper-parameter there is, with the value groups take when they do not say
  Optimizer(HyperMap defaults, const CommonOptions& options);

  virtual void check_hyper(const HyperMap& hyper) const = 0;
  /// Every key that `param` may have, beside "step" and "master".
  virtual std::vector<StateKey> state_keys(const Tensor& param) const = 0;
  virtual bool has_master(const Tensor& param) const { return options_.master_weights && is_16bit(param.dtype()); }
  /// The gradient to use: the parameter's own, unless a class is handed others.
  virtual Tensor gradient_of(const Tensor& param) const;
  /// What else receives the new value of a parameter without master; undefined: nothing.
  virtual Tensor copy_of(const Tensor&) const { return {}; }
  virtual bool counts_steps() const { return true; }
  /// Whether update() needs the count on the host: then a step that found_inf on a device may skip waits for it.
  virtual bool counts_on_host() const { return false; }
  /// Whether the kernels skip for reasons of their own, so that only the device knows how many steps there were.
  virtual bool skips_by_itself() const { return false; }
  virtual bool skipped_by_itself() const { return false; }
  /// Other names under which a state may come: torch's classes.
  virtual bool takes_type(std::string_view name) const { return name == type(); }
  /// Before any group. On the CPU a step that found_inf skips comes neither here nor to update().
  virtual void before_step(const StepScaling&) {}
  virtual void after_step() {}
  /// One update of all groups: bucket by bucket, by update(). Comes after before_step().
  virtual void update_all(const StepScaling& scaling);
  /// Puts the state of `param` into its bucket; makes what is missing.
  virtual void add_state(Bucket& bucket, const ParamGroup& group, const Tensor& param);
  virtual void update(const Bucket& bucket, const ParamGroup& group) = 0;

  /// The hyper-parameters that a saved group asks for, complete. @throws Kind::data for one this optimizer has not
  HyperMap hyper_of_state(const OptimizerState& state, std::size_t group) const;
  Tensor& state_tensor(const Tensor& param, const StateKey& key);
  std::map<std::string, Tensor>& mutable_state(const Tensor& param) { return state_[param.id()].tensors; }
  const CommonOptions& common() const { return options_; }
  /// f32 where the parameter has a master, f64 for f64 parameters, else f32.
  static DType wide(const Tensor& param) { return param.dtype() == DType::f64 ? DType::f64 : DType::f32; }

 private:
  struct ParamState {
    std::map<std::string, Tensor> tensors;
    std::int64_t updates = 0;  ///< while counts are kept on the host
  };
  /// One-element tensors cut from one block.
  struct Block {
    Tensor memory;
    std::int64_t used = 0;
  };

  void note_found_inf(const Tensor& found_inf);
  void check_params(const ParamGroup& group) const;
  HyperMap completed(const HyperMap& given, Kind kind) const;
  std::optional<StateKey> key_of(const Tensor& param, std::string_view name) const;
  Tensor scalar_slot(Device device, DType dtype);
  Tensor& step_slot(const Tensor& param);
  void choose_counts(const StepScaling& scaling);
  void publish_counts() const;
  void step_group(std::size_t index, const StepScaling& scaling);
  void count_group(const ParamGroup& group);
  Bucket& bucket_for(std::vector<Bucket>& buckets, const Tensor& param, const Tensor& gradient, const Tensor& copy,
                     std::int64_t step);
  Tensor master_of(const Tensor& param);
  Tensor lr_of(std::size_t group, Device device);
  void write_lr(std::size_t group);

  HyperMap defaults_;
  CommonOptions options_;
  std::vector<ParamGroup> groups_;
  std::vector<std::vector<Tensor>> own_lr_;  ///< of each group, one for each device: read by captured steps
  std::unordered_map<const void*, ParamState> state_;
  std::vector<Block> blocks_;
  bool counts_on_device_ = false;
  mutable bool counts_published_ = true;  ///< the tensors "step" hold what the host has counted
  Tensor skipped_;  ///< found_inf as the last step saw it, a persistent copy on its device; undefined: no step had one
  bool had_found_inf_ = false;
  std::string wrapper_;
};

/// The class with its options, and every group's size and hyper-parameters, one line each.
std::string to_string(const Optimizer& optimizer);

}  // namespace apex::optimizers
