// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/types.h>
#include <cstdio>
#include <string>
#include <vector>

namespace bench {

/// A step to be timed.
struct StepCase {
  std::string arch = "resnet20";
  int image = 28;
  int channels = 1;
  int classes = 10;
  int batch = 128;
  int threads = 2;
};

struct Timing {
  std::vector<double> ms;
  long peak_kib = 0;  ///< resident set at its highest, whole process
};

/// The same step in PyTorch, in a process of its own that stays up, so that both sides can be timed in turn.
class TorchPeer {
 public:
  /// @throws Kind::data when `python` cannot import torch
  TorchPeer(const std::string& python, const StepCase& step);
  TorchPeer(const TorchPeer&) = delete;
  TorchPeer& operator=(const TorchPeer&) = delete;
  ~TorchPeer();

  Timing run(int steps);
  const std::string& version() const noexcept { return version_; }

 private:
  std::string read_line();

  pid_t child_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
  std::string version_;
};

}  // namespace bench
