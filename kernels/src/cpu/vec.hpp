// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstring>

#include "apex/core/simd.hpp"
#include "convert.hpp"

namespace apex::kernels::cpu {

/// A group of elements in registers. Local arrays updated in loops tend to end up on the stack; these do not.
/// Operators and `condition ? a : b` work element by element.
template <class A>
struct VectorOps {
  typedef A Value __attribute__((vector_size(32)));
  static constexpr std::int64_t width = 32 / static_cast<std::int64_t>(sizeof(A));

  template <class T>
  static Value load(const T* from) {
    Value v;
    if constexpr (std::is_same_v<T, A>) {
      std::memcpy(&v, from, sizeof v);
#if APEX_HALVES_BY_8
    } else if constexpr (is_half_type<T> && std::is_same_v<A, float>) {
      const __m256 wide = widen_8(from);
      std::memcpy(&v, &wide, sizeof v);
#endif
    } else {
      A wide[width];
      load_block(wide, from, 1, width);
      std::memcpy(&v, wide, sizeof v);
    }
    return v;
  }
  template <class T>
  static void store(T* to, Value v) {
    if constexpr (std::is_same_v<T, A>) {
      std::memcpy(to, &v, sizeof v);
#if APEX_HALVES_BY_8
    } else if constexpr (is_half_type<T> && std::is_same_v<A, float>) {
      __m256 wide;
      std::memcpy(&wide, &v, sizeof v);
      narrow_8(to, wide);
#endif
    } else {
      A wide[width];
      std::memcpy(wide, &v, sizeof v);
      store_block(to, 1, wide, width);
    }
  }
  static Value spread(A a) { return a - Value{}; }
  /// The lanes in a fixed tree.
  static A total(Value v) {
    A lane[width];
    std::memcpy(lane, &v, sizeof v);
    for (std::int64_t half = width / 2; half > 0; half /= 2)
      for (std::int64_t l = 0; l < half; ++l) lane[l] += lane[l + half];
    return lane[0];
  }
};

/// Halves of a register onto each other until one lane is left: the order of simd::Lanes::total, for 8 lanes.
template <class Take>
float fold_8(VectorOps<float>::Value v, Take&& take) {
  v = take(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 4, 5, 6, 7));
  v = take(v, __builtin_shufflevector(v, v, 2, 3, 2, 3, 2, 3, 2, 3));
  v = take(v, __builtin_shufflevector(v, v, 1, 1, 1, 1, 1, 1, 1, 1));
  return v[0];
}

/// simd::sum of x[0, n), to the bit.
inline float lane_sum(const float* x, std::int64_t n) {
  using V = VectorOps<float>;
  V::Value low{}, high{};
  const auto add = [&](const float* from) {
    low += V::load(from);
    high += V::load(from + V::width);
  };
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) add(x + i);
  if (i < n) {
    float rest[16] = {};
    for (std::int64_t l = 0; i + l < n; ++l) rest[l] = x[i + l];
    add(rest);
  }
  return fold_8(low + high, [](V::Value a, V::Value b) { return a + b; });
}
inline double lane_sum(const double* x, std::int64_t n) {
  return simd::sum<double>(n, [x](std::int64_t i) { return x[i]; });
}

/// The same for one element: what is left at the end of a row.
template <class A>
struct ScalarOps {
  using Value = A;
  static constexpr std::int64_t width = 1;

  template <class T>
  static Value load(const T* from) {
    return convert<A>(*from);
  }
  template <class T>
  static void store(T* to, Value v) {
    *to = convert<T>(v);
  }
  static Value spread(A a) { return a; }
  static A total(Value v) { return v; }
};

/// Calls f.operator()<Ops>(at) for positions that cover [begin, end): vectors, then single elements.
template <class A, class F>
void for_each_vector(std::int64_t begin, std::int64_t end, F&& f) {
  using V = VectorOps<A>;
  std::int64_t at = begin;
  for (; at + V::width <= end; at += V::width) f.template operator()<V>(at);
  for (; at < end; ++at) f.template operator()<ScalarOps<A>>(at);
}

}  // namespace apex::kernels::cpu
