// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string_view>

namespace apex::dist {

/// Puts a limit on a stretch of code that waits for others where apex cannot look inside: collective file access, a
/// foreign MPI call. If the scope is still open when the limit has passed, the watchdog prints `what` and ends the job
/// with exit code 7. Without a Session it does nothing. Suspended time (SIGSTOP) does not count.
class Deadline {
 public:
  /// @param seconds  <= 0 takes the Session's timeout_s
  explicit Deadline(std::string_view what, double seconds = 0);
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;
  ~Deadline();

 private:
  std::uint64_t id_ = 0;
};

}  // namespace apex::dist
