// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/contrib/optimizers/step_arguments.hpp"

/// The optimizers of Apex's first mixed-precision interface, for recipes that name them. New programs take those of
/// apex/optimizers.
namespace apex::contrib::optimizers {

struct AdamOptions {
  double lr = 1e-3;
  bool bias_correction = true;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool eps_inside_sqrt = false;
  double weight_decay = 0;
  double max_grad_norm = 0;         ///< of each group's gradients, unscaled; 0: no clipping
  bool amsgrad = false;             ///< refused when true
  bool use_mt = false;              ///< one step count for all parameters of a group, which then lie on one device
  double amp_scale_adjustment = 1;  ///< multiplies the scale of steps that a loss scaler gives it
};

/// Adam as Apex first had it: eps is not bias-corrected, and weight decay goes with the corrected step size.
///
///   cs = scale; max_grad_norm > 0: clip = (grad_norm / scale + 1e-6) / max_grad_norm, cs = max(clip, 1) * scale
///   g <- grad / cs;  m, v as Adam;  d = eps_inside_sqrt ? sqrt(v + eps) : sqrt(v) + eps;  u <- m / d + weight_decay *
///   p p <- p - s u,  s = lr sqrt(1 - beta2^t) / (1 - beta1^t), lr without bias_correction;  output_param = p
///
/// amp_scale_adjustment is for steps by StepScaling, where gradients become grad * inv_scale / amp_scale_adjustment; a
/// scale handed over in StepArguments is taken as it is. Every parameter counts its own steps, all of a group together
/// with use_mt: a step that finds a gradient in the group counts for all of it. (Apex takes the count of the group's
/// last parameter, which is the same as long as that one has a gradient each time.) All are updated in one call either
/// way. State: "exp_avg", "exp_avg_sq" (f32, f64 for f64), "step".
class FusedAdam : public WithArguments {
 public:
  /// @throws as apex::optimizers::FusedAdam; Kind::argument for max_grad_norm < 0 or an amp_scale_adjustment that is
  ///         not a finite number above 0
  explicit FusedAdam(std::vector<Tensor> params, const AdamOptions& options = {});
  explicit FusedAdam(std::vector<apex::optimizers::ParamGroup> groups, const AdamOptions& options = {});

  std::string_view type() const override { return "contrib.FusedAdam"; }
  apex::optimizers::HyperMap options() const override;
  using Optimizer::step;
  /// @throws Kind::argument with use_mt, when parameters of a group lie on several devices
  void step(const apex::optimizers::StepScaling& scaling) override;
  /// @throws Kind::argument when lists do not fit the groups, or grad_norms are missing with max_grad_norm
  void step(const StepArguments& arguments) override;

 private:
  void check_hyper(const apex::optimizers::HyperMap& hyper) const override;
  std::vector<StateKey> state_keys(const Tensor& param) const override;
  void update(const Bucket& bucket, const apex::optimizers::ParamGroup& group) override;

  bool eps_inside_sqrt_;
  double max_grad_norm_;
  bool use_mt_;
  double amp_scale_adjustment_;
};

}  // namespace apex::contrib::optimizers
