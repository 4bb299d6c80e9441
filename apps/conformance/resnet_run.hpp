// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apex/core/tensor.hpp"
#include "apex/nn/module.hpp"
#include "apex/optimizers/fused_sgd.hpp"

namespace apex::conformance {

/// What a run of resnet_training is made from. Weights, images and labels are formulas; see resnet_run.cpp.
struct ResnetRecipe {
  std::string arch;
  std::int64_t classes = 0, image = 0, batch = 0, steps = 0;
  double label_smoothing = 0, lr = 0, momentum = 0, weight_decay = 0, bn_momentum = 0;
};

/// Values by the name of the dataset they are recorded under.
using Values = std::map<std::string, std::vector<double>>;

/// The initial weights: as the formula has them, or off by as much as their type can hold them.
enum class Weights { exact, one_ulp_off, rounded_to_f32 };

/// One training of a recipe.
class ResnetRun {
 public:
  ResnetRun(const ResnetRecipe& recipe, Device device, DType dtype, MemoryFormat format, Weights weights);

  std::vector<std::string> parameter_names() const;
  std::vector<std::string> buffer_names() const;

  /// Gives logits_train_step0, grad_norm_step0, grad_first8_step0.
  void first_step();
  /// Gives losses, param_sum_end, param_abs_sum_end, buffer_sum_end, logits_eval_end.
  void remaining_steps();
  bool complete() const { return results_.count("losses") != 0; }
  const Values& results() const { return results_; }

 private:
  Tensor step();
  void note_gradients();
  void note_end();

  ResnetRecipe recipe_;
  std::shared_ptr<nn::Module> network_;
  Tensor images_, labels_;
  std::optional<optimizers::FusedSGD> optimizer_;
  std::vector<double> losses_;
  Values results_;
};

}  // namespace apex::conformance
