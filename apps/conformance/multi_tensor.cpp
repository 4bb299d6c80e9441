// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/multi_tensor_apply.hpp"

#include "apex/nn/functional.hpp"
#include "apex/tensor_ops.hpp"
#include "ops.hpp"

// The ops over lists of tensors. Inputs come in the type they were recorded in, so a case runs in that alone.

namespace apex::conformance {
namespace {

using multi_tensor_apply::multi_tensor_applier;

Tensor on(Device device, const Tensor& host) { return device == kCpu ? host : nn::functional::to(host, device); }

Tensor tensor_of(const Dataset& recorded, Device device) {
  const Tensor t = empty(recorded.sizes, recorded.dtype, device);
  copy_(t, on(device, from_values<double>(recorded.sizes, recorded.values)));
  return t;
}

/// The datasets <prefix>0, <prefix>1, ...
std::vector<std::string> names_of(const Case& recorded, const std::string& prefix) {
  std::vector<std::string> names;
  while (recorded.has(concat(prefix, names.size()))) names.push_back(concat(prefix, names.size()));
  return names;
}
std::vector<Tensor> list_of(const Case& recorded, const std::string& prefix, Device device) {
  std::vector<Tensor> list;
  for (const auto& name : names_of(recorded, prefix)) list.push_back(tensor_of(recorded.dataset(name), device));
  if (list.empty()) fail(Kind::data, concat(recorded.op, '/', recorded.name, ": no dataset ", prefix, '0'));
  return list;
}

std::vector<double> values_of(const Tensor& t) {
  const Tensor wide = empty(t.sizes(), DType::f64, t.device());
  copy_(wide, t);
  const Tensor host = wide.device() == kCpu ? wide : nn::functional::to(wide, kCpu);
  const double* data = host.data<double>();
  return {data, data + host.numel()};
}

void compare_list(const Case& recorded, const std::string& prefix, const std::vector<Tensor>& got, double tolerance,
                  Comparison& comparison) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto name = concat(prefix, i);
    comparison.numbers(name, recorded.dataset(name).values, values_of(got[i]), tolerance);
  }
}
/// The lists' results of the recorded types.
std::vector<Tensor> results_like(const Case& recorded, const std::string& prefix, Device device) {
  std::vector<Tensor> list;
  for (const auto& name : names_of(recorded, prefix)) {
    const Dataset& d = recorded.dataset(name);
    list.push_back(full(d.sizes, -77, d.dtype, device));
  }
  return list;
}
Tensor clear_flag(Device device) { return zeros({1}, DType::i32, device); }
void compare_flag(const Case& recorded, const Tensor& flag, Comparison& comparison) {
  comparison.numbers("outputs/overflow", recorded.numbers("outputs/overflow", {1}), values_of(flag), 0);
}

}  // namespace

void run_multi_tensor_scale(const Case& recorded, Device device, DType, Comparison& comparison) {
  const double factor = recorded.number("scale");
  recorded.text("source");
  const auto x = list_of(recorded, "inputs/x", device);
  auto y = results_like(recorded, "outputs/y", device);
  const bool has_results = !y.empty();
  if (!has_results)  // bad_*: only the flag
    for (const auto& t : x) y.push_back(empty_like(t));
  recorded.numbers("outputs/overflow", {1});
  recorded.require_all_read();
  const Tensor flag = clear_flag(device);
  multi_tensor_applier(multi_tensor::scale, flag, {x, y}, factor);
  compare_flag(recorded, flag, comparison);
  if (has_results) compare_list(recorded, "outputs/y", y, 0, comparison);
}

void run_multi_tensor_axpby(const Case& recorded, Device device, DType, Comparison& comparison) {
  const double a = recorded.number("a"), b = recorded.number("b");
  recorded.text("source");
  const auto x = list_of(recorded, "inputs/x", device), y = list_of(recorded, "inputs/y", device),
             out = results_like(recorded, "outputs/o", device);
  recorded.numbers("outputs/overflow", {1});
  recorded.require_all_read();
  const Tensor flag = clear_flag(device);
  multi_tensor_applier(multi_tensor::axpby, flag, {x, y, out}, a, b, -1);
  compare_flag(recorded, flag, comparison);
  compare_list(recorded, "outputs/o", out, 1e-6, comparison);
}

void run_multi_tensor_l2norm(const Case& recorded, Device device, DType, Comparison& comparison) {
  recorded.text("source");
  const auto x = list_of(recorded, "inputs/x", device);
  const auto& norm = recorded.numbers("outputs/norm", {1});
  const auto& each = recorded.numbers("outputs/per_tensor", {static_cast<std::int64_t>(x.size())});
  recorded.require_all_read();
  const Tensor flag = clear_flag(device);
  const auto [got, got_each] = multi_tensor_applier(multi_tensor::l2norm, flag, {x}, true);
  comparison.numbers("outputs/norm", norm, values_of(got), 1e-6);
  comparison.numbers("outputs/per_tensor", each, values_of(got_each), 1e-6);
}

void run_update_scale_hysteresis(const Case& recorded, Device device, DType, Comparison& comparison) {
  const double growth = recorded.number("growth"), backoff = recorded.number("backoff"),
               start = recorded.number("init_scale");
  const std::int64_t interval = recorded.integer("interval"), full_hysteresis = recorded.integer("hysteresis");
  recorded.text("source");
  const Dims& calls = recorded.dataset("inputs/found_inf").sizes;
  const auto& found = recorded.numbers("inputs/found_inf", calls);
  const auto& scales = recorded.numbers("outputs/scale", calls);
  const auto& growths = recorded.numbers("outputs/growth_tracker", calls);
  const auto& hystereses = recorded.numbers("outputs/hysteresis_tracker", calls);
  recorded.require_all_read();
  const Tensor scale = full({1}, start, DType::f32, device), growth_tracker = zeros({1}, DType::i32, device),
               hysteresis_tracker = full({1}, static_cast<double>(full_hysteresis), DType::i32, device);
  std::vector<double> got_scale, got_growth, got_hysteresis;
  for (const double inf : found) {
    multi_tensor::update_scale_hysteresis(scale, growth_tracker, hysteresis_tracker, full({1}, inf, DType::f32, device),
                                          growth, backoff, interval, full_hysteresis);
    got_scale.push_back(scale.item());
    got_growth.push_back(growth_tracker.item());
    got_hysteresis.push_back(hysteresis_tracker.item());
  }
  comparison.numbers("outputs/scale", scales, got_scale, 0);
  comparison.numbers("outputs/growth_tracker", growths, got_growth, 0);
  comparison.numbers("outputs/hysteresis_tracker", hystereses, got_hysteresis, 0);
}

}  // namespace apex::conformance
