// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apex/checkpoint.hpp"
#include "apex/collectives/session.hpp"
#include "apex/io/data/loader.hpp"
#include "apex/nn/module.hpp"
#include "apex/optimizers/optimizer.hpp"
#include "apex/schedules.hpp"
#include "apex/train/lagged_sums.hpp"
#include "apex/train/options.hpp"
#include "apex/train/prefetch.hpp"
#include "apex/train/reporter.hpp"
#include "apex/train/resume.hpp"
#include "apex/train/step_graph.hpp"
#include "apex/train/task.hpp"

namespace apex::contrib::optimizers {
class ShardedOptimizer;
}
namespace apex::parallel {
class DistributedDataParallel;
}

namespace apex::train {

class DeviceNumber;
class PlanCache;

/// The parts of a run. References outlive the Trainer.
struct TrainerParts {
  dist::Session& session;
  const TrainOptions& options;
  std::vector<EffectiveOption> configuration;  ///< stored under /config
  /// Which of these shape the training: a resume names those that are not as they were.
  std::vector<std::string> recipe;
  std::string arch;  ///< stored, and compared on resume
  std::shared_ptr<nn::Module> model;
  optimizers::Optimizer& optimizer;
  parallel::DistributedDataParallel* ddp = nullptr;          ///< what adds gradients over ranks: this,
  contrib::optimizers::ShardedOptimizer* sharded = nullptr;  ///< or the optimizer itself, which this is then
  schedules::Schedule schedule;
  Task& task;
  io::Loader& train;
  io::Loader* validation = nullptr;  ///< null: no validation
  std::vector<std::string> class_names;
  double loss_scale = 1;       ///< what the task multiplies gradients by; the optimizer divides by it
  PlanCache* plans = nullptr;  ///< kept up to date when there is one
  /// Makes an optimizer step, with what goes around it; none: optimizer.step(scaling). Runs inside a capture too.
  std::function<void(const optimizers::StepScaling& scaling)> step = {};
};

/// The loop that all programs share: epochs of optimizer steps (each of `accumulate` micro-steps), validation,
/// checkpoints, resume, an orderly end on a signal, and the account of where time went.
///
/// A run that is interrupted and resumed at any step continues exactly as if it had not been: same samples in the same
/// order, same learning rates, same bits on the same number of ranks and threads.
///
/// On a GPU nothing in a step waits for the device: batches arrive by Prefetch, figures are read late (LaggedSums), and
/// with --cuda-graph a step, all micro-steps and the reduction of gradients included, is one launch.
class Trainer {
 public:
  explicit Trainer(TrainerParts parts);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  ~Trainer();

  /// Takes up a checkpoint. Collective; call before run() and evaluate().
  /// @throws Kind::data when it does not fit; Kind::damaged
  void resume(const Resume& from);
  const Position& position() const noexcept { return position_; }

  /// Trains to the end. @returns the exit code: 0, or requeue_exit_code after a signal
  /// @throws Kind::numerical when the loss is not finite, or with --resume auto when this is the third start in a row
  /// from
  ///         the same step
  int run();
  /// Validates once; nothing when a signal ended it early.
  std::optional<Reporter::Validation> evaluate();
  /// The best first metric of all validations so far, in per cent; negative before the first.
  double best() const noexcept { return best_; }

 private:
  void keep_hyper(const std::vector<optimizers::HyperMap>& wanted, const std::string& where);
  enum class End { epoch, limit, signal };

  End train_epoch();
  void optimizer_step(PhaseClock& clock);
  /// Everything of a step that is queued on the device.
  void work(const std::function<io::Batch(std::int64_t micro_step)>& batch);
  void prepare_graph();
  std::vector<Tensor> written() const;
  /// Validates what the epoch trained, moves on to the next and writes the checkpoint that is due.
  End finish_epoch();
  /// Nothing when a signal ended it early.
  std::optional<Reporter::Validation> validate();
  /// Reports steps whose sums have arrived; true when some rank wants to stop.
  bool take(const std::vector<LaggedSums::Result>& results);
  bool take(const LaggedSums::Result& result);
  bool settle();
  bool report_profile();
  bool checkpoint_due_at_step() const;
  enum class Need { this_one, any };  ///< whether the run can do without this checkpoint
  void save(bool best, Need need);
  void broadcast_buffers();
  checkpoint::Section ddp_section() const;
  void restore_ddp(const checkpoint::Section& section);
  /// Counts this start; gives up at the third in a row from the same step.
  void note_start();
  void announce() const;
  void announce_nothing_left() const;
  Device device() const { return parts_.session.device(); }
  double waited() const;
  std::int64_t total_steps() const;
  schedules::Position schedule_position() const;

  TrainerParts parts_;
  CheckpointInterval interval_;
  std::int64_t steps_per_epoch_ = 0;
  std::int64_t first_step_ = 0;  // of this process
  Position position_;
  double best_ = -1;
  std::filesystem::path loaded_from_;
  Position saved_position_{-1, -1, -1};  // what the newest checkpoint on disk describes
  std::unique_ptr<Reporter> reporter_;
  Prefetch feed_;
  Tensor step_sums_;  // of the step being made; the last: whether it was skipped
  std::int64_t skipped_steps_ = 0, skipped_in_a_row_ = 0;
  LaggedSums sums_;
  std::deque<StepReport> unreported_;
  optimizers::StepScaling scaling_;
  std::unique_ptr<DeviceNumber> rate_;  // the graph's learning rate
  std::unique_ptr<StepGraph> graph_;
  std::map<std::string, io::Batch> inputs_;  // the graph's, by micro-step and sizes
  double trained_samples_ = 0;
  std::int64_t bad_in_step_ = 0;                               // on this rank
  std::int64_t bad_samples_ = 0, bad_validation_samples_ = 0;  // on all ranks
  PhaseClock::Split train_time_, profiled_;
  double validation_seconds_ = 0, checkpoint_seconds_ = 0;
};

}  // namespace apex::train
