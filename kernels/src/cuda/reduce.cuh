// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "../reduce_impl.hpp"
#include "elementwise.cuh"

// The dimensions of x fall into kept and reduced ones. Where terms lie along memory, a group of threads (a part of a
// warp, or a block) takes the terms of one output ("rows"); where outputs lie side by side, a thread takes a few
// neighbouring outputs and walks down their terms ("columns"). Few outputs of many terms are cut into parts whose
// results a second kernel combines. Groups, parts and the order within depend on sizes and strides only. Threads sum in
// the accumulation type, at most kChunk terms at a time, and all else is summed in f64.

namespace apex::kernels::cuda {

template <class C>
struct Sum {
  static constexpr ReduceOp kKind = ReduceOp::sum;
  using Merged = std::conditional_t<std::is_integral_v<C>, std::int64_t, double>;
  __device__ static C identity() { return C(0); }
  __device__ static C take(C a, C b) { return a + b; }
  __device__ static Merged merge(Merged a, Merged b) { return a + b; }
};
template <class C>
struct Max {
  static constexpr ReduceOp kKind = ReduceOp::max;
  using Merged = C;
  __device__ static C identity() {
    return std::is_integral_v<C> ? std::numeric_limits<C>::lowest() : -std::numeric_limits<C>::infinity();
  }
  __device__ static C take(C a, C b) { return b > a || b != b ? b : a; }  // a held NaN stays: nothing is greater
  __device__ static Merged merge(C a, C b) { return take(a, b); }
};
template <class C>
struct Min {
  static constexpr ReduceOp kKind = ReduceOp::min;
  using Merged = C;
  __device__ static C identity() {
    return std::is_integral_v<C> ? std::numeric_limits<C>::max() : std::numeric_limits<C>::infinity();
  }
  __device__ static C take(C a, C b) { return b < a || b != b ? b : a; }
  __device__ static Merged merge(C a, C b) { return take(a, b); }
};

inline constexpr int kReduceThreads = 256;
inline constexpr int kRowBlocks = 4, kColumnBlocks = 3;  // of a multiprocessor
inline constexpr int kAhead = 8;                         // packs of a thread that are on their way together
inline constexpr int kChunk = 512;                       // terms of a thread between two sums in f64
inline constexpr int kMostBlocks = 132 * kColumnBlocks * 2;
template <class N>
inline constexpr int kReduceVector = std::min(8, kVector<N>);
inline constexpr int kRowBytes = 16;  // of a pack along a row of bytes

/// Where results go: partial[output * parts + part] when the terms are cut into parts, else out.
template <class M>
struct Result {
  void* out;
  DType dtype;
  double divisor;
  M* partial;
  int parts;
};

template <class M>
__device__ void write_result(const Result<M>& r, std::int64_t at, M total) {
  if constexpr (std::is_integral_v<M>) {
    switch (r.dtype) {
      case DType::i64: static_cast<std::int64_t*>(r.out)[at] = total; break;
      case DType::i32: static_cast<std::int32_t*>(r.out)[at] = static_cast<std::int32_t>(total); break;
      default: static_cast<std::uint8_t*>(r.out)[at] = static_cast<std::uint8_t>(total);
    }
  } else {
    const double value = static_cast<double>(total) / r.divisor;
    switch (r.dtype) {
      case DType::f64: static_cast<double*>(r.out)[at] = value; break;
      case DType::f32: static_cast<float*>(r.out)[at] = static_cast<float>(value); break;
      case DType::f16: static_cast<__half*>(r.out)[at] = convert<__half>(value); break;
      default: static_cast<__nv_bfloat16*>(r.out)[at] = convert<__nv_bfloat16>(value);
    }
  }
}

/// V accumulators of a thread for one output, emptied into f64 now and then: first into each other, two by two.
template <class R, class C, int V>
struct Accumulator {
  C held[V];
  typename R::Merged total = R::identity();
  int count = 0;

