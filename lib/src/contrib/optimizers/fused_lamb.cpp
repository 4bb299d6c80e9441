// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/contrib/optimizers/fused_lamb.hpp"

namespace apex::contrib::optimizers {

namespace {

apex::optimizers::LambOptions today(const LambOptions& o) {
  return {.lr = o.lr,
          .bias_correction = o.bias_correction,
          .beta1 = o.beta1,
          .beta2 = o.beta2,
          .eps = o.eps,
          .weight_decay = o.weight_decay,
          .amsgrad = o.amsgrad,
          .adam_w_mode = o.adam_w_mode,
          .grad_averaging = o.grad_averaging,
          .set_grad_none = o.set_grad_none,
          .max_grad_norm = o.max_grad_norm};
}

}  // namespace

FusedLAMB::FusedLAMB(std::vector<Tensor> params, const LambOptions& options)
    : FusedLAMB(std::vector<apex::optimizers::ParamGroup>{{.params = std::move(params)}}, options) {}

FusedLAMB::FusedLAMB(std::vector<apex::optimizers::ParamGroup> groups, const LambOptions& options)
    : apex::optimizers::FusedLAMB(std::move(groups), today(options), "contrib.FusedLAMB") {}

}  // namespace apex::contrib::optimizers
