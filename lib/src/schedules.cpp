// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/schedules.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "apex/core/error.hpp"
#include "apex/optimizers/optimizer.hpp"

namespace apex::schedules {

namespace {

double total_steps(const Position& at) {
  return static_cast<double>(at.steps_per_epoch) * static_cast<double>(at.epochs);
}

/// From `from` to `to` along half a cosine, `fraction` in [0, 1].
double half_cosine(double from, double to, double fraction) {
  return to + (from - to) * 0.5 * (1.0 + std::cos(std::numbers::pi * fraction));
}

double step_rate(double base, const Position& at) {
  const std::int64_t length = at.steps_per_epoch, epoch = at.step / length, i = at.step % length + 1;
  const std::int64_t drops = epoch / 30 + (epoch >= 80 ? 1 : 0);
  const double lr = base * std::pow(0.1, static_cast<double>(drops));
  if (epoch >= 5) return lr;
  return lr * static_cast<double>(1 + i + epoch * length) / static_cast<double>(5 * length);
}

double one_cycle_rate(double max, const OneCycleOptions& o, const Position& at) {
  const double first = max / o.start_divisor, last = first / o.final_divisor;
  const double end = std::max(total_steps(at) - 1.0, 1.0);
  const double peak = std::max(o.warm_fraction * total_steps(at) - 1.0, 0.0);
  const double now = std::min(static_cast<double>(at.step), end);
  if (now < peak) return half_cosine(first, max, now / peak);
  return half_cosine(max, last, end > peak ? (now - peak) / (end - peak) : 1.0);
}

void check_rate(const char* name, double lr) {
  if (!(lr >= 0.0) || std::isinf(lr))
    fail(Kind::argument, concat(name, " schedule: learning rate ", lr, " is not a finite number >= 0"));
}

Schedule warmed(Schedule inner, double amount, bool in_epochs, double start) {
  if (!(amount >= 0.0)) fail(Kind::argument, concat("warm-up over ", amount, in_epochs ? " epochs" : " steps"));
  if (!(start >= 0.0 && start <= 1.0))
    fail(Kind::argument, concat("warm-up: start factor ", start, " is not in [0, 1]"));
  auto parameters = inner.parameters();
  parameters[in_epochs ? "warm_up_epochs" : "warm_up_steps"] = amount;
  parameters["warm_up_start"] = start;
  std::string name = inner.name();
  return Schedule(std::move(name), std::move(parameters),
                  [inner = std::move(inner), amount, in_epochs, start](const Position& at) {
                    const double steps = in_epochs ? amount * static_cast<double>(at.steps_per_epoch) : amount;
                    const double done = static_cast<double>(at.step) + 1.0;
                    return inner(at) * (done < steps ? start + (1.0 - start) * done / steps : 1.0);
                  });
}

struct Entry {
  const char* name;
  Schedule (*make)(double);
};
constexpr Entry kSchedules[] = {
    {"constant", constant},
    {"cosine", [](double base) { return cosine(base); }},
    {"one-cycle", [](double base) { return one_cycle(base); }},
    {"step", step},
};

}  // namespace

double Schedule::operator()(const Position& at) const {
  if (at.step < 0 || at.steps_per_epoch < 1 || at.epochs < 1)
    fail(Kind::argument,
         concat("schedule: step ", at.step, ", ", at.steps_per_epoch, " steps an epoch, ", at.epochs, " epochs"));
  return function_(at);
}

Schedule constant(double lr) {
  check_rate("constant", lr);
  return {"constant", {{"lr", lr}}, [lr](const Position&) { return lr; }};
}

Schedule step(double base) {
  check_rate("step", base);
  return {"step", {{"lr", base}}, [base](const Position& at) { return step_rate(base, at); }};
}

Schedule cosine(double base, double last) {
  check_rate("cosine", base);
  check_rate("cosine", last);
  return {"cosine", {{"lr", base}, {"last", last}}, [base, last](const Position& at) {
            return half_cosine(base, last, std::min(static_cast<double>(at.step) / total_steps(at), 1.0));
          }};
}

Schedule one_cycle(double max, const OneCycleOptions& o) {
  check_rate("one-cycle", max);
  if (!(o.warm_fraction >= 0.0 && o.warm_fraction <= 1.0) || !(o.start_divisor > 0.0) || !(o.final_divisor > 0.0))
    fail(Kind::argument, concat("one-cycle schedule: warm fraction ", o.warm_fraction, ", divisors ", o.start_divisor,
                                " and ", o.final_divisor));
  return {"one-cycle",
          {{"lr", max},
           {"warm_fraction", o.warm_fraction},
           {"start_divisor", o.start_divisor},
           {"final_divisor", o.final_divisor}},
          [max, o](const Position& at) { return one_cycle_rate(max, o, at); }};
}

Schedule warm_up(Schedule inner, std::int64_t steps, double start) {
  return warmed(std::move(inner), static_cast<double>(steps), false, start);
}
Schedule warm_up_epochs(Schedule inner, double epochs, double start) {
  return warmed(std::move(inner), epochs, true, start);
}

std::vector<std::string> list() {
  std::vector<std::string> names;
  for (const auto& entry : kSchedules) names.emplace_back(entry.name);
  return names;
}

Schedule create(std::string_view name, double base) {
  std::string known;
  for (const auto& entry : kSchedules) {
    if (entry.name == name) return entry.make(base);
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  fail(Kind::argument, concat("unknown schedule '", name, "'; known are ", known));
}

double apply(const Schedule& schedule, const Position& position, optimizers::Optimizer& optimizer) {
  const double lr = schedule(position);
  optimizer.set_lr(lr);
  return lr;
}

}  // namespace apex::schedules
