// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "../multi_tensor_optimizers_impl.hpp"
#include "../optimizer_formulas.hpp"
#include "multi_tensor_access.cuh"

// What the steps of all optimizers share: what they read on the device, and the counts of their tensors.

namespace apex::kernels::cuda::multi_tensor {

using optimizer::Corrections;

/// What may stop the step, and what may change it, without the host knowing.
struct OnDevice {
  const std::int32_t* flag = nullptr;
  const float* found_inf = nullptr;
  const float* inv_scale = nullptr;
  const double* lr = nullptr;
  const float* norm = nullptr;  // one of the two, or none; not finite stops
  const double* wide_norm = nullptr;

  OnDevice() = default;
  explicit OnDevice(const StepInputs& in, const ConstView& grad_norm = {}) {
    if (in.flag.defined()) flag = in.flag.as<std::int32_t>();
    if (in.found_inf.defined()) found_inf = in.found_inf.as<float>();
    if (in.inv_scale.defined()) inv_scale = in.inv_scale.as<float>();
    if (in.lr_on_device.defined()) lr = in.lr_on_device.as<double>();
    if (!grad_norm.defined()) return;
    if (grad_norm.dtype == DType::f64)
      wide_norm = grad_norm.as<double>();
    else
      norm = grad_norm.as<float>();
  }
  __device__ __forceinline__ double grad_norm() const {
    return norm != nullptr ? static_cast<double>(*norm) : wide_norm != nullptr ? *wide_norm : 0.0;
  }
  __device__ __forceinline__ bool stops() const {
    return (flag != nullptr && *flag != 0) || (found_inf != nullptr && *found_inf != 0.0f) || !isfinite(grad_norm());
  }
};

/// Counts on the device travel in the kernel's parameters.
struct Counts {
  static constexpr int kCapacity = 3500;
  std::int32_t* count[kCapacity];
  int size;
};

/// Raises the counts, unless the step is stopped, and forms what follows from them.
template <class C>
__global__ void count_steps(const __grid_constant__ Counts counts, const OnDevice device,
                            const optimizer::CorrectionRule rule, bool raise, Corrections<C>* corrections,
                            std::int32_t* raised) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= counts.size || device.stops()) return;
  const std::int32_t count = *counts.count[i] + (raise ? 1 : 0);
  if (raise) *counts.count[i] = count;
  raised[i] = count;
  corrections[i] = rule.at<C>(count);
}

/// The corrections of all tensors, known to the host or in memory on the device.
template <class C>
class Counted {
 public:
  Counted(const Context& ctx, std::span<const View> steps, std::int64_t step, const OnDevice& device,
          const optimizer::CorrectionRule& rule, bool raise) {
    if (steps.empty()) {
      same_ = rule.at<C>(step);
      step_ = step;
      return;
    }
    memory_ = ctx.workspace(steps.size() * (sizeof(Corrections<C>) + sizeof(std::int32_t)));
    corrections_ = memory_.template as<Corrections<C>>();
    counts_ = reinterpret_cast<std::int32_t*>(corrections_ + steps.size());
    one_ = steps.size() == 1;
    static_assert(sizeof(Counts) < 32000);
    Counts counts;
    for (std::size_t at = 0; at < steps.size(); at += Counts::kCapacity) {
      counts.size = static_cast<int>(std::min<std::size_t>(Counts::kCapacity, steps.size() - at));
      for (int i = 0; i < counts.size; ++i)
        counts.count[i] = steps[at + static_cast<std::size_t>(i)].template as<std::int32_t>();
      const auto blocks = static_cast<unsigned>(ceil_div(counts.size, 32));
      count_steps<C><<<blocks, 32, 0, stream_of(ctx)>>>(counts, device, rule, raise, corrections_ + at, counts_ + at);
      check_launch("count_steps");
    }
  }

  /// As kernels take it, for the tensors from `first` on.
  struct Given {
    const Corrections<C>* corrections = nullptr;
    const std::int32_t* counts = nullptr;
    Corrections<C> same{};
    std::int64_t step = 0;
    bool one = false;

    __device__ __forceinline__ Corrections<C> at(int i) const {
      return corrections == nullptr ? same : corrections[one ? 0 : i];
    }
    __device__ __forceinline__ bool is_first(int i) const {
      return (counts == nullptr ? step : counts[one ? 0 : i]) == 1;
    }
  };
  Given from(int first) const {
    if (corrections_ == nullptr) return {nullptr, nullptr, same_, step_, true};
    const int skip = one_ ? 0 : first;
    return {corrections_ + skip, counts_ + skip, same_, step_, one_};
  }

 private:
  Workspace memory_;
  Corrections<C>* corrections_ = nullptr;
  std::int32_t* counts_ = nullptr;
  Corrections<C> same_{};
  std::int64_t step_ = 0;
  bool one_ = false;
};

/// The scalars of a step in the compute type.
template <class C>
struct StepValues {
  OnDevice device;
  C lr, scale;

  StepValues(const OnDevice& d, const StepInputs& in, double host_lr, bool negated = false)
      : device(d), lr(static_cast<C>(host_lr)), scale(static_cast<C>(negated ? -in.grad_scale : in.grad_scale)) {}
  /// False: the step is stopped.
  __device__ __forceinline__ bool read() {
    if (device.stops()) return false;
    if (device.inv_scale != nullptr) scale *= static_cast<C>(*device.inv_scale);
    if (device.lr != nullptr) lr = static_cast<C>(*device.lr);
    return true;
  }
};

}  // namespace apex::kernels::cuda::multi_tensor
