// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apex/autograd.hpp"
#include "apex/core/tensor.hpp"

namespace apex::nn {

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

enum class StateKind { parameter, buffer };

/// One tensor of a model's state under its path, e.g. "layer1.0.conv1.weight".
struct StateEntry {
  std::string name;
  Tensor tensor;  ///< shares the module's storage: no copy
  StateKind kind = StateKind::parameter;
};
using StateDict = std::vector<StateEntry>;

struct LoadOptions {
  bool strict = true;  ///< missing and unexpected names are an error
};
struct LoadReport {
  std::vector<std::string> missing;     ///< wanted by the module, not in the dictionary
  std::vector<std::string> unexpected;  ///< in the dictionary, unknown to the module
};

/// Base of everything with parameters. A module registers its parameters, buffers and children in its constructor; the
/// order of registration is the order of every listing. Modules live in shared_ptr and are not copied.
class Module {
 public:
  Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  virtual ~Module();

  /// The usual one-input form. @throws Kind::unsupported unless overridden
  virtual Tensor forward(const Tensor& x);
  Tensor operator()(const Tensor& x) { return forward(x); }
  /// "Conv2d", "BatchNorm2d", ...: the class, for messages and for choosing modules.
  virtual std::string_view kind() const { return "Module"; }

  /// Every parameter of the tree once (shared ones count at their first place): own ones first, then child by child.
  std::vector<Tensor> parameters() const;
  std::vector<NamedTensor> named_parameters() const;
  std::vector<Tensor> buffers() const;
  std::vector<NamedTensor> named_buffers() const;
  /// Own parameters and buffers only, under their plain names.
  const std::vector<NamedTensor>& own_parameters() const { return parameters_; }
  const std::vector<NamedTensor>& own_buffers() const { return buffers_; }

  struct Child {
    std::string name;
    std::shared_ptr<Module> module;
    std::function<void(const std::shared_ptr<Module>&)> rebind;  ///< sets the parent's own pointer to the child
  };
  const std::vector<Child>& children() const { return children_; }
  /// Puts another module in the place of child `name`; the parent's own pointer follows.
  /// @throws Kind::argument when there is no such child or the parent cannot hold a module of that class
  void replace_child(std::string_view name, const std::shared_ptr<Module>& module);
  /// This module as "" and all below it with their paths, parents before children, each module once.
  std::vector<std::pair<std::string, Module*>> named_modules();
  /// Calls f on every module of the tree, children before parents.
  void apply(const std::function<void(Module&)>& f);

  /// Parameters and buffers: a module's parameters, its buffers, then its children.
  StateDict state_dict() const;
  /// Copies values by name, converting dtype and device. All names and sizes are checked before anything is written.
  /// @throws Kind::data naming what is missing, unexpected or of other sizes
  LoadReport load_state_dict(const StateDict& state, const LoadOptions& options = {});

  /// Training or evaluation mode of the whole tree.
  virtual void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const noexcept { return training_; }

  /// Moves and converts parameters, buffers and gradients in place: the tensors keep their identity (set_data). A dtype
  /// applies to floating ones, a memory format to those of rank 4.
  void to(Device device);
  void to(DType dtype);
  void to(MemoryFormat format);
  void to(Device device, MemoryFormat format);
  void to(Device device, DType dtype, MemoryFormat format);

  /// Drops every gradient, or fills it with zeros.
  void zero_grad(bool set_to_none = true);
  /// set_requires_grad on every parameter.
  void set_requires_grad(bool on);

 protected:
  /// The new parameter; it requires a gradient when floating. @throws Kind::argument for an empty, dotted or used name
  Tensor register_parameter(std::string name, const Tensor& value);
  Tensor register_buffer(std::string name, const Tensor& value);
  /// `member` is the pointer the parent calls the child through; replace_child() updates it.
  template <class M>
  void register_module(std::string name, std::shared_ptr<M>& member) {
    add_child({std::move(name), member, [&member](const std::shared_ptr<Module>& module) {
                 auto cast = std::dynamic_pointer_cast<M>(module);
                 if (!cast) fail(Kind::argument, "a module of another class was expected");
                 member = std::move(cast);
               }});
  }
  /// A child that is only reached through children() (containers).
  void register_module(std::string name, std::shared_ptr<Module>&& module);

 private:
  void add_child(Child child);
  void check_new_name(const std::string& name) const;

  std::vector<NamedTensor> parameters_;
  std::vector<NamedTensor> buffers_;
  std::vector<Child> children_;
  bool training_ = true;
};

}  // namespace apex::nn
