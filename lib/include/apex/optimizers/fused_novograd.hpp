// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/optimizers/optimizer.hpp"

namespace apex::optimizers {

struct NovoGradOptions {
  double lr = 1e-3;
  bool bias_correction = true;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;            ///< refused when true
  bool reg_inside_moment = false;  ///< weight decay joins the moment, else the update
  bool grad_averaging = true;      ///< false: gradients enter the moment undamped
  int norm_type = 2;               ///< 2, or 0 for the largest magnitude
  bool init_zero = false;          ///< norms start at 0, else at the first gradient's
  bool set_grad_none = true;
  bool master_weights = false;
  bool capturable = false;
  bool group_step = false;
};

/// NovoGrad (Ginsburg et al. 2019, arXiv:1905.11286): the second moment is one number for each tensor.
///
///   n = norm of g;  s <- n at the first update (0 with init_zero), then
///   2-norm: s <- sqrt(beta2 s^2 + (1 - beta2) n^2);  inf: s <- beta2 s + (1 - beta2) n
///   d = s / sqrt(1 - beta2^t) + eps;  b3 = grad_averaging ? 1 - beta1 : 1
///   reg_inside_moment: m <- beta1 m + b3 (g / d + weight_decay * p);  p <- p - lr m / bc1
///   else:              m <- beta1 m + b3 g;                           p <- p - lr ((m / bc1) / d + weight_decay * p)
///
/// As in Apex the first d is s / sqrt(1 - beta2), so with the default betas 31.6 times s: bias_correction = false is
/// what the paper does. State: "exp_avg" (m, f32 or f64), "norm" (s, one element), "step", "master". Hyper-parameters
/// of a group: lr, beta1, beta2, eps, weight_decay, bias_correction, grad_averaging, reg_inside_moment.
class FusedNovoGrad : public Optimizer {
 public:
  /// @throws Kind::argument, naming the value: lr, eps or weight_decay negative or not finite, a beta outside [0, 1),
  ///         norm_type neither 0 nor 2; Kind::unsupported for amsgrad
  explicit FusedNovoGrad(std::vector<Tensor> params, const NovoGradOptions& options = {});
  explicit FusedNovoGrad(std::vector<ParamGroup> groups, const NovoGradOptions& options = {});

  std::string_view type() const override { return "FusedNovoGrad"; }
  HyperMap options() const override;
  /// Takes norms in Apex's form too: a group's arrays "exp_avg_sq", first those of its 16-bit parameters, then those of
  /// the others, in order, of all parameters or of those that have state. Parameters with masters may stand in either,
  /// as long as one array has them all. "norm_type" in such a group must be this optimizer's.
  void load_state_dict(const OptimizerState& state) override;

 private:
  void check_hyper(const HyperMap& hyper) const override;
  std::vector<StateKey> state_keys(const Tensor& param) const override;
  void update(const Bucket& bucket, const ParamGroup& group) override;

  int norm_type_;
  bool init_zero_;
};

}  // namespace apex::optimizers
