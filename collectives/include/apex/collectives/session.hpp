// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "apex/collectives/deadline.hpp"
#include "apex/collectives/process_group.hpp"
#include "apex/core/device.hpp"

namespace apex::dist {

struct SessionOptions {
  /// Limit of every wait for another rank, in seconds; > 0. When it passes, the rank prints what it waited for and its
  /// last 64 collectives, asks the others to print theirs, and ends the job with exit code 7. Suspended time does not
  /// count.
  double timeout_s = 600;
  /// Number of ranks the user meant to start; 0 takes what comes.
  int expect_ranks = 0;
  /// Sums over ranks in rank order (slower): same bits for the same number of ranks on any transport.
  bool deterministic = false;
  /// Unset: CUDA where the build has it and a device is found, else the CPU.
  std::optional<DeviceKind> device{};
  /// Compare each collective across ranks before it starts. Also switched on by APEX_DIST_DEBUG=1.
  bool debug = false;
  /// What to ask of MPI_Init_thread; what it provides counts.
  int thread_level = MPI_THREAD_MULTIPLE;
  /// Most elements handed to MPI in one call; larger tensors travel in pieces. MPI's own limit is INT_MAX.
  std::int64_t max_count = 2147483647;
};

/// The job as seen from this rank: starts MPI (or adopts an initialised one), the watchdog and the progress thread.
/// One per process, made before and destroyed after everything that communicates. Constructor and destructor are
/// collective.
///
/// It also installs a terminate handler: an exception that leaves main prints one line, "apex: rank N: message", and
/// ends the whole job with exit_code_of(kind).
///
/// Destroyed by an exception in a job of several ranks, it does not finalise MPI (the others may be waiting in a
/// collective); the process must then end, and run_main makes it end the job.
class Session {
 public:
  /// @throws Kind::state for a second Session or a finalised MPI; Kind::argument for bad options;
  ///         Kind::data when the launcher started more tasks than MPI sees, or expect_ranks differs;
  ///         Kind::unsupported for a device this build has not
  Session(int& argc, char**& argv, const SessionOptions& options = {});
  explicit Session(const SessionOptions& options = {});
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  ProcessGroup world() const;
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  /// Rank among, and number of, the ranks that share this node's memory.
  int local_rank() const noexcept { return local_rank_; }
  int local_size() const noexcept { return local_size_; }
  /// This rank's device: local_rank modulo the visible devices.
  Device device() const noexcept { return device_; }
  const SessionOptions& options() const noexcept { return options_; }
  /// The MPI_THREAD_ level in force. Below MPI_THREAD_MULTIPLE there is no progress thread and nothing overlaps.
  int thread_level() const noexcept { return thread_level_; }

  /// Totals over all groups, and over all groups of one purpose.
  Statistics statistics() const;
  Statistics statistics(Purpose purpose) const;

 private:
  void start(int* argc, char*** argv);
  void make_world();
  void finish(bool peers_may_wait) noexcept;

  SessionOptions options_;
  ProcessGroup world_;
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  int thread_level_ = 0;
  Device device_ = kCpu;
  bool owns_mpi_ = false;
  int exceptions_at_start_ = 0;
};

/// Looks up an environment variable; null when unset.
using Environment = std::function<const char*(const char*)>;
const char* process_environment(const char* name);

/// What is wrong with how the job was started, if something is: the launcher announces several tasks (Slurm's
/// SLURM_STEP_NUM_TASKS, Open MPI's OMPI_COMM_WORLD_SIZE, PMI_SIZE, or a PMIX_RANK above 0) but MPI sees one, or
/// `expect_ranks` (0: any) is not world_size. One line that says what to do.
std::optional<std::string> launcher_problem(int world_size, int expect_ranks,
                                            const Environment& environment = process_environment);
/// The part that can be told before MPI starts: Slurm announces several tasks and has given this process no way
/// (PMIx, PMI) to find the others.
std::optional<std::string> launcher_problem_before_mpi(const Environment& environment = process_environment);

/// Runs `body` and returns its result. An exception out of it prints one line, "apex: rank N: message", and ends the
/// whole job with exit_code_of(kind) (1 for other exceptions); alone, the code is returned. For main:
///   int main(int argc, char** argv) { return apex::dist::run_main([&] { ... return 0; }); }
int run_main(const std::function<int()>& body);

/// Ends every rank of the job at once with `code`, or this process when MPI is not up.
[[noreturn]] void abort_job(int code) noexcept;

}  // namespace apex::dist
