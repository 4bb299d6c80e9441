// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstdint>

namespace apex::simd {

/// Sums are formed in 16 independent lanes, element i in lane i mod 16, and the lanes are added in a fixed tree. The
/// order does not depend on the instruction set, so every machine gets the same bits, and the loop vectorises (a plain
/// serial sum may not be reordered by the compiler and does not).
inline constexpr int kLanes = 16;

template <class A>
struct Lanes {
  A v[kLanes] = {};

  void add(const Lanes& other) {
    for (int l = 0; l < kLanes; ++l) v[l] += other.v[l];
  }
  /// ((0+8)+(4+12)) + ... : halves folded onto each other until one is left.
  A total() const {
    A t[kLanes];
    for (int l = 0; l < kLanes; ++l) t[l] = v[l];
    for (int width = kLanes / 2; width > 0; width /= 2)
      for (int l = 0; l < width; ++l) t[l] += t[l + width];
    return t[0];
  }
};

/// Sum of term(i) for i in [0, n).
template <class A, class Term>
A sum(std::int64_t n, Term&& term) {
  Lanes<A> lanes;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int l = 0; l < kLanes; ++l) lanes.v[l] += term(i + l);
  for (int l = 0; i + l < n; ++l) lanes.v[l] += term(i + l);
  return lanes.total();
}

/// Largest of term(i), NaN if any is NaN; `lowest` for n == 0.
template <class A, class Term>
A max(std::int64_t n, A lowest, Term&& term) {
  A lanes[kLanes];
  for (auto& lane : lanes) lane = lowest;
  const auto take = [](A a, A b) { return (b > a) | (b != b) ? b : a; };  // a NaN already held stays: no b is > NaN
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int l = 0; l < kLanes; ++l) lanes[l] = take(lanes[l], term(i + l));
  for (int l = 0; i + l < n; ++l) lanes[l] = take(lanes[l], term(i + l));
  A best = lanes[0];
  for (int l = 1; l < kLanes; ++l) best = take(best, lanes[l]);
  return best;
}

/// [begin, end) of part `part` of `parts` nearly equal parts of n: the static split every parallel loop uses, so a sum
/// over parts is the same for the same thread count.
struct Range {
  std::int64_t begin, end;
};
inline Range split(std::int64_t n, int part, int parts) {
  const std::int64_t base = n / parts, extra = n % parts;
  const std::int64_t begin = part * base + std::min<std::int64_t>(part, extra);
  return {begin, begin + base + (part < extra ? 1 : 0)};
}

}  // namespace apex::simd