  __device__ __forceinline__ Accumulator() { clear(); }
  template <class N>
  __device__ __forceinline__ void take(const Pack<N, V>& pack) {
#pragma unroll
    for (int i = 0; i < V; ++i) held[i] = R::take(held[i], static_cast<C>(load(pack.v[i])));
  }
  __device__ __forceinline__ void flush() {
#pragma unroll
    for (int width = V / 2; width > 0; width /= 2)
#pragma unroll
      for (int i = 0; i < width; ++i) held[i] = R::take(held[i], held[i + width]);
    total = R::merge(total, held[0]);
    clear();
  }
  __device__ __forceinline__ void count_terms(int n) {
    count += n * V;
    if (count >= kChunk) flush();
  }

 private:
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < V; ++i) held[i] = R::identity();
    count = 0;
  }
};

/// The same for bytes of one output: four at a time, in the instructions that there are for it.
template <class R, int V>
struct ByteAccumulator {
  static constexpr std::uint32_t kHalves = 0x00ff00ffu;
  std::uint32_t even, odd;  // sums, or the best bytes of even and of odd place in two halves
  typename R::Merged total = R::identity();
  int count = 0;

  __device__ __forceinline__ ByteAccumulator() { clear(); }
  __device__ __forceinline__ void take(const Pack<std::uint8_t, V>& pack) {
    const auto* words = reinterpret_cast<const std::uint32_t*>(&pack);
#pragma unroll
    for (int w = 0; w < V / 4; ++w) {
      if constexpr (R::kKind == ReduceOp::sum) {
        std::uint32_t& sum = w % 2 == 0 ? even : odd;
        sum = __dp4a(words[w], 0x01010101u, sum);
      } else {
        const std::uint32_t e = words[w] & kHalves, o = words[w] >> 8 & kHalves;
        even = R::kKind == ReduceOp::max ? __vmaxu2(even, e) : __vminu2(even, e);
        odd = R::kKind == ReduceOp::max ? __vmaxu2(odd, o) : __vminu2(odd, o);
      }
    }
  }
  __device__ __forceinline__ void flush() {
    if constexpr (R::kKind == ReduceOp::sum) {
      total = R::merge(total, static_cast<typename R::Merged>(even + odd));
    } else {
      for (const std::uint32_t best : {even & 0xffffu, even >> 16, odd & 0xffffu, odd >> 16})
        total = R::merge(total, static_cast<typename R::Merged>(best));
    }
    clear();
  }
  __device__ __forceinline__ void count_terms(int n) {
    count += n * V;
    if (count >= kChunk) flush();
  }

 private:
  __device__ __forceinline__ void clear() {
    even = odd = R::kKind == ReduceOp::min ? kHalves : 0u;
    count = 0;
  }
};

/// V accumulators of a thread for V outputs, emptied into f64 now and then.
template <class R, class C, int V>
struct Accumulators {
  C held[V];
  typename R::Merged total[V];
  int count = 0;

  __device__ __forceinline__ Accumulators() {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      held[i] = R::identity();
      total[i] = R::identity();
    }
  }
  template <class N>
  __device__ __forceinline__ void take(const Pack<N, V>& pack) {
#pragma unroll
    for (int i = 0; i < V; ++i) held[i] = R::take(held[i], static_cast<C>(load(pack.v[i])));
  }
  __device__ __forceinline__ void flush() {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      total[i] = R::merge(total[i], held[i]);
      held[i] = R::identity();
    }
    count = 0;
  }
  __device__ __forceinline__ void count_terms(int n) {
    count += n;
    if (count >= kChunk) flush();
  }
};

