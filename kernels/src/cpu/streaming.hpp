// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "convert.hpp"

// Results past the cache. An ordinary store first reads the line that it writes to, which of three arrays' traffic is
// one; a store past the cache does not, but whoever reads the result next must fetch it from memory. So only loops over
// more data than a cache would have kept anyway write this way. The values are the same either way.

namespace apex::kernels::cpu {

inline constexpr std::int64_t kLineBytes = 64;
inline constexpr std::int64_t kAheadBytes = 2048;  ///< how far ahead of the loop its operands are fetched

/// Loops over more bytes than this, all operands taken together, write past the cache: half of the last-level cache.
/// Many cores share the large ones, so no more than 40 MiB of it: on two cores under 260 MiB, a producer and its
/// consumer were faster through the cache below that size and faster past it above. Tests set it.
inline std::atomic<std::int64_t>& streaming_bytes() {
  static std::atomic<std::int64_t> bytes{[] {
    constexpr std::int64_t kMost = std::int64_t{40} << 20;
#ifdef _SC_LEVEL3_CACHE_SIZE
    std::int64_t cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache <= 0) cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (cache > 0) return std::min(cache / 2, kMost);
#endif
    return kMost;
  }()};
  return bytes;
}

/// Whether rows of n elements of `out` are to be written past the cache in a loop that moves `bytes`. Short rows are
/// not: they would leave parts of lines.
template <class T>
bool streams(const T* out, std::int64_t n, std::int64_t bytes) {
  constexpr std::int64_t kShort = 4096;
  return bytes > streaming_bytes().load(std::memory_order_relaxed) &&
         n * static_cast<std::int64_t>(sizeof(T)) >= kShort && reinterpret_cast<std::uintptr_t>(out) % sizeof(T) == 0;
}

/// Elements from `out` to the next start of a line.
template <class T>
std::int64_t up_to_line(const T* out) {
  const auto over = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(out) % kLineBytes);
  return (over == 0 ? 0 : kLineBytes - over) / static_cast<std::int64_t>(sizeof(T));
}

/// Asks for what will be read kAheadBytes after x[0, n).
template <class T>
inline void fetch_ahead(const T* x, std::int64_t n) {
  const auto from = reinterpret_cast<std::uintptr_t>(x) + kAheadBytes;  // may lie past the array: no access, no fault
  for (std::int64_t b = 0; b < n * static_cast<std::int64_t>(sizeof(T)); b += kLineBytes)
    __builtin_prefetch(reinterpret_cast<const void*>(from + static_cast<std::uintptr_t>(b)));
}

/// After the last store past the cache, before another thread may be told that the results are there.
inline void end_streaming() {
#ifdef __AVX2__
  _mm_sfence();
#endif
}

/// dst[i] = src[i], converted; the whole lines past the cache where dst is the start of one.
template <class T, class C>
inline void stream_block(T* dst, const C* src, std::int64_t n) {
  std::int64_t i = 0;
#ifdef __AVX2__
  if (up_to_line(dst) == 0) {
    constexpr auto kLine = kLineBytes / static_cast<std::int64_t>(sizeof(T));
    if constexpr (std::is_same_v<T, C>) {
      for (; i + kLine <= n; i += kLine) {
        const auto* from = reinterpret_cast<const __m256i*>(src + i);
        auto* to = reinterpret_cast<__m256i*>(dst + i);
        const __m256i first = _mm256_loadu_si256(from), second = _mm256_loadu_si256(from + 1);
        _mm256_stream_si256(to, first);
        _mm256_stream_si256(to + 1, second);
      }
#if APEX_HALVES_BY_8
    } else if constexpr (is_half_type<T> && std::is_same_v<C, float>) {
      for (; i + kLine <= n; i += kLine) {
        auto* to = reinterpret_cast<__m256i*>(dst + i);
        const float* from = src + i;
        const __m256i first = narrowed_16<T>(_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8));
        const __m256i second = narrowed_16<T>(_mm256_loadu_ps(from + 16), _mm256_loadu_ps(from + 24));
        _mm256_stream_si256(to, first);
        _mm256_stream_si256(to + 1, second);
      }
#endif
    } else {
      alignas(kLineBytes) T line[kLine];
      for (; i + kLine <= n; i += kLine) {
        store_block(line, 1, src + i, kLine);
        const auto* from = reinterpret_cast<const __m256i*>(line);
        auto* to = reinterpret_cast<__m256i*>(dst + i);
        _mm256_stream_si256(to, _mm256_load_si256(from));
        _mm256_stream_si256(to + 1, _mm256_load_si256(from + 1));
      }
    }
  }
#endif
  store_block(dst + i, 1, src + i, n - i);
}

}  // namespace apex::kernels::cpu
