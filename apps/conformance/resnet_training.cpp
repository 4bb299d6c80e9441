// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// resnet_training: torchvision's networks in float64, some steps of SGD on one batch, at fixed tolerances. Some of
// these trainings amplify rounding so much that the tolerance is below what the arithmetic can promise: resnet50 with a
// batch of 2 moves by 4e-9 in the first step when each weight moves by its last bit, and its loss moves by a tenth when
// the weights alone are rounded to float32. So a case that misses its tolerance is looked at again: the run is repeated
// in float64 with weights off by what their type can hold. In float64 the tolerance then is kNoise times that effect;
// in float32, if the effect alone is beyond every use, the case says nothing and is reported as such.
#include <algorithm>
#include <cmath>

#include "apex/core/error.hpp"
#include "apex/models/resnet.hpp"
#include "ops.hpp"
#include "resnet_run.hpp"

namespace apex::conformance {
namespace {

constexpr double kNoise = 8;        // widened tolerance, in effects of a last-bit change of the weights
constexpr double kWidest64 = 1e-5;  // no float64 result is excused beyond this
constexpr double kUseless32 = 0.1;  // a float32 comparison at this tolerance would show nothing

/// A dataset and its tolerances; 0: not compared in that type.
struct Item {
  const char* name;
  double f64, f32, f32_later;  ///< f32_later: of elements after the first step's, where they differ
  bool first_step;
};
constexpr Item kItems[] = {
    {"logits_train_step0", 1e-9, 2e-3, 2e-3, true},
    {"grad_norm_step0", 1e-9, 2e-3, 2e-3, true},
    {"grad_first8_step0", 1e-9, 0, 0, true},
    {"losses", 1e-9, 2e-3, 2e-2, false},
    {"param_sum_end", 1e-9, 0, 0, false},
    {"param_abs_sum_end", 1e-9, 0, 0, false},
    {"buffer_sum_end", 1e-9, 0, 0, false},
    {"logits_eval_end", 1e-6, 0, 0, false},  // running statistics of so few, small batches make these huge
};

struct Recorded {
  ResnetRecipe recipe;
  std::vector<std::string> parameter_names, buffer_names;
  Values values;
};

Recorded read(const Case& c) {
  if (c.text("source") != "torch64 torchvision")
    fail(Kind::data,
         concat(c.op, "/", c.name, ": recorded from '", c.text("source"), "', not from 'torch64 torchvision'"));
  Recorded r;
  ResnetRecipe& recipe = r.recipe;
  recipe.arch = c.text("arch");
  recipe.classes = c.integer("classes");
  recipe.image = c.integer("image");
  recipe.batch = c.integer("batch");
  recipe.steps = c.integer("steps");
  recipe.label_smoothing = c.number("label_smoothing");
  recipe.lr = c.number("lr");
  recipe.momentum = c.number("momentum");
  recipe.weight_decay = c.number("weight_decay");
  recipe.bn_momentum = c.number("bn_momentum");
  for (const auto& [name, value] : {std::pair("classes", recipe.classes), std::pair("image", recipe.image),
                                    std::pair("batch", recipe.batch), std::pair("steps", recipe.steps)})
    if (value < 1 || value > 4096) fail(Kind::data, concat(c.op, "/", c.name, ": ", name, " is ", value));
  const auto known = models::list();
  if (std::find(known.begin(), known.end(), recipe.arch) == known.end())
    fail(Kind::data, concat(c.op, "/", c.name, ": no architecture '", recipe.arch, "'"));

  r.parameter_names = c.strings("parameter_names");
  r.buffer_names = c.strings("buffer_names");
  const auto params = static_cast<std::int64_t>(r.parameter_names.size());
  const auto buffers = static_cast<std::int64_t>(r.buffer_names.size());
  r.values["losses"] = c.numbers("losses", {recipe.steps});
  for (const char* name : {"logits_train_step0", "logits_eval_end"})
    r.values[name] = c.numbers(name, {recipe.batch, recipe.classes});
  for (const char* name : {"grad_norm_step0", "param_sum_end", "param_abs_sum_end"})
    r.values[name] = c.numbers(name, {params});
  r.values["grad_first8_step0"] = c.numbers("grad_first8_step0", {params, 8});
  r.values["buffer_sum_end"] = c.numbers("buffer_sum_end", {buffers});
  c.require_all_read();
  return r;
}

/// By dataset: how far results move, relative to the size they are compared at.
using Noise = std::map<std::string, double>;

void compare(const Recorded& r, const Values& results, DType dtype, const Noise& noise, const std::string& note,
             Comparison& comparison) {
  for (const Item& item : kItems) {
    const auto got = results.find(item.name);
    const double base = dtype == DType::f64 ? item.f64 : item.f32;
    if (got == results.end() || base == 0) continue;
    const auto& want = r.values.at(item.name);
    const auto found = noise.find(item.name);
    const double least = found == noise.end() ? 0 : kNoise * found->second;
    std::vector<double> tolerances(want.size(), std::max(least, dtype == DType::f64 ? item.f64 : item.f32_later));
    tolerances.front() = std::max(least, base);
    comparison.numbers(item.name, want, got->second, tolerances, note);
  }
}

Noise noise_between(const Recorded& r, const Values& a, const Values& b) {
  Noise noise;
  for (const auto& [name, values] : a) {
    const auto& want = r.values.at(name);
    double largest = 0, worst = 0;
    for (const double v : want) largest = std::max(largest, std::abs(v));
    const double scale = largest == 0 ? 1 : std::min(1.0, largest);
    for (std::size_t i = 0; i < values.size(); ++i)
      worst = std::max(worst, std::abs(values[i] - b.at(name)[i]) / std::max(std::abs(want[i]), scale));
    noise[name] = worst;
  }
  return noise;
}

struct Setting {
  Device device;
  DType dtype;
  MemoryFormat format;
  std::string note() const { return format == MemoryFormat::channels_last ? "channels last" : ""; }
};

Values results_in_f64(const Recorded& r, const Setting& setting, Weights weights, bool complete) {
  ResnetRun run(r.recipe, setting.device, DType::f64, setting.format, weights);
  run.first_step();
  if (complete) run.remaining_steps();
  return run.results();
}

/// Whether rounding explains what a run misses.
Comparison look_again(const Recorded& r, const Setting& setting, const ResnetRun& run, const Comparison& first_look) {
  const bool is_f64 = setting.dtype == DType::f64;
  if (is_f64 && first_look.worst_ratio() * 1e-9 > kWidest64) return first_look;
  const Values exact = is_f64 ? run.results() : results_in_f64(r, setting, Weights::exact, run.complete());
  const Values off =
      results_in_f64(r, setting, is_f64 ? Weights::one_ulp_off : Weights::rounded_to_f32, run.complete());
  Noise noise = noise_between(r, exact, off);

  if (is_f64) {
    for (auto& entry : noise) entry.second = std::min(entry.second, kWidest64 / kNoise);
    Comparison widened;
    compare(r, run.results(), setting.dtype, noise, setting.note(), widened);
    return widened.passed() ? widened : first_look;
  }
  for (const Item& item : kItems) {
    const auto found = noise.find(item.name);
    if (item.f32 == 0 || found == noise.end() || found->second < kUseless32) continue;
    Comparison none;
    none.set_incomparable(concat("rounding the initial weights to float32, and nothing else, moves ", item.name, " by ",
                                 found->second, " of its size; the tolerance is ", item.f32));
    return none;
  }
  return first_look;
}

Comparison replay(const Recorded& r, const Setting& setting) {
  ResnetRun run(r.recipe, setting.device, setting.dtype, setting.format, Weights::exact);
  Comparison comparison;
  comparison.strings("parameter_names", r.parameter_names, run.parameter_names());
  comparison.strings("buffer_names", r.buffer_names, run.buffer_names());
  if (!comparison.passed()) return comparison;  // other names: the rest would compare unlike things

  const Comparison names = comparison;
  run.first_step();
  compare(r, run.results(), setting.dtype, {}, setting.note(), comparison);
  if (comparison.passed()) {
    run.remaining_steps();
    comparison = names;
    compare(r, run.results(), setting.dtype, {}, setting.note(), comparison);
  }
  if (comparison.passed()) return comparison;
  return look_again(r, setting, run, comparison);
}

}  // namespace

void run_resnet_training(const Case& recorded, Device device, DType dtype, Comparison& comparison) {
  const Recorded r = read(recorded);
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    comparison.merge(replay(r, {device, dtype, format}));
    if (!comparison.passed()) return;
  }
}

}  // namespace apex::conformance
