// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <omp.h>

#include <cstdint>

#include "apex/core/simd.hpp"

namespace apex::kernels::cpu {

/// Elements below which a second thread costs more than it saves.
inline constexpr std::int64_t kGrain = 16384;

/// One thread or all of them: a team that changes its size between calls makes the runtime end and start threads.
inline int threads_for(std::int64_t elements) {
  return elements < 2 * kGrain || omp_in_parallel() ? 1 : omp_get_max_threads();
}

/// Calls f(begin, end) on static parts of [0, n). `elements` is the work of one item. f must not throw.
template <class F>
void parallel_ranges(std::int64_t n, std::int64_t elements, F&& f) {
  if (n <= 0) return;
  const int threads = threads_for(n * elements);
  if (threads == 1) return f(std::int64_t{0}, n);
#pragma omp parallel num_threads(threads)
  {
    const auto part = simd::split(n, omp_get_thread_num(), omp_get_num_threads());
    if (part.begin < part.end) f(part.begin, part.end);
  }
}

/// Calls f(i) for every i in [0, n), in static parts.
template <class F>
void parallel_for(std::int64_t n, std::int64_t elements, F&& f) {
  parallel_ranges(n, elements, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) f(i);
  });
}

}  // namespace apex::kernels::cpu
