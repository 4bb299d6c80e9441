// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "multi_tensor.cuh"

// Elements of a list whose type the compiler knows (N) or that is looked at for each access (void), so that a mixture
// of types needs no kernel of its own. Bits are fetched first and converted when they are used: accesses still overlap.

namespace apex::kernels::cuda::multi_tensor {

template <class N, int E>
struct Held {
  Pack<N, E> x;

  __device__ __forceinline__ void fetch(const void* from, std::int64_t at, DType) {
    x = multi_tensor::fetch<E, N>(from, at);
  }
  template <class C>
  __device__ __forceinline__ C get(int e, DType) const {
    return static_cast<C>(load(x.v[e]));
  }
};

__device__ __forceinline__ float from_bits(unsigned bits, bool is_bf16) {
  return is_bf16 ? __uint_as_float(bits << 16) : __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

/// f32, f16 or bf16.
template <int E>
struct Held<void, E> {
  unsigned w[E];

  __device__ __forceinline__ void fetch(const void* from, std::int64_t at, DType dtype) {
    if (dtype == DType::f32) {
      const auto x = multi_tensor::fetch<E, unsigned>(from, at);
#pragma unroll
      for (int e = 0; e < E; ++e) w[e] = x.v[e];
    } else if constexpr (E == 1) {
      w[0] = static_cast<const unsigned short*>(from)[at];
    } else {
      const auto x = multi_tensor::fetch<E / 2, unsigned>(from, at / 2);
#pragma unroll
      for (int e = 0; e < E / 2; ++e) w[e] = x.v[e];
    }
  }
  template <class C>
  __device__ __forceinline__ C get(int e, DType dtype) const {
    if (dtype == DType::f32) return __uint_as_float(w[e]);
    return from_bits(E == 1 ? w[0] : (w[e / 2] >> (e % 2 * 16)) & 0xffffu, dtype == DType::bf16);
  }
};

template <class N, class C, int E>
__device__ __forceinline__ void put_as(const C (&values)[E], void* to, std::int64_t at) {
  Pack<N, E> out;
#pragma unroll
  for (int e = 0; e < E; ++e) out.v[e] = store<N>(values[e]);
  put<E, N>(to, at, out);
}

/// Stores E values, each rounded once. N: the type; void: see dtype.
template <class N, class C, int E>
__device__ __forceinline__ void put_any(const C (&values)[E], void* to, std::int64_t at, DType dtype) {
  if constexpr (!std::is_void_v<N>) {
    put_as<N>(values, to, at);
  } else {
    switch (dtype) {
      case DType::f64: return put_as<double>(values, to, at);
      case DType::f32: return put_as<float>(values, to, at);
      case DType::f16: return put_as<__half>(values, to, at);
      default: return put_as<__nv_bfloat16>(values, to, at);
    }
  }
}

/// Calls f with the compute type.
template <class F>
void with_compute_type(bool wide, F&& f) {
  wide ? f.template operator()<double>() : f.template operator()<float>();
}

template <class V>
const void* data_at(std::span<const V> list, std::size_t i) {
  return list.empty() ? nullptr : list[i].data;
}
template <class V>
DType dtype_of_list(std::span<const V> list) {
  return list.empty() ? DType::f32 : list[0].dtype;
}

}  // namespace apex::kernels::cuda::multi_tensor
