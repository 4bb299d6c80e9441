// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "commands.hpp"

namespace apex::checkpoint_tools {
namespace {

/// |a - b| without overflow: 64-bit integers are too large for a double.
template <class T>
double gap(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
    return static_cast<double>(a > b ? x - y : y - x);
  } else {
    const auto x = static_cast<double>(a), y = static_cast<double>(b);
    if (x == y || (std::isnan(x) && std::isnan(y))) return 0;
    const double difference = std::abs(x - y);
    return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
  }
}

}  // namespace

Statistics statistics(const Tensor& t) {
  Statistics s;
  double sum = 0;
  visit_any(t.dtype(), "statistics", [&]<class T>() {
    const T* values = static_cast<const T*>(t.raw_data());  // read() gives dense tensors
    for (std::int64_t i = 0; i < t.numel(); ++i) {
      const auto v = static_cast<double>(values[i]);
      if (!std::isfinite(v)) {
        ++s.not_finite;
        continue;
      }
      s.min = s.finite == 0 ? v : std::min(s.min, v);
      s.max = s.finite == 0 ? v : std::max(s.max, v);
      sum += v;
      ++s.finite;
    }
  });
  if (s.finite > 0) s.mean = sum / static_cast<double>(s.finite);
  return s;
}

Distance distance(const Tensor& a, const Tensor& b, double atol, double rtol) {
  Distance d;
  visit_any(a.dtype(), "distance", [&]<class T>() {
    const T *x = static_cast<const T*>(a.raw_data()), *y = static_cast<const T*>(b.raw_data());
    for (std::int64_t i = 0; i < a.numel(); ++i) {
      const double difference = gap(x[i], y[i]);
      if (difference == 0) continue;
      ++d.unequal;
      d.largest = std::max(d.largest, difference);
      const double reference = std::abs(static_cast<double>(y[i]));
      // Written so that an infinite or undefined bound lets nothing pass.
      if (!(difference <= atol + rtol * reference) || !std::isfinite(difference)) ++d.outside;
    }
  });
  return d;
}

}  // namespace apex::checkpoint_tools
