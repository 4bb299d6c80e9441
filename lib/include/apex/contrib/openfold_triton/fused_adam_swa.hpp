// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "apex/optimizers/fused_adam.hpp"

namespace apex::contrib::openfold_triton {

enum class AdamMathType {
  apex_adam,     ///< weight decay in the gradient, m / bc1 / (sqrt(v / bc2) + eps)
  apex_adam_w,   ///< weight decay apart
  pytorch_adam,  ///< weight decay in the gradient, m / bc1 / (sqrt(v) / sqrt(bc2) + eps)
};

struct AdamSWAOptions {
  double swa_decay_rate = -1;  ///< required, in [0, 1]
  double lr = 1e-3;
  bool bias_correction = true;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  AdamMathType adam_math_mode = AdamMathType::pytorch_adam;
  double weight_decay = 0;
  bool amsgrad = false;         ///< refused when true
  bool capturable = false;      ///< refused when true: n_averaged is counted on the host
  bool master_weights = false;  ///< refused when true: `params` are the masters
  bool set_grad_none = true;
};

/// Adam, a copy of the weights for computing, and a running average of the weights, in one pass over memory.
///
/// The gradients are those of `compute_params`; one without gradient is passed over, with its average. Per element:
/// Adam's update of p by the gradient times grad_scale and inv_scale (StepScaling); compute = p, rounded;
/// swa = n_averaged == 0 ? p : swa + (1 - swa_decay_rate) (p - swa); n_averaged counts the steps made.
///
/// State: "exp_avg", "exp_avg_sq", "step", those of apex::optimizers::FusedAdam. There is one group; n_averaged and
/// swa_decay_rate are among its hyper-parameters, so they are saved.
class FusedAdamSWA : public apex::optimizers::Optimizer {
 public:
  /// @throws Kind::argument for empty or unequal lists, sizes or (params and swa_params) dtypes that differ, strided
  ///         tensors, a value out of its range; Kind::unsupported for amsgrad, capturable, master_weights
  FusedAdamSWA(std::vector<Tensor> params, std::vector<Tensor> compute_params, std::vector<Tensor> swa_params,
               const AdamSWAOptions& options);

  /// Takes over hyper-parameters, moments and the step count of an Adam that has run on `params`.
  /// @throws as the constructor; Kind::argument when the Adam has several groups or its parameters differ in their
  ///         step counts
  static std::unique_ptr<FusedAdamSWA> from_optim(const apex::optimizers::FusedAdam& adam, std::vector<Tensor> params,
                                                  std::vector<Tensor> compute_params, std::vector<Tensor> swa_params,
                                                  double swa_decay_rate);

  std::string_view type() const override { return "FusedAdamSWA"; }
  std::int64_t n_averaged() const;

  using Optimizer::step;
  /// @throws Kind::unsupported: there is one group
  void add_param_group(apex::optimizers::ParamGroup group);

 private:
  void check_hyper(const apex::optimizers::HyperMap& hyper) const override;
  std::vector<StateKey> state_keys(const Tensor& param) const override;
  Tensor gradient_of(const Tensor& param) const override;
  Tensor copy_of(const Tensor& param) const override;
  void before_step(const apex::optimizers::StepScaling& scaling) override;
  void after_step() override;
  void update(const Bucket& bucket, const apex::optimizers::ParamGroup& group) override;

  AdamMathType mode_;
  std::unordered_map<const void*, Tensor> compute_, swa_;
  bool updated_ = false;
};

}  // namespace apex::contrib::openfold_triton
