// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/train/reporter.hpp"

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "apex/io/checkpoint.hpp"

#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#endif

namespace apex::train {
namespace {

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

/// "name v (a)": last value and mean.
std::string pair_of(const std::string& name, const Meter& meter, int digits, int mean_digits) {
  return concat(name, ' ', fixed(meter.value(), digits), " (", fixed(meter.average(), mean_digits), ')');
}

/// "prec1" as main_amp writes it: "Prec@1".
std::string title(const std::string& name) {
  std::string out = name;
  out[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(out[0])));
  const auto digit = out.find_first_of("0123456789");
  if (digit != std::string::npos) out.insert(digit, "@");
  return out;
}

std::string clock_text(double seconds) {
  const auto s = static_cast<std::int64_t>(std::max(0.0, seconds));
  char text[48];
  std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", static_cast<long long>(s / 3600),
                static_cast<long long>(s / 60 % 60), static_cast<long long>(s % 60));
  return text;
}

/// Lines "step: ..." of a file up to that step; a torn last line is left out.
std::string lines_up_to(const std::string& path, std::int64_t step) {
  std::string out;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line) && !file.eof();)
    if (std::atoll(line.c_str()) <= step) out += line + '\n';
  return out;
}

std::filesystem::path metrics_path(const TrainOptions& options) {
  const std::filesystem::path path = options.metrics;
  return path.has_parent_path() ? path : std::filesystem::path(options.checkpoint_dir) / path;
}

/// Whether the records of this run lie where the checkpoints do, which is another run's where this one only evaluates.
bool beside_checkpoints(const TrainOptions& options) {
  std::error_code ignored;
  const std::filesystem::path path = options.metrics;
  return !path.has_parent_path() || std::filesystem::equivalent(path.parent_path(), options.checkpoint_dir, ignored);
}

}  // namespace

Reporter::Reporter(const TrainOptions& options, std::vector<std::string> metric_names, int rank,
                   std::int64_t start_step)
    : options_(options), names_(std::move(metric_names)), talks_(rank == 0) {
  reset(train_);
  reset(validation_);
  if (!options.log_samples.empty() && !options.evaluate) {
    const std::string path = concat(options.log_samples, ".rank", rank, ".txt");
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    const std::string kept = lines_up_to(path, start_step);
    samples_.open(path, std::ios::trunc);
    samples_ << kept << std::flush;
    if (!samples_) fail(Kind::data, concat("--log-samples: cannot write '", path, "'"));
  }
  if (!talks_) return;
  progress_ = std::make_unique<io::Progress>(
      io::ProgressOptions{.mode = io::parse_progress_mode(options.progress).value_or(io::ProgressMode::automatic),
                          .every_steps = options.print_freq,
                          .every = std::chrono::milliseconds(0),
                          .counter = false});
  metrics_wanted_ = !options.metrics.empty() && options.metrics != "none";
  if (metrics_wanted_ && !(options.evaluate && beside_checkpoints(options))) open_metrics(start_step);
  if (!options.tensorboard.empty())
    tensorboard_ = std::make_unique<io::TensorBoardWriter>(
        options.tensorboard,
        start_step == kAppend ? std::nullopt : std::optional(std::max<std::int64_t>(start_step + 1, 0)));
}

void Reporter::open_metrics(std::int64_t start_step) {
  const auto path = metrics_path(options_);
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);  // the writer reports what this cannot do
  metrics_ = std::make_unique<io::MetricsWriter>(path, start_step);
}

void Reporter::write_validation(std::int64_t step, const std::vector<io::MetricField>& fields) {
  if (!metrics_wanted_ || metrics_) {
    if (metrics_) metrics_->write(step, "validate", fields);
    return;
  }
  try {
    // Held for one record only, so that a training run that starts meanwhile waits no longer than that.
    const io::DirectoryLock lock(options_.checkpoint_dir, 0);
    open_metrics(kAppend);
    metrics_->write(step, "validate", fields);
    metrics_.reset();
  } catch (const Error& e) {
    log_warning(concat("no record of this evaluation is written: ", e.what(), "; --metrics FILE names another place"));
  }
}

