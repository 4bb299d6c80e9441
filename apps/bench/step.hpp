// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <string>

#include "apex/core/device.hpp"
#include "apex/core/dtype.hpp"

namespace bench {

/// A step to be timed: forward, cross entropy, backward and an optimizer's step on one fixed batch.
struct StepCase {
  std::string arch = "resnet20";
  int image = 28;
  int channels = 1;
  int classes = 10;
  int batch = 128;  ///< per rank
  int threads = 2;
  apex::Device device{};
  apex::DType dtype = apex::DType::f32;  ///< 16 bits: f32 masters, momentum and batch norm
  double loss_scale = 1;
  /// sgd (with momentum), adam (AdamW), or zero-adam: the same spread over the ranks, instead of
  /// DistributedDataParallel.
  std::string optimizer = "sgd";
  bool channels_last = true;
};

struct StepOptions {
  int rounds = 5;    ///< ours and the peer's in turn
  int steps = 5;     ///< a round
  std::string peer;  ///< eager, compile or max-autotune; empty: none
  std::string python = "python3";
  bool cuda_graph = false;
  std::string plan_cache;  ///< file of convolution plans, read at the start and written at the end; empty: none
  int count_syncs = 0;     ///< steps over which calls that make the host wait are counted; there must be none
  std::string json;
  std::chrono::steady_clock::time_point started;  ///< of the program
};

/// Times whole training steps and prints one row. Under a launcher with several ranks each trains its own batch through
/// DistributedDataParallel, and so do the peers.
/// @throws Kind::numerical when the timed steps did not learn their batch, Kind::state when steps made the host wait or
/// a graph was asked for and could not be had
void run_step(StepCase step, const StepOptions& options);

}  // namespace bench
