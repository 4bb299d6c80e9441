// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace apex::optimizers {
class Optimizer;
}

/// Learning rates as pure functions of where training stands: nothing is carried from step to step, so a resumed run
/// continues exactly. What a checkpoint stores is the schedule's name and parameters.
namespace apex::schedules {

struct Position {
  std::int64_t step = 0;             ///< updates made before this one, from the start of training
  std::int64_t steps_per_epoch = 1;  ///< L
  std::int64_t epochs = 1;           ///< planned; total steps T = L * epochs
};

class Schedule {
 public:
  using Function = std::function<double(const Position&)>;
  Schedule(std::string name, std::map<std::string, double> parameters, Function function)
      : name_(std::move(name)), parameters_(std::move(parameters)), function_(std::move(function)) {}

  /// The learning rate of the update at `position`.
  /// @throws Kind::argument for a negative step, L < 1 or epochs < 1
  double operator()(const Position& position) const;
  const std::string& name() const { return name_; }
  /// Everything the values depend on beside the position, base rate included.
  const std::map<std::string, double>& parameters() const { return parameters_; }

 private:
  std::string name_;
  std::map<std::string, double> parameters_;
  Function function_;
};

/// lr everywhere.
Schedule constant(double lr);

/// The ImageNet recipe of Apex's main_amp. With e = step / L and i = step mod L + 1:
///   f = e / 30 (whole number), plus 1 from epoch 80 on; lr = base * 0.1^f;
///   in the first five epochs times (1 + i + e L) / (5 L).
Schedule step(double base);

/// last + (base - last) (1 + cos(pi step / T)) / 2 (Loshchilov, Hutter 2017, arXiv:1608.03983).
Schedule cosine(double base, double last = 0.0);

struct OneCycleOptions {
  double warm_fraction = 0.3;   ///< of the T - 1 steps after the first, in which the rate rises
  double start_divisor = 25.0;  ///< first rate = max / start_divisor
  double final_divisor = 1e4;   ///< last rate = first rate / final_divisor
};
/// One cycle (Smith, Topin 2018, arXiv:1708.07120): by half cosines from the first rate up to `max` at step
/// warm_fraction * T - 1, then down to the last rate at step T - 1.
Schedule one_cycle(double max, const OneCycleOptions& options = {});

/// `inner` with its first `steps` updates scaled by start + (1 - start) * (step + 1) / steps: a linear warm-up.
Schedule warm_up(Schedule inner, std::int64_t steps, double start = 0.0);
/// The same over `epochs` epochs.
Schedule warm_up_epochs(Schedule inner, double epochs, double start = 0.0);

/// Names `create` knows: constant, cosine, one-cycle, step.
std::vector<std::string> list();
/// @throws Kind::argument listing the known names
Schedule create(std::string_view name, double base);

/// Sets the rate of every group of the optimizer. Returns the rate.
double apply(const Schedule& schedule, const Position& position, optimizers::Optimizer& optimizer);

}  // namespace apex::schedules
