// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/contrib/optimizers/sharded_optimizer.hpp"

namespace apex::contrib::optimizers {

struct DistributedFusedAdamOptions {
  double lr = 1e-3;
  bool bias_correction = true;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool adam_w_mode = true;  ///< weight decay apart from the gradient (AdamW), else added to it (L2)
  double weight_decay = 0;
  bool amsgrad = false;  ///< refused when true
  bool maximize = false;
  ShardingOptions sharding = {};
};

/// optimizers::FusedAdam with state and update spread over ranks (ShardedOptimizer says how). On averaged gradients it
/// does what FusedAdam does on one process, bit for bit where the sums over ranks are.
///
/// State per parameter: "exp_avg", "exp_avg_sq", "step", and "master" where the optimizer knows a 16-bit parameter in
/// more bits. A checkpoint is that of FusedAdam, whatever the number of ranks, buckets and options: each reads the
/// other's.
///
/// store_param_remainders: a bf16 parameter and the 16 bits kept here are its f32 master, updated as f32 is; the bf16
/// value is the master rounded to nearest with ties away from zero.
/// with_scaled_states: state in f16 is stored as x / scale with a scale for each part of a fragment that brings its
/// largest element to half of f16's range; updates run in f32. In bf16, which has the range of f32, the scale is 1.
class DistributedFusedAdam : public ShardedOptimizer {
 public:
  /// Gives all ranks the first rank's parameters. Collective.
  /// @throws Kind::argument, naming the value: a hyper-parameter out of range; options that contradict each other;
  ///         groups whose sizes do not multiply to process_group's; a parameter that is not f32, f16 or bf16, or on
  ///         another device; on every rank when parameters or options differ between ranks. Kind::unsupported for
  ///         amsgrad and nccl_ub
  explicit DistributedFusedAdam(std::vector<Tensor> params, const DistributedFusedAdamOptions& options = {});
  explicit DistributedFusedAdam(std::vector<apex::optimizers::ParamGroup> groups,
                                const DistributedFusedAdamOptions& options = {});

  std::string_view type() const override { return "DistributedFusedAdam"; }
  std::string_view state_type() const override { return "FusedAdam"; }

 private:
  void check_hyper(const apex::optimizers::HyperMap& hyper) const override;
  void update_parts(const std::vector<Parts>& parts, const StepScaling& scaling, double factor) override;
};

}  // namespace apex::contrib::optimizers
