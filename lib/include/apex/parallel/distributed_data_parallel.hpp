// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "apex/collectives/process_group.hpp"
#include "apex/nn/module.hpp"
#include "apex/parallel/bucket_plan.hpp"

namespace apex::parallel {

/// When rank 0's buffers (running statistics) replace those of the other ranks.
enum class BroadcastBuffers : unsigned char { never, construct_only, each_forward };

/// Names and defaults are those of apex.parallel.DistributedDataParallel, bucket_cap_mb and what follows it aside.
struct DistributedDataParallelOptions {
  /// Elements from which on a bucket is full. Not looked at with allreduce_trigger_params.
  std::int64_t message_size = 10'000'000;
  /// No overlap: one flat all-reduce per dtype at the end of each backward.
  bool delay_allreduce = false;
  /// Withdrawn: any value throws. Shared parameters just work.
  std::optional<bool> shared_param{};
  /// A bucket closes when one of these parameters gets its gradient (the bucket of its dtype). Not with
  /// delay_allreduce.
  std::vector<Tensor> allreduce_trigger_params{};
  /// Keep the reduced flat buffers (allreduce_buffers()); gradients become views of them, and must be undefined before
  /// each backward.
  bool retain_allreduce_buffers = false;
  /// Reduce 16-bit gradients in f32.
  bool allreduce_always_fp32 = false;
  /// Bucket i is reduced by communicator i mod n. More than 1 not with delay_allreduce.
  int num_allreduce_streams = 1;
  /// The groups to use instead of own ones: num_allreduce_streams of them, which must be more than 1, and as many
  /// streams (cudaStream_t: a bucket is packed there; null: on the current stream; not used on the CPU).
  struct Communicators {
    std::vector<dist::ProcessGroup> groups;
    std::vector<void*> streams;
  };
  std::optional<Communicators> allreduce_communicators{};
  /// Divide by the number of ranks.
  bool gradient_average = true;
  /// F: gradients are multiplied by 1/F before the sum (also without averaging) and by F/W after it. Finite, > 0.
  double gradient_predivide_factor = 1.0;
  /// Old name of gradient_predivide_factor: any value throws.
  std::optional<double> gradient_average_split_factor{};
  /// Profiler ranges around forward, hooks and launches; without the CUDA backend it does nothing.
  bool prof = false;
  /// Instead of message_size: a bucket holds at most this many MiB (a larger gradient travels alone) ...
  std::optional<double> bucket_cap_mb{};
  /// ... and the first of each dtype at most this many KiB, so that communication starts early.
  double first_bucket_kb = 64;
  BroadcastBuffers broadcast_buffers = BroadcastBuffers::construct_only;
  /// Parameters that the outputs of forward do not depend on count as zero; a gradient that no rank has keeps its
  /// value.
  bool find_unused_parameters = false;
};

/// Data parallel training: each rank runs the module on its part of the batch, and when backward() returns every rank's
/// gradients are
///
///   (sum over ranks of grad_r * (1/F)) * (F/W)       gradient_average
///    sum over ranks of grad_r * (1/F)                otherwise
///
/// with F = gradient_predivide_factor and W the number of ranks. Sums run over what `.grad` holds, so gradients
/// accumulated under no_sync() are reduced with the first synchronising backward.
///
/// In the first iteration the order in which gradients arrive is recorded, and rank 0's becomes everybody's plan of
/// buckets. From the second on each bucket is reduced while backward goes on, as soon as its gradients are there, in
/// the plan's order; the end of backward waits for them. The plan is made anew when the list of parameters that require
/// a gradient changes.
///
/// The module is the child "module"; forward runs it. Gradients only meet when forward was called through this object
/// since the last backward: one backward for each forward (several losses: add them up), except with delay_allreduce,
/// where each backward reduces again at its end.
///
/// On CUDA nothing of a step waits for the device: buckets are packed on the current stream, reduced on the channel's,
/// and the end of backward makes the current stream wait for them. The whole step can be captured into a graph once the
/// plan is there (Kind::state before, Kind::unsupported with find_unused_parameters or delay_allreduce).
///
/// Constructor, forward with BroadcastBuffers::each_forward and every backward that synchronises are collective.
/// Not copyable; hooks are taken off when it goes away.
class DistributedDataParallel : public nn::Module {
 public:
  using Options = DistributedDataParallelOptions;
  using Clock = std::chrono::steady_clock;

  /// Gives all ranks rank 0's parameters (and buffers, by option).
  /// @param group  null: the world
  /// @throws Kind::argument for options that contradict each other; on every rank, naming the parameter, when names,
  ///         sizes, dtypes or requires_grad differ between ranks; Kind::state without a dist::Session
  explicit DistributedDataParallel(std::shared_ptr<nn::Module> module, const dist::ProcessGroup& group = {},
                                   const Options& options = {});
  ~DistributedDataParallel() override;

  Tensor forward(const Tensor& x) override;
  /// The same around any way to call the module: several inputs, several outputs.
  std::vector<Tensor> run(const std::function<std::vector<Tensor>()>& forward);
  std::string_view kind() const override { return "DistributedDataParallel"; }
  nn::Module& module() const;

  /// While it lives, forwards are marked: their backward only accumulates. Movable.
  class NoSync {
   public:
    explicit NoSync(DistributedDataParallel& ddp);
    NoSync(NoSync&& other) noexcept : ddp_(std::exchange(other.ddp_, nullptr)) {}
    NoSync& operator=(NoSync&&) = delete;
    ~NoSync();

   private:
    DistributedDataParallel* ddp_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  /// Gives all ranks rank 0's buffers (running statistics, which differ between ranks after training steps), so that
  /// every rank validates the same model. Raises their versions. Collective.
  void broadcast_buffers();

  /// The plan in force; empty before the first synchronising backward is complete and while a new one is due.
  const BucketPlan& bucket_plan() const;
  /// Takes over a plan, so that a resumed run adds in the order of the interrupted one. All ranks must pass the same,
  /// between a backward and the next forward.
  /// @returns false, and changes nothing, when it does not cover the active parameters dtype by dtype
  bool restore_bucket_plan(const BucketPlan& plan);
  /// Forgets the plan: the next iteration records a new one. On all ranks, between a backward and the next forward.
  void rebuild_buckets();

  /// Reduced flat buffers by bucket, with retain_allreduce_buffers.
  const std::vector<Tensor>& allreduce_buffers() const;

  /// What the last synchronising backward did, in launch order; empty after a recording one and after one that was
  /// captured. On CUDA asking waits for the device.
  struct BucketTiming {
    int bucket;
    Clock::time_point launched;  ///< handed over
    Clock::time_point finished;  ///< its completion was seen; on CUDA: the device had it done
  };
  const std::vector<BucketTiming>& last_timings() const;
  /// Seconds by which reducing outlasted the last synchronising backward that the device has finished (so on CUDA one
  /// or two steps late; asking never waits). Unset before the first one, and while steps are replayed from a graph.
  std::optional<double> last_exposed_s() const;

 private:
  struct Impl;
  std::shared_ptr<nn::Module> module_;
  std::unique_ptr<Impl> impl_;
};

/// Gives all ranks of the group (null: the world) the first rank's buffers, as
/// DistributedDataParallel::broadcast_buffers does, for a module that is not wrapped in one. Collective.
void broadcast_buffers(const nn::Module& module, const dist::ProcessGroup& group = {});

}  // namespace apex::parallel
