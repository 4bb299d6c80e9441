// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "../reduce_impl.hpp"
#include "elementwise.cuh"

// The order in which argmax sees the elements of a line: larger first, NaN largest of all, earlier first among equals.
// It is total, so that the result does not depend on who looks at which element.

namespace apex::kernels::cuda {

inline constexpr int kSelectThreads = 256;

template <class C>
struct Candidate {
  C value;
  std::int64_t at;  // negative: none
};

template <class C>
__device__ __forceinline__ bool is_nan(C value) {
  return value != value;
}

/// a before b; both given.
template <class C>
__device__ __forceinline__ bool precedes(const Candidate<C>& a, const Candidate<C>& b) {
  if (a.value > b.value || (is_nan(a.value) && !is_nan(b.value))) return true;
  if (b.value > a.value || (is_nan(b.value) && !is_nan(a.value))) return false;
  return a.at < b.at;
}

template <class C>
__device__ __forceinline__ Candidate<C> first_of(const Candidate<C>& a, const Candidate<C>& b) {
  if (b.at < 0) return a;
  if (a.at < 0) return b;
  return precedes(a, b) ? a : b;
}

/// Over groups of a power of two of a warp's threads. All threads of the warp must call.
template <class C>
__device__ __forceinline__ Candidate<C> group_first(Candidate<C> c, int group) {
#pragma unroll
  for (int offset = group / 2; offset > 0; offset /= 2) {
    Candidate<C> other;
    other.value = __shfl_xor_sync(0xffffffffu, c.value, offset);
    other.at = __shfl_xor_sync(0xffffffffu, c.at, offset);
    c = first_of(c, other);
  }
  return c;
}

template <class C>
__device__ __forceinline__ Candidate<C> warp_first(Candidate<C> c) {
  return group_first(c, 32);
}

/// Over the block; every thread gets it. All threads must call.
template <class C>
__device__ __forceinline__ Candidate<C> block_first(Candidate<C> c) {
  __shared__ C values[kSelectThreads / 32];
  __shared__ std::int64_t indices[kSelectThreads / 32];
  c = warp_first(c);
  __syncthreads();  // the arrays may still be read by an earlier call
  if (threadIdx.x % 32 == 0) {
    values[threadIdx.x / 32] = c.value;
    indices[threadIdx.x / 32] = c.at;
  }
  __syncthreads();
  Candidate<C> best{values[0], indices[0]};
#pragma unroll
  for (int w = 1; w < kSelectThreads / 32; ++w) best = first_of(best, Candidate<C>{values[w], indices[w]});
  return best;
}

/// Calls f.operator()<T>() for every type; a boolean is read as the byte 0 or 1.
template <class F>
void visit_comparable(DType dtype, const char* op, F&& f) {
  if (is_floating(dtype)) return visit_floating(dtype, op, f);
  if (dtype == DType::i64) return f.template operator()<std::int64_t>();
  if (dtype == DType::i32) return f.template operator()<std::int32_t>();
  f.template operator()<std::uint8_t>();
}

}  // namespace apex::kernels::cuda
