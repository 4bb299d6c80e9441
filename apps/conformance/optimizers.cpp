// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// adam, adagrad, sgd, lamb, novograd: some steps of each optimizer on n parameters, every parameter compared after
// every step. Cases run in the types they were recorded in; those of float32 once more in float64, at the same
// tolerance. The tolerances of 16-bit results are wide where Apex keeps state in 16 bits and the library in float32.
#include <functional>
#include <memory>

#include "apex/autograd.hpp"
#include "apex/core/error.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/nn/functional.hpp"
#include "apex/optimizers/fused_adagrad.hpp"
#include "apex/optimizers/fused_adam.hpp"
#include "apex/optimizers/fused_lamb.hpp"
#include "apex/optimizers/fused_novograd.hpp"
#include "apex/optimizers/fused_sgd.hpp"
#include "ops.hpp"

namespace apex::conformance {
namespace {

using optimizers::Optimizer;
using Params = std::vector<Tensor>;
using Made = std::unique_ptr<Optimizer>;

constexpr double kFloat32 = 1e-6;

/// One optimizer: how it is made of a case's attributes, and what it must meet in 16 bits; 0: not recorded.
struct Kind16 {
  double f16, bf16;
};

bool flag(const Case& c, const char* name) {
  const auto value = c.integer(name);
  if (value != 0 && value != 1) fail(Kind::data, concat(c.op, "/", c.name, ": ", name, " is ", value));
  return value == 1;
}

bool has_masters(const Case& c) { return c.attributes.contains("master_weights") && flag(c, "master_weights"); }

/// Reads the attributes at once; the optimizer is made when all has been read.
using Maker = std::function<Made(Params)>;

Maker adam(const Case& c) {
  const bool masters = has_masters(c);
  const optimizers::AdamOptions o{.lr = c.number("lr"),
                                  .bias_correction = flag(c, "bias_correction"),
                                  .beta1 = c.number("beta1"),
                                  .beta2 = c.number("beta2"),
                                  .eps = c.number("eps"),
                                  .adam_w_mode = flag(c, "adam_w_mode"),
                                  .weight_decay = c.number("weight_decay"),
                                  .capturable = masters,
                                  .master_weights = masters};
  return [o](Params p) { return std::make_unique<optimizers::FusedAdam>(std::move(p), o); };
}

Maker adagrad(const Case& c) {
  const optimizers::AdagradOptions o{.lr = c.number("lr"),
                                     .eps = c.number("eps"),
                                     .weight_decay = c.number("weight_decay"),
                                     .adagrad_w_mode = flag(c, "adagrad_w_mode")};
  return [o](Params p) { return std::make_unique<optimizers::FusedAdagrad>(std::move(p), o); };
}

Maker sgd(const Case& c) {
  const optimizers::SGDOptions o{.lr = c.number("lr"),
                                 .momentum = c.number("momentum"),
                                 .dampening = c.number("dampening"),
                                 .weight_decay = c.number("weight_decay"),
                                 .nesterov = flag(c, "nesterov"),
                                 .wd_after_momentum = flag(c, "wd_after_momentum")};
  return [o](Params p) { return std::make_unique<optimizers::FusedSGD>(std::move(p), o); };
}

Maker lamb(const Case& c) {
  const optimizers::LambOptions o{.lr = c.number("lr"),
                                  .bias_correction = flag(c, "bias_correction"),
                                  .beta1 = c.number("beta1"),
                                  .beta2 = c.number("beta2"),
                                  .eps = c.number("eps"),
                                  .weight_decay = c.number("weight_decay"),
                                  .adam_w_mode = flag(c, "adam_w_mode"),
                                  .grad_averaging = flag(c, "grad_averaging"),
                                  .max_grad_norm = c.number("max_grad_norm"),
                                  .use_nvlamb = flag(c, "use_nvlamb")};
  return [o](Params p) { return std::make_unique<optimizers::FusedLAMB>(std::move(p), o); };
}

Maker novograd(const Case& c) {
  const optimizers::NovoGradOptions o{.lr = c.number("lr"),
                                      .bias_correction = flag(c, "bias_correction"),
                                      .beta1 = c.number("beta1"),
                                      .beta2 = c.number("beta2"),
                                      .eps = c.number("eps"),
                                      .weight_decay = c.number("weight_decay"),
                                      .reg_inside_moment = flag(c, "reg_inside_moment"),
                                      .grad_averaging = flag(c, "grad_averaging"),
                                      .norm_type = static_cast<int>(c.integer("norm_type")),
                                      .init_zero = flag(c, "init_zero")};
  return [o](Params p) { return std::make_unique<optimizers::FusedNovoGrad>(std::move(p), o); };
}

struct Recorded {
  std::int64_t n = 0, steps = 0;
  DType dtype = DType::f32;
  std::vector<const Dataset*> initial;                    // by parameter
  std::vector<std::vector<const Dataset*>> grads, after;  // by step and parameter
  const Dataset* master = nullptr;                        // of parameter 0 after the last step
  bool masters = false;
};

Recorded read(const Case& c) {
  if (c.text("source") != "apex")
    fail(Kind::data, concat(c.op, "/", c.name, ": recorded from '", c.text("source"), "', not from 'apex'"));
  Recorded r;
  r.n = c.integer("n");
  r.steps = c.integer("steps");
  for (const auto& [name, value] : {std::pair("n", r.n), std::pair("steps", r.steps)})
    if (value < 1 || value > 1000) fail(Kind::data, concat(c.op, "/", c.name, ": ", name, " is ", value));
  r.masters = has_masters(c);
  const auto number_data = [&](const std::string& path, const Dataset* like) {
    const Dataset& data = c.dataset(path);
    c.numbers(path, like == nullptr ? data.sizes : like->sizes);
    if (like != nullptr && data.dtype != like->dtype)
      fail(Kind::data, concat(c.op, "/", c.name, ": ", path, " is ", data.dtype, ", the parameter ", like->dtype));
    return &data;
  };
  for (std::int64_t i = 0; i < r.n; ++i) r.initial.push_back(number_data(concat("inputs/p", i), nullptr));
  r.dtype = r.initial[0]->dtype;
  for (std::int64_t t = 0; t < r.steps; ++t) {
    auto& grads = r.grads.emplace_back();
    auto& after = r.after.emplace_back();
    for (std::int64_t i = 0; i < r.n; ++i) {
      const Dataset* like = r.initial[static_cast<std::size_t>(i)];
      grads.push_back(number_data(concat("inputs/g", i, '_', t), like));
      after.push_back(number_data(concat("outputs/p", i, '_', t), like));
    }
  }
  if (r.masters && c.has("outputs/master0")) {
    r.master = &c.dataset("outputs/master0");
    c.numbers("outputs/master0", r.initial[0]->sizes);
  }
  return r;
}

Tensor tensor_of(const Dataset& data, DType dtype, Device device) {
  const Tensor host = from_values<double>(data.sizes, data.values);
  const Tensor there = nn::functional::to(host, device);
  Tensor out = empty(data.sizes, dtype, device);
  kernels::copy(out.context(), out.view(), there.view());
  return out;
}

std::vector<double> values_of(const Tensor& t) {
  const Tensor near = nn::functional::to(t.detach(), kCpu);
  const Tensor host = empty(t.sizes(), DType::f64);
  kernels::copy(host.context(), host.view(), near.view());
  return {host.data<double>(), host.data<double>() + host.numel()};
}

void replay(const Case& c, const Maker& make, const Recorded& r, const Kind16& narrow, Device device, DType dtype,
            Comparison& comparison) {
  double tolerance = r.dtype == DType::f16 ? narrow.f16 : r.dtype == DType::bf16 ? narrow.bf16 : kFloat32;
  if (r.dtype == DType::bf16 && r.masters) tolerance = 1.6e-2;  // Apex leaves its masters alone, the library steps them
  if (tolerance == 0) fail(Kind::data, concat(c.op, "/", c.name, ": no tolerance is known for ", r.dtype));
  const DType run_in = dtype == DType::f64 ? DType::f64 : r.dtype;
  Params params;
  for (const auto* p : r.initial) params.push_back(set_requires_grad(tensor_of(*p, run_in, device)));
  const Made optimizer = make(params);
  for (std::size_t t = 0; t < r.after.size(); ++t) {
    for (std::size_t i = 0; i < params.size(); ++i) set_grad(params[i], tensor_of(*r.grads[t][i], run_in, device));
    optimizer->step();
    for (std::size_t i = 0; i < params.size(); ++i)
      comparison.numbers(concat("p", i, '_', t), r.after[t][i]->values, values_of(params[i]), tolerance);
  }
  if (r.master != nullptr)
    comparison.numbers("master0", r.master->values, values_of(optimizer->state_of(params[0]).at("master")), kFloat32);
}

void run(const Case& c, Maker (*maker)(const Case&), const Kind16& narrow, Device device, DType dtype,
         Comparison& comparison) {
  const Maker make = maker(c);
  const Recorded r = read(c);
  c.require_all_read();
  if (dtype == DType::f64 && r.dtype != DType::f32) {
    comparison.set_incomparable(concat("recorded in ", r.dtype));
    return;
  }
  replay(c, make, r, narrow, device, dtype, comparison);
}

}  // namespace

void run_adam(const Case& c, Device device, DType dtype, Comparison& comparison) {
  run(c, adam, {.f16 = 1e-3, .bf16 = 8e-3}, device, dtype, comparison);
}
void run_adagrad(const Case& c, Device device, DType dtype, Comparison& comparison) {
  run(c, adagrad, {.f16 = 2e-3, .bf16 = 0}, device, dtype, comparison);
}
void run_sgd(const Case& c, Device device, DType dtype, Comparison& comparison) {
  run(c, sgd, {.f16 = 3e-3, .bf16 = 0}, device, dtype, comparison);
}
void run_lamb(const Case& c, Device device, DType dtype, Comparison& comparison) {
  run(c, lamb, {.f16 = 8e-3, .bf16 = 0}, device, dtype, comparison);
}
void run_novograd(const Case& c, Device device, DType dtype, Comparison& comparison) {
  run(c, novograd, {.f16 = 0, .bf16 = 0}, device, dtype, comparison);
}

}  // namespace apex::conformance
