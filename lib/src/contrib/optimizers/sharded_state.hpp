// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "apex/autograd.hpp"
#include "apex/autograd/ops.hpp"
#include "apex/contrib/optimizers/sharded_optimizer.hpp"

namespace apex::contrib::optimizers {

/// What a sharded optimizer keeps, and what happens to it; the public class only forwards.
struct ShardedOptimizer::Impl {
  using Optimizer = apex::optimizers::Optimizer;

  struct Param {
    Tensor tensor;
    std::size_t group = 0;    ///< of the optimizer
    std::int64_t number = 0;  ///< counted over all groups in order
    DType dtype;              ///< as it was when the layout was made, like the strides
    Dims strides;
    HookHandle hook = {};
    bool hooked = false;
    bool arrived = false;  ///< reported in the pass under way
  };

  /// This rank's part of a fragment.
  struct Local {
    std::size_t param = 0;
    std::int64_t bucket = 0;
    LocalPart part;
  };

  struct Bucket {
    std::vector<std::size_t> params;  ///< each once
    std::vector<std::size_t> locals;
    // Gradients.
    std::int64_t missing = 0;  ///< parameters that have not reported in the pass under way
    bool in_flight = false;
    Tensor gradients;  ///< the whole bucket, until it is reduced (for good in a contiguous buffer)
    Tensor reduced;
    dist::Work reducing;
    Tensor gradient_shard;  ///< sum of what was reduced since zero_grad
    // State.
    Tensor params_shard, remainders, exp_avg, exp_avg_sq;
    // Parameters.
    Tensor own;       ///< this rank's part of what is gathered
    Tensor gathered;  ///< the whole bucket (for good in a contiguous buffer)
    bool gathering_now = false;
    dist::Work gathering;
  };

  enum class Stage { ready, unscaled, stepped };

  ShardedOptimizer& self;
  const ShardingOptions options;
  const char* const class_name;
  const ShardedOptimizerWire wire;
  const DType grad_sync, param_sync;
  dist::ProcessGroup whole, distributed, redundant;  ///< redundant: null for a size of 1

  ShardLayout layout;
  std::vector<Param> params;  ///< by the layout's numbers
  std::unordered_map<const void*, std::size_t> index_of;
  std::vector<Local> locals;
  std::vector<Bucket> buckets;
  std::int64_t known = 0;  ///< parameters of the groups that have their place
  Tensor steps;            ///< i32, an element for each local part
  Tensor scales;           ///< f32 [3, local parts] of params, exp_avg, exp_avg_sq: with_scaled_states
  bool warned_fill = false, warned_masters = false;

  // The pass under way.
  int no_sync_depth = 0;
  bool in_backward = false;
  std::int64_t next_bucket = 0;
  bool synced = false;  ///< a pass was handed over since zero_grad
  bool local = false;   ///< gradients may have come since that were not
  struct Launch {
    int bucket;
    Clock::time_point at;
    dist::Work work;
  };
  std::vector<Launch> launches;

  // Norm and factors.
  Stage stage = Stage::ready;
  Tensor scale;             ///< f32, one element
  Tensor found_inf;         ///< f32, one element; undefined: nobody looked
  Tensor pass_inv_scale;    ///< of the step that makes the pass, for wire.clip_own
  Tensor own_factor;        ///< f32: what this rank's gradients are multiplied by as they are packed; undefined: 1
  bool gather_due = false;  ///< wire.gather_late: a step's parameters are still to be gathered
  Tensor norm;              ///< f32: of the averaged gradients, before `scale`; undefined: not known
  Tensor never;             ///< i32 0: a flag that skips nothing
  std::optional<BeforeOps> watcher;  ///< finishes parameters before the first op that reads them
  std::int64_t gathers_open = 0;
  bool unpack_frozen = false;  ///< parameters that require no gradient are written too
  std::thread::id stepper;     ///< ops of other threads (loaders) are not looked at
  Tensor unpack_flag;          ///< i32: not 0 leaves parameters as they are when they are unpacked

  Impl(ShardedOptimizer& s, ShardingOptions o, const char* name, const ShardedOptimizerWire& w);

