// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/nn/module.hpp"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "apex/nn/functional.hpp"
#include "apex/tensor_ops.hpp"

namespace apex::nn {

Module::~Module() = default;

Tensor Module::forward(const Tensor&) {
  fail(Kind::unsupported, concat(kind(), " has no forward of one tensor; call its own form"));
}

namespace {

std::string join(const std::string& path, const std::string& name) { return path.empty() ? name : path + '.' + name; }

/// Calls visit(path, module) for the tree, parents first, each module at its first place.
template <class M, class F>
void walk(M& module, const std::string& path, std::unordered_set<const Module*>& seen, F&& visit) {
  if (!seen.insert(&module).second) return;
  visit(path, module);
  for (const auto& child : module.children()) walk(static_cast<M&>(*child.module), join(path, child.name), seen, visit);
}
template <class M, class F>
void walk(M& module, F&& visit) {
  std::unordered_set<const Module*> seen;
  walk(module, "", seen, visit);
}

/// Tensors of the tree chosen by `own`, each identity once.
template <class Own>
std::vector<NamedTensor> collect(const Module& root, Own&& own) {
  std::vector<NamedTensor> all;
  std::unordered_set<const void*> seen;
  walk(root, [&](const std::string& path, const Module& module) {
    for (const auto& [name, tensor] : own(module))
      if (seen.insert(tensor.id()).second) all.push_back({join(path, name), tensor});
  });
  return all;
}

std::vector<Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<Tensor> tensors;
  tensors.reserve(named.size());
  for (const auto& entry : named) tensors.push_back(entry.tensor);
  return tensors;
}

}  // namespace

std::vector<NamedTensor> Module::named_parameters() const {
  return collect(
      *this, [](const Module& m) -> const auto& { return m.own_parameters(); });
}
std::vector<NamedTensor> Module::named_buffers() const {
  return collect(
      *this, [](const Module& m) -> const auto& { return m.own_buffers(); });
}
std::vector<Tensor> Module::parameters() const { return tensors_of(named_parameters()); }
std::vector<Tensor> Module::buffers() const { return tensors_of(named_buffers()); }

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> all;
  walk(*this, [&](const std::string& path, Module& module) { all.emplace_back(path, &module); });
  return all;
}

void Module::apply(const std::function<void(Module&)>& f) {
  for (const auto& child : children_) child.module->apply(f);
  f(*this);
}

void Module::replace_child(std::string_view name, const std::shared_ptr<Module>& module) {
  if (!module) fail(Kind::argument, concat(kind(), ": child '", name, "' cannot be replaced by nothing"));
  for (auto& child : children_) {
    if (child.name != name) continue;
    if (child.rebind) child.rebind(module);
    child.module = module;
    return;
  }
  fail(Kind::argument, concat(kind(), " has no child '", name, '\''));
}

void Module::check_new_name(const std::string& name) const {
  if (name.empty() || name.find('.') != std::string::npos)
    fail(Kind::argument, concat(kind(), ": '", name, "' cannot name a part: it is empty or has a dot"));
  const auto same = [&](const auto& entry) { return entry.name == name; };
  if (std::any_of(parameters_.begin(), parameters_.end(), same) ||
      std::any_of(buffers_.begin(), buffers_.end(), same) || std::any_of(children_.begin(), children_.end(), same))
    fail(Kind::argument, concat(kind(), ": the name '", name, "' is already used"));
}

Tensor Module::register_parameter(std::string name, const Tensor& value) {
  check_new_name(name);
  if (is_floating(value.dtype())) apex::set_requires_grad(value);
  parameters_.push_back({std::move(name), value});
  return value;
}

Tensor Module::register_buffer(std::string name, const Tensor& value) {
  check_new_name(name);
  buffers_.push_back({std::move(name), value});
  return value;
}

void Module::register_module(std::string name, std::shared_ptr<Module>&& module) {
  add_child({std::move(name), std::move(module), {}});
}

void Module::add_child(Child child) {
  check_new_name(child.name);
  if (!child.module) fail(Kind::argument, concat(kind(), ": child '", child.name, "' is null"));
  children_.push_back(std::move(child));
}

void Module::train(bool on) {
  training_ = on;
  for (const auto& child : children_) child.module->train(on);
}

