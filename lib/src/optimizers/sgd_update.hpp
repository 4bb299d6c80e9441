// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/multi_tensor.hpp"
#include "common.hpp"

namespace apex::optimizers {

/// @throws Kind::argument, naming class and value
inline void check_sgd_hyper(std::string_view type, const HyperMap& hyper) {
  const ParamGroup group{.params = {}, .hyper = hyper};
  check_not_negative(type, hyper, {"lr", "momentum", "weight_decay"});
  if (!std::isfinite(group.number("dampening")))
    fail(Kind::argument, concat(type, ": dampening ", group.number("dampening"), " is not finite"));
  if (group.flag("nesterov") && (group.number("momentum") <= 0.0 || group.number("dampening") != 0.0))
    fail(Kind::argument, concat(type, ": nesterov needs momentum > 0 and dampening 0, not ", group.number("momentum"),
                                " and ", group.number("dampening")));
}

/// One call of SGD for a bucket; gradients are multiplied by `factor` beside what the bucket says.
template <class Bucket>
void sgd_update(const Bucket& bucket, const ParamGroup& group, double factor = 1.0) {
  const auto in = inputs_of(bucket);
  kernels::SgdOptions options;
  options.lr = group.number("lr");
  options.momentum = group.number("momentum");
  options.dampening = group.number("dampening");
  options.weight_decay = group.number("weight_decay");
  options.nesterov = group.flag("nesterov");
  options.wd_after_momentum = group.flag("wd_after_momentum");
  options.lr_on_device = in.lr_on_device;
  options.inv_scale = in.inv_scale;
  options.found_inf = in.found_inf;
  options.scale = in.grad_scale * factor;
  const Tensor& found = bucket.scaling.found_inf;
  const View flag = found.defined() && found.dtype() == DType::i32 ? found.view() : View();
  const std::vector<View> none;
  kernels::multi_tensor_sgd(Context::current(bucket.device), flag, bucket.weights,
                            bucket.state.empty() ? none : bucket.state[0], bucket.copies, bucket.grads,
                            bucket.first_run, options);
}

}  // namespace apex::optimizers
