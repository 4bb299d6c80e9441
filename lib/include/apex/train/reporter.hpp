// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apex/io/log/metrics.hpp"
#include "apex/io/log/progress.hpp"
#include "apex/io/log/tensorboard.hpp"
#include "apex/train/meters.hpp"
#include "apex/train/option_set.hpp"
#include "apex/train/options.hpp"

namespace apex::train {

/// One optimizer step as it is reported: global figures, and where this rank's time went.
struct StepReport {
  std::int64_t step = 0;  ///< optimizer steps made, this one included
  std::int64_t epoch = 0;
  std::int64_t index = 0;  ///< in the epoch, from 1
  std::int64_t steps_per_epoch = 0;
  std::int64_t total_steps = 0;
  double lr = 0;
  std::vector<double> sums;  ///< over all ranks, as Task says
  PhaseClock::Split time;
  double hidden_communication = 0;
  std::int64_t bad_samples = 0;  ///< over all ranks
  double loss_scale = 1;
  std::int64_t skipped_steps = 0;  ///< of this run so far
};

/// What a run says: progress on the terminal or in the log (rank 0), metrics.jsonl and TensorBoard (rank 0), sample ids
/// (every rank). Lines are main_amp's, tab-separated.
///
/// An evaluation does not own the checkpoint directory: its one record goes into a metrics.jsonl there only where the
/// directory's lock is free, and a warning says so where it is not, or where nothing can be written.
class Reporter {
 public:
  /// Keeps every record that is there.
  static constexpr std::int64_t kAppend = std::numeric_limits<std::int64_t>::max();
  /// @param start_step  records beyond it, of a run that this one resumes, are dropped; < 0 starts anew
  Reporter(const TrainOptions& options, std::vector<std::string> metric_names, int rank, std::int64_t start_step);

  /// What the run goes by, as a table and as hyper-parameters in TensorBoard. @param step  where the run starts
  void configuration(const std::vector<EffectiveOption>& options, std::int64_t step);
  /// A whole line, rank 0 only, unless --progress none.
  void line(const std::string& text);
  void start_epoch();
  void step(const StepReport& report);
  void sample_ids(std::int64_t step, const Tensor& ids);

  void start_validation();
  void validation_batch(std::int64_t index, std::int64_t batches, const std::vector<double>& sums, double seconds);
  struct Validation {
    double loss = 0;
    std::vector<double> metrics;  ///< percentages
    double samples = 0;
  };
  Validation end_validation(std::int64_t step, std::int64_t epoch, double seconds, std::int64_t bad_samples);

  void checkpoint(std::int64_t step, const std::filesystem::path& path, std::int64_t bytes, double seconds);
  struct Summary {
    std::int64_t step = 0;
    PhaseClock::Split train;
    double validation = 0, checkpoints = 0, wall = 0;          ///< seconds
    double samples = 0;                                        ///< trained on, by all ranks
    std::int64_t bad_samples = 0, bad_validation_samples = 0;  ///< met by all ranks
    Device device{};
    std::int64_t graph_launches = 0;
    bool finished = true;  ///< nothing is left to do, so that nobody will go on from here
  };
  /// On a GPU also a line with the speed and the most device memory that was in use; a line where there were bad
  /// samples.
  void summary(const Summary& summary);

 private:
  struct Meters {
    Meter time, speed, loss;
    double samples = 0;
    std::vector<Meter> metrics;
  };
  void open_metrics(std::int64_t start_step);
  void write_validation(std::int64_t step, const std::vector<io::MetricField>& fields);
  void reset(Meters& meters) const;
  void update(Meters& meters, const std::vector<double>& sums, double seconds) const;
  std::string figures(const Meters& meters, int loss_digits) const;

  TrainOptions options_;
  std::vector<std::string> names_;
  bool talks_ = false;
  bool metrics_wanted_ = false;
  std::unique_ptr<io::MetricsWriter> metrics_;
  std::unique_ptr<io::TensorBoardWriter> tensorboard_;
  std::unique_ptr<io::Progress> progress_;
  std::ofstream samples_;
  Meters train_, validation_;
};

}  // namespace apex::train
