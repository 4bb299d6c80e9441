// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "apex/core/cuda.hpp"
#include "apex/core/dtype.hpp"

// What every .cu file shares: native element types, conversions that round once, block sums of a fixed order.

namespace apex::kernels::cuda {

using apex::cuda::multiprocessors;
using apex::cuda::stream_of;

template <class T>
struct Native {
  using type = T;
};
template <>
struct Native<float16> {
  using type = __half;
};
template <>
struct Native<bfloat16> {
  using type = __nv_bfloat16;
};
/// The device's own type of an apex element type.
template <class T>
using native_t = typename Native<T>::type;

/// What elements are computed in: double for double, float for the narrower floating types, else the type itself.
template <class N>
struct Compute {
  using type = N;
};
template <>
struct Compute<__half> {
  using type = float;
};
template <>
struct Compute<__nv_bfloat16> {
  using type = float;
};
template <class N>
using compute_t = typename Compute<N>::type;

template <class N>
__device__ __forceinline__ compute_t<N> load(N value) {
  if constexpr (std::is_same_v<N, __half>)
    return __half2float(value);
  else if constexpr (std::is_same_v<N, __nv_bfloat16>)
    return __bfloat162float(value);
  else
    return value;
}

/// Rounds to nearest even, once.
template <class N, class A>
__device__ __forceinline__ N store(A value) {
  if constexpr (std::is_same_v<N, __half>)
    return __float2half_rn(static_cast<float>(value));
  else if constexpr (std::is_same_v<N, __nv_bfloat16>)
    return __float2bfloat16_rn(static_cast<float>(value));
  else
    return static_cast<N>(value);
}

/// V elements that travel in one access (16 bytes at most).
template <class N, int V>
struct alignas(sizeof(N) * V) Pack {
  N v[V];
};
template <class N>
inline constexpr int kVector = 16 / static_cast<int>(sizeof(N));

/// Whether so many bytes of results should go past the cache: their reader would not find the first of them there any
/// more, and lines that wait in it to be written hold up the reads of the pass that makes them.
inline bool past_cache(std::int64_t bytes) { return bytes > std::int64_t{32} << 20; }

template <class N, int V>
__device__ __forceinline__ void put_pack(N* to, const Pack<N, V>& values, bool past_cache) {
  if constexpr (sizeof(values) == 16) {
    if (past_cache) {
      __stcs(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4&>(values));
      return;
    }
  }
  *reinterpret_cast<Pack<N, V>*>(to) = values;
}

inline bool aligned_to(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Blocks of a grid-stride loop over `tasks` items of one thread each.
inline unsigned grid_for(std::int64_t tasks, int threads, int blocks_per_multiprocessor = 8) {
  const std::int64_t most = std::int64_t{multiprocessors()} * blocks_per_multiprocessor;
  return static_cast<unsigned>(std::clamp<std::int64_t>(ceil_div(tasks, threads), 1, most));
}

template <class A>
__device__ __forceinline__ A warp_sum(A value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

/// Sum over the block, in an order that depends on its size only; every thread gets it. All threads must call.
template <int kThreads, class A>
__device__ __forceinline__ A block_sum(A value) {
  static_assert(kThreads % 32 == 0);
  __shared__ A partial[kThreads / 32];
  value = warp_sum(value);
  __syncthreads();  // the array may still be read by an earlier call
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  A total{};
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) total += partial[w];
  return total;
}

inline void check_launch(const char* op) {
  const auto status = cudaGetLastError();
  if (status != cudaSuccess) check(status, op);
}

}  // namespace apex::kernels::cuda
