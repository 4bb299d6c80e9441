// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/train/meters.hpp"

#include <algorithm>
#include <cmath>

namespace apex::train {

std::int64_t count_top_k(const Tensor& logits, const Tensor& labels, std::int64_t k, std::int64_t rows) {
  if (logits.dim() != 2 || labels.dim() != 1 || logits.size(0) != labels.size(0) || labels.dtype() != DType::i64)
    fail(Kind::argument, concat("count_top_k: logits ", logits.sizes(), " and labels ", labels.sizes(), " of ",
                                labels.dtype(), " do not belong together"));
  if (rows < 0 || rows > logits.size(0))
    fail(Kind::argument, concat("count_top_k: ", rows, " rows of ", logits.size(0)));
  const std::int64_t classes = logits.size(1);
  return visit_floating(logits.dtype(), "count_top_k", [&]<class T>() {
    std::int64_t hits = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* row = logits.data<T>() + r * logits.strides()[0];
      const std::int64_t label = labels.data<std::int64_t>()[r * labels.strides()[0]];
      if (label < 0 || label >= classes) continue;
      const auto at = [&](std::int64_t c) { return static_cast<double>(row[c * logits.strides()[1]]); };
      const double own = at(label);
      if (std::isnan(own)) {  // it may not win by being unordered
        continue;
      }
      std::int64_t ahead = 0;
      for (std::int64_t c = 0; c < classes && ahead < k; ++c) {
        const double other = at(c);
        ahead += c != label && (other > own || std::isnan(other) || (other == own && c < label));
      }
      hits += ahead < k;
    }
    return hits;
  });
}

PhaseClock::PhaseClock(std::function<double()> waited)
    : waited_(std::move(waited)), waited_before_(waited_()), since_(Clock::now()) {}

PhaseClock::Split& PhaseClock::Split::operator+=(const Split& other) {
  for (int p = 0; p < kPhases; ++p) seconds[p] += other.seconds[p];
  return *this;
}

void PhaseClock::settle() {
  const auto now = Clock::now();
  const double passed = std::chrono::duration<double>(now - since_).count();
  const double waited = waited_();
  const double blocked = std::clamp(waited - waited_before_, 0.0, passed);
  split_.seconds[static_cast<int>(phase_)] += passed - blocked;
  split_.seconds[static_cast<int>(Phase::communication)] += blocked;
  since_ = now;
  waited_before_ = waited;
}

void PhaseClock::enter(Phase phase) {
  settle();
  phase_ = phase;
}

PhaseClock::Split PhaseClock::take() {
  settle();
  const Split out = split_;
  split_ = Split();
  return out;
}

}  // namespace apex::train
