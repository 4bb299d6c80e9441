// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace apex::dist {

/// Running totals since the Session began; subtract two readings to measure an interval. Seconds of wall clock.
///
/// On CUDA the times are taken by events on the device and counted once it has passed them: a reading lags behind what
/// was issued by as much as the device does, and never waits for it. Collectives inside a captured graph count once, as
/// issued, and their times are not known. Of those that run in the caller's stream (ProcessGroup::in_stream) one in
/// 31 is timed, the first one first; it counts for the untimed ones before it too, by bytes, and all of it as
/// exposed.
struct Statistics {
  std::int64_t collectives = 0;  ///< issued
  std::int64_t bytes = 0;        ///< of the tensors handed in, on this rank
  double busy_s = 0;             ///< time in which at least one collective was in flight
  double exposed_s = 0;          ///< time in which a caller (on CUDA: its stream) stood still and waited for one
  /// Communication that ran behind other work.
  double hidden_s() const noexcept { return busy_s > exposed_s ? busy_s - exposed_s : 0; }
};

}  // namespace apex::dist
