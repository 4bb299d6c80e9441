// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/optimizers/optimizer.hpp"

namespace apex::optimizers {

struct AdamOptions {
  double lr = 1e-3;
  bool bias_correction = true;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool adam_w_mode = true;  ///< weight decay apart from the gradient (AdamW), else added to it (L2)
  double weight_decay = 0;
  bool amsgrad = false;  ///< refused when true
  bool set_grad_none = true;
  bool capturable = false;
  bool master_weights = false;
  bool maximize = false;              ///< steps up the gradient
  bool write_unscaled_grads = false;  ///< gradients are left divided by the loss scale, as in Apex
  bool group_step = false;
  DType moment_dtype = DType::f32;  ///< f32, bf16 or f16; f64 parameters have f64 moments
};

/// Adam and AdamW (Kingma and Ba 2015; Loshchilov and Hutter 2019), one multi-tensor call for each (device, dtype,
/// gradient dtype, step count).
///
///   g <- grad * inv_scale (negated with maximize);  L2: g += weight_decay * p
///   m <- beta1 m + (1 - beta1) g;   v <- beta2 v + (1 - beta2) g^2
///   u <- (m / bc1) / (sqrt(v / bc2) + eps);  AdamW: u += weight_decay * p
///   p <- p - lr * u,                bc1 = 1 - beta1^t, bc2 = 1 - beta2^t; 1 without bias_correction
///
/// Arithmetic in f32 (f64 for f64 parameters), one rounding at each store. State: "exp_avg" (m), "exp_avg_sq" (v),
/// "step", and "master". Hyper-parameters of a group: lr, beta1, beta2, eps, weight_decay, bias_correction,
/// adam_w_mode, maximize. A state of torch's Adam or AdamW can be loaded.
class FusedAdam : public Optimizer {
 public:
  /// @throws Kind::argument, naming the value: lr, eps or weight_decay negative or not finite, a beta outside [0, 1), a
  ///         moment_dtype that is none of those above; Kind::unsupported for amsgrad
  explicit FusedAdam(std::vector<Tensor> params, const AdamOptions& options = {});
  explicit FusedAdam(std::vector<ParamGroup> groups, const AdamOptions& options = {});

  std::string_view type() const override { return "FusedAdam"; }
  HyperMap options() const override;

 private:
  void check_hyper(const HyperMap& hyper) const override;
  bool takes_type(std::string_view name) const override;
  std::vector<StateKey> state_keys(const Tensor& param) const override;
  void update(const Bucket& bucket, const ParamGroup& group) override;
  void unscale(const Bucket& bucket) const;

  DType moment_dtype_;
  bool write_unscaled_grads_;
};

}  // namespace apex::optimizers
