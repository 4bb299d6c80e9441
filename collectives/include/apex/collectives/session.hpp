// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "apex/collectives/deadline.hpp"
#include "apex/collectives/process_group.hpp"
#include "apex/core/context.hpp"
#include "apex/core/device.hpp"

namespace apex::dist {

struct SessionOptions {
  /// Limit of every wait for another rank, in seconds; > 0. When it passes, the rank prints what it waited for and its
  /// last 64 collectives, asks the others to print theirs, and ends the job with exit code 7. Suspended time does not
  /// count.
  double timeout_s = 600;
  /// Number of ranks the user meant to start; 0 takes what comes.
  int expect_ranks = 0;
  /// Sums over ranks in rank order (slower): same bits for the same number of ranks on any transport. On CUDA NCCL's
  /// ring in its simple protocol (unless NCCL_ALGO, NCCL_PROTO say otherwise): same bits for the same ranks on the same
  /// GPUs and links.
  bool deterministic = false;
  /// Unset: CUDA where the build has it and the ranks find devices, else the CPU.
  std::optional<DeviceKind> device{};
  /// Which of the visible CUDA devices, the same number on every rank; unset: local rank modulo their count.
  std::optional<int> device_index{};
  /// Let several ranks use one GPU. NCCL cannot: all collectives of the job then go through host memory and MPI, and
  /// block (they cannot be captured into a graph).
  bool allow_shared_device = false;
  /// Compare each collective across ranks before it starts. Also switched on by APEX_DIST_DEBUG=1. On CUDA the caller
  /// waits for the comparison, so that all ranks must use the channels of a group in one order.
  bool debug = false;
  /// This rank has come to say something and to go (it was asked for its help text, say). Then no rank looks for a
  /// device, and dismissed() is true on all of them: they end in order instead of waiting for it.
  bool dismiss = false;
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
  ///         Kind::unsupported for a device this build has not; on every rank, with Kind::data, when a rank sees no
  ///         such device, when two ranks would use one GPU (both and the GPU are named), or when the ranks' devices
  ///         differ in kind; Kind::communication when NCCL cannot connect the ranks
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
  /// This rank's device: local_rank modulo the visible devices, unless device_index was given. It is the thread's
  /// current CUDA device once the Session is made.
  Device device() const noexcept { return device_; }
  /// Whether ranks share a GPU, so that CUDA tensors travel through host memory.
  bool shares_devices() const noexcept { return shares_devices_; }
  const SessionOptions& options() const noexcept { return options_; }
  /// The MPI_THREAD_ level in force. Below MPI_THREAD_MULTIPLE there is no progress thread and nothing overlaps.
  int thread_level() const noexcept { return thread_level_; }

  /// Whether some rank's options said dismiss.
  bool dismissed() const noexcept { return options_.dismiss; }

  /// Totals over all groups, and over all groups of one purpose.
  Statistics statistics() const;
  Statistics statistics(Purpose purpose) const;

 private:
  void start(int* argc, char*** argv);
  void make_world();
  void choose_device();
  void finish(bool peers_may_wait) noexcept;

  SessionOptions options_;
  ProcessGroup world_;
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  int thread_level_ = 0;
  Device device_ = kCpu;
  bool shares_devices_ = false;
  bool owns_mpi_ = false;
  int exceptions_at_start_ = 0;
};

/// Puts what was queued on ctx last (the launch of a captured step, say) into the watchdog's list under `label`, until
/// the device has passed it: "graph step 17" is reported like a collective, and when it is not done in the Session's
/// timeout_s the job ends with exit code 7. Collectives inside a graph are watched in no other way. Costs an event;
/// never waits. Does nothing on the CPU, without a Session, and while ctx is being captured.
void watch(const Context& ctx, std::string_view label);

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
