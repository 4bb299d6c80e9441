// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <memory>
#include <optional>

namespace apex::dist {

namespace detail {
class Operation;
}

/// A collective that was issued: a shared handle. The tensors it works on are kept alive until it is complete; until
/// then they must be neither read nor written. Dropping the handle does not cancel anything.
///
/// On CUDA it runs on a stream of its channel's own, after what was queued on the current stream when it was issued; or
/// on the current stream itself (ProcessGroup::in_stream).
/// Issued while the current stream is captured into a graph it becomes a part of that graph: wait() for it before the
/// capture ends (that joins the streams); wait_host() and test() throw Kind::state then, finished() stays unset.
class Work {
 public:
  using Clock = std::chrono::steady_clock;

  /// Complete from the start.
  Work() = default;
  explicit Work(std::shared_ptr<detail::Operation> operation);

  /// Makes the current stream wait until the result is there. For CPU tensors that is the calling thread. The time that
  /// the thread (the stream) stands still is counted as exposed communication.
  /// @throws Kind::communication when the transport failed. A peer that never comes ends the job (see SessionOptions).
  void wait() const;

  /// Makes the calling thread wait, at most `seconds`. @returns whether the collective is complete. @throws as wait()
  bool wait_host(double seconds) const;

  /// Whether the collective is complete; never blocks, and moves it forward where there is no progress thread.
  /// @throws as wait()
  bool test() const;

  /// When it was handed over, and when its completion was seen (unset while in flight). On CUDA the latter is the time
  /// at which the device finished it (in_stream: at which it had finished the few that were issued together).
  Clock::time_point issued() const;
  std::optional<Clock::time_point> finished() const;
  /// Seconds that wait() made the thread (on CUDA: the stream) stand still; unset until they are known, and for good
  /// inside a graph. In_stream it is the collective's own time, known of one in 31. Never waits.
  std::optional<double> exposed_s() const;

 private:
  std::shared_ptr<detail::Operation> operation_;
};

}  // namespace apex::dist
