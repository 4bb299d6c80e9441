// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "launch.cuh"

// What softmax, cross entropy, activations and losses share. In 16 bits they are near the limit of instructions, not
// only of memory: there they are made of the fast ones, whose errors the elements' rounding hides.

namespace apex::kernels::cuda {

template <class N>
inline constexpr bool kFast = sizeof(N) == 2;

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

template <class N>
__device__ __forceinline__ compute_t<N> reciprocal_of(compute_t<N> x) {
  if constexpr (kFast<N>) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  } else {
    return compute_t<N>(1) / x;
  }
}

/// ln(x), in 16 bits within 2e-7 or 2e-7 |ln(x)|. Elements of bf16 may be subnormal numbers of f32, others may not.
template <class N, bool kSubnormal = !std::is_same_v<N, __half>>
__device__ __forceinline__ compute_t<N> log_of(compute_t<N> x) {
  if constexpr (kFast<N>) {
    float power;
    if constexpr (kSubnormal)
      asm("lg2.approx.f32 %0, %1;" : "=f"(power) : "f"(x));
    else
      asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power * 0.693147181f;
  } else {
    return log(x);
  }
}

/// ln(1 + z) of z in [0, 1]. In 16 bits z P(z), P an interpolation in Chebyshev points, within 2e-6 of itself.
template <class N>
__device__ __forceinline__ compute_t<N> log1p_of_unit(compute_t<N> z) {
  if constexpr (kFast<N>) {
    float p = 0.0138744845f;
    p = p * z - 0.0655903064f;
    p = p * z + 0.148294134f;
    p = p * z - 0.234545201f;
    p = p * z + 0.330975258f;
    p = p * z - 0.499858994f;
    p = p * z + 0.999998574f;
    return p * z;
  } else {
    return log1p(z);
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
