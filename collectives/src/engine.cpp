// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "engine.hpp"

#include <sched.h>

#include <algorithm>

#include "apex/collectives/mpi.hpp"
#include "runtime.hpp"

namespace apex::dist {
namespace detail {

using Clock = Work::Clock;

void BusyClock::open(Clock::time_point at) {
  if (open_++ == 0) since_ = at;
}

void BusyClock::close(Clock::time_point at) {
  if (--open_ == 0) total_ += std::chrono::duration<double>(at - since_).count();
}

double BusyClock::seconds(Clock::time_point at) const {
  return total_ + (open_ > 0 ? std::chrono::duration<double>(at - since_).count() : 0.0);
}

void Backoff::pause() {
  ++round_;
  if (round_ <= 32) {
    sched_yield();
    return;
  }
  const int microseconds = round_ <= 200 ? 20 : round_ <= 1000 ? 100 : 500;
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

void Operation::communicate(std::function<void(Requests&)> post) {
  phases_.push_back(std::move(post));
  end_of_posting_ = phases_.size();
}

void Operation::compute(std::function<void()> work) {
  phases_.push_back([work = std::move(work)](Requests&) { work(); });
}

Engine::Engine(Watchdog& watchdog, bool threaded) : watchdog_(watchdog), threaded_(threaded) {
  if (threaded_) thread_ = quiet_thread([this] { progress_loop(); });
}

Engine::~Engine() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::array<Counters*, 3> Engine::counters_of(Channel& channel) {
  return {&total_, &by_purpose_[static_cast<int>(channel.purpose)], &channel.counters};
}

/// Under the mutex.
void Engine::number(Channel& channel, Operation& op, Clock::time_point now) {
  op.channel_ = &channel;
  op.issued_ = now;
  op.description.channel = channel.label;
  op.description.sequence = channel.sequence_;
  if (!op.counted) return;
  ++channel.sequence_;
  for (Counters* c : counters_of(channel)) {
    ++c->collectives;
    c->bytes += op.bytes;
  }
}

void Engine::note_issue(Channel& channel, Operation& op) {
  const std::scoped_lock lock(mutex_);
  number(channel, op, Clock::now());
}

void Engine::note_times(Channel& channel, double busy_s, double exposed_s) {
  const std::scoped_lock lock(mutex_);
  for (Counters* c : counters_of(channel)) {
    c->device_busy_s += busy_s;
    c->exposed_s += exposed_s;
  }
}

void Engine::submit(Channel& channel, const std::shared_ptr<Operation>& operation) {
  const std::scoped_lock lock(mutex_);
  const auto now = Clock::now();
  number(channel, *operation, now);
  operation->watch_ = watchdog_.watch(operation->description);
  for (Counters* c : counters_of(channel)) c->busy.open(now);
  channel.queue_.push_back(operation);
  ++queued_;
  start_queued(channel);
  if (threaded_ && !operation->done()) wake_.notify_one();
}

/// Starts what the channel may have in flight. Under the mutex.
void Engine::start_queued(Channel& channel) {
  const auto may_post = [&] {
    const auto& newest = channel.newest_;
    return !newest || newest->done() || newest->next_phase_ >= newest->end_of_posting_;
  };
  while (channel.in_flight_ < kInFlight && !channel.queue_.empty() && may_post()) {
    const auto operation = channel.queue_.front();
    channel.newest_ = operation;
    channel.queue_.pop_front();
    --queued_;
    ++channel.in_flight_;
    active_.push_back(operation);
    advance(operation);
  }
}

/// Runs phases until one leaves requests open or none is left. Under the mutex.
void Engine::advance(const std::shared_ptr<Operation>& operation) {
  Operation& op = *operation;
  try {
    op.requests_.clear();
    while (op.requests_.empty() && op.next_phase_ < op.phases_.size()) op.phases_[op.next_phase_++](op.requests_);
    if (!op.requests_.empty()) return;
  } catch (...) {
    op.error_ = std::current_exception();
    failed_.push_back(operation);
  }
  finish(op);
  std::erase(active_, operation);
}

void Engine::finish(Operation& op) {
  const auto now = Clock::now();
  op.finished_ = now;
  if (!op.error_) {
    op.phases_.clear();  // they hold scratch memory
    op.storages.clear();
  }
  watchdog_.done(op.watch_);
  --op.channel_->in_flight_;
  for (Counters* c : counters_of(*op.channel_)) c->busy.close(now);
  op.done_.store(true, std::memory_order_release);
}

/// One look at everything in flight. Under the mutex. @returns whether something moved
bool Engine::poll() {
  bool moved = false;
  looked_at_ = active_;  // advance() changes the list
  for (const auto& operation : looked_at_) {
    Operation& op = *operation;
    if (op.done()) continue;
    bool complete = true;
    MpiStatus status{MPI_SUCCESS};
    for (MPI_Request& request : op.requests_) {
      int here = 0;
      status.code = MPI_Test(&request, &here, MPI_STATUS_IGNORE);
      complete = complete && here != 0;
      if (status.code != MPI_SUCCESS) break;
    }
    if (status.code == MPI_SUCCESS && !complete) continue;
    moved = true;
    if (status.code == MPI_SUCCESS) {
      advance(operation);
    } else {
      op.error_ = std::make_exception_ptr(
          Error(Kind::communication, Domain::mpi, status.code,
                concat(to_string(op.description), " failed: ", StatusTraits<MpiStatus>::text(status),
                       "; the ranks may have called different collectives (APEX_DIST_DEBUG=1 compares them)")));
      watchdog_.print_report(concat(to_string(op.description), " failed"));
      failed_.push_back(operation);
      finish(op);
      std::erase(active_, operation);
    }
    start_queued(*op.channel_);
  }
  looked_at_.clear();
  return moved;
}

void Engine::progress_loop() {
  Backoff backoff;
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (active_.empty()) {
      wake_.wait(lock, [this] { return stop_ || !active_.empty(); });
      backoff = {};
      continue;
    }
    if (poll()) backoff = {};
    lock.unlock();
    if (waiters_.load(std::memory_order_relaxed) > 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the waiting thread does the polling
    else
      backoff.pause();
    lock.lock();
  }
}

bool Engine::wait(Operation& op, double seconds) {
  if (!op.done()) {
    const auto start = Clock::now();
    const auto spent = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
    waiters_.fetch_add(1, std::memory_order_relaxed);
    Backoff backoff;
    while (!op.done() && (seconds < 0 || spent() < seconds)) {
      bool moved = false;
      {
        const std::scoped_lock lock(mutex_);
        moved = poll();
      }
      if (op.done()) break;
      if (moved) backoff = {};
      backoff.pause();
    }
    waiters_.fetch_sub(1, std::memory_order_relaxed);
    const double exposed = spent();
    const std::scoped_lock lock(mutex_);
    op.exposed_s_ += exposed;
    for (Counters* c : counters_of(*op.channel_)) c->exposed_s += exposed;
  }
  if (!op.done()) return false;
  rethrow(op);
  return true;
}

bool Engine::test(Operation& op) {
  if (!op.done()) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock.owns_lock()) poll();
  }
  if (!op.done()) return false;
  rethrow(op);
  return true;
}

void Engine::rethrow(Operation& op) {
  if (op.error_) std::rethrow_exception(op.error_);
}

void Engine::drain() noexcept {
  Backoff backoff;
  for (;;) {
    {
      const std::scoped_lock lock(mutex_);
      poll();
      if (active_.empty() && queued_ == 0) return;
    }
    backoff.pause();
  }
}

Statistics Engine::statistics(const Channel& channel) const {
  const std::scoped_lock lock(mutex_);
  return channel.counters.read(Clock::now());
}

Statistics Engine::statistics() const {
  const std::scoped_lock lock(mutex_);
  return total_.read(Clock::now());
}

Statistics Engine::statistics(Purpose purpose) const {
  const std::scoped_lock lock(mutex_);
  return by_purpose_[static_cast<int>(purpose)].read(Clock::now());
}

}  // namespace detail

