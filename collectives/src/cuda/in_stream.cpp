// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "in_stream.hpp"

#include <algorithm>

#include "device_works.hpp"
#include "relaxed_capture.hpp"

namespace apex::dist::detail {

using Clock = Work::Clock;

namespace {

constexpr auto kOpen = std::chrono::milliseconds(20);  // how long a batch waits for its next collective

}  // namespace

unsigned long long capture_of(const Context& ctx) {
  auto status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  APEX_CHECK(cudaStreamGetCaptureInfo(cuda::stream_of(ctx), &status, &id));
  return status == cudaStreamCaptureStatusNone ? 0 : id;
}

InStreamWork::InStreamWork(WorkList& list, const Context& ctx, std::shared_ptr<Batch> batch, bool timed)
    : list_(list), ctx_(ctx), batch_(std::move(batch)), timed_(timed) {}

void InStreamWork::wait() {
  const Context ctx = Context::current(ctx_.device);
  if (!batch_) {
    if (!cuda::capturing(ctx))
      fail(Kind::state, "a collective that was captured into a graph was waited for outside of the capture");
    return cuda::order(ctx_, ctx);
  }
  if (batch_->passed) return;
  list_.hold_if_ending();
  if (ctx.stream == ctx_.stream) return;
  if (!cuda::capturing(ctx)) return list_.order_after(*batch_, ctx);
  if (!list_.look(*batch_))
    fail(Kind::state, "a collective that was issued before a capture must be waited for before it");
}

bool InStreamWork::wait_host(double seconds) {
  if (!batch_) fail(Kind::state, "a collective that was captured into a graph cannot be asked for by the host");
  const auto begin = Clock::now();
  Backoff backoff;
  while (!batch_->passed) {
    list_.hold_if_ending();
    if (list_.look(*batch_)) break;
    if (std::chrono::duration<double>(Clock::now() - begin).count() >= seconds) return false;
    backoff.pause();
  }
  return true;
}

std::optional<Clock::time_point> InStreamWork::finished() {
  if (!batch_ || !(batch_->passed || list_.look(*batch_))) return std::nullopt;
  return batch_->finished;
}

std::optional<double> InStreamWork::exposed_s() {
  if (!timed_ || !(batch_->passed || list_.look(*batch_))) return std::nullopt;
  return batch_->timed_s;
}

void Tail::order(WorkList& list, const Context& ctx, const Context& before, unsigned long long capture) const {
  if (!used_ || capture_ != capture || ctx_.stream == ctx.stream || ctx_.stream == before.stream) return;
  if (batch_)
    list.order_after(*batch_, ctx);
  else
    cuda::order(ctx_, ctx);
}

void Tail::set(const Context& ctx, unsigned long long capture, std::shared_ptr<Batch> batch) {
  used_ = true;
  ctx_ = ctx;
  capture_ = capture;
  batch_ = std::move(batch);
}

std::shared_ptr<DeviceWork> WorkList::post_in_stream(Channel& channel, Lane& lane, const Context& ctx,
                                                     std::int64_t bytes, Watchdog::Id watch,
                                                     const std::function<void()>& post, Tail& tail) {
  const bool timed = lane.until_timed == 0;
  std::shared_ptr<Batch> batch;
  std::optional<cuda::Event> start, end;
  if (timed) {
    start.emplace(take_event());
    end.emplace(take_event());
  }
  {
    const std::scoped_lock lock(mutex_);
    if (!lane.open || lane.open->closed || lane.open->ctx.stream != ctx.stream) {
      lane.open = std::make_shared<Batch>(channel, ctx);
      batches_.push_back(lane.open);
    }
    batch = lane.open;
    batch->posting = true;  // nobody marks its end meanwhile: it might come to lie before this one
  }
  try {
    if (timed) start->record(ctx);
    post();
    if (timed) end->record(ctx);
  } catch (...) {
    const std::scoped_lock lock(mutex_);
    batch->posting = false;
    if (batch->watches.empty()) {
      std::erase(batches_, batch);
      lane.open = nullptr;
    }
    throw;
  }
  const std::scoped_lock lock(mutex_);
  batch->posting = false;
  batch->watches.push_back(watch);
  if (timed) {
    batch->start = std::move(start);
    batch->end = std::move(end);
    batch->stands_for = static_cast<double>(lane.untimed_bytes + bytes) / static_cast<double>(bytes);
    batch->closed = true;
    lane.open = nullptr;
    lane.until_timed = Lane::kTimed;
    lane.untimed_bytes = 0;
  } else {
    lane.untimed_bytes += bytes;
  }
  --lane.until_timed;
  tail.set(ctx, 0, batch);
  return std::make_shared<InStreamWork>(*this, ctx, std::move(batch), timed);
}

/// Marks the end, unless that is done. Under the mutex. @returns false while it cannot be
bool WorkList::close(Batch& batch) {
  if (batch.closed) return true;
  if (batch.posting || cuda::capturing(batch.ctx)) return false;
  if (!batch.end) {
    if (events_.empty()) {
      batch.end.emplace(true);
    } else {
      batch.end = std::move(events_.back());
      events_.pop_back();
    }
  }
  batch.end->record(batch.ctx);
  // Where a capture began in between the mark is a part of it, and must not be asked for.
  batch.closed = !cuda::capturing(batch.ctx);
  return batch.closed;
}

/// Whether the device has passed its end. Under the mutex.
bool WorkList::reached(Batch& batch) {
  const auto status = cudaEventQuery(batch.end->get());
  if (status == cudaErrorCapturedEvent) {  // a capture began and ended around the mark: it is made again
    cudaGetLastError();
    batch.closed = false;
    return false;
  }
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  APEX_CHECK(status);
  return true;
}

void WorkList::order_after(Batch& batch, const Context& ctx) {
  Backoff backoff;
  for (;;) {
    {
      const std::scoped_lock lock(mutex_);
      if (batch.passed) return;
      if (close(batch)) return batch.end->block(ctx);
      if (!batch.posting)
        fail(Kind::state,
             "a stream is being captured with a collective still in it that another stream has to wait for: wait for "
             "it there before the capture begins");
    }
    backoff.pause();
  }
}

/// Its end has been passed. Under the mutex.
void WorkList::pass(Batch& batch) {
  if (batch.start) {
    batch.timed_s = batch.start->milliseconds_to(*batch.end) / 1e3;
    const double seconds = batch.timed_s * batch.stands_for;
    engine_.note_times(batch.channel, seconds, seconds);  // the stream can do nothing else meanwhile
    events_.push_back(std::move(*batch.start));
    batch.start.reset();
  }
  batch.finished = time_of(*batch.end);
  events_.push_back(std::move(*batch.end));
  batch.end.reset();
  for (const auto id : batch.watches) watchdog_.done(id);
  batch.watches.clear();
  batch.passed = true;
}

bool WorkList::look(Batch& batch) {
  const RelaxedCapture relaxed;
  const std::scoped_lock lock(mutex_);
  if (batch.passed) return true;
  if (!close(batch) || !reached(batch)) return false;
  pass(batch);
  std::erase_if(batches_, [&](const auto& other) { return other.get() == &batch; });
  return true;
}

/// Those that nobody asks for are marked when they have been open for a while. Under the mutex.
void WorkList::poll_batches(bool mark_all) {
  const auto old = Clock::now() - kOpen;
  std::erase_if(batches_, [&](const std::shared_ptr<Batch>& batch) {
    if (!batch->closed && !mark_all && batch->opened > old) return false;
    if (!close(*batch) || !reached(*batch)) return false;
    pass(*batch);
    return true;
  });
}

}  // namespace apex::dist::detail