/// Takes packs first, first + step, ... below end. The same elements go to the same accumulators in the same order
/// whether the address allows one access or not.
template <int V, class N, class Acc>
__device__ __forceinline__ void take_packs(Acc& acc, const N* base, const Index<1>& index, bool aligned,
                                           std::int64_t first, std::int64_t end, std::int64_t step) {
  if (aligned && index.rank == 1) {
    // Nothing is decided between the loads of some packs, so that they are on their way together.
    const std::int64_t stride = index.stride[0][0];
    const auto read = [&](std::int64_t i) { return *reinterpret_cast<const Pack<N, V>*>(base + i * stride); };
    std::int64_t i = first;
    for (; i + (kAhead - 1) * step < end; i += kAhead * step) {
      Pack<N, V> packs[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) packs[u] = read(i + u * step);
#pragma unroll
      for (int u = 0; u < kAhead; ++u) acc.take(packs[u]);
      acc.count_terms(kAhead);
    }
#pragma unroll 2
    for (; i < end; i += step) acc.take(read(i));
    return;
  }
#pragma unroll 1
  for (std::int64_t i = first; i < end; i += step) {
    const N* at = base + index.at(i).v[0];
    Pack<N, V> pack;
    if (aligned) {
      pack = *reinterpret_cast<const Pack<N, V>*>(at);
    } else {
#pragma unroll
      for (int v = 0; v < V; ++v) pack.v[v] = at[v];
    }
    acc.take(pack);
    static_assert(kChunk % (kAhead * V) == 0);
    acc.count_terms(1);  // the same chunks as above
  }
}

struct Rows {
  Index<2> kept;     // operand 0: x, operand 1: out
  Index<1> reduced;  // in packs
  int rest;          // terms after the last pack
  bool aligned;
  int group;          // threads for one part of one output: a power of two up to 32, or the block
  std::int64_t part;  // packs
};

template <int V, class R, class C, class N>
__global__ void __launch_bounds__(kReduceThreads, kRowBlocks)
    rows_kernel(const N* x, Rows s, Result<typename R::Merged> result) {
  using M = typename R::Merged;
  __shared__ M of_warp[kReduceThreads / 32];
  const std::int64_t task =
      std::int64_t{blockIdx.x} * (kReduceThreads / s.group) + static_cast<int>(threadIdx.x) / s.group;
  const int lane = static_cast<int>(threadIdx.x) % s.group;
  const std::int64_t output = task / result.parts, part = task - output * result.parts;
  M total = R::identity();
  if (output < s.kept.numel) {
    const N* base = x + s.kept.at(output).v[0];
    const std::int64_t begin = part * s.part, end = min(begin + s.part, s.reduced.numel);
    std::conditional_t<V == kRowBytes, ByteAccumulator<R, V>, Accumulator<R, C, V>> acc;
    take_packs<V>(acc, base, s.reduced, s.aligned, begin + lane, end, s.group);
    acc.flush();
    total = acc.total;
    if (part == result.parts - 1)
      for (int r = lane; r < s.rest; r += s.group)
        total = R::merge(total, static_cast<C>(load(base[s.reduced.numel * V + r])));
  }
  for (int offset = min(s.group, 32) / 2; offset > 0; offset /= 2)
    total = R::merge(total, __shfl_xor_sync(0xffffffffu, total, offset));
  if (s.group > 32) {  // the same for the whole grid
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = total;
    __syncthreads();
    if (threadIdx.x == 0)
      for (int w = 1; w < kReduceThreads / 32; ++w) total = R::merge(total, of_warp[w]);
  }
  if (lane != 0 || output >= s.kept.numel) return;
  if (result.parts > 1)
    result.partial[task] = total;
  else
    write_result(result, s.kept.at(output).v[1], total);
}

struct Columns {
  Index<2> kept;  // in packs; operand 0: x, operand 1: out
  Index<1> reduced;
  std::int64_t out_stride;  // of the outputs in a pack
  std::int64_t tiles;       // of `width` packs
  int width;                // a power of two up to 32
  bool aligned;
  std::int64_t part;  // terms
};