  Device device() const { return params.empty() ? kCpu : params.front().tensor.device(); }
  Context context() const { return Context::current(device()); }
  bool one_rank() const { return distributed.size() == 1; }
  int rank() const { return distributed.rank(); }
  double factor() const { return options.average_grad_sync ? 1.0 / whole.size() : 1.0; }
  bool scaled() const { return options.with_scaled_states; }
  bool keeps_params() const { return options.store_params && !options.store_param_remainders; }
  /// Whether the state has more of a parameter than its tensor shows.
  bool has_master(const Param& p) const {
    return is_16bit(p.dtype) &&
           (options.store_param_remainders || (keeps_params() && (scaled() || !is_16bit(options.dtype))));
  }
  /// What is gathered is the stored shard itself.
  bool gathers_stored() const {
    return keeps_params() && !scaled() && param_sync == options.dtype && !options.contiguous_param_buffer;
  }

  // Layout and state (sharded_state.cpp).
  void adopt_new_params();
  void check_unchanged() const;
  void make_state(std::size_t first_bucket, std::size_t first_local);
  void read_params(const std::vector<std::size_t>& which);
  void warn_fill();

  // Gradients.
  void begin_pass();
  void add_hook(std::size_t p);
  void on_gradient(std::size_t p);
  void end_of_backward();
  void launch(std::int64_t b);
  void note_work(const dist::Work& work);
  void pack(std::int64_t b);
  void collect(Bucket& b);
  void take_up(Bucket& b);
  void launch_rest();
  void clip_own_gradients();
  void grad_sync_all();
  void forget_gradients();

  // Norm.
  Tensor norm_of(const std::vector<std::size_t>& which);
  Tensor finite_flag(const Tensor& value);

  // Update and gather (sharded_step.cpp).
  std::vector<Parts> parts_of(const std::vector<std::size_t>& which, std::vector<Tensor>& keep);
  void update(const StepScaling& scaling);
  void encode_own();
  void gather(bool overlap, const Tensor& flag);
  void start_gather(std::int64_t b);
  void finish_gather(Bucket& b);
  void before_op(std::span<Tensor* const> inputs);
  void finish_params();
  void publish();
  void store_scaled(const std::vector<std::size_t>& which, int kind, const std::vector<View>& values, View flag);
  void load_scaled(const std::vector<std::size_t>& which, int kind, const std::vector<View>& values);
  Tensor& state_tensor(Bucket& b, int kind) {
    return kind == 0 ? b.params_shard : kind == 1 ? b.exp_avg : b.exp_avg_sq;
  }
  Tensor skip_flag();

  // Checkpoints (sharded_checkpoint.cpp).
  std::vector<Tensor> loaded_masters;  ///< by parameter, this rank's values; until the next step
  void read_shard(Bucket& b, int kind, const Tensor& out);
  void gather_state(const std::vector<std::int64_t>& counts,
                    const std::function<void(std::size_t p, int kind, const Tensor& values)>& f);
  std::vector<std::int64_t> update_counts();
  Tensor local_values(std::size_t p, const Tensor& values);
  void write_locals(std::size_t p, int kind, const Tensor& values);
  void write_halves(const Local& local, const Tensor& values);
};

/// Elements [range) of a tensor's memory as one dimension.
inline View slice(const Tensor& t, const Range& range) {
  View v;
  v.dtype = t.dtype();
  v.device = t.device();
  v.sizes = Dims{range.size()};
  v.strides = Dims{1};
  v.present = true;
  v.data = static_cast<char*>(t.raw_data()) + range.begin * static_cast<std::int64_t>(size_of(t.dtype()));
  return v;
}

/// f32 as a bf16 and the 16 bits it lacks: kernels/multi_tensor_optimizers.hpp says how.
inline std::pair<std::uint16_t, std::int16_t> split_halves(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  auto hi = static_cast<std::uint16_t>(bits >> 16);
  const auto rem = static_cast<std::int16_t>(bits & 0xffff);
  if (std::isnan(value)) return {static_cast<std::uint16_t>(hi | 0x40), std::int16_t{0}};
  if (rem < 0) ++hi;
  return {hi, rem};
}
inline float join_halves(std::uint16_t hi, std::int16_t rem) {
  if (rem < 0 && (hi & 0x7fff) <= 0x7f80) --hi;  // a NaN stays one
  return std::bit_cast<float>(static_cast<std::uint32_t>(hi) << 16 | static_cast<std::uint16_t>(rem));
}

}  // namespace apex::contrib::optimizers
