// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/optimizers/optimizer.hpp"

namespace apex::optimizers {

struct SGDOptions {
  double lr = -1;  ///< required
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool wd_after_momentum = false;        ///< weight decay joins the step, not the momentum
  bool materialize_master_grads = true;  ///< changes nothing, see below
  bool set_grad_none = false;            ///< what zero_grad() does without an argument
  bool master_weights = false;           ///< 16-bit parameters are updated through f32 masters
  bool capturable = false;
};

/// Stochastic gradient descent with momentum, all tensors of a (device, dtype) bucket in one multi-tensor call.
///
///   g <- grad * inv_scale;  wd before momentum: g += weight_decay * p
///   buf <- g on a parameter's first step, else momentum * buf + (1 - dampening) * g
///   g <- nesterov ? g + momentum * buf : buf;  wd after momentum: g += weight_decay * p
///   p <- p - lr * g
///
/// Arithmetic in f32 (f64 for f64 parameters), one rounding at each store. State: "momentum_buffer", dtype and layout
/// of the parameter (f32 beside a master), only when momentum is not 0. A parameter's first step is its own; one
/// skipped by found_inf does not count. Gradients of other strides than the parameter's are re-laid out first.
///
/// Scaled 16-bit gradients are unscaled in f32 as the kernel reads them, and the kernel writes the 16-bit weights of
/// masters. So there are no separate f32 gradients with either value of materialize_master_grads, and both give the
/// numbers that Apex gets with them: the same ones. init_state() makes no buffers where dampening is not 0: there the
/// first step differs from the others.
class FusedSGD : public Optimizer {
 public:
  /// @throws Kind::argument, naming the value: lr, momentum or weight_decay negative or not finite; nesterov with
  ///         momentum 0 or with dampening
  FusedSGD(std::vector<Tensor> params, const SGDOptions& options);
  FusedSGD(std::vector<ParamGroup> groups, const SGDOptions& options);

  std::string_view type() const override { return "FusedSGD"; }
  HyperMap options() const override;
  void init_state() override;

 private:
  void check_hyper(const HyperMap& hyper) const override;
  std::vector<StateKey> state_keys(const Tensor& param) const override;
  bool counts_steps() const override { return false; }
  void add_state(Bucket& bucket, const ParamGroup& group, const Tensor& param) override;
  void update(const Bucket& bucket, const ParamGroup& group) override;

  bool materialize_master_grads_;
};

}  // namespace apex::optimizers
