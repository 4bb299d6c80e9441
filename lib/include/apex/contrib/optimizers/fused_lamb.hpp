// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/optimizers/fused_lamb.hpp"

namespace apex::contrib::optimizers {

struct LambOptions {
  double lr = 1e-3;
  bool bias_correction = true;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 0.01;
  bool amsgrad = false;  ///< refused when true
  bool adam_w_mode = true;
  bool grad_averaging = true;
  bool set_grad_none = true;
  double max_grad_norm = 1.0;
};

/// apex::optimizers::FusedLAMB before it had use_nvlamb. The norm of the gradients stays on the device here too.
class FusedLAMB : public apex::optimizers::FusedLAMB {
 public:
  explicit FusedLAMB(std::vector<Tensor> params, const LambOptions& options = {});
  explicit FusedLAMB(std::vector<apex::optimizers::ParamGroup> groups, const LambOptions& options = {});
};

}  // namespace apex::contrib::optimizers
