// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

namespace apex::train {

/// Catches the signals that ask for a checkpoint and an end. The handler only notes the signal: ranks agree on it in
/// the loop, then write. Install before MPI_Init and before a data set is scanned, since the default action of USR1 and
/// USR2 kills the rank. SIGPIPE is ignored: a run
/// outlives whoever read its output. One instance per process; the default actions come back with its end.
class StopSignals {
 public:
  explicit StopSignals(const std::vector<int>& signals);
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();

  /// The number of the first signal caught so far, 0 for none.
  static int caught() noexcept;

 private:
  std::vector<int> signals_;
};

/// "USR1"; the number itself where the system has no name for it.
std::string signal_name(int number);

/// What `--signal` names: USR1, USR2, TERM or none; `TERM` is always among them unless "none" was asked for, because
/// preemption under srun sends it and leaves a grace time.
std::vector<int> stop_signals_for(const std::string& option);

}  // namespace apex::train
