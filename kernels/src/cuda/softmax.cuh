// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "../softmax_impl.hpp"
#include "elementwise.cuh"
#include "exponential.cuh"

// Lines along one dimension. A line of whole aligned 16-byte packs is held in registers by a part of a warp or a block.
// Any other line whose elements lie along memory is taken by a warp, which keeps it in registers, or, when long, by a
// block, which keeps it in shared memory where it fits and else reads it again (from the caches). Lines that lie side
// by side are taken by a thread each. A line's owner reads an element before it writes there, so
// that an output may be an input.

namespace apex::kernels::cuda {

inline constexpr int kSoftmaxThreads = 256;
inline constexpr std::int64_t kMostShared = 48 * 1024;

struct Lines {
  Index<3> lines;  // operands out, a, b; one position per line
  std::int64_t length;
  std::int64_t stride[3];
  bool past_cache;
};

template <class C>
__device__ __forceinline__ C warp_max(C value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const C other = __shfl_xor_sync(0xffffffffu, value, offset);
    value = other > value ? other : value;
  }
  return value;
}

template <class C>
__device__ __forceinline__ C block_max(C value) {
  __shared__ C partial[kSoftmaxThreads / 32];
  value = warp_max(value);
  __syncthreads();  // the array may still be read by an earlier call
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  C best = partial[0];
#pragma unroll
  for (int w = 1; w < kSoftmaxThreads / 32; ++w) best = partial[w] > best ? partial[w] : best;
  return best;
}

// An op over lines of N is a struct with the flag `logarithm` and
//   kMax             whether it needs the largest a of the line
//   kTwo             whether there is a second input b
//   term(a, b, max)  what is summed over the line
//   finish(sum)      turns the sum into what apply() takes
//   apply(a, b, term, max, sum)  an element of the result

struct Larger {
  template <class C>
  __device__ C operator()(C a, C b) const {
    return max(a, b);
  }
};
struct Plus {
  template <class C>
  __device__ C operator()(C a, C b) const {
    return a + b;
  }
};

/// Combines a value of every thread of a group, a part of a warp or a block; each gets the same bits. `of_warp` serves
/// one call. All threads of the block must call.
template <int kGroup, class C, class F>
__device__ __forceinline__ C over_group(C value, C* of_warp, F f) {
#pragma unroll
  for (int offset = std::min(kGroup, 32) / 2; offset > 0; offset /= 2)
    value = f(value, __shfl_xor_sync(0xffffffffu, value, offset));
  if constexpr (kGroup > 32) {
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = of_warp[0];
#pragma unroll
    for (int w = 1; w < kGroup / 32; ++w) value = f(value, of_warp[w]);
  }
  return value;
}

template <int kGroup>
inline constexpr int kPackedThreads = std::max(kGroup, 128);

/// Up to kGroup * K packs a line; a group of threads holds it: one read, all of its accesses under way together.
template <int K, int kGroup, class Op, class N>
__global__ void __launch_bounds__(kPackedThreads<kGroup>)
    packed_lines(N* out, const N* a, const N* b, Lines s, Op of_either) {
  using C = compute_t<N>;
  constexpr int V = kVector<N>, kThreads = kPackedThreads<kGroup>;
  __shared__ C of_warp[2][kThreads / 32];
  const std::int64_t line = std::int64_t{blockIdx.x} * (kThreads / kGroup) + threadIdx.x / kGroup;
  const int lane = static_cast<int>(threadIdx.x) % kGroup;
  // Groups past the last line stay for the shuffles.
  const int packs = line < s.lines.numel ? static_cast<int>(s.length / V) : 0;
  const auto at = s.lines.at(line < s.lines.numel ? line : 0);
  const auto* from_a = reinterpret_cast<const Pack<N, V>*>(a + at.v[1]) + lane;
  const auto* from_b = reinterpret_cast<const Pack<N, V>*>(b + at.v[2]) + lane;
  auto* to = reinterpret_cast<Pack<N, V>*>(out + at.v[0]) + lane;
  Pack<N, V> av[K], bv[Op::kTwo ? K : 1];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (k * kGroup + lane >= packs) continue;
    av[k] = from_a[k * kGroup];
    if constexpr (Op::kTwo) bv[k] = from_b[k * kGroup];
  }
  C high = -std::numeric_limits<C>::infinity();
  if constexpr (Op::kMax) {
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (k * kGroup + lane < packs) high = max(high, largest_of(av[k]));
    high = over_group<kGroup>(high, of_warp[0], Larger{});
  }
  const auto rest = [&](const Op op) {
    C term[K][V], sum = C(0);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (k * kGroup + lane >= packs) continue;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        term[k][v] = op.term(load(av[k].v[v]), Op::kTwo ? load(bv[Op::kTwo ? k : 0].v[v]) : C(0), high);
        sum += term[k][v];
      }
    }
    sum = op.finish(over_group<kGroup>(sum, of_warp[1], Plus{}));
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (k * kGroup + lane >= packs) continue;
      Pack<N, V> result;
