// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>

#include "apex/train/option_set.hpp"

namespace apex::train {

/// How often a checkpoint is written: every `count` steps or epochs; 0 writes none but the one a signal asks for.
struct CheckpointInterval {
  std::int64_t count = 1;
  bool epochs = true;
};

/// "500", "500steps", "2epochs", "0". @throws UsageError
CheckpointInterval parse_interval(const std::string& text);

/// Options that every training program has. Field names are the option names; defaults are Apex's main_amp where it has
/// the option.
struct TrainOptions {
  std::int64_t workers = 4;
  std::int64_t epochs = 90;
  std::int64_t start_epoch = 0;
  std::int64_t batch_size = 256;  ///< per process and micro-step
  std::int64_t accumulate = 1;
  std::int64_t max_steps = 0;  ///< 0: no limit
  double lr = 0.1;
  double momentum = 0.9;
  double weight_decay = 1e-4;
  std::string resume;
  bool evaluate = false;
  std::int64_t seed = 0;

  std::string device = "auto";
  std::string dtype = "f32";
  std::int64_t threads = 0;  ///< 0: the cores of the affinity mask, shared by the ranks of the node
  bool deterministic = false;
  bool cuda_graph = false;
  bool tf32 = false;
  std::string plan_cache = "auto";

  std::string checkpoint_dir = "checkpoints";
  std::string checkpoint_every = "1epochs";
  std::int64_t keep = 3;
  std::string verify_checkpoint = "sample";
  std::string checkpoint_failure = "stop";

  std::string signal = "USR1";
  std::int64_t requeue_exit_code = 99;
  double timeout = 600;
  std::int64_t expect_ranks = 0;
  bool allow_gpu_sharing = false;

  std::string metrics = "metrics.jsonl";
  std::string tensorboard;
  std::string progress = "auto";
  std::int64_t print_freq = 10;
  std::string log_samples;
  std::int64_t prof = -1;

  std::string bad_sample = "error";
  std::int64_t message_size = 0;  ///< 0: bucket_cap_mb rules
  double bucket_cap_mb = 25;

  std::string opt_level = "O0";
  std::string keep_batchnorm_fp32, loss_scale;
  bool sync_bn = false;
  std::int64_t local_rank = -1;
};

/// Declares all of them on `set`, under headings.
void declare(OptionSet& set, TrainOptions& options);

/// What gradients are multiplied by: --loss-scale, or 1024 for f16 and 1 for every other type.
double loss_scale_of(const TrainOptions& options);

/// What cannot be checked option by option: combinations, and what this version does not have yet.
/// @throws UsageError, one line each
void check(const OptionSet& set, const TrainOptions& options);

}  // namespace apex::train