void Reporter::configuration(const std::vector<EffectiveOption>& options, std::int64_t step) {
  if (!tensorboard_) return;
  const auto cell = [](std::string text) {
    for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
    return text;
  };
  std::string table = "| option | value | from |\n| --- | --- | --- |\n";
  io::TensorBoardWriter::Hyperparameters values;
  for (const auto& o : options) {
    table += concat("| ", o.name, " | ", cell(o.value), " | ", cell(o.origin), " |\n");
    values.emplace_back(o.name, o.value);
  }
  tensorboard_->text("configuration", table, step);
  tensorboard_->hparams(values);
}

void Reporter::reset(Meters& meters) const {
  meters = Meters();
  meters.metrics.resize(names_.size());
}

void Reporter::update(Meters& meters, const std::vector<double>& sums, double seconds) const {
  const double n = sums[1];
  meters.time.update(seconds);
  if (seconds > 0) meters.speed.update(n / seconds, seconds);
  if (n <= 0) return;
  meters.samples += n;
  meters.loss.update(sums[0] / n, n);
  for (std::size_t m = 0; m < names_.size(); ++m) meters.metrics[m].update(100 * sums[2 + m] / n, n);
}

std::string Reporter::figures(const Meters& meters, int loss_digits) const {
  const bool bar = progress_->mode() == io::ProgressMode::bar;  // cut at the width of the terminal: results first
  const std::string times = pair_of("Time", meters.time, 3, 3) + '\t' + pair_of("Speed", meters.speed, 3, 3);
  std::string out = (bar ? "" : times + '\t') + pair_of("Loss", meters.loss, bar ? 4 : loss_digits, 4);
  for (std::size_t m = 0; m < names_.size(); ++m) out += '\t' + pair_of(title(names_[m]), meters.metrics[m], 3, 3);
  return bar ? out + '\t' + times : out;
}

void Reporter::line(const std::string& text) {
  if (talks_) progress_->line(text);
}

void Reporter::start_epoch() {
  reset(train_);
  if (talks_) progress_->restart();
}

void Reporter::step(const StepReport& r) {
  const double seconds = r.time.total();
  update(train_, r.sums, seconds);
  if (!talks_) return;
  if (progress_->due(r.index, r.steps_per_epoch)) {
    const double left = static_cast<double>(r.total_steps - r.step) * train_.time.average();
    progress_->update(r.index, r.steps_per_epoch,
                      concat("Epoch: [", r.epoch, "][", r.index, '/', r.steps_per_epoch, "]\t", figures(train_, 10),
                             "\tETA ", clock_text(left)));
  }
  const double n = std::max(r.sums[1], 1.0);
  if (metrics_) {
    std::vector<io::MetricField> fields = {{"epoch", r.epoch}, {"loss", r.sums[0] / n}, {"lr", r.lr}};
    for (std::size_t m = 0; m < names_.size(); ++m) fields.emplace_back(names_[m], 100 * r.sums[2 + m] / n);
    fields.insert(fields.end(), {{"samples", static_cast<std::int64_t>(r.sums[1])},
                                 {"seconds", seconds},
                                 {"data_wait", r.time[Phase::data_wait]},
                                 {"compute", r.time[Phase::compute]},
                                 {"exposed_communication", r.time[Phase::communication]},
                                 {"other", r.time[Phase::other]},
                                 {"hidden_communication", r.hidden_communication},
                                 {"images_per_s", seconds > 0 ? r.sums[1] / seconds : 0.0},
                                 {"loss_scale", r.loss_scale},
                                 {"skipped_steps", r.skipped_steps},
                                 {"bad_samples", r.bad_samples}});
    metrics_->write(r.step, "train", fields);
  }
  if (tensorboard_) {
    tensorboard_->scalar("train/loss", r.sums[0] / n, r.step);
    tensorboard_->scalar("train/lr", r.lr, r.step);
    if (seconds > 0) tensorboard_->scalar("train/images_per_s", r.sums[1] / seconds, r.step);
  }
}

