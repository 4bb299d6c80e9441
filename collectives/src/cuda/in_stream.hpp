// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "../device_link.hpp"
#include "../engine.hpp"
#include "../watchdog.hpp"
#include "apex/core/cuda.hpp"

// Collectives on the caller's own stream. A mark in a stream costs the device about a microsecond, which a collective
// of 4 MiB would feel: most of them get none, and are known to be done when a later mark of their stream is passed.

namespace apex::dist::detail {

class WorkList;

/// The collectives of one channel between two marks of one stream. All but the constants is guarded by the list.
struct Batch {
  Batch(Channel& channel_of, const Context& ctx_of) : channel(channel_of), ctx(ctx_of) {}

  Channel& channel;
  const Context ctx;
  const Work::Clock::time_point opened = Work::Clock::now();
  std::vector<Watchdog::Id> watches;  // one for each collective
  bool posting = false;               // one is being queued right now
  bool closed = false;                // `end` lies behind all of them
  std::optional<cuda::Event> start;   // only where start..end is the last collective and nothing else
  std::optional<cuda::Event> end;
  double stands_for = 0;  // how many times its own bytes the timed collective counts
  std::atomic<bool> passed{false};
  Work::Clock::time_point finished{};
  double timed_s = 0;
};

/// What a channel has of it. Guarded by whoever issues (one at a time) and, the batch, by the list.
struct Lane {
  /// One collective in so many is timed, the first one first: what a mark costs (some 7 us) must not
  /// show beside a call of 4 MiB (34 us). Odd, so that it is another one in every training step.
  static constexpr int kTimed = 31;

  std::shared_ptr<Batch> open;
  int until_timed = 0;
  std::int64_t untimed_bytes = 0;  // of those since the last timed one
};

class InStreamWork final : public DeviceWork {
 public:
  /// @param batch  null: it belongs to a graph
  InStreamWork(WorkList& list, const Context& ctx, std::shared_ptr<Batch> batch, bool timed);

  void wait() override;
  bool wait_host(double seconds) override;
  std::optional<Work::Clock::time_point> finished() override;
  std::optional<double> exposed_s() override;

 private:
  WorkList& list_;  // valid until the batch is passed
  const Context ctx_;
  const std::shared_ptr<Batch> batch_;
  const bool timed_;
};

/// The last use of a communicator. It must not be used on another stream before that one is through.
class Tail {
 public:
  /// Makes what is queued on ctx from now on wait for it, where neither ctx nor `before` (which ctx waits for already)
  /// is the stream that it ran on. Eager work and graphs are not ordered with each other: a graph is launched later.
  /// @param capture  that ctx belongs to; 0: none
  void order(WorkList& list, const Context& ctx, const Context& before, unsigned long long capture) const;
  void set(const Context& ctx, unsigned long long capture, std::shared_ptr<Batch> batch);

 private:
  bool used_ = false;
  Context ctx_;
  unsigned long long capture_ = 0;
  std::shared_ptr<Batch> batch_;
};

/// A number of the capture that ctx takes part in; 0: none.
unsigned long long capture_of(const Context& ctx);

}  // namespace apex::dist::detail
