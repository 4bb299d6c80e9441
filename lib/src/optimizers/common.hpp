// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cmath>
#include <initializer_list>
#include <string_view>

#include "apex/core/error.hpp"
#include "apex/kernels/multi_tensor_optimizers.hpp"
#include "apex/optimizers/optimizer.hpp"

namespace apex::optimizers {

/// What the kernels read on the device. The template is there because the bucket's type is the optimizers' own.
template <class Bucket>
kernels::StepInputs inputs_of(const Bucket& bucket) {
  kernels::StepInputs in;
  const Tensor& found = bucket.scaling.found_inf;
  if (found.defined()) (found.dtype() == DType::i32 ? in.flag : in.found_inf) = found.view();
  in.inv_scale = bucket.scaling.inv_scale.view();
  in.lr_on_device = bucket.lr.view();
  in.grad_scale = bucket.scaling.grad_scale;
  return in;
}

/// @throws Kind::argument naming class, key and value
inline void check_not_negative(std::string_view type, const HyperMap& hyper, std::initializer_list<const char*> keys) {
  const ParamGroup group{.params = {}, .hyper = hyper};
  for (const char* key : keys)
    if (!(group.number(key) >= 0.0) || std::isinf(group.number(key)))
      fail(Kind::argument, concat(type, ": ", key, ' ', group.number(key), " is not a finite number >= 0"));
}

inline void check_betas(std::string_view type, const HyperMap& hyper) {
  const ParamGroup group{.params = {}, .hyper = hyper};
  for (const char* key : {"beta1", "beta2"})
    if (!(group.number(key) >= 0.0 && group.number(key) < 1.0))
      fail(Kind::argument, concat(type, ": ", key, ' ', group.number(key), " is not in [0, 1)"));
}

inline void refuse_amsgrad(std::string_view type, bool amsgrad) {
  if (amsgrad) fail(Kind::unsupported, concat(type, ": amsgrad true: there is no AMSGrad variant; leave it out"));
}

}  // namespace apex::optimizers
