// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/optimizers/optimizer.hpp"

namespace apex::optimizers {

struct AdagradOptions {
  double lr = 1e-2;
  double eps = 1e-10;
  double weight_decay = 0;
  bool set_grad_none = true;
  bool adagrad_w_mode = false;  ///< weight decay joins the update, else the gradient
  double lr_decay = 0;          ///< the t-th update of a parameter has the rate lr / (1 + (t - 1) lr_decay)
  double initial_accumulator_value = 0;
  bool master_weights = false;
  bool capturable = false;
};

/// Adagrad (Duchi et al. 2011).
///
///   without adagrad_w_mode: g += weight_decay * p
///   h <- h + g^2;  u <- g / (sqrt(h) + eps);  with adagrad_w_mode: u += weight_decay * p;  p <- p - lr u
///
/// State: "sum" (h, f32, f64 for f64 parameters: 16-bit sums would stand still), "master", and "step" where lr_decay is
/// not 0. Hyper-parameters of a group: lr, eps, weight_decay, adagrad_w_mode. With lr_decay the rate is formed on the
/// host, so a step that found_inf on a device may skip waits for it, and none can be captured.
class FusedAdagrad : public Optimizer {
 public:
  /// @throws Kind::argument, naming the value: lr, eps, weight_decay, lr_decay or initial_accumulator_value negative or
  ///         not finite, lr_decay with capturable
  explicit FusedAdagrad(std::vector<Tensor> params, const AdagradOptions& options = {});
  explicit FusedAdagrad(std::vector<ParamGroup> groups, const AdagradOptions& options = {});

  std::string_view type() const override { return "FusedAdagrad"; }
  HyperMap options() const override;

 private:
  void check_hyper(const HyperMap& hyper) const override;
  std::vector<StateKey> state_keys(const Tensor& param) const override;
  bool counts_steps() const override { return lr_decay_ != 0.0; }
  bool counts_on_host() const override { return true; }
  void update(const Bucket& bucket, const ParamGroup& group) override;

  double lr_decay_, initial_;
};

}  // namespace apex::optimizers
