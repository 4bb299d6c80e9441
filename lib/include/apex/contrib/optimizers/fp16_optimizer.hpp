// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/contrib/optimizers/fused_adam.hpp"
#include "apex/contrib/optimizers/fused_sgd.hpp"

namespace apex::contrib::optimizers {

struct FP16Options {
  double static_loss_scale = 1;
  bool dynamic_loss_scale = false;
};

/// State of an FP16_Optimizer.
struct FP16State {
  bool dynamic_loss_scale = false;
  double cur_scale = 1;
  std::int64_t cur_iter = 0, last_overflow_iter = -1;
  double scale_factor = 2;
  std::int64_t scale_window = 1000;
  apex::optimizers::OptimizerState optimizer;
  std::vector<std::vector<Tensor>> fp32_groups;
};

/// Trains 16-bit parameters by hand: the optimizer's parameters become f32 copies of them (all of them, f32 ones too),
/// and each step reads the model's scaled gradients and writes the model's parameters along.
///
/// Dynamic scale: 65536 at first. A step with a non-finite norm is skipped and scale = max(scale / 2, 1); otherwise the
/// scale doubles when (iteration - last overflow) is a multiple of 1000, where the last overflow starts at -1.
/// Iterations count skipped steps too. Each step reads the norms of the gradients on the host, so it waits.
class FP16_Optimizer {
 public:
  /// `optimizer` outlives this, and holds the copies from here on.
  /// @throws Kind::argument for static_loss_scale that is not a finite number above 0
  explicit FP16_Optimizer(WithArguments& optimizer, const FP16Options& options = {});

  /// backward(f32(loss) * loss_scale()).
  void backward(const Tensor& loss);
  void step();
  /// Of the model's parameters.
  void zero_grad(bool set_to_none = true);

  double loss_scale() const noexcept { return state_.cur_scale; }
  /// Whether the last step was skipped.
  bool overflow() const noexcept { return overflow_; }
  const std::vector<std::vector<Tensor>>& fp16_groups() const noexcept { return model_; }

  FP16State state_dict() const;
  /// Masters are restored by copy. @throws Kind::data when groups or sizes differ, or what the optimizer says
  void load_state_dict(const FP16State& state);

 private:
  void update_scale();

  WithArguments& optimizer_;
  std::vector<std::vector<Tensor>> model_;
  FP16State state_;  ///< without optimizer and fp32_groups
  bool overflow_ = false;
};

/// out = in, converted, unless `flag` (i32, one element) is set: to and from f32, f16 and u8, where u8 is e5m2, the
/// upper byte of an f16 rounded half away from zero. All on one device, one dtype a list.
/// @throws Kind::argument for lists that do not fit
void maybe_cast(const Tensor& flag, const std::vector<Tensor>& in, const std::vector<Tensor>& out);

}  // namespace apex::contrib::optimizers
