// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace apex::dist {

/// Running totals since the Session began; subtract two readings to measure an interval. Seconds of wall clock.
struct Statistics {
  std::int64_t collectives = 0;  ///< issued
  std::int64_t bytes = 0;        ///< of the tensors handed in, on this rank
  double busy_s = 0;             ///< time in which at least one collective was in flight
  double exposed_s = 0;          ///< time in which a caller stood still and waited for one
  /// Communication that ran behind other work.
  double hidden_s() const noexcept { return busy_s > exposed_s ? busy_s - exposed_s : 0; }
};

}  // namespace apex::dist
