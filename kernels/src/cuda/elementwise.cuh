// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "apex/core/view.hpp"
#include "elementwise_index.hpp"
#include "launch.cuh"

// out = f(in...) element by element over any strides. One kernel moves 16-byte packs and is used whenever every operand
// is contiguous or constant along the innermost dimension; another, for operands that all lie alike, knows no strides
// at all; the last goes element by element.

namespace apex::kernels::cuda {

/// The native element type of an apex type, bool as it is.
template <class T>
native_t<T>* native(const View& v) {
  return static_cast<native_t<T>*>(v.data);
}
template <class T>
const native_t<T>* native(const ConstView& v) {
  return static_cast<const native_t<T>*>(v.data);
}

/// Calls f with an unsigned integer as wide as `dtype`: moving bytes does not care what they mean.
template <class F>
void visit_width(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 1: return f.template operator()<std::uint8_t>();
    case 2: return f.template operator()<std::uint16_t>();
    case 4: return f.template operator()<std::uint32_t>();
    default: return f.template operator()<std::uint64_t>();
  }
}

template <class N>
inline constexpr bool is_floating_native = std::is_floating_point_v<compute_t<N>>;

/// One element to another type, as kernels/copy.hpp says. 16-bit sources come as float.
template <class To, class From>
__host__ __device__ __forceinline__ To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else if constexpr (std::is_same_v<To, __half>) {
    return __float2half_rn(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, __nv_bfloat16>) {
    return __float2bfloat16_rn(static_cast<float>(value));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    using Limits = std::numeric_limits<To>;
    if (value != value) return To(0);
    if (value >= static_cast<From>(Limits::max())) return Limits::max();
    if (value <= static_cast<From>(Limits::min())) return Limits::min();
    return static_cast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

inline constexpr int kMapThreads = 256;
/// Packs of a thread where `inputs` lie alike.
template <std::size_t inputs>
inline constexpr int kAlikePacks = inputs == 1 ? 4 : 2;

/// V elements of each input.
template <int V, class... In>
struct Packs {};
template <int V, class First, class... Rest>
struct Packs<V, First, Rest...> {
  Pack<First, V> first;
  Packs<V, Rest...> rest;
};

template <int V, class In>
__device__ __forceinline__ Pack<In, V> read_pack(const In* at, std::int64_t stride) {
  Pack<In, V> p;
  if (V > 1 && stride == 0) {
    const In value = *at;
#pragma unroll
    for (int i = 0; i < V; ++i) p.v[i] = value;
  } else {
    p = *reinterpret_cast<const Pack<In, V>*>(at);
  }
  return p;
}

template <int V, int K, int N>
__device__ __forceinline__ Packs<V> read_packs(const Index<N>&, const typename Index<N>::Offsets&) {
  return {};
}
/// K is the operand of the first of these inputs.
template <int V, int K, int N, class First, class... Rest>
__device__ __forceinline__ Packs<V, First, Rest...> read_packs(const Index<N>& index,
                                                               const typename Index<N>::Offsets& at, const First* first,
                                                               const Rest*... rest) {
  return {read_pack<V>(first + at.v[K], index.stride[K][0]), read_packs<V, K + 1>(index, at, rest...)};
}

template <int V, class F, class... Done>
__device__ __forceinline__ auto call(const F& f, const Packs<V>&, int, Done... done) {
  return f(done...);
}
template <int V, class F, class First, class... Rest, class... Done>
__device__ __forceinline__ auto call(const F& f, const Packs<V, First, Rest...>& packs, int i, Done... done) {
  return call(f, packs.rest, i, done..., load(packs.first.v[i]));
}

/// A result to its place; what already has the type is not rounded again.
template <class Out, class R>
__device__ __forceinline__ Out finished(R value) {
  if constexpr (std::is_same_v<Out, R>)
    return value;
  else
    return store<Out>(value);
}

/// Two results side by side, each rounded once, in one instruction.
template <class N>
__device__ __forceinline__ void put_pair(N* to, float first, float second) {
  if constexpr (std::is_same_v<N, __half>) {
    const __half2 pair = __floats2half2_rn(first, second);
    to[0] = pair.x;
    to[1] = pair.y;
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    to[0] = pair.x;
    to[1] = pair.y;
  }
}

/// The results of V elements; 16-bit ones are rounded in pairs.
template <class Out, int V, class F, class... In>
__device__ __forceinline__ Pack<Out, V> results(const F& f, const Packs<V, In...>& packs) {
  using R = decltype(call(f, packs, 0));
  Pack<Out, V> result;
  if constexpr (V % 2 == 0 && sizeof(Out) == 2 && is_floating_native<Out> && std::is_same_v<R, float>) {
#pragma unroll
    for (int i = 0; i < V; i += 2) put_pair(&result.v[i], call(f, packs, i), call(f, packs, i + 1));
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) result.v[i] = finished<Out>(call(f, packs, i));
  }
  return result;
}

/// `index` counts packs of V; the last `rest` elements of a space of one dimension follow them.
template <int V, class F, class Out, class... In>
__global__ void __launch_bounds__(kMapThreads)
    map_kernel(F f, Index<1 + sizeof...(In)> index, int rest, bool past_cache, Out* out, const In*... in) {
  constexpr int kEach = V == 1 ? 4 : 2;
  constexpr int N = 1 + sizeof...(In);
  const std::int64_t first = std::int64_t{blockIdx.x} * (kMapThreads * kEach) + threadIdx.x;
  typename Index<N>::Offsets at[kEach];
  Packs<V, In...> packs[kEach];
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const std::int64_t p = first + u * kMapThreads;
    if (p >= index.numel) continue;
    at[u] = index.at(p);
    packs[u] = read_packs<V, 1>(index, at[u], in...);
  }
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    if (first + u * kMapThreads >= index.numel) continue;
    put_pack(out + at[u].v[0], results<Out>(f, packs[u]), past_cache);
  }
  if constexpr (V > 1) {
    if (blockIdx.x == 0 && threadIdx.x < rest) {
      const std::int64_t e = index.numel * V + threadIdx.x;
      typename Index<N>::Offsets o;
#pragma unroll
      for (int k = 0; k < N; ++k) o.v[k] = index.stride[k][0] == 0 ? 0 : e;
      out[o.v[0]] = finished<Out>(call(f, read_packs<1, 1>(index, o, in...), 0));
    }
  }
}

