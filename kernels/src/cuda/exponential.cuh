// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "launch.cuh"

// What softmax and cross entropy share. Both are near the limit of instructions, not only of memory, in 16 bits.

namespace apex::kernels::cuda {

/// e^x. The rounding of 16-bit elements hides the fast instruction's error (a few 2^-23 of the exponent); what it
/// flushes to zero, below 2^-126, counts for nothing beside a sum of at least 1.
template <class N>
__device__ __forceinline__ compute_t<N> exp_of(compute_t<N> x) {
  if constexpr (std::is_same_v<N, double>) {
    return exp(x);
  } else if constexpr (std::is_same_v<N, float>) {
    return expf(x);
  } else {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
    return power;
  }
}

/// The largest element; NaN only when all are. 16-bit elements are compared in pairs.
template <class N, int V>
__device__ __forceinline__ compute_t<N> largest_of(const Pack<N, V>& pack) {
  if constexpr (sizeof(N) == 2) {
    static_assert(V % 2 == 0);
    using Pair = std::conditional_t<std::is_same_v<N, __half>, __half2, __nv_bfloat162>;
    Pair top(pack.v[0], pack.v[1]);
#pragma unroll
    for (int v = 2; v < V; v += 2) top = __hmax2(top, Pair(pack.v[v], pack.v[v + 1]));
    return load(__hmax(top.x, top.y));
  } else {
    compute_t<N> top = pack.v[0];
#pragma unroll
    for (int v = 1; v < V; ++v) top = max(top, pack.v[v]);
    return top;
  }
}

}  // namespace apex::kernels::cuda
