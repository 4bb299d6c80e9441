// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/train/trainer.hpp"

#include <chrono>
#include <cmath>
#include <utility>

#include "apex/autograd.hpp"
#include "apex/contrib/optimizers/sharded_optimizer.hpp"
#include "apex/parallel/distributed_data_parallel.hpp"
#include "apex/tensor_ops.hpp"
#include "apex/train/plan_cache.hpp"
#include "apex/train/signals.hpp"
#include "host_link.hpp"

namespace apex::train {
namespace {

constexpr std::int64_t kProfiledSteps = 10;
constexpr std::int64_t kMostSkips = 50;        // in a row
constexpr std::int64_t kStepsBeforePlans = 5;  // by then every shape has come up

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The memory of an input that a graph reads, kept for good.
io::Batch persistent(const io::Batch& batch) {
  io::Batch out = batch;
  out.images = clone(batch.images);
  out.labels = clone(batch.labels);
  return out;
}

}  // namespace

Trainer::Trainer(TrainerParts parts)
    : parts_(std::move(parts)),
      interval_(parse_interval(parts_.options.checkpoint_every)),
      steps_per_epoch_(parts_.train.steps_per_epoch() / parts_.options.accumulate),
      feed_(parts_.train, parts_.session.device()),
      step_sums_(zeros({parts_.task.figures() + 1}, DType::f64, parts_.session.device())),
      sums_(parts_.session.world(), parts_.session.device()) {
  parts_.session.world().agree(steps_per_epoch_ > 0,
                               concat("the training set gives ", parts_.train.steps_per_epoch(), " batches of ",
                                      parts_.train.sampler().global_batch(), " samples, fewer than --accumulate ",
                                      parts_.options.accumulate, "; use a smaller --accumulate or --batch-size"),
                               Kind::data, "steps of an epoch");
  position_.epoch = parts_.options.start_epoch;
  position_.step = position_.epoch * steps_per_epoch_;
  if (parts_.loss_scale != 1.0) scaling_.inv_scale = full({1}, 1.0 / parts_.loss_scale, DType::f32, device());
  if (parts_.options.cuda_graph && !parts_.options.evaluate) prepare_graph();
}

Trainer::~Trainer() {
  if (rate_) parts_.optimizer.set_lr_source(Tensor());
}

void Trainer::prepare_graph() {
  if (!device().is_cuda()) {
    if (parts_.session.rank() == 0) log_warning("--cuda-graph: no GPU was found; steps run eagerly, on the CPU");
    return;
  }
  if (parts_.session.shares_devices() && parts_.session.size() > 1) {
    if (parts_.session.rank() == 0)
      log_warning("--cuda-graph: ranks share a GPU, so that gradients travel through the host; steps run eagerly");
    return;
  }
  rate_ = std::make_unique<DeviceNumber>(device());
  parts_.optimizer.set_lr_source(rate_->tensor());
  graph_ = std::make_unique<StepGraph>(device(),
                                       StepGraphOptions{.written = [this] { return written(); },
                                                        .launched =
                                                            [this](std::int64_t) {
                                                              dist::watch(Context::current(device()),
                                                                          concat("graph of step ", position_.step + 1));
                                                            },
                                                        .recover = [this] { parts_.optimizer.zero_grad(true); }});
}

std::vector<Tensor> Trainer::written() const {
  auto out = parts_.model->parameters();
  const auto buffers = parts_.model->buffers();
  out.insert(out.end(), buffers.begin(), buffers.end());
  if (!parts_.optimizer.in_parts())  // nobody else sees parts
    parts_.optimizer.for_each_state(
        [&](const Tensor&, const std::string&, const Tensor& value) { out.push_back(value); });
  out.push_back(step_sums_);
  return out;
}

/// Every rank validates, and writes, the same running statistics.
void Trainer::broadcast_buffers() {
  if (parts_.ddp != nullptr)
    parts_.ddp->broadcast_buffers();
  else
    parallel::broadcast_buffers(*parts_.model, parts_.session.world());
}

double Trainer::waited() const { return parts_.session.statistics().exposed_s; }

std::int64_t Trainer::total_steps() const {
  const std::int64_t planned = steps_per_epoch_ * parts_.options.epochs;
  return parts_.options.max_steps > 0 ? std::min(planned, parts_.options.max_steps) : planned;
}

schedules::Position Trainer::schedule_position() const {
  return {.step = position_.step,
          .steps_per_epoch = steps_per_epoch_,
          .epochs = std::max<std::int64_t>(parts_.options.epochs, 1)};
}

int Trainer::run() {
  const auto start = std::chrono::steady_clock::now();
  const std::int64_t first_step = loaded_from_.empty() ? -1 : position_.step;
  first_step_ = position_.step;
  reporter_ = std::make_unique<Reporter>(parts_.options, parts_.task.metrics(), parts_.session.rank(), first_step);
  reporter_->configuration(parts_.configuration, position_.step);
  announce();
  if (position_.step >= total_steps() && position_.index != steps_per_epoch_) announce_nothing_left();
  if (parts_.options.resume == "auto" && position_.step < total_steps()) note_start();
  End end = End::epoch;
  if (position_.index == steps_per_epoch_) end = finish_epoch();
  while (end == End::epoch && position_.epoch < parts_.options.epochs) {
    end = train_epoch();
    if (end == End::epoch) end = finish_epoch();
  }
  const bool described = saved_position_ == position_;
  if (!described && (end == End::signal || interval_.count > 0)) save(false, Need::this_one);
  if (parts_.plans != nullptr) parts_.plans->save();
  reporter_->summary({.step = position_.step,
                      .train = train_time_,
                      .validation = validation_seconds_,
                      .checkpoints = checkpoint_seconds_,
                      .wall = seconds_since(start),
                      .samples = trained_samples_,
                      .bad_samples = bad_samples_,
                      .bad_validation_samples = bad_validation_samples_,
                      .device = device(),
                      .graph_launches = graph_ ? graph_->launches() : 0,
                      .finished = end != End::signal});
  if (end != End::signal) return exit_code::kOk;
  const int caught = StopSignals::caught();
  reporter_->line(concat("=> ", caught ? "signal " + signal_name(caught) : "a signal to another rank",
                         ": checkpoint at step ", position_.step, ", exit code ", parts_.options.requeue_exit_code,
                         "; --resume auto goes on from here"));
  return static_cast<int>(parts_.options.requeue_exit_code);
}

namespace {
/// What the task fills: all but the last, which is not 0 when the step was skipped.
Tensor figures_of(const Tensor& sums) { return views::narrow(sums, 0, 0, sums.numel() - 1); }
}  // namespace

void Trainer::work(const std::function<io::Batch(std::int64_t)>& batch) {
  const std::int64_t micro_steps = parts_.options.accumulate;
  zero_(step_sums_);
  for (std::int64_t m = 0; m < micro_steps; ++m) {
    const io::Batch now = batch(m);
    std::optional<parallel::DistributedDataParallel::NoSync> no_sync;
    std::optional<contrib::optimizers::ShardedOptimizer::NoSync> stays;
    if (m + 1 < micro_steps && parts_.ddp != nullptr) no_sync.emplace(parts_.ddp->no_sync());
    if (m + 1 < micro_steps && parts_.sharded != nullptr) stays.emplace(parts_.sharded->no_sync());
    parts_.task.train_step(now, 1.0 / static_cast<double>(micro_steps), figures_of(step_sums_));
  }
  if (parts_.step)
    parts_.step(scaling_);
  else
    parts_.optimizer.step(scaling_);
  if (const Tensor sign = parts_.optimizer.skip_sign(); sign.defined()) {
    NoGradGuard no_grad;
    copy_(views::narrow(step_sums_, 0, step_sums_.numel() - 1, 1), sign);
  }
  parts_.optimizer.zero_grad(true);  // last: a captured step drops what it made
}

void Trainer::optimizer_step(PhaseClock& clock) {
  const auto fetch = [&] {
    clock.enter(Phase::data_wait);
    auto batch = feed_.next();
    if (!batch) fail(Kind::state, concat("the loader ended at step ", position_.index, " of ", steps_per_epoch_));
    clock.enter(Phase::compute);
    reporter_->sample_ids(position_.step + 1, batch->ids);
    bad_in_step_ += batch->bad;
    return *batch;
  };
  if (graph_ == nullptr) {
    work([&](std::int64_t) { return fetch(); });
    return;
  }
  std::string key;
  std::vector<io::Batch> inputs;
  for (std::int64_t m = 0; m < parts_.options.accumulate; ++m) {
    const io::Batch batch = fetch();
    const std::string name = concat(m, ':', batch.images.sizes(), batch.valid, ' ');
    key += name;
    const auto [entry, fresh] = inputs_.try_emplace(name);
    if (fresh) {
      entry->second = persistent(batch);
    } else {
      copy_(entry->second.images, batch.images);
      copy_(entry->second.labels, batch.labels);
    }
    inputs.push_back(entry->second);
  }
  graph_->run(key, [&] { work([&](std::int64_t m) { return inputs[static_cast<std::size_t>(m)]; }); });
}

Trainer::End Trainer::train_epoch() {
  const auto& options = parts_.options;
  parts_.task.set_training(true);
  feed_.start(position_.epoch, position_.index * options.accumulate);
  reporter_->start_epoch();
  PhaseClock clock([this] { return waited(); });
  double hidden = parts_.session.statistics().hidden_s();
  End end = End::epoch;
  while (end == End::epoch && position_.index < steps_per_epoch_) {
    if (position_.step >= total_steps()) {
      end = End::limit;
      break;
    }
    if (position_.step == options.prof) reporter_->line(concat("Profiling begun at iteration ", options.prof));
    const double lr = schedules::apply(parts_.schedule, schedule_position(), parts_.optimizer);
    if (rate_) rate_->set(lr);
    optimizer_step(clock);
    ++position_.step;
    ++position_.index;
    // On a GPU the thread now waits for the step before: that is its computing time.
    clock.enter(device().is_cuda() ? Phase::compute : Phase::other);
    if (take(sums_.push(step_sums_, StopSignals::caught() != 0, std::exchange(bad_in_step_, 0)))) end = End::signal;
    clock.enter(Phase::other);
    const double hidden_now = parts_.session.statistics().hidden_s();
    StepReport report{.step = position_.step,
                      .epoch = position_.epoch,
                      .index = position_.index,
                      .steps_per_epoch = steps_per_epoch_,
                      .total_steps = total_steps(),
                      .lr = lr,
                      .sums = {},
                      .time = clock.take(),
                      .hidden_communication = hidden_now - hidden};
    hidden = hidden_now;
    train_time_ += report.time;
    unreported_.push_back(std::move(report));
    if (parts_.plans != nullptr && position_.step - first_step_ == kStepsBeforePlans) parts_.plans->save();
    if (position_.step == options.prof + kProfiledSteps && options.prof >= 0) {
      end = report_profile() ? End::signal : End::limit;
    }
    if (end == End::epoch && checkpoint_due_at_step()) {
      if (settle()) end = End::signal;
      save(false, end == End::signal ? Need::this_one : Need::any);
      clock.take();  // counted apart
    }
  }
  if (settle()) end = End::signal;
  train_time_ += clock.take();
  return end;
}

bool Trainer::take(const std::vector<LaggedSums::Result>& results) {
  bool stop = false;
  for (const auto& result : results) stop |= take(result);
  return stop;
}

bool Trainer::take(const LaggedSums::Result& result) {
  StepReport report = std::move(unreported_.front());
  unreported_.pop_front();
  report.sums = result.sums;
  report.bad_samples = result.bad_samples;
  bad_samples_ += result.bad_samples;
  if (!std::isfinite(result.sums[0])) {  // all ranks are here: they hold the same sums
    const double loss = result.sums[0] / std::max(result.sums[1], 1.0);
    const std::string message = concat("the loss is ",
                                       std::isnan(loss) ? "nan"
                                       : loss > 0       ? "inf"
                                                        : "-inf",
                                       " at step ", report.step, " (epoch ", report.epoch, ", iteration ", report.index,
                                       "); lower --lr or resume from an earlier checkpoint");
    parts_.session.world().agree(false, message, Kind::numerical, "finite loss");
  }
  report.sums.pop_back();
  report.loss_scale = parts_.loss_scale;
  if (result.sums.back() == 0.0) {
    skipped_in_a_row_ = 0;
  } else {  // not a number counts too
    ++skipped_steps_;
    if (++skipped_in_a_row_ == kMostSkips)
      parts_.session.world().agree(false,
                                   concat(kMostSkips, " steps in a row were skipped, the last of them step ",
                                          report.step, ": gradients are not finite; lower --loss-scale or --lr"),
                                   Kind::numerical, "skipped steps");
  }
  report.skipped_steps = skipped_steps_;
  trained_samples_ += report.sums[1];
  reporter_->step(report);
  if (parts_.options.prof >= 0 && report.step > parts_.options.prof) profiled_ += report.time;
  return result.stop;
}

bool Trainer::settle() { return take(sums_.drain()); }

bool Trainer::report_profile() {
  const bool stop = settle();
  const auto mean = [&](Phase p) { return 1e3 * profiled_[p] / kProfiledSteps; };
  reporter_->line(concat("Profiling ended at iteration ", position_.step));
  reporter_->line(concat("mean of ", kProfiledSteps, " iterations: data wait ", mean(Phase::data_wait), " ms, compute ",
                         mean(Phase::compute), " ms, exposed communication ", mean(Phase::communication), " ms, other ",
                         mean(Phase::other), " ms"));
  return stop;
}

bool Trainer::checkpoint_due_at_step() const {
  return !interval_.epochs && interval_.count > 0 && position_.step % interval_.count == 0 &&
         position_.index < steps_per_epoch_;  // the end of an epoch is written after its validation
}

Trainer::End Trainer::finish_epoch() {
  bool improved = false;
  if (parts_.validation != nullptr) {
    const auto result = validate();
    if (!result) return End::signal;
    improved = result->metrics[0] > best_;
    best_ = std::max(best_, result->metrics[0]);
  }
  ++position_.epoch;
  position_.index = 0;
  const bool last = position_.epoch >= parts_.options.epochs;
  const bool due = interval_.epochs ? position_.epoch % std::max<std::int64_t>(interval_.count, 1) == 0
                                    : position_.step % std::max<std::int64_t>(interval_.count, 1) == 0;
  if (interval_.count > 0 && (due || last || improved)) save(improved, last ? Need::this_one : Need::any);
  const bool stop = parts_.session.world().all_reduce(static_cast<std::int64_t>(StopSignals::caught() != 0),
                                                      dist::ReduceOp::max, "signal at the end of an epoch") != 0;
  return stop ? End::signal : End::epoch;
}

std::optional<Reporter::Validation> Trainer::validate() {
  const auto start = std::chrono::steady_clock::now();
  auto& loader = *parts_.validation;
  parts_.optimizer.synchronize();
  broadcast_buffers();
  parts_.task.set_training(false);
  reporter_->start_validation();
  LaggedSums sums(parts_.session.world(), device());
  Prefetch feed(loader, device());
  feed.start(0);
  const Tensor figures = zeros({parts_.task.figures()}, DType::f64, device());
  const std::int64_t batches = loader.steps_per_epoch();
  std::int64_t reported = 0, bad = 0;
  std::deque<double> seconds;  // of the batches whose sums are still on their way
  bool stop = false;
  const auto report = [&](const std::vector<LaggedSums::Result>& results) {
    for (const auto& result : results) {
      reporter_->validation_batch(++reported, batches, result.sums, seconds.front());
      seconds.pop_front();
      stop |= result.stop;
      bad += result.bad_samples;
    }
  };
  for (auto begin = start; !stop;) {
    const auto batch = feed.next();
    if (!batch) break;
    zero_(figures);
    parts_.task.evaluate(*batch, figures);
    report(sums.push(figures, StopSignals::caught() != 0, batch->bad));
    const auto end = std::chrono::steady_clock::now();
    seconds.push_back(std::chrono::duration<double>(end - begin).count());
    begin = end;
  }
  report(sums.drain());
  validation_seconds_ += seconds_since(start);
  if (stop && reported < batches) return std::nullopt;
  bad_validation_samples_ += bad;
  const auto result = reporter_->end_validation(position_.step, position_.epoch, seconds_since(start), bad);
  if (result.samples == 0)  // all ranks are here: they hold the same sums
    parts_.session.world().agree(false, "every picture of the validation part is damaged", Kind::data,
                                 "samples of the validation");
  if (!std::isfinite(result.loss))  // all ranks are here: they hold the same sums
    parts_.session.world().agree(false,
                                 concat("the validation loss is not finite after step ", position_.step,
                                        "; lower --lr or resume from an earlier checkpoint"),
                                 Kind::numerical, "finite validation loss");
  return result;
}

std::optional<Reporter::Validation> Trainer::evaluate() {
  parts_.session.world().agree(parts_.validation != nullptr,
                               "there is no validation part; give a data set that has one, or --val-split", Kind::data,
                               "validation part");
  reporter_ =
      std::make_unique<Reporter>(parts_.options, parts_.task.metrics(), parts_.session.rank(), Reporter::kAppend);
  return validate();
}

void Trainer::announce() const {
  const auto& o = parts_.options;
  const std::int64_t global = parts_.train.sampler().global_batch() * o.accumulate;
  reporter_->line(concat("=> ", parts_.session.size(), " rank(s), ", parts_.train.dataset().size(),
                         " training samples, ", steps_per_epoch_, " steps an epoch of ", global,
                         " samples, lr schedule ", parts_.schedule.name()));
}

void Trainer::announce_nothing_left() const {
  const auto& o = parts_.options;
  const bool epochs = position_.epoch >= o.epochs;
  reporter_->line(epochs ? concat("=> nothing left to train: ", position_.epoch, " of --epochs ", o.epochs,
                                  " are done; a larger --epochs goes on")
                         : concat("=> nothing left to train: step ", position_.step, " of --max-steps ", o.max_steps,
                                  " is done; a larger --max-steps goes on"));
}

}  // namespace apex::train
