// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "apex/collectives/process_group.hpp"
#include "apex/collectives/work.hpp"
#include "device_link.hpp"
#include "watchdog.hpp"

namespace apex::dist::detail {

/// Wall time in which at least one of several intervals is open.
class BusyClock {
 public:
  void open(Work::Clock::time_point at);
  void close(Work::Clock::time_point at);
  double seconds(Work::Clock::time_point at) const;

 private:
  int open_ = 0;
  Work::Clock::time_point since_{};
  double total_ = 0;
};

struct Counters {
  std::int64_t collectives = 0, bytes = 0;
  double exposed_s = 0;
  double device_busy_s = 0;
  BusyClock busy;

  Statistics read(Work::Clock::time_point at) const {
    return {collectives, bytes, busy.seconds(at) + device_busy_s, exposed_s};
  }
};

/// A communicator of one group and purpose. Its collectives start in the order they were issued, each when the one
/// before has posted all it has to post (MPI matches collectives by their order on the communicator); a few are in
/// flight at once, the others queue here. All but the constants is guarded by the engine.
class Channel {
 public:
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm debug_comm = MPI_COMM_NULL;  // only where collectives are compared before they start
  std::string label;
  Purpose purpose = Purpose::user;
  int rank = 0, size = 1;
  Counters counters;
  std::unique_ptr<DeviceChannel> device;  // only where CUDA tensors travel by NCCL

 private:
  friend class Engine;
  std::uint64_t sequence_ = 0;
  int in_flight_ = 0;
  std::shared_ptr<Operation> newest_;  // of those in flight
  std::deque<std::shared_ptr<Operation>> queue_;
};

/// One collective: phases, each run when the requests of the one before are complete.
class Operation {
 public:
  using Requests = std::vector<MPI_Request>;

  Description description;
  std::int64_t bytes = 0;
  std::vector<std::shared_ptr<Storage>> storages;  // kept alive until it is complete
  std::shared_ptr<DeviceWork> device;              // carries it out instead of phases
  bool counted = true;                             // false: a comparison before a collective, not one itself

  /// Adds a phase that posts nonblocking collectives.
  void communicate(std::function<void(Requests&)> post);
  /// Adds a phase that works on what is there.
  void compute(std::function<void()> work);

  bool done() const noexcept { return done_.load(std::memory_order_acquire); }

 private:
  friend class Engine;
  friend class dist::Work;
  Channel* channel_ = nullptr;
  Requests requests_;
  std::vector<std::function<void(Requests&)>> phases_;
  std::size_t next_phase_ = 0, end_of_posting_ = 0;  // the last phase that communicates lies before end_of_posting_
  Watchdog::Id watch_ = 0;
  std::exception_ptr error_;
  double exposed_s_ = 0;
  Work::Clock::time_point issued_{}, finished_{};
  std::atomic<bool> done_{false};
};

/// Starts operations and moves them forward: from its progress thread, and from every thread that waits. All MPI calls
/// for collectives happen under its one mutex.
class Engine {
 public:
  /// @param threaded  false: no progress thread, operations move only while somebody waits or tests
  Engine(Watchdog& watchdog, bool threaded);
  ~Engine();

  void submit(Channel& channel, const std::shared_ptr<Operation>& operation);
  /// Numbers and counts a collective that a device carries out, and what it took, once that is known.
  void note_issue(Channel& channel, Operation& operation);
  void note_times(Channel& channel, double busy_s, double exposed_s);
  /// Waits, at most `seconds` (negative: as long as it takes). Counts the time as exposed. @throws what the operation
  /// met
  bool wait(Operation& operation, double seconds);
  bool test(Operation& operation);
  static void rethrow(Operation& operation);
  /// Held wherever MPI moves collectives forward.
  std::mutex& mutex() noexcept { return mutex_; }
  /// Waits until nothing is in flight. Never throws.
  void drain() noexcept;

  Statistics statistics(const Channel& channel) const;
  Statistics statistics() const;
  Statistics statistics(Purpose purpose) const;

 private:
  static constexpr int kInFlight = 4;  // of one channel; more gain nothing and cost memory inside MPI

  void progress_loop();
  bool poll();
  void number(Channel& channel, Operation& operation, Work::Clock::time_point now);
  void start_queued(Channel& channel);
  void advance(const std::shared_ptr<Operation>& operation);
  void finish(Operation& operation);

  Watchdog& watchdog_;
  const bool threaded_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::vector<std::shared_ptr<Operation>> active_, looked_at_;
  /// Kept with their buffers and scratch memory: what MPI began of them may still be under way, and a nonblocking
  /// collective can be neither cancelled nor freed.
  std::vector<std::shared_ptr<Operation>> failed_;
  std::size_t queued_ = 0;
  Counters total_;
  Counters by_purpose_[kPurposes];
  std::array<Counters*, 3> counters_of(Channel& channel);
  std::atomic<int> waiters_{0};
  std::thread thread_;
};

/// Between two looks at something that is not there yet: gives the core away at once, then sleeps longer and longer.
/// Ranks may share cores with each other and with the threads that compute.
class Backoff {
 public:
  void pause();

 private:
  int round_ = 0;
};

}  // namespace apex::dist::detail
