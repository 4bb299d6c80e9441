// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <utility>

#include "apex/optimizers/optimizer.hpp"

namespace apex::optimizers {

struct SGDOptions {
  double lr = -1;  ///< required
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool wd_after_momentum = false;  ///< weight decay joins the step, not the momentum
  bool set_grad_none = false;      ///< what zero_grad() does without an argument
  bool master_weights = false;     ///< 16-bit parameters are updated through f32 masters
};

/// Stochastic gradient descent with momentum, all tensors of a (device, dtype) bucket in one multi-tensor call.
///
///   g <- grad * inv_scale;  wd before momentum: g += weight_decay * p
///   buf <- g on a parameter's first step, else momentum * buf + (1 - dampening) * g
///   g <- nesterov ? g + momentum * buf : buf;  wd after momentum: g += weight_decay * p
///   p <- p - lr * g
///
/// Arithmetic in f32 (f64 for f64 parameters), one rounding at each store. State: "momentum_buffer", dtype and layout
/// of the parameter, only when momentum is not 0. A parameter's first step is its own; one skipped by found_inf does
/// not count. Gradients of other strides than the parameter's are re-laid out first.
///
/// With master_weights a 16-bit parameter has an f32 state "master", made from its value at its first step, and its
/// momentum is f32. Steps update the master; the parameter becomes its rounded copy in the same pass, so what else is
/// written into the parameter afterwards is lost. Masters are a matter of the optimizer, not of a group: a loaded state
/// without them is fine (they are made at the next step), one with them is refused where they are not asked for.
class FusedSGD : public Optimizer {
 public:
  /// @throws Kind::argument, naming the value: lr, momentum or weight_decay negative or not finite; nesterov with
  ///         momentum 0 or with dampening
  FusedSGD(std::vector<Tensor> params, const SGDOptions& options);
  FusedSGD(std::vector<ParamGroup> groups, const SGDOptions& options);

  std::string_view type() const override { return "FusedSGD"; }

 private:
  void check_hyper(const HyperMap& hyper) const override;
  void step_group(ParamGroup& group, const StepScaling& scaling) override;
  std::optional<DType> state_dtype(const Tensor& param, std::string_view key) const override;
  bool has_master(const Tensor& param) const { return master_weights_ && is_16bit(param.dtype()); }
  Tensor master_of(const Tensor& param);
  std::pair<Tensor, bool> momentum_of(const Tensor& param, double dampening, const StepScaling& scaling);

  bool master_weights_;
};

}  // namespace apex::optimizers
