// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "../device_link.hpp"
#include "../engine.hpp"
#include "../watchdog.hpp"
#include "apex/core/cuda.hpp"
#include "in_stream.hpp"

namespace apex::dist::detail {

class WorkList;

/// Something queued on a stream of the device, until the device is known to have passed it. All but the constants is
/// guarded by the list.
class StreamWork final : public DeviceWork {
 public:
  /// @param channel   null: not a collective
  /// @param captured  it belongs to a graph: its events say nothing to the host
  StreamWork(WorkList& list, Channel* channel, bool captured);

  void wait() override;
  bool wait_host(double seconds) override;
  std::optional<Work::Clock::time_point> finished() override;
  std::optional<double> exposed_s() override;

  cuda::Event start, end;  // recorded before and after it
  std::vector<std::shared_ptr<Storage>> storages;

 private:
  friend class WorkList;
  WorkList& list_;  // valid until passed_
  const Device device_;
  Channel* const channel_;
  const bool captured_;
  void* stream_ = nullptr;
  Watchdog::Id watch_ = 0;
  std::vector<cuda::Event> marks_;  // where streams began to wait for it
  std::atomic<bool> passed_{false};
  Work::Clock::time_point finished_{};
  double exposed_s_ = 0;
};

/// The works in flight on one device, and a thread that looks which are done: it frees what they held, counts their
/// times, and takes them off the watchdog's list.
class WorkList {
 public:
  WorkList(Engine& engine, Watchdog& watchdog, Device device);
  ~WorkList();

  Device device() const noexcept { return device_; }
  /// Watches `work`, whose end was recorded on ctx.
  void add(const std::shared_ptr<StreamWork>& work, const Context& ctx, Watchdog::Id watch);
  /// Queues a collective on the caller's own stream ctx, which is not being captured, by calling `post`. One at a
  /// time; `watch` is the list's as soon as this returns.
  std::shared_ptr<DeviceWork> post_in_stream(Channel& channel, Lane& lane, const Context& ctx, std::int64_t bytes,
                                             Watchdog::Id watch, const std::function<void()>& post, Tail& tail);
  /// What is queued on ctx from now on waits for the batch.
  void order_after(Batch& batch, const Context& ctx);
  /// Whether the device has passed the batch; if so, it is done with.
  bool look(Batch& batch);
  /// Watches what was queued on ctx last.
  void watch(const Context& ctx, std::string_view label);
  /// @param mark_all  also batches that might still grow
  void poll(bool mark_all = false) noexcept;
  /// Waits until nothing is in flight, or the device has failed.
  void drain() noexcept;
  void stop() noexcept;

  /// From now on nobody goes on who asks for or waits for a collective: the job ends, and what aborted collectives left
  /// in memory must not be used.
  void begin_end() noexcept { ending_ = true; }
  bool ending() const noexcept { return ending_; }
  void hold_if_ending() const noexcept;

 private:
  friend class StreamWork;
  using Storages = std::vector<std::shared_ptr<Storage>>;

  cuda::Event take_event();
  bool look(StreamWork& work);
  void pass(StreamWork& work, Storages& dropped);
  bool close(Batch& batch);
  bool reached(Batch& batch);
  void pass(Batch& batch);
  void poll_batches(bool mark_all);
  Work::Clock::time_point time_of(cuda::Event& event);
  void run();

  Engine& engine_;
  Watchdog& watchdog_;
  const Device device_;

  std::mutex mutex_;  // before the engine's and the watchdog's
  std::vector<cuda::Event> events_;
  std::deque<std::shared_ptr<StreamWork>> works_;
  std::vector<std::shared_ptr<Batch>> batches_;
  cuda::Event origin_;  // of the device's clock
  Work::Clock::time_point origin_at_;
  bool failed_ = false;  // the device reports errors only

  std::atomic<bool> ending_{false};
  std::mutex thread_mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace apex::dist::detail
