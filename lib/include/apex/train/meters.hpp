// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "apex/core/tensor.hpp"

namespace apex::train {

/// Last value and running mean, weighted by counts: avg = sum(val * n) / sum(n).
class Meter {
 public:
  void update(double value, double n = 1) {
    value_ = value;
    sum_ += value * n;
    count_ += n;
  }
  double value() const noexcept { return value_; }
  double average() const noexcept { return count_ > 0 ? sum_ / count_ : 0; }
  void reset() { *this = Meter(); }

 private:
  double value_ = 0, sum_ = 0, count_ = 0;
};

/// How many of the first `rows` rows have their label among the k largest outputs (k <= 0: none). Of equal outputs the
/// lower class comes first. A NaN counts as larger than every number.
/// @param logits [n, classes] floating, on the host   @param labels [n] i64
std::int64_t count_top_k(const Tensor& logits, const Tensor& labels, std::int64_t k, std::int64_t rows);

/// Where wall time goes. Every moment between start() and now belongs to exactly one phase: entering one ends the last.
/// Time that a counter reports as spent waiting for communication is taken from the phase it happened in.
enum class Phase { data_wait, compute, communication, other };
inline constexpr int kPhases = 4;

class PhaseClock {
 public:
  /// @param waited  seconds this thread has been blocked in communication so far, a counter that only grows
  explicit PhaseClock(std::function<double()> waited);

  void enter(Phase phase);
  /// Seconds of each phase since the last take(), and starts anew. Their sum is the time that passed.
  struct Split {
    double seconds[kPhases] = {};
    double operator[](Phase p) const { return seconds[static_cast<int>(p)]; }
    double total() const { return seconds[0] + seconds[1] + seconds[2] + seconds[3]; }
    Split& operator+=(const Split& other);
  };
  Split take();

 private:
  using Clock = std::chrono::steady_clock;
  void settle();

  std::function<double()> waited_;
  double waited_before_ = 0;
  Clock::time_point since_;
  Phase phase_ = Phase::other;
  Split split_;
};

}  // namespace apex::train
