// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/optimizers/optimizer.hpp"

#include <sstream>
#include <unordered_set>
#include <utility>

#include "apex/autograd.hpp"
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

Optimizer::Optimizer(HyperMap defaults, const CommonOptions& options)
    : defaults_(std::move(defaults)), options_(options) {}
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
  own_lr_.emplace_back();
}

void Optimizer::replace_params(std::size_t group, std::vector<Tensor> params) {
  if (group >= groups_.size())
    fail(Kind::argument, concat(type(), ": group ", group, " of ", groups_.size(), " parameter groups"));
  auto& held = groups_[group].params;
  if (params.size() != held.size())
    fail(Kind::argument,
         concat(type(), ": ", params.size(), " tensors for the ", held.size(), " parameters of group ", group));
  std::swap(held, params);
  const ParamGroup fresh{.params = std::exchange(held, {})};
  try {
    check_params(fresh);
  } catch (...) {
    held = params;
    throw;
  }
  for (const auto& p : params) state_.erase(p.id());
  held = fresh.params;
}

void Optimizer::set_hyper(std::size_t group, std::string_view key, HyperValue value) {
  if (group >= groups_.size())
    fail(Kind::argument, concat(type(), ": group ", group, " of ", groups_.size(), " parameter groups"));
  HyperMap changed = groups_[group].hyper;
  changed.insert_or_assign(std::string(key), value);
  groups_[group].hyper = completed(changed, Kind::argument);
  if (key == "lr") write_lr(group);
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

void Optimizer::zero_grad(std::optional<bool> set_to_none) {
  NoGradGuard no_grad;
  const bool drop = set_to_none.value_or(options_.set_grad_none);
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

HyperMap Optimizer::options() const {
  HyperMap out{{"set_grad_none", options_.set_grad_none},
               {"master_weights", options_.master_weights},
               {"capturable", options_.capturable}};
  if (counts_steps()) out["group_step"] = options_.group_step;
  return out;
}

std::string to_string(const Optimizer& optimizer) {
  std::ostringstream out;
  const auto write = [&](const HyperMap& map, const char* between) {
    for (const auto& [key, value] : map) {
      out << between << key << ' ';
      if (const bool* flag = std::get_if<bool>(&value)) {
        out << (*flag ? "true" : "false");
      } else {
        std::visit([&](auto v) { out << v; }, value);
      }
      between = ", ";
    }
  };
  out << optimizer.type() << " (";
  write(optimizer.options(), "");
  out << ')';
  for (std::size_t g = 0; g < optimizer.groups().size(); ++g) {
    const auto& group = optimizer.groups()[g];
    out << "\n  group " << g << ": " << group.params.size() << " parameters";
    write(group.hyper, ", ");
  }
  return out.str();
}

}  // namespace apex::optimizers
