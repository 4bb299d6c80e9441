// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "apex/collectives/process_group.hpp"
#include "apex/contrib/optimizers/shard_layout.hpp"
#include "apex/kernels/multi_tensor_optimizers.hpp"
#include "apex/optimizers/optimizer.hpp"

namespace apex::contrib::optimizers {

/// How parameters, gradients and state are spread over ranks. The names are those of Apex's DistributedFusedAdam.
struct ShardingOptions {
  DType dtype = DType::f32;                    ///< of the state: f32, f16 or bf16
  std::optional<DType> grad_sync_dtype = {};   ///< of gradients on the wire; unset: dtype
  std::optional<DType> param_sync_dtype = {};  ///< of parameters on the wire; unset: dtype
  dist::ProcessGroup process_group = {};       ///< all ranks that train together; null: the world
  dist::ProcessGroup distributed_group = {};   ///< ranks that share one copy of the state; null: process_group
  dist::ProcessGroup redundant_group = {};     ///< ranks that hold the same shard; null: this rank alone
  bool average_grad_sync = true;               ///< gradients are divided by the size of process_group
  bool overlap_grad_sync = true;               ///< buckets are reduced while backward goes on
  bool overlap_param_sync = false;       ///< step() does not wait for parameters; the first op that reads one does
  double bucket_cap_mb = 100;            ///< of grad_sync_dtype; buckets are as small as their number allows
  int pipeline_size = 2;                 ///< buckets of parameters in flight at once, without overlap
  bool contiguous_param_buffer = false;  ///< parameters become views of the buffers they are gathered in
  bool contiguous_grad_buffer = false;   ///< one buffer for all buckets; see grad_buffer_view
  bool store_params = true;  ///< keep this rank's shard of the parameters in `dtype`; without it parameters that are of
                             ///< `dtype` themselves are updated in place, and a rank keeps the two moments alone
  bool store_param_remainders = false;  ///< bf16 parameters: keep the 16 bits that make them f32 instead
  bool with_scaled_states = false;      ///< f16 or bf16 state under a scale for each fragment
  bool nccl_ub = false;                 ///< needs nccl_allocator, which apex has not yet: true throws
};

/// What DistributedFusedLAMB adds: its options say what each means.
struct ShardedOptimizerWire {
  bool full_reduce = false, e5m2 = false, gather_late = false;
  double clip_own = 0;  ///< > 0: the norm that a rank's own gradients are clipped to before the sum
};

/// Base of the optimizers whose state is spread over the ranks (ZeRO stage 2, Rajbhandari et al. 2020,
/// arXiv:1910.02054): every rank has all parameters, and gradients and state of its shard of them.
///
/// Layout. Parameters lie in buckets (ShardLayout) in the reverse of their order here, so that buckets fill in about
/// the order in which backward makes gradients. Ranks must agree on parameters and options: all throw if not.
///
/// Gradients. A synchronising backward hands every bucket to a reduce-scatter as soon as its parameters have reported,
/// in the order of their numbers on every rank; the end of backward hands over the rest, with zeros for parameters that
/// got no gradient here. `.grad` is gone then: the sum over ranks lies in the shards, where several backwards add up
/// until zero_grad(). Every rank must run the same number of synchronising backwards. Under no_sync(), and without
/// overlap_grad_sync, gradients stay in `.grad` and take part in the next synchronisation. A parameter that no rank has
/// a gradient for takes part in the step with zeros; one that requires none (on all ranks alike) is left alone.
///
/// The gradient that a step sees is (sum over ranks / size of process_group) * grad_scale(), where unscale_grads() and
/// clip_grad_norm() put their factors; nothing is rewritten and nobody waits for the device.
///
/// Steps. Each rank updates its shards, then parameters are gathered. found_inf of any rank, or a sum that is not
/// finite in a step that was given a scale, makes all ranks skip. A dynamic amp::LossScaler is told by the norm, which
/// all ranks have: scaler.check({optimizer.grad_norm()}); optimizer.step(scaler.scaling()); scaler.update();
///
/// Not to be wrapped in DistributedDataParallel, which would look for the gradients. Constructor, synchronising
/// backward, grad_sync, grad_norm (and what uses it), step, param_sync where it has to wait, state_dict,
/// load_state_dict and checkpoints are collective over process_group.
class ShardedOptimizer : public apex::optimizers::Optimizer {
 public:
  using StepScaling = apex::optimizers::StepScaling;
  using Clock = std::chrono::steady_clock;

  ~ShardedOptimizer() override;

  const ShardLayout& layout() const;
  const ShardingOptions& sharding() const;

  /// While it lives, backward only accumulates in `.grad`. Movable.
  class NoSync {
   public:
    explicit NoSync(ShardedOptimizer& optimizer);
    NoSync(NoSync&& other) noexcept : optimizer_(std::exchange(other.optimizer_, nullptr)) {}
    NoSync& operator=(NoSync&&) = delete;
    ~NoSync();