template <int V, class R, class C, class N>
__global__ void __launch_bounds__(kReduceThreads, kColumnBlocks)
    columns_kernel(const N* x, Columns s, Result<typename R::Merged> result) {
  using M = typename R::Merged;
  __shared__ M of_thread[V][kReduceThreads];
  const int column = static_cast<int>(threadIdx.x) % s.width, row = static_cast<int>(threadIdx.x) / s.width;
  const int rows = kReduceThreads / s.width;
  const std::int64_t part = std::int64_t{blockIdx.x} / s.tiles;
  const std::int64_t pack = (std::int64_t{blockIdx.x} - part * s.tiles) * s.width + column;
  Accumulators<R, C, V> acc;
  if (pack < s.kept.numel) {
    const N* base = x + s.kept.at(pack).v[0];
    const std::int64_t begin = part * s.part, end = min(begin + s.part, s.reduced.numel);
    take_packs<V>(acc, base, s.reduced, s.aligned, begin + row, end, rows);
  }
  acc.flush();
#pragma unroll
  for (int v = 0; v < V; ++v) of_thread[v][threadIdx.x] = acc.total[v];
  __syncthreads();
  if (row != 0 || pack >= s.kept.numel) return;
  const std::int64_t at = s.kept.at(pack).v[1];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    M total = of_thread[v][column];
    for (int y = 1; y < rows; ++y) total = R::merge(total, of_thread[v][y * s.width + column]);
    if (result.parts > 1)
      result.partial[(pack * V + v) * result.parts + part] = total;
    else
      write_result(result, at + v * s.out_stride, total);
  }
}

/// A warp combines the parts of one output.
template <class R, class M>
__global__ void __launch_bounds__(kReduceThreads) parts_kernel(Index<2> kept, Result<M> result) {
  const std::int64_t output = std::int64_t{blockIdx.x} * (kReduceThreads / 32) + threadIdx.x / 32;
  if (output >= kept.numel) return;  // whole warps
  M total = R::identity();
#pragma unroll 8
  for (int p = threadIdx.x % 32; p < result.parts; p += 32)
    total = R::merge(total, result.partial[output * result.parts + p]);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) total = R::merge(total, __shfl_xor_sync(0xffffffffu, total, offset));
  if (threadIdx.x % 32 == 0) write_result(result, kept.at(output).v[1], total);
}

inline int power_of_two_from(std::int64_t n, int most) {
  int p = 1;
  while (p < n && p < most) p *= 2;
  return p;
}

/// Cuts `length` into parts of at least `least`, so that there are about kMostBlocks blocks in all.
inline int parts_of(std::int64_t length, std::int64_t least, std::int64_t blocks) {
  const std::int64_t most = std::max<std::int64_t>(1, kMostBlocks / std::max<std::int64_t>(blocks, 1));
  return static_cast<int>(std::clamp<std::int64_t>(length / least, 1, most));
}