template <int V>
__device__ __forceinline__ Packs<V> read_alike(std::int64_t) {
  return {};
}
template <int V, class First, class... Rest>
__device__ __forceinline__ Packs<V, First, Rest...> read_alike(std::int64_t at, const First* first,
                                                               const Rest*... rest) {
  return {*reinterpret_cast<const Pack<First, V>*>(first + at), read_alike<V>(at, rest...)};
}

/// Operands that lie alike, in one piece: `packs` packs and then `rest` elements. Nothing is decided between the loads
/// of a thread, so that they are on their way together.
template <int V, class F, class Out, class... In>
__global__ void __launch_bounds__(kMapThreads)
    alike_kernel(F f, std::int64_t packs, int rest, bool past_cache, Out* out, const In*... in) {
  constexpr int kEach = kAlikePacks<sizeof...(In)>;
  const std::int64_t first = std::int64_t{blockIdx.x} * (kMapThreads * kEach) + threadIdx.x;
  Packs<V, In...> read[kEach];
#pragma unroll
  for (int u = 0; u < kEach; ++u)
    if (first + u * kMapThreads < packs) read[u] = read_alike<V>((first + u * kMapThreads) * V, in...);
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const std::int64_t p = first + u * kMapThreads;
    if (p >= packs) continue;
    put_pack(out + p * V, results<Out>(f, read[u]), past_cache);
  }
  if (blockIdx.x == 0 && static_cast<int>(threadIdx.x) < rest) {
    const std::int64_t e = packs * V + threadIdx.x;
    out[e] = finished<Out>(call(f, read_alike<1>(e, in...), 0));
  }
}

inline unsigned map_blocks(std::int64_t packs, int each) {
  return static_cast<unsigned>(std::max<std::int64_t>(1, ceil_div(packs, kMapThreads * each)));
}

/// out = f(in...) where all operands lie alike, at aligned addresses; else false, and nothing is done.
template <class F, class Out, class... In>
bool map_alike(const Context& ctx, const char* op, F f, const Index<1 + sizeof...(In)>& index, Out* out,
               const In*... in) {
  constexpr int N = 1 + sizeof...(In);
  constexpr int V = std::min({kVector<Out>, kVector<In>...});
  constexpr int kEach = kAlikePacks<sizeof...(In)>;
  if (index.rank != 1) return false;
  for (int k = 0; k < N; ++k)
    if (index.stride[k][0] != 1) return false;
  if (!packs<N>(index, V, {out, in...}, {sizeof(Out), sizeof(In)...})) return false;
  if (index.numel == 0) return true;
  const std::int64_t groups = index.numel / V;
  alike_kernel<V><<<map_blocks(groups, kEach), kMapThreads, 0, stream_of(ctx)>>>(
      f, groups, static_cast<int>(index.numel % V), past_cache(index.numel * static_cast<std::int64_t>(sizeof(Out))),
      out, in...);
  check_launch(op);
  return true;
}

/// out = f(in...) over any strides. `slow` does the same as f where elements are taken one by one.
template <class F, class Slow, class Out, class... In>
void map_strided(const Context& ctx, const char* op, F f, Slow slow, const Index<1 + sizeof...(In)>& index, Out* out,
                 const In*... in) {
  constexpr int N = 1 + sizeof...(In);
  constexpr int V = std::min({kVector<Out>, kVector<In>...});
  if (index.numel == 0) return;
  const bool past = past_cache(index.numel * static_cast<std::int64_t>(sizeof(Out)));
  if (packs<N>(index, V, {out, in...}, {sizeof(Out), sizeof(In)...})) {
    const auto groups = packed(index, V);
    const int rest = index.rank == 1 ? static_cast<int>(index.numel % V) : 0;
    map_kernel<V><<<map_blocks(groups.numel, 2), kMapThreads, 0, stream_of(ctx)>>>(f, groups, rest, past, out, in...);
  } else {
    map_kernel<1><<<map_blocks(index.numel, 4), kMapThreads, 0, stream_of(ctx)>>>(slow, index, 0, past, out, in...);
  }
  check_launch(op);
}

/// out = f(in...). `slow` does the same as f where elements are taken one by one: ops with many variants share one
/// kernel there.
template <class F, class Slow, class Out, class... In>
void map_or(const Context& ctx, const char* op, F f, Slow slow, const Index<1 + sizeof...(In)>& index, Out* out,
            const In*... in) {
  if (!map_alike(ctx, op, f, index, out, in...)) map_strided(ctx, op, f, slow, index, out, in...);
}

template <class F, class Out, class... In>
void map(const Context& ctx, const char* op, F f, const Index<1 + sizeof...(In)>& index, Out* out, const In*... in) {
  map_or(ctx, op, f, f, index, out, in...);
}

/// The space of an output and inputs that broadcast to it.
template <class... Inputs>
Index<1 + sizeof...(Inputs)> index_of(const View& out, const Inputs&... in) {
  return make_index<1 + sizeof...(Inputs)>(out.sizes,
                                           {out.strides, broadcast_strides(in.sizes, in.strides, out.sizes)...});
}

}  // namespace apex::kernels::cuda