   private:
    ShardedOptimizer* optimizer_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  /// Sends what gradients there are, if a backward or a no_sync() is still to be synchronised, and waits for all sums.
  void grad_sync();
  /// The place of a parameter's gradient in the contiguous buffer, in its layout. zero_grad() makes it `.grad`, so that
  /// backward writes where the buckets are sent from.
  /// @throws Kind::state without contiguous_grad_buffer; Kind::argument for a tensor that is not held
  Tensor grad_buffer_view(const Tensor& param) const;
  /// Drops gradients, shards of gradients, the norm and the factors of unscale and clip. @param set_to_none ignored
  /// unless the gradient buffer is contiguous, where true leaves `.grad` undefined until backward makes one
  void zero_grad(std::optional<bool> set_to_none = {}) override;

  /// f32, one element on the device: 2-norm of the averaged gradients of `params` (empty: all), times grad_scale().
  Tensor grad_norm(const std::vector<Tensor>& params = {});
  /// grad_scale *= min(1, max_norm / (norm + 1e-6)). @returns the norm before. Unscale first, then clip.
  /// @throws Kind::argument unless max_norm > 0
  Tensor clip_grad_norm(double max_norm);
  /// grad_scale *= inv_scale (f32, one element). @returns found_inf (f32, one element): 1 where the norm is not finite;
  /// the next step skips by it. @throws Kind::state when called twice before zero_grad(), or after the step
  Tensor unscale_grads(const Tensor& inv_scale);
  /// f32, one element.
  const Tensor& grad_scale() const;

  using Optimizer::step;
  /// As Optimizer::step. inv_scale counts as unscale_grads() unless that was called already. found_inf and inv_scale
  /// may differ between ranks where gradients do.
  void step(const StepScaling& scaling) override;
  /// Waits until all parameters are there: before they are read by anything but ops (files, counting), and by the host.
  void param_sync() { synchronize(); }
  void synchronize() const override;

  /// State as FusedAdam and FusedLAMB have it, on the host, the same on every rank. Collective, as are the next ones.
  apex::optimizers::OptimizerState state_dict() const override;
  void for_each_state(
      const std::function<void(const Tensor& param, const std::string& key, const Tensor& value)>& f) const override;
  /// From a state of whole tensors, or of what part_to_keep made of them; the number of ranks it was saved by, buckets
  /// and options do not matter. Masters in it are written to the parameters of all ranks; where it has none, state
  /// follows the parameters. Nothing changes when it throws, which it does on all ranks.
  /// @throws Kind::data as Optimizer::load_state_dict; state without both moments or without a step count
  void load_state_dict(const apex::optimizers::OptimizerState& state) override;
  /// Moments and step of this rank's part, from the whole tensor. Not collective.
  void set_state(const Tensor& param, const std::string& key, const Tensor& value) override;
  void init_state() override {}

  bool in_parts() const override { return true; }
  void for_each_part(const std::function<void(const StatePart& part)>& f) const override;
  Tensor part_to_keep(const Tensor& param, std::string_view key, const Tensor& whole) const override;
  void parameters_loaded() override;

  /// What the last synchronisation of gradients handed over, in that order. Asking waits for the device.
  struct BucketTiming {
    int bucket;
    Clock::time_point launched, finished;
  };
  std::vector<BucketTiming> last_timings() const;
  /// Bytes of state (parameters, moments, remainders, scales) that this rank keeps.
  std::int64_t state_bytes() const;

 protected:
  /// @param class_name   for messages
  /// @param takes_scaled whether with_scaled_states is supported
  ShardedOptimizer(apex::optimizers::HyperMap defaults, ShardingOptions sharding, const char* class_name,
                   bool takes_scaled, const ShardedOptimizerWire& wire = {});
  /// Called at the end of the constructor of the derived class, once the groups are there.
  void start();

  /// This rank's parts of a group's parameters, one entry for each, ready for a multi-tensor op.
  struct Parts {
    std::vector<View> params, exp_avg, exp_avg_sq;
    std::vector<View> remainders;  ///< only with store_param_remainders; params are bf16 then
    std::vector<View> copies;      ///< what is gathered; empty: params are
    std::vector<View> steps;
    std::vector<ConstView> grads;
    std::vector<std::int64_t> param_index;  ///< which parameter, counted over all groups in order
  };
  /// lr, beta1, beta2, eps and weight_decay. @throws Kind::argument naming class, key and value
  void check_adam_hyper(const apex::optimizers::HyperMap& hyper) const;
  /// What the kernels read on the device.
  static kernels::StepInputs inputs(const apex::optimizers::ParamGroup& group, const StepScaling& scaling,
                                    double factor);
  /// One update. parts[g] belongs to groups()[g]; grads are sums over ranks, to be multiplied by `factor` and
  /// scaling.inv_scale.
  virtual void update_parts(const std::vector<Parts>& parts, const StepScaling& scaling, double factor) = 0;
  void update_all(const StepScaling& scaling) final;
  void update(const Bucket& bucket, const apex::optimizers::ParamGroup& group) final;
  std::vector<StateKey> state_keys(const Tensor& param) const final;
  bool counts_steps() const final { return false; }  // not in the base class: every part has its count here
  /// Whether gradients are looked at for non-finite values in every step.
  virtual bool checks_always() const { return false; }
  const dist::ProcessGroup& distributed_group() const;
  Device device() const;
  std::int64_t param_count() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace apex::contrib::optimizers
