// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/contrib/optimizers/sharded_optimizer.hpp"

namespace apex::contrib::optimizers {

struct DistributedFusedLAMBOptions {
  double lr = 1e-3;
  bool bias_correction = true;
  bool grad_averaging = true;  ///< false: m <- beta1 m + g
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double max_grad_norm = 0;       ///< of all gradients together; <= 0: no clipping
  bool adam_w_mode = true;        ///< weight decay joins the update, else the gradient
  bool use_nvlamb = false;        ///< the trust ratio also where weight_decay is 0
  bool amsgrad = false;           ///< refused when true
  bool clip_after_ar = true;      ///< false: each rank clips its own gradients before they are added; no overlap then
  bool full_ar = false;           ///< gradients are all-reduced over process_group instead of reduce-scattered
  bool e5m2_allgather = false;    ///< parameters travel as 8-bit e5m2, and take its values
  bool skip_allgather = false;    ///< step() leaves parameters as they are; param_sync() gathers them, on all ranks
  ShardingOptions sharding = {};  ///< dtype f32; without remainders and scaled states
};

/// optimizers::FusedLAMB with state and update spread over ranks (ShardedOptimizer says how); on averaged gradients it
/// does what FusedLAMB does on one process. Parts of one tensor that lie on several ranks have one trust ratio: their
/// squares are added over ranks. A step whose gradient norm is not finite is skipped on all ranks.
///
/// Clipping: with clip_after_ar by the norm of the averaged gradients, as FusedLAMB. Without, every rank multiplies its
/// gradients by min(1, max_grad_norm / (inv_scale * norm + 1e-6)) with its own norm before they are added.
/// State and checkpoints are those of FusedLAMB.
class DistributedFusedLAMB : public ShardedOptimizer {
 public:
  /// As DistributedFusedAdam. @throws also Kind::argument for another dtype than f32, remainders, scaled states,
  /// e5m2_allgather without store_params or with contiguous_param_buffer, skip_allgather without
  /// store_params, with overlap_param_sync or contiguous_param_buffer
  explicit DistributedFusedLAMB(std::vector<Tensor> params, const DistributedFusedLAMBOptions& options = {});
  explicit DistributedFusedLAMB(std::vector<apex::optimizers::ParamGroup> groups,
                                const DistributedFusedLAMBOptions& options = {});

  std::string_view type() const override { return "DistributedFusedLAMB"; }
  std::string_view state_type() const override { return "FusedLAMB"; }

 private:
  void check_hyper(const apex::optimizers::HyperMap& hyper) const override;
  bool checks_always() const override { return true; }
  void update_parts(const std::vector<Parts>& parts, const StepScaling& scaling, double factor) override;

  double max_grad_norm_;
  bool clip_after_;
  std::vector<std::int64_t> places_;  ///< what index_ was made of
  Tensor index_;                      ///< i64 [parts, 2]: the parameter that each part belongs to
};

}  // namespace apex::contrib::optimizers
