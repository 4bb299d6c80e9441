// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "../multi_tensor_optimizers_impl.hpp"
#include "../optimizer_formulas.hpp"
#include "multi_tensor.hpp"

// What the steps of all optimizers begin with.

namespace apex::kernels::cpu {

inline bool is_set(const ConstView& flag) { return flag.defined() && *flag.as<std::int32_t>() != 0; }
inline bool skips(const StepInputs& in) {
  return is_set(in.flag) || (in.found_inf.defined() && *in.found_inf.as<float>() != 0.0f);
}

/// The values a step reads on the device, in the compute type.
template <class C>
struct StepValues {
  C lr, scale;

  StepValues(const StepInputs& in, double host_lr, bool negated = false)
      : lr(static_cast<C>(in.lr_on_device.defined() ? *in.lr_on_device.as<double>() : host_lr)),
        scale(static_cast<C>(negated ? -in.grad_scale : in.grad_scale)) {
    if (in.inv_scale.defined()) scale *= static_cast<C>(*in.inv_scale.as<float>());
  }
};

/// The corrections of each tensor; kRaise counts this update first.
template <class C>
class TensorSteps {
 public:
  TensorSteps(std::span<const View> steps, std::int64_t step, const optimizer::CorrectionRule& rule, bool raise) {
    if (steps.empty()) counts_.push_back(step);
    for (const auto& s : steps) {
      auto& count = *s.as<std::int32_t>();
      if (raise) ++count;
      counts_.push_back(count);
    }
    for (const auto count : counts_) corrections_.push_back(rule.at<C>(count));
  }
  std::int64_t count(std::size_t i) const { return counts_[counts_.size() == 1 ? 0 : i]; }
  const optimizer::Corrections<C>& operator[](std::size_t i) const {
    return corrections_[corrections_.size() == 1 ? 0 : i];
  }

 private:
  std::vector<std::int64_t> counts_;
  std::vector<optimizer::Corrections<C>> corrections_;
};

}  // namespace apex::kernels::cpu
