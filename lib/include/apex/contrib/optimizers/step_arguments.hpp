// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <unordered_map>
#include <vector>

#include "apex/optimizers/optimizer.hpp"

namespace apex::contrib::optimizers {

/// What a step of the optimizers here may be handed.
struct StepArguments {
  std::vector<std::vector<Tensor>> grads = {};          ///< by group and parameter; undefined ones are passed over.
                                                        ///< Empty: the parameters' own
  std::vector<std::vector<Tensor>> output_params = {};  ///< receive the rounded parameters; empty: none
  double scale = 1;                                     ///< gradients are divided by it
  std::vector<double> grad_norms = {};                  ///< by group, of the gradients before that division
};

/// An optimizer whose gradients and 16-bit copies come from outside, step by step.
class WithArguments : public apex::optimizers::Optimizer {
 public:
  using Optimizer::step;
  virtual void step(const StepArguments& arguments) = 0;

 protected:
  using Optimizer::Optimizer;
  /// Takes the lists for the steps made while it lives. @throws Kind::argument when they do not fit the groups
  class Given {
   public:
    Given(WithArguments& optimizer, const StepArguments& arguments);
    Given(const Given&) = delete;
    Given& operator=(const Given&) = delete;
    ~Given();

   private:
    WithArguments& optimizer_;
  };

  /// What gradients of `group` are divided by.
  double divisor(const apex::optimizers::ParamGroup& group) const;
  void set_divisors(std::vector<double> by_group) { divisors_ = std::move(by_group); }

 private:
  Tensor gradient_of(const Tensor& param) const override;
  Tensor copy_of(const Tensor& param) const override;

  bool handed_ = false;
  std::unordered_map<const void*, Tensor> grads_, outputs_;
  std::vector<double> divisors_;
};

}  // namespace apex::contrib::optimizers
