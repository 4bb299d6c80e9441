// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "device_works.hpp"

#include <unistd.h>

#include <algorithm>

#include "relaxed_capture.hpp"

namespace apex::dist::detail {
namespace {

using Clock = Work::Clock;

constexpr auto kTick = std::chrono::milliseconds(20);
constexpr double kNewOriginAfterMs = 10e3;  // an event's distance is a float: fine for short ones only

}  // namespace

StreamWork::StreamWork(WorkList& list, Channel* channel, bool captured)
    : start(list.take_event()),
      end(list.take_event()),
      list_(list),
      device_(list.device()),
      channel_(channel),
      captured_(captured) {}

void StreamWork::wait() {
  const Context ctx = Context::current(device_);
  WorkList::Storages dropped;
  if (captured_) {
    if (!cuda::capturing(ctx))
      fail(Kind::state, "a collective that was captured into a graph was waited for outside of the capture");
    end.block(ctx);
    dropped.swap(storages);
  } else if (passed_) {
    return;
  } else {
    list_.hold_if_ending();
    if (cuda::capturing(ctx)) {
      if (list_.look(*this)) return;
      fail(Kind::state, "a collective that was issued before a capture must be waited for before it");
    }
    cuda::Event mark = list_.take_event();
    mark.record(ctx);
    const std::scoped_lock lock(list_.mutex_);
    if (passed_) return;  // and `end` may be another's by now
    end.block(ctx);
    marks_.push_back(std::move(mark));
    dropped.swap(storages);
  }
  // From here on ctx is ordered after the work, so whoever frees them needs to be ordered after ctx only.
  for (const auto& storage : dropped) storage->add_use(ctx);
}

bool StreamWork::wait_host(double seconds) {
  if (captured_) fail(Kind::state, "a collective that was captured into a graph cannot be asked for by the host");
  const auto begin = Clock::now();
  Backoff backoff;
  while (!passed_) {
    list_.hold_if_ending();
    if (list_.look(*this)) break;
    if (std::chrono::duration<double>(Clock::now() - begin).count() >= seconds) return false;
    backoff.pause();
  }
  return true;
}

std::optional<Clock::time_point> StreamWork::finished() {
  if (captured_ || !(passed_ || list_.look(*this))) return std::nullopt;
  return finished_;
}

std::optional<double> StreamWork::exposed_s() {
  if (captured_ || !(passed_ || list_.look(*this))) return std::nullopt;
  return exposed_s_;
}

WorkList::WorkList(Engine& engine, Watchdog& watchdog, Device device)
    : engine_(engine), watchdog_(watchdog), device_(device), origin_(true) {
  origin_.record(Context::current(device));
  origin_.synchronize();
  origin_at_ = Clock::now();
  thread_ = quiet_thread([this] { run(); });
}

WorkList::~WorkList() { stop(); }

void WorkList::stop() noexcept {
  {
    const std::scoped_lock lock(thread_mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void WorkList::hold_if_ending() const noexcept {
  while (ending_) ::pause();
}

cuda::Event WorkList::take_event() {
  const std::scoped_lock lock(mutex_);
  if (events_.empty()) return cuda::Event(true);
  cuda::Event event = std::move(events_.back());
  events_.pop_back();
  return event;
}

void WorkList::add(const std::shared_ptr<StreamWork>& work, const Context& ctx, Watchdog::Id watch) {
  const std::scoped_lock lock(mutex_);
  work->stream_ = ctx.stream;
  work->watch_ = watch;
  works_.push_back(work);
}

void WorkList::watch(const Context& ctx, std::string_view label) {
  hold_if_ending();
  if (cuda::capturing(ctx)) return;
  const auto work = std::make_shared<StreamWork>(*this, nullptr, false);
  work->start.record(ctx);
  work->end.record(ctx);
  add(work, ctx, watchdog_.watch(concat(label, " on ", device_), 0));
}

/// The host's time at which the device passed `event`. Under the mutex. May take the event for a new origin.
Clock::time_point WorkList::time_of(cuda::Event& event) {
  const double ms = origin_.milliseconds_to(event);
  const auto at =
      origin_at_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(ms));
  if (ms > kNewOriginAfterMs) {
    std::swap(origin_, event);
    origin_at_ = at;
  }
  return at;
}

/// Its end has been passed. Under the mutex; `dropped` is to be let go of without it.
void WorkList::pass(StreamWork& work, Storages& dropped) {
  double busy = 0;
  if (work.channel_ != nullptr) {
    busy = work.start.milliseconds_to(work.end) / 1e3;
    // A stream that is not even there yet has not stood still.
    for (const auto& mark : work.marks_)
      if (mark.passed()) work.exposed_s_ += std::max(0.0, mark.milliseconds_to(work.end) / 1e3);
  }
  work.finished_ = time_of(work.end);
  for (auto* event : {&work.start, &work.end}) events_.push_back(std::move(*event));
  for (auto& mark : work.marks_) events_.push_back(std::move(mark));
  work.marks_.clear();
  for (auto& storage : work.storages) dropped.push_back(std::move(storage));
  work.storages.clear();
  watchdog_.done(work.watch_);
  if (work.channel_ != nullptr) engine_.note_times(*work.channel_, busy, work.exposed_s_);
  work.passed_ = true;
}

/// Whether the device has passed the work; if so, it is done with.
bool WorkList::look(StreamWork& work) {
  const RelaxedCapture relaxed;
  Storages dropped;
  const std::scoped_lock lock(mutex_);
  if (work.passed_) return true;
  if (!work.end.passed()) return false;
  pass(work, dropped);
  std::erase_if(works_, [&](const auto& other) { return other.get() == &work; });
  return true;
}

void WorkList::poll(bool mark_all) noexcept {
  const RelaxedCapture relaxed;
  Storages dropped;
  const std::scoped_lock lock(mutex_);
  if (failed_) return;
  std::vector<void*> waiting;  // streams whose first work is not done
  try {
    std::erase_if(works_, [&](const std::shared_ptr<StreamWork>& work) {
      if (std::find(waiting.begin(), waiting.end(), work->stream_) != waiting.end()) return false;
      if (!work->end.passed()) {
        waiting.push_back(work->stream_);
        return false;
      }
      pass(*work, dropped);
      return true;
    });
    poll_batches(mark_all);
  } catch (const std::exception& e) {
    failed_ = true;  // every later call says the same; the thread that computes meets it too
    log_warning(concat("the device failed: ", e.what()));
  }
}

void WorkList::drain() noexcept {
  Backoff backoff;
  for (;;) {
    poll(true);
    {
      const std::scoped_lock lock(mutex_);
      if (failed_) {  // nobody looks after them any more; a failure leaves gaps
        for (const auto& work : works_)
          if (work != nullptr) work->passed_ = true;
        for (const auto& batch : batches_)
          if (batch != nullptr) batch->passed = true;
        works_.clear();
        batches_.clear();
      }
      if (works_.empty() && batches_.empty()) return;
    }
    backoff.pause();
  }
}

void WorkList::run() {
  cudaSetDevice(device_.index);
  auto mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  std::unique_lock lock(thread_mutex_);
  while (!stop_) {
    wake_.wait_for(lock, kTick);
    lock.unlock();
    poll();
    lock.lock();
  }
}

}  // namespace apex::dist::detail