void Reporter::sample_ids(std::int64_t step, const Tensor& ids) {
  if (!samples_.is_open()) return;
  samples_ << step << ':';
  for (std::int64_t i = 0; i < ids.numel(); ++i) samples_ << ' ' << ids.data<std::int64_t>()[i];
  samples_ << std::endl;
  if (!samples_)
    fail(Kind::exhausted, concat("--log-samples: cannot write to '", options_.log_samples, "': is the disk full?"));
}

void Reporter::start_validation() {
  reset(validation_);
  if (talks_) progress_->restart();
}

void Reporter::validation_batch(std::int64_t index, std::int64_t batches, const std::vector<double>& sums,
                                double seconds) {
  update(validation_, sums, seconds);
  if (talks_ && progress_->due(index, batches))
    progress_->update(index, batches, concat("Test: [", index, '/', batches, "]\t", figures(validation_, 4)));
}

Reporter::Validation Reporter::end_validation(std::int64_t step, std::int64_t epoch, double seconds,
                                              std::int64_t bad_samples) {
  Validation out;
  out.samples = validation_.samples;
  out.loss = validation_.loss.average();
  std::string text = " *";
  std::vector<io::MetricField> fields = {{"epoch", epoch}, {"loss", out.loss}};
  for (std::size_t m = 0; m < names_.size(); ++m) {
    out.metrics.push_back(validation_.metrics[m].average());
    text += concat(' ', title(names_[m]), ' ', fixed(out.metrics[m], 3));
    fields.emplace_back(names_[m], out.metrics[m]);
  }
  fields.insert(
      fields.end(),
      {{"samples", static_cast<std::int64_t>(out.samples)}, {"bad_samples", bad_samples}, {"seconds", seconds}});
  if (talks_ && options_.evaluate && options_.progress == "none")
    std::puts(text.c_str());  // the one thing that was asked for
  else
    line(text);
  if (talks_) write_validation(step, fields);
  if (tensorboard_) {
    tensorboard_->scalar("validate/loss", out.loss, step);
    for (std::size_t m = 0; m < names_.size(); ++m) tensorboard_->scalar("validate/" + names_[m], out.metrics[m], step);
  }
  return out;
}

void Reporter::checkpoint(std::int64_t step, const std::filesystem::path& path, std::int64_t bytes, double seconds) {
  line(concat("=> saved checkpoint '", path.string(), "' (step ", step, ", ",
              fixed(static_cast<double>(bytes) / 1e6, 1), " MB, ", fixed(seconds, 2), " s)"));
  if (metrics_) metrics_->write(step, "checkpoint", {{"path", path.string()}, {"bytes", bytes}, {"seconds", seconds}});
}

void Reporter::summary(const Summary& s) {
  if (!talks_) return;
  const double seconds = s.train.total(), speed = seconds > 0 ? s.samples / seconds : 0;
  std::vector<io::MetricField> fields = {{"wall", s.wall},
                                         {"data_wait", s.train[Phase::data_wait]},
                                         {"compute", s.train[Phase::compute]},
                                         {"exposed_communication", s.train[Phase::communication]},
                                         {"other", s.train[Phase::other]},
                                         {"validation", s.validation},
                                         {"checkpoints", s.checkpoints},
                                         {"images_per_s", speed},
                                         {"bad_samples", s.bad_samples},
                                         {"bad_validation_samples", s.bad_validation_samples}};
  if (s.bad_samples + s.bad_validation_samples > 0)
    line(concat("=> bad samples (--bad-sample ", options_.bad_sample, "): ", s.bad_samples, " in training, ",
                s.bad_validation_samples, " in validation"));
#ifdef APEX_HAS_CUDA
  if (s.device.is_cuda()) {
    const auto peak = static_cast<std::int64_t>(cuda::memory_stats(s.device).peak);
    fields.emplace_back("peak_device_memory", peak);
    fields.emplace_back("graph_launches", s.graph_launches);
    line(concat("=> ", fixed(speed, 1), " images/s in training, at most ",
                fixed(static_cast<double>(peak) / (1 << 30), 2), " GiB of device memory in use",
                s.graph_launches > 0 ? concat(", ", s.graph_launches, " steps launched as graphs") : std::string()));
  }
#endif
  if (metrics_) metrics_->write(s.step, "summary", fields);
  if (tensorboard_ && s.finished) tensorboard_->end(true);
}

}  // namespace apex::train
