// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "apex/core/tensor.hpp"
#include "apex/optimizers/optimizer.hpp"

namespace apex::amp {

struct LossScalerOptions {
  std::optional<double> loss_scale = {};  ///< a scale that stays; none: dynamic
  double init_scale = 65536;
  double scale_factor = 2;
  std::int64_t scale_window = 2000;  ///< steps without overflow after which the scale grows
  std::optional<double> min_loss_scale = {};
  double max_loss_scale = 16777216;
  std::int64_t hysteresis = 1;  ///< overflows in a row that the scale lets pass, and one
};

struct LossScalerState {
  double loss_scale = 1;
  std::int64_t unskipped = 0;
};

/// What a loss is multiplied by so that 16-bit gradients do not underflow. Everything a step needs lies on the device,
/// a record {scale, steps since the last change, hysteresis, found_inf}, so nothing waits and a step can be captured:
///
///   backward(scaler.scale(loss));  scaler.check(gradients);  optimizer.step(scaler.scaling());  scaler.update();
///
/// Dynamic: starts at init_scale, kept within [min_loss_scale, max_loss_scale]. An overflow divides the scale by
/// scale_factor, not below min_loss_scale nor 2^-126, so that its reciprocal is finite, and the step is skipped;
/// scale_window steps without one multiply it. Static: the scale stays, gradients are not looked at, and no step is
/// skipped. The scale is an f32: powers of two are exact.
///
/// After 50 skipped steps in a row a warning says, once, that no scale helps. The count comes to page-locked memory of
/// the host by itself, and update() looks at what has arrived, so the warning is late by a step or a few. Where
/// update() is replayed from a graph, warn_of_skips() does that.
class LossScaler {
 public:
  /// @throws Kind::argument, naming the value: a scale that is not a finite number above 0, scale_factor <= 1,
  ///         scale_window or hysteresis < 1, min above max
  explicit LossScaler(const LossScalerOptions& options = {}, Device device = kCpu);

  bool dynamic() const noexcept { return !options_.loss_scale; }
  /// f32(loss) times the scale.
  Tensor scale(const Tensor& loss) const;
  /// Looks for non-finite values among scaled gradients; found_inf becomes 1 when there is one, and stays so until
  /// update(). Undefined ones are passed over. Static: does nothing.
  void check(const std::vector<Tensor>& gradients);
  /// For Optimizer::step: found_inf, where dynamic, and the reciprocal of the scale.
  apex::optimizers::StepScaling scaling() const;
  /// Adapts the scale to what check() has found, and forgets it.
  void update();
  /// Warns if 50 steps in a row have been skipped, as far as that is known here. Does not wait.
  void warn_of_skips();

  // Each waits for the device.
  double loss_scale() const;
  std::int64_t unskipped() const;
  /// Whether the step before the last update() was skipped.
  bool last_overflow() const;
  /// @throws Kind::argument when it is not a finite number above 0
  void set_loss_scale(double scale);

  LossScalerState state_dict() const { return {loss_scale(), unskipped()}; }
  /// @throws Kind::data for values that no scaler has
  void load_state_dict(const LossScalerState& state);

 private:
  double least() const;
  void write(double scale, std::int64_t unskipped);

  LossScalerOptions options_;
  Tensor scale_, inverse_, growth_, hysteresis_, found_inf_, last_;
  Tensor skips_;                  ///< in a row, on the device
  std::shared_ptr<Tensor> seen_;  ///< its copy on the host, which the device may be writing
  bool warned_ = false;           ///< of the skips that go on now
};

}  // namespace apex::amp
