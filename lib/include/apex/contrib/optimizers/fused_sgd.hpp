// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/contrib/optimizers/step_arguments.hpp"

namespace apex::contrib::optimizers {

struct SGDOptions {
  double lr = -1;  ///< required
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool wd_after_momentum = false;
};

/// SGD for use by FP16_Optimizer: f32 parameters, 16-bit gradients and copies handed to each step, which is that of
/// apex::optimizers::FusedSGD on gradients divided by `scale`. State: "momentum_buffer".
class FusedSGD : public WithArguments {
 public:
  /// @throws as apex::optimizers::FusedSGD
  explicit FusedSGD(std::vector<Tensor> params, const SGDOptions& options);
  explicit FusedSGD(std::vector<apex::optimizers::ParamGroup> groups, const SGDOptions& options);

  std::string_view type() const override { return "contrib.FusedSGD"; }
  /// @throws Kind::state without grads or without output_params; Kind::argument when they do not fit the groups
  void step(const StepArguments& arguments) override;

 private:
  void check_hyper(const apex::optimizers::HyperMap& hyper) const override;
  std::vector<StateKey> state_keys(const Tensor& param) const override;
  bool counts_steps() const override { return false; }
  void add_state(Bucket& bucket, const apex::optimizers::ParamGroup& group, const Tensor& param) override;
  void update(const Bucket& bucket, const apex::optimizers::ParamGroup& group) override;
};

}  // namespace apex::contrib::optimizers