#pragma unroll
      for (int v = 0; v < V; ++v)
        result.v[v] = store<N>(
            op.apply(load(av[k].v[v]), Op::kTwo ? load(bv[Op::kTwo ? k : 0].v[v]) : C(0), term[k][v], high, sum));
      put_pack(reinterpret_cast<N*>(to + k * kGroup), result, s.past_cache);
    }
  };
  of_either.logarithm ? rest(Op{true}) : rest(Op{false});  // the choice once, not for every element
}

/// Up to 32 * K elements, a warp each.
template <int K, class Op, class N>
__global__ void __launch_bounds__(kSoftmaxThreads) warp_lines(N* out, const N* a, const N* b, Lines s, Op op) {
  using C = compute_t<N>;
  const std::int64_t line = std::int64_t{blockIdx.x} * (kSoftmaxThreads / 32) + threadIdx.x / 32;
  if (line >= s.lines.numel) return;  // whole warps
  const int lane = threadIdx.x % 32, n = static_cast<int>(s.length);
  const auto at = s.lines.at(line);
  C av[K], bv[K];
  C high = -std::numeric_limits<C>::infinity();
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int i = k * 32 + lane;
    if (i >= n) continue;
    av[k] = load(a[at.v[1] + i * s.stride[1]]);
    if constexpr (Op::kTwo) bv[k] = load(b[at.v[2] + i * s.stride[2]]);
    if constexpr (Op::kMax) high = av[k] > high ? av[k] : high;
  }
  if constexpr (Op::kMax) high = warp_max(high);
  C sum = C(0);
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (k * 32 + lane < n) sum += op.term(av[k], Op::kTwo ? bv[k] : C(0), high);
  sum = op.finish(warp_sum(sum));
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int i = k * 32 + lane;
    if (i >= n) continue;
    const C second = Op::kTwo ? bv[k] : C(0);
    out[at.v[0] + i * s.stride[0]] = store<N>(op.apply(av[k], second, op.term(av[k], second, high), high, sum));
  }
}

/// Any length, a block each. With `kept` the first input stays in shared memory.
template <class Op, class N>
__global__ void __launch_bounds__(kSoftmaxThreads)
    block_lines(N* out, const N* a, const N* b, Lines s, Op op, bool kept) {
  using C = compute_t<N>;
  extern __shared__ __align__(16) unsigned char shared[];
  C* line = reinterpret_cast<C*>(shared);
  const auto at = s.lines.at(blockIdx.x);
  const auto first = [&](std::int64_t i) { return load(a[at.v[1] + i * s.stride[1]]); };
  const auto second = [&](std::int64_t i) { return Op::kTwo ? load(b[at.v[2] + i * s.stride[2]]) : C(0); };
  C high = -std::numeric_limits<C>::infinity();
  if (Op::kMax || kept) {
    for (std::int64_t i = threadIdx.x; i < s.length; i += kSoftmaxThreads) {
      const C v = first(i);
      if (kept) line[i] = v;  // read by this thread only
      high = v > high ? v : high;
    }
    if constexpr (Op::kMax) high = block_max(high);
  }
  C sum = C(0);
  for (std::int64_t i = threadIdx.x; i < s.length; i += kSoftmaxThreads)
    sum += op.term(kept ? line[i] : first(i), second(i), high);
  sum = op.finish(block_sum<kSoftmaxThreads>(sum));
  for (std::int64_t i = threadIdx.x; i < s.length; i += kSoftmaxThreads) {
    const C x = kept ? line[i] : first(i), y = second(i);
    out[at.v[0] + i * s.stride[0]] = store<N>(op.apply(x, y, op.term(x, y, high), high, sum));
  }
}

