// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/optimizers/optimizer.hpp"

namespace apex::parallel {

struct LARCOptions {
  double trust_coefficient = 0.02;
  bool clip = true;  ///< bounds the learning rate (LARC), else scales it (LARS)
  double eps = 1e-8;
};

/// Layer-wise adaptive rate control (You et al. 2017, arXiv:1708.03888) around any optimizer.
///
/// Before the optimizer's step, for each parameter p with gradient g in a group of learning rate lr and weight decay
/// wd:
///
///   a = trust_coefficient * ||p|| / (||g|| + wd * ||p|| + eps);  clip: a = min(a / lr, 1);  g <- (g + wd * p) * a
///
/// so that the step is min(a, lr) with clip and a * lr without. The optimizer itself then sees no weight decay. Where
/// either norm is 0 the parameter is left alone, without decay in this step. Norms are taken in f32 (f64 for f64).
///
/// Scaled gradients: with StepScaling::inv_scale and grad_scale, ||g|| is that of the unscaled gradient and g stays
/// scaled. A step that found_inf skips leaves the gradients alone. The optimizer keeps everything that belongs to it:
/// groups, state, zero_grad; LARC has no state. It is the optimizer's wrapper() as long as it lives, so that checkpoint
/// files tell the two apart. Nothing waits for the device, so a step can be captured.
class LARC {
 public:
  /// `optimizer` outlives this.
  /// @throws Kind::argument for trust_coefficient or eps negative or not finite
  explicit LARC(optimizers::Optimizer& optimizer, const LARCOptions& options = {});
  LARC(const LARC&) = delete;
  LARC& operator=(const LARC&) = delete;
  ~LARC();

  Tensor step(const std::function<Tensor()>& closure = {});
  void step(const optimizers::StepScaling& scaling);

  optimizers::Optimizer& optimizer() const noexcept { return optimizer_; }
  const LARCOptions& options() const noexcept { return options_; }

  // What belongs to the optimizer.
  const std::vector<optimizers::ParamGroup>& groups() const { return optimizer_.groups(); }
  void add_param_group(optimizers::ParamGroup group) { optimizer_.add_param_group(std::move(group)); }
  void zero_grad(std::optional<bool> set_to_none = {}) { optimizer_.zero_grad(set_to_none); }
  optimizers::OptimizerState state_dict() const { return optimizer_.state_dict(); }
  void load_state_dict(const optimizers::OptimizerState& state) { optimizer_.load_state_dict(state); }
  bool last_step_skipped() const { return optimizer_.last_step_skipped(); }

 private:
  void adapt(const optimizers::ParamGroup& group, const optimizers::StepScaling& scaling) const;

  optimizers::Optimizer& optimizer_;
  LARCOptions options_;
};

}  // namespace apex::parallel
