// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <utility>

#include "elementwise.cuh"

// Sorting by unsigned keys: a value becomes a number that is smaller where the value comes earlier, so that one sort
// serves every type and both directions.

namespace apex::kernels::cuda {

template <class N>
using sort_key_t = std::conditional_t<(sizeof(compute_t<N>) > 4), std::uint64_t, std::uint32_t>;

__device__ __forceinline__ std::uint32_t bits_of(float value) { return __float_as_uint(value); }
__device__ __forceinline__ std::uint64_t bits_of(double value) {
  return static_cast<std::uint64_t>(__double_as_longlong(value));
}

/// Smaller values get smaller keys, equal values (0 and -0) equal ones, NaN the largest of all.
template <class N>
__device__ __forceinline__ sort_key_t<N> key_of(N element) {
  using K = sort_key_t<N>;
  using C = compute_t<N>;
  constexpr K kSign = K(1) << (8 * sizeof(K) - 1);
  const C value = load(element);
  if constexpr (std::is_floating_point_v<C>) {
    if (value != value) return ~K(0);
    const K bits = bits_of(value == C(0) ? C(0) : value);
    return bits & kSign ? ~bits : bits | kSign;
  } else if constexpr (std::is_signed_v<C>) {
    return static_cast<K>(value) ^ kSign;
  } else {
    return static_cast<K>(value);
  }
}

/// Lines of keys side by side in memory and, after the sort, the place each came from.
template <class K>
struct SortedLines {
  const K* keys;
  const std::uint32_t* places;
};

/// Elements that sort_lines needs twice over, for keys and for places.
inline std::size_t sort_bytes(std::int64_t lines, std::int64_t length, std::size_t key_bytes) {
  return 2 * static_cast<std::size_t>(lines * length) * (key_bytes + sizeof(std::uint32_t));
}

/// Sorts each of `lines` lines of `length` keys, smallest first, equal ones in the order of their places. `memory`
/// holds sort_bytes() and begins with the keys; the result lies in it. length < 2^31.
template <class K>
SortedLines<K> sort_lines(const Context& ctx, void* memory, std::int64_t lines, std::int64_t length);
extern template SortedLines<std::uint32_t> sort_lines(const Context&, void*, std::int64_t, std::int64_t);
extern template SortedLines<std::uint64_t> sort_lines(const Context&, void*, std::int64_t, std::int64_t);

/// Places are 32 bits wide.
inline void check_sortable(const char* op, std::int64_t length) {
  if (length >= std::int64_t{1} << 31)
    fail(Kind::unsupported, concat(op, ": a dimension of ", length, " elements; on CUDA it must be below 2^31"));
}

}  // namespace apex::kernels::cuda
