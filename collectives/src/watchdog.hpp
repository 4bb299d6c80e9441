// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <source_location>
#include <string>
#include <string_view>
#include <thread>

#include "apex/core/dtype.hpp"

namespace apex::dist::detail {

/// One collective as reports name it.
struct Description {
  const char* op = "";         ///< "all_reduce"
  const char* detail = "";     ///< the reduction
  std::string channel{};       ///< "world/ddp"
  std::uint64_t sequence = 0;  ///< number of the collective in its channel
  DType dtype = DType::u8;
  std::int64_t count = 0;
  int root = -1;
  std::string label{};
  std::source_location where{};
};

/// `all_reduce sum #17 on world/user "layer4.bn1", f32 x 1023 (train.cpp:88)`
std::string to_string(const Description& description);

/// A thread that ends the job when a wait passes its limit, and the memory of what went before. The limit counts time
/// in which this process ran: a job that was suspended and continued is not late.
class Watchdog {
 public:
  using Id = std::uint64_t;  // 0: nothing is watched

  Watchdog(double timeout_s, std::string host);
  ~Watchdog();

  /// From now on peers are told to print their state before the job ends. `comm` is used by the watchdog alone, and
  /// only under `progress`, the mutex of all that moves collectives forward: any MPI call may do that.
  void connect(MPI_Comm comm, int rank, int size, std::mutex& progress);
  /// Stops using MPI; after it returns communicator and mutex may go.
  void disconnect();

  /// Run by the watchdog's thread once it has printed what it has to say and before the job ends, on every rank.
  void set_before_end(std::function<void()> action);
  /// Asked with every tick, on the watchdog's thread: what the job has to end for; empty for nothing.
  void set_check(std::function<std::string()> check);
  /// Prints the reason and this rank's report, lets the others print theirs, and ends the job with code 7.
  [[noreturn]] void end_job(const std::string& reason);

  Id watch(std::string what, double seconds);
  Id watch(const Description& description);
  void done(Id id) noexcept;

  /// Prints what this rank waits for and its last collectives.
  void print_report(const std::string& reason) const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class State : unsigned char { unused, in_flight, complete };
  struct Record {
    Description description;
    State state = State::unused;
    double started = 0, seconds = 0;
  };
  struct Watched {
    std::string what;
    double started = 0, limit = 0;
    std::uint64_t record = kNoRecord;
  };
  static constexpr int kRecords = 64;
  static constexpr std::uint64_t kNoRecord = ~std::uint64_t{0};

  void run();
  double now() const;
  void count_time();
  void fire(const Watched& late);
  void ask_peers();
  void answer_peers();
  void run_before_end();
  std::string run_check();
  std::string report() const;

  const double timeout_s_;
  const double tick_s_;
  const std::string host_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  double awake_ = 0;
  Clock::time_point last_tick_ = Clock::now();
  std::map<Id, Watched> watched_;
  Id next_id_ = 1;
  std::array<Record, kRecords> records_;
  std::uint64_t recorded_ = 0;

  std::mutex link_mutex_;  // before `progress_`
  std::mutex* progress_ = nullptr;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::atomic<int> rank_{-1};
  int size_ = 1;
  bool answered_ = false;
  std::mutex action_mutex_;
  std::function<void()> before_end_;
  std::mutex check_mutex_;
  std::function<std::string()> check_;

  std::thread thread_;
};

/// Starts a thread that receives no signal: handlers run in the main thread.
std::thread quiet_thread(std::function<void()> body);

}  // namespace apex::dist::detail
