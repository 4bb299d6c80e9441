// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <string>
#include <vector>

namespace bench {

/// A Python process with PyTorch that stays up, so that both sides can be timed in turn: it greets with a line and then
/// answers each line it is sent with one of its own.
class TorchProcess {
 public:
  /// Runs `script` (source text) by `python`. @throws Kind::data when it ends before it has greeted
  TorchProcess(const std::string& python, const char* script, const std::vector<std::string>& arguments);
  TorchProcess(const TorchProcess&) = delete;
  TorchProcess& operator=(const TorchProcess&) = delete;
  ~TorchProcess();

  const std::string& greeting() const noexcept { return greeting_; }
  /// @throws Kind::data when the process has ended
  std::string ask(const std::string& line);

 private:
  std::string read_line();

  pid_t child_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
  std::string greeting_;
};

}  // namespace bench
