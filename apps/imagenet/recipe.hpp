// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>

#include "apex/contrib/optimizers/sharded_optimizer.hpp"
#include "apex/nn/module.hpp"
#include "apex/optimizers/optimizer.hpp"
#include "apex/parallel/larc.hpp"
#include "options.hpp"

namespace imagenet {

/// The optimizer that the options name, and what goes around its steps.
class Recipe {
 public:
  /// Collective for the optimizers that are spread over ranks.
  /// @param masters  16-bit parameters have f32 masters (those that are spread always have them)
  Recipe(const apex::nn::Module& model, const Options& options, bool masters);

  apex::optimizers::Optimizer& optimizer() const { return *optimizer_; }
  /// The optimizer, if it adds gradients over ranks itself; else null.
  apex::contrib::optimizers::ShardedOptimizer* sharded() const { return sharded_; }
  void step(const apex::optimizers::StepScaling& scaling);

 private:
  std::unique_ptr<apex::optimizers::Optimizer> optimizer_;
  apex::contrib::optimizers::ShardedOptimizer* sharded_ = nullptr;
  std::unique_ptr<apex::parallel::LARC> larc_;
  std::vector<apex::Tensor> clipped_;  ///< parameters whose gradients are clipped before a step; none: no clipping
  double most_ = 0;  ///< the largest norm of their gradients as they are, scaled; of sharded ones: unscaled
};

}  // namespace imagenet
