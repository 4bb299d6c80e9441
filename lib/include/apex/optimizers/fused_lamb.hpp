// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include "apex/optimizers/optimizer.hpp"

namespace apex::kernels {
struct LambOptions;
}

namespace apex::optimizers {

struct LambOptions {
  double lr = 1e-3;
  bool bias_correction = true;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 0.01;
  bool amsgrad = false;        ///< refused when true
  bool adam_w_mode = true;     ///< weight decay joins the update, else the gradient
  bool grad_averaging = true;  ///< false: m <- beta1 m + g
  bool set_grad_none = true;
  double max_grad_norm = 1.0;  ///< of all gradients together; <= 0: no clipping
  bool use_nvlamb = false;     ///< the trust ratio also where weight_decay is 0
  bool master_weights = false;
  bool capturable = false;
  bool group_step = false;
  bool apex_overwrite_grad = false;  ///< a step leaves its update u in the gradients, as Apex does
};

/// LAMB (You et al. 2020, arXiv:1904.00962).
///
///   gn = 2-norm of all gradients of all groups and dtypes, after inv_scale;  c = max(gn / max_grad_norm, 1)
///   g <- grad * inv_scale / c;                     without adam_w_mode: g += weight_decay * p
///   m <- beta1 m + (1 - beta1) g;                  v <- beta2 v + (1 - beta2) g^2
///   u <- (m / bc1) / (sqrt(v / bc2) + eps);        with adam_w_mode: u += weight_decay * p
///   p <- p - r u;  r = lr ||p|| / ||u|| if (use_nvlamb or weight_decay != 0) and neither norm is 0, else lr
///
/// The norms are taken per tensor. Clipping is built in: none is needed before. The norm stays on the device, and a
/// step whose norm is not finite is skipped there, clipping or not (last_step_skipped() tells). Gradients are left as
/// they are; with apex_overwrite_grad they become u, rounded to their dtype, where the step was not skipped, at the
/// price of another pass. State: "exp_avg", "exp_avg_sq" (f32, f64 for f64), "step", "master". Hyper-parameters of a
/// group: lr, beta1, beta2, eps, weight_decay, bias_correction, adam_w_mode, grad_averaging, use_nvlamb.
class FusedLAMB : public Optimizer {
 public:
  /// @throws Kind::argument, naming the value: lr, eps or weight_decay negative or not finite, a beta outside [0, 1),
  ///         max_grad_norm NaN; Kind::unsupported for amsgrad
  explicit FusedLAMB(std::vector<Tensor> params, const LambOptions& options = {});
  explicit FusedLAMB(std::vector<ParamGroup> groups, const LambOptions& options = {});

  std::string_view type() const override { return type_; }
  HyperMap options() const override;
  void init_state() override;
  Tensor skip_sign() const override;
  /// gn of the last step, one element on the device of the first parameter with a gradient; undefined before the first
  /// step.
  const Tensor& last_grad_norm() const noexcept { return norm_; }

 protected:
  FusedLAMB(std::vector<ParamGroup> groups, const LambOptions& options, std::string_view type);

 private:
  void check_hyper(const HyperMap& hyper) const override;
  std::vector<StateKey> state_keys(const Tensor& param) const override;
  bool skips_by_itself() const override { return true; }
  bool skipped_by_itself() const override;
  void before_step(const StepScaling& scaling) override;
  void update(const Bucket& bucket, const ParamGroup& group) override;
  std::vector<Tensor> decays_of(const Bucket& bucket, double weight_decay) const;
  void write_updates(const Bucket& bucket, const std::vector<Tensor>& decays, kernels::LambOptions options) const;

  std::string_view type_;
  double max_grad_norm_;
  bool overwrites_;
  Tensor norm_;                   ///< keeps its place: a captured step writes it
  std::vector<Tensor> on_other_;  ///< its copies on other devices
};

struct MixedPrecisionLambOptions {
  double lr = 1e-3;
  std::int64_t step = 0;  ///< updates that all parameters are taken to have had
  bool bias_correction = true;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 0.01;
  bool amsgrad = false;  ///< refused when true
  bool adam_w_mode = true;
  bool grad_averaging = true;
  double max_grad_norm = 1.0;
  bool use_nvlamb = false;
  std::optional<DType> reduced_precision_dtype = {};  ///< parameters of it have f32 masters
};

/// FusedLAMB for scaled gradients, with learning rate and step count on the device. Gradients are unscaled by
/// StepScaling::inv_scale as they are read; comparing their unscaled norm with max_grad_norm is comparing the scaled
/// one with max_grad_norm * scale. Groups may mix dtypes. Norms of parameters are those of the masters.
class FusedMixedPrecisionLamb : public FusedLAMB {
 public:
  /// @throws as FusedLAMB; Kind::argument for a step below 0 or a reduced_precision_dtype that is not f16 or bf16
  explicit FusedMixedPrecisionLamb(std::vector<Tensor> params, const MixedPrecisionLambOptions& options = {});
  explicit FusedMixedPrecisionLamb(std::vector<ParamGroup> groups, const MixedPrecisionLambOptions& options = {});

 private:
  bool has_master(const Tensor& param) const override { return param.dtype() == reduced_; }

  std::optional<DType> reduced_;
};

}  // namespace apex::optimizers