StateDict Module::state_dict() const {
  StateDict state;
  walk(*this, [&](const std::string& path, const Module& module) {
    for (const auto& p : module.own_parameters()) state.push_back({join(path, p.name), p.tensor, StateKind::parameter});
    for (const auto& b : module.own_buffers()) state.push_back({join(path, b.name), b.tensor, StateKind::buffer});
  });
  return state;
}

namespace {

std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > kShown) text += concat(" and ", names.size() - kShown, " more");
  return text;
}

void check_report(const LoadReport& report, const std::string& mismatch, bool strict) {
  std::string text = mismatch;
  if (strict && !report.missing.empty()) text += concat(text.empty() ? "" : "; ", "missing ", listed(report.missing));
  if (strict && !report.unexpected.empty())
    text += concat(text.empty() ? "" : "; ", "unexpected ", listed(report.unexpected));
  if (!text.empty()) fail(Kind::data, "load_state_dict: the state does not fit the model: " + text);
}

}  // namespace

LoadReport Module::load_state_dict(const StateDict& state, const LoadOptions& options) {
  std::unordered_map<std::string_view, const StateEntry*> given;
  for (const auto& entry : state) given.emplace(entry.name, &entry);
  LoadReport report;
  std::vector<std::pair<Tensor, Tensor>> copies;
  std::string mismatch;
  for (const auto& own : state_dict()) {
    const auto found = given.find(own.name);
    if (found == given.end()) {
      report.missing.push_back(own.name);
      continue;
    }
    const Tensor& value = found->second->tensor;
    given.erase(found);
    if (!value.defined() || value.sizes() != own.tensor.sizes()) {
      if (mismatch.empty())
        mismatch = concat("'", own.name, "' is ", value.defined() ? to_string(value.sizes()) : "undefined",
                          ", the model has ", own.tensor.sizes());
      continue;
    }
    copies.emplace_back(own.tensor, value);
  }
  for (const auto& entry : state)
    if (given.contains(entry.name)) report.unexpected.push_back(entry.name);
  check_report(report, mismatch, options.strict);
  NoGradGuard no_grad;
  for (const auto& [target, value] : copies) copy_(target, functional::to(value, target.device()));
  return report;
}

namespace {

struct Target {
  std::optional<Device> device = {};
  std::optional<DType> dtype = {};
  std::optional<MemoryFormat> format = {};
};

Tensor converted(const Tensor& t, const Target& target) {
  Tensor out = t.detach();
  if (target.device) out = functional::to(out, *target.device);
  if (target.dtype && is_floating(out.dtype())) out = functional::cast(out, *target.dtype);
  if (target.format && out.dim() == 4) out = to_format(out, *target.format);
  return out;
}

/// Gradients follow their parameter.
void convert(Module& root, const Target& target) {
  NoGradGuard no_grad;
  for (const auto& p : root.parameters()) {
    const Tensor gradient = grad(p);
    p.set_data(converted(p, target));
    if (gradient.defined()) gradient.set_data(converted(gradient, target));
  }
  for (const auto& b : root.buffers()) b.set_data(converted(b, target));
}

}  // namespace

void Module::to(Device device) { convert(*this, {.device = device}); }
void Module::to(DType dtype) {
  if (!is_floating(dtype)) fail(Kind::argument, concat("Module::to: ", dtype, " is no floating type"));
  convert(*this, {.dtype = dtype});
}
void Module::to(MemoryFormat format) { convert(*this, {.format = format}); }
void Module::to(Device device, MemoryFormat format) { convert(*this, {.device = device, .format = format}); }
void Module::to(Device device, DType dtype, MemoryFormat format) {
  if (!is_floating(dtype)) fail(Kind::argument, concat("Module::to: ", dtype, " is no floating type"));
  convert(*this, {.device = device, .dtype = dtype, .format = format});
}

void Module::zero_grad(bool set_to_none) {
  NoGradGuard no_grad;
  for (const auto& p : parameters()) {
    const Tensor gradient = grad(p);
    if (!gradient.defined()) continue;
    if (set_to_none) {
      set_grad(p, {});
    } else {
      zero_(gradient);
    }
  }
}

void Module::set_requires_grad(bool on) {
  for (const auto& p : parameters()) apex::set_requires_grad(p, on);
}

}  // namespace apex::nn
