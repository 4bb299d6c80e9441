// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "multi_tensor_step.cuh"

// Sums of squares and largest magnitudes of tensors: a block measures one chunk, a second kernel adds up the chunks of
// each tensor with a block for each. All of it in an order that sizes alone decide.

namespace apex::kernels::cuda::multi_tensor {

constexpr int kReduceThreads = 512;

__device__ __forceinline__ double larger(double a, double b) { return b > a || isnan(b) ? b : a; }

/// Sum or maximum (NaN wins) over the block; every thread gets it. All threads must call.
template <int kBlockThreads>
__device__ __forceinline__ double block_reduce(double value, bool largest) {
  if (!largest) return block_sum<kBlockThreads>(value);
  __shared__ double partial[kBlockThreads / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = larger(value, __shfl_xor_sync(0xffffffffu, value, offset));
  __syncthreads();
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  double best = 0;
#pragma unroll
  for (int w = 0; w < kBlockThreads / 32; ++w) best = larger(best, partial[w]);
  return best;
}

/// What the chunks of tensor i of the table come to, K values each, by this block; every thread gets them.
template <int K>
struct Reduced {
  double value[K] = {};
};
template <int K, int kLists>
__device__ __forceinline__ Reduced<K> reduce_chunks(const Table<kLists>& table, int i, const double* chunks,
                                                    bool largest) {
  Reduced<K> own;
#pragma unroll 4
  for (unsigned at = table.start[i] + threadIdx.x; at < table.start[i + 1]; at += kReduceThreads) {
    const auto read = fetch<K, double>(chunks, std::int64_t{at} * K);
#pragma unroll
    for (int k = 0; k < K; ++k) own.value[k] = largest ? larger(own.value[k], read.v[k]) : own.value[k] + read.v[k];
  }
#pragma unroll
  for (int k = 0; k < K; ++k) own.value[k] = block_reduce<kReduceThreads>(own.value[k], largest);
  return own;
}

/// Measures x * scale; where there is an output, stores x * out_scale.
template <class C, class N>
struct Measure {
  OnDevice device;  // what may stop it and the scale
  C scale, out_scale;
  DType type, out_type;
  bool largest;
  bool writes;  // the second list is the output
  double* chunks;
  std::int32_t* flag = nullptr;  // raised by a non-finite output
  const void* in = nullptr;
  void* out = nullptr;
  C sum = C(0);
  bool bad = false;

  template <int E>
  struct Item {
    Held<N, E> x;
  };

  __device__ __forceinline__ bool begin(const Table<2>& table, int i) {
    if (device.stops()) return false;
    if (device.inv_scale != nullptr) scale *= static_cast<C>(*device.inv_scale);
    in = table.data[0][i];
    if (writes) out = table.data[1][i];
    return true;
  }
  template <int E>
  __device__ __forceinline__ void fetch(Item<E>& item, std::int64_t at) const {
    item.x.fetch(in, at, type);
  }
  template <int E>
  __device__ __forceinline__ void use(Item<E>& item, std::int64_t at) {
    C values[E];
#pragma unroll
    for (int e = 0; e < E; ++e) {
      const C x = item.x.template get<C>(e, type), v = x * scale;
      if (largest) {
        const C size = optimizer::magnitude(v);
        sum = size > sum || isnan(size) ? size : sum;
      } else {
        sum = fma(v, v, sum);
      }
      values[e] = x * out_scale;
    }
    if (out == nullptr) return;
    put_any<void>(values, out, at, out_type);
#pragma unroll
    for (int e = 0; e < E; ++e) bad = bad || !isfinite(as_stored(values[e]));
  }
  __device__ __forceinline__ C as_stored(C value) const {
    switch (out_type) {
      case DType::f16: return static_cast<C>(load(store<__half>(value)));
      case DType::bf16: return static_cast<C>(load(store<__nv_bfloat16>(value)));
      default: return value;
    }
  }
  __device__ __forceinline__ void finish() const {
    double total = block_reduce<kThreads>(static_cast<double>(sum), largest);
    if (bad && flag != nullptr) *flag = 1;
    if (threadIdx.x != 0) return;
    if (!isfinite(static_cast<C>(total))) total = static_cast<double>(static_cast<C>(total));
    chunks[blockIdx.x] = total;
  }
};

}  // namespace apex::kernels::cuda::multi_tensor