/// Lines side by side, a thread each.
template <class Op, class N>
__global__ void __launch_bounds__(kSoftmaxThreads) thread_lines(N* out, const N* a, const N* b, Lines s, Op op) {
  using C = compute_t<N>;
  const std::int64_t line = std::int64_t{blockIdx.x} * kSoftmaxThreads + threadIdx.x;
  if (line >= s.lines.numel) return;
  const auto at = s.lines.at(line);
  const auto first = [&](std::int64_t i) { return load(a[at.v[1] + i * s.stride[1]]); };
  const auto second = [&](std::int64_t i) { return Op::kTwo ? load(b[at.v[2] + i * s.stride[2]]) : C(0); };
  C high = -std::numeric_limits<C>::infinity();
  if constexpr (Op::kMax)
    for (std::int64_t i = 0; i < s.length; ++i) {
      const C v = first(i);
      high = v > high ? v : high;
    }
  C sum = C(0);
  for (std::int64_t i = 0; i < s.length; ++i) sum += op.term(first(i), second(i), high);
  sum = op.finish(sum);
  for (std::int64_t i = 0; i < s.length; ++i) {
    const C x = first(i), y = second(i);
    out[at.v[0] + i * s.stride[0]] = store<N>(op.apply(x, y, op.term(x, y, high), high, sum));
  }
}

/// Whether every line of every operand is whole aligned packs of V elements of N.
template <class N>
bool whole_packs(const Lines& s, std::initializer_list<const N*> operands) {
  constexpr int V = kVector<N>;
  bool whole = s.length % V == 0;
  std::size_t k = 0;
  for (const N* data : operands) {
    whole = whole && s.stride[k] == 1 && aligned_to(data, 16);
    for (int d = 0; d < s.lines.rank; ++d) whole = whole && (s.lines.size[d] == 1 || s.lines.stride[k][d] % V == 0);
    ++k;
  }
  return whole;
}

/// Runs Op<N> along `dim`.
template <template <class> class Op>
void over_lines(const Context& ctx, const char* name, const View& out, const ConstView& a, const ConstView& b, int dim,
                bool log) {
  if (out.numel() == 0) return;
  Dims sizes = out.sizes;
  sizes[dim] = 1;
  const Lines s{make_index<3>(sizes, {out.strides, a.strides, b.strides}),
                out.sizes[dim],
                {out.strides[dim], a.strides[dim], b.strides[dim]},
                past_cache(out.numel() * static_cast<std::int64_t>(size_of(out.dtype)))};
  const std::int64_t lines = s.lines.numel;
  // Few side by side lines are better off with more threads each, whatever the access.
  const bool side_by_side = lines > 1 && s.lines.stride[0][0] < s.stride[0] && (lines >= 4096 || s.length <= 64);
  visit_floating(out.dtype, name, [&]<class T>() {
    using N = native_t<T>;
    using C = compute_t<N>;
    const Op<N> op{log};
    N* y = native<T>(out);
    const N *p = native<T>(a), *q = native<T>(b);
    const auto stream = stream_of(ctx);
    const auto blocks = [&](int lines_each) { return static_cast<unsigned>(ceil_div(lines, lines_each)); };
    const auto held = [&]<int K, int kGroup>() {
      constexpr int kThreads = kPackedThreads<kGroup>;
      packed_lines<K, kGroup><<<blocks(kThreads / kGroup), kThreads, 0, stream>>>(y, p, q, s, op);
    };
    const std::int64_t packs = whole_packs<N>(s, {y, p, q}) ? s.length / kVector<N> : 0;
    if (side_by_side) {
      thread_lines<<<blocks(kSoftmaxThreads), kSoftmaxThreads, 0, stream>>>(y, p, q, s, op);
    } else if (packs > 0 && packs <= 8) {
      held.template operator()<1, 8>();
    } else if (packs > 0 && packs <= 32) {
      held.template operator()<1, 32>();
    } else if (packs > 0 && packs <= 4 * 32) {
      held.template operator()<4, 32>();
    } else if (packs > 0 && packs <= 4 * 128) {
      held.template operator()<4, 128>();
    } else if (packs > 0 && packs <= 4 * 512) {
      held.template operator()<4, 512>();
    } else if (s.length <= 8 * 32) {
      warp_lines<8><<<blocks(kSoftmaxThreads / 32), kSoftmaxThreads, 0, stream>>>(y, p, q, s, op);
    } else if (s.length <= 32 * 32) {
      warp_lines<32><<<blocks(kSoftmaxThreads / 32), kSoftmaxThreads, 0, stream>>>(y, p, q, s, op);
    } else {
      const std::int64_t bytes = s.length * static_cast<std::int64_t>(sizeof(C));
      const bool kept = bytes <= kMostShared - 1024;  // the rest is for the sums over the block
      block_lines<<<blocks(1), kSoftmaxThreads, kept ? static_cast<std::size_t>(bytes) : 0, stream>>>(y, p, q, s, op,
                                                                                                      kept);
    }
    check_launch(name);
  });
}

}  // namespace apex::kernels::cuda