template <class R, class C, class N>
void reduce_typed(const Context& ctx, const View& out, const N* x, const Index<2>& kept, const Index<1>& reduced,
                  double divisor) {
  using M = typename R::Merged;
  constexpr int V = kReduceVector<N>;
  Result<M> result{out.data, out.dtype, divisor, nullptr, 1};
  Workspace scratch;
  const auto cut = [&](int parts) {
    result.parts = parts;
    if (parts == 1) return;
    scratch = ctx.workspace(static_cast<std::size_t>(kept.numel * parts) * sizeof(M));
    result.partial = scratch.as<M>();
  };
  const auto launch = [&](auto kernel, std::int64_t blocks, const auto& shape) {
    kernel<<<static_cast<unsigned>(blocks), kReduceThreads, 0, stream_of(ctx)>>>(x, shape, result);
    check_launch("reduce");
  };

  const bool across =
      kept.size[0] > 1 && reduced.numel > 1 && std::abs(kept.stride[0][0]) < std::abs(reduced.stride[0][0]);
  if (across) {
    const bool vector = kept.stride[0][0] == 1 && kept.size[0] % V == 0;
    Columns s{vector ? packed(kept, V) : kept, reduced, kept.stride[1][0], 0, 0, true, 0};
    if (vector) {
      s.aligned = aligned_to(x, sizeof(N) * V);
      for (int d = 1; d < kept.rank; ++d) s.aligned = s.aligned && kept.stride[0][d] % V == 0;
      for (int d = 0; d < reduced.rank; ++d) s.aligned = s.aligned && reduced.stride[0][d] % V == 0;
    }
    s.width = power_of_two_from(s.kept.numel, 32);
    s.tiles = ceil_div(s.kept.numel, s.width);
    cut(parts_of(reduced.numel, 16 * (kReduceThreads / s.width), s.tiles));
    s.part = ceil_div(reduced.numel, result.parts);
    if (vector)
      launch(columns_kernel<V, R, C, N>, s.tiles * result.parts, s);
    else
      launch(columns_kernel<1, R, C, N>, s.tiles * result.parts, s);
  } else {
    constexpr int W = sizeof(N) == 1 ? kRowBytes : V;
    const bool vector = reduced.stride[0][0] == 1 && (reduced.rank == 1 || reduced.size[0] % W == 0);
    Rows s{kept, vector ? packed(reduced, W) : reduced, 0, true, 0, 0};
    if (vector) {
      s.rest = static_cast<int>(reduced.numel % W);
      s.aligned = aligned_to(x, sizeof(N) * W);
      for (int d = 0; d < kept.rank; ++d) s.aligned = s.aligned && (kept.size[d] == 1 || kept.stride[0][d] % W == 0);
      for (int d = 1; d < reduced.rank; ++d) s.aligned = s.aligned && reduced.stride[0][d] % W == 0;
    }
    const std::int64_t length = s.reduced.numel;
    s.group = length > 1024 ? kReduceThreads : power_of_two_from(ceil_div(length, 4), 32);
    cut(s.group < kReduceThreads ? 1 : parts_of(length, 4 * kReduceThreads, kept.numel));
    s.part = ceil_div(length, result.parts);
    const std::int64_t blocks = ceil_div(kept.numel * result.parts, kReduceThreads / s.group);
    if (vector)
      launch(rows_kernel<W, R, C, N>, blocks, s);
    else
      launch(rows_kernel<1, R, C, N>, blocks, s);
  }
  if (result.parts > 1) {
    const auto blocks = static_cast<unsigned>(ceil_div(kept.numel, kReduceThreads / 32));
    parts_kernel<R, M><<<blocks, kReduceThreads, 0, stream_of(ctx)>>>(kept, result);
    check_launch("reduce");
  }
}

/// Reduces with Op<C>; out has x's rank, 1 for every reduced dimension.
template <template <class> class Op>
void reduce_with(const Context& ctx, const View& out, const ConstView& x, bool mean) {
  if (out.numel() == 0) return;
  Dims kept_sizes, kept_x, kept_out, reduced_sizes, reduced_x;
  for (int d = 0; d < x.rank(); ++d) {
    if (out.sizes[d] == x.sizes[d]) {
      kept_sizes.push_back(x.sizes[d]);
      kept_x.push_back(x.strides[d]);
      kept_out.push_back(out.strides[d]);
    } else {
      reduced_sizes.push_back(x.sizes[d]);
      reduced_x.push_back(x.strides[d]);
    }
  }
  const auto kept = make_index<2>(kept_sizes, {kept_x, kept_out});
  const auto reduced = make_index<1>(reduced_sizes, {reduced_x});
  const double divisor = mean ? static_cast<double>(reduced.numel) : 1.0;
  const auto run = [&]<class T>() {
    using N = native_t<T>;
    using Whole = std::conditional_t<sizeof(N) == 1, std::int32_t, std::int64_t>;
    using C = std::conditional_t<is_floating_native<N>, compute_t<N>, Whole>;
    reduce_typed<Op<C>, C>(ctx, out, static_cast<const N*>(x.data), kept, reduced, divisor);
  };
  if (is_floating(x.dtype)) return visit_floating(x.dtype, "reduce", run);
  if (x.dtype == DType::i64) return run.template operator()<std::int64_t>();
  if (x.dtype == DType::i32) return run.template operator()<std::int32_t>();
  run.template operator()<std::uint8_t>();  // a boolean is the byte 0 or 1
}

void reduce_max(const Context& ctx, const View& out, const ConstView& x);
void reduce_min(const Context& ctx, const View& out, const ConstView& x);

}  // namespace apex::kernels::cuda