Work::Work(std::shared_ptr<detail::Operation> operation) : operation_(std::move(operation)) {}

void Work::wait() const {
  if (!operation_) return;
  if (operation_->device) return operation_->device->wait();
  if (operation_->done()) return detail::Engine::rethrow(*operation_);
  detail::runtime().engine().wait(*operation_, -1);
}

bool Work::wait_host(double seconds) const {
  if (!operation_) return true;
  if (operation_->device) return operation_->device->wait_host(seconds);
  return detail::runtime().engine().wait(*operation_, seconds < 0 ? 0 : seconds);
}

bool Work::test() const {
  if (!operation_) return true;
  if (operation_->device) return operation_->device->wait_host(0);
  return detail::runtime().engine().test(*operation_);
}

Work::Clock::time_point Work::issued() const { return operation_ ? operation_->issued_ : Clock::time_point{}; }

std::optional<Work::Clock::time_point> Work::finished() const {
  if (!operation_) return Clock::time_point{};
  if (operation_->device) return operation_->device->finished();
  if (!operation_->done()) return std::nullopt;
  return operation_->finished_;
}

std::optional<double> Work::exposed_s() const {
  if (!operation_) return 0.0;
  if (operation_->device) return operation_->device->exposed_s();
  if (!operation_->done()) return std::nullopt;
  return operation_->exposed_s_;
}

}  // namespace apex::dist
