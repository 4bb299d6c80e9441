// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../scan_impl.hpp"
#include "argmax.cuh"

namespace apex::kernels::cuda {
namespace {

constexpr int kScanThreads = 256;
constexpr int kEach = 4;  // elements of a thread at a time, side by side

struct Lines {
  Index<2> lines;  // operands out, x; at the first element that is summed
  std::int64_t length, to_stride, from_stride;
};

/// A line for each thread: where lines lie side by side.
template <class S, class Out, class N>
__global__ void __launch_bounds__(kScanThreads) lines_kernel(Out* out, const N* x, const Lines s) {
  const std::int64_t line = std::int64_t{blockIdx.x} * kScanThreads + threadIdx.x;
  if (line >= s.lines.numel) return;
  const auto at = s.lines.at(line);
  S sum = 0;
  for (std::int64_t i = 0; i < s.length; ++i) {
    sum += static_cast<S>(load(x[at.v[1] + i * s.from_stride]));
    out[at.v[0] + i * s.to_stride] = convert<Out>(sum);
  }
}

/// A line for each block.
template <class S, class Out, class N>
__global__ void __launch_bounds__(kScanThreads) blocks_kernel(Out* out, const N* x, const Lines s) {
  __shared__ S of_warp[kScanThreads / 32];
  const auto at = s.lines.at(blockIdx.x);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  S before = 0;  // sum of all earlier rounds
  for (std::int64_t first = 0; first < s.length; first += kScanThreads * kEach) {
    const std::int64_t own = first + static_cast<std::int64_t>(threadIdx.x) * kEach;
    S sums[kEach], total = 0;
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      if (own + u < s.length) total += static_cast<S>(load(x[at.v[1] + (own + u) * s.from_stride]));
      sums[u] = total;
    }
    S up_to = total;  // of this warp's threads, this one included
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const S other = __shfl_up_sync(0xffffffffu, up_to, offset);
      if (lane >= offset) up_to += other;
    }
    if (lane == 31) of_warp[warp] = up_to;
    __syncthreads();
    S start = before, all = before;
    for (int w = 0; w < kScanThreads / 32; ++w) {
      if (w == warp) start = all;
      all += of_warp[w];
    }
    const S left = __shfl_up_sync(0xffffffffu, up_to, 1);
    if (lane > 0) start += left;
#pragma unroll
    for (int u = 0; u < kEach; ++u)
      if (own + u < s.length) out[at.v[0] + (own + u) * s.to_stride] = convert<Out>(start + sums[u]);
    before = all;
    __syncthreads();  // of_warp is written again
  }
}

/// A row for each warp, in packs: where the elements of lines lie side by side.
template <class S, class N>
__global__ void __launch_bounds__(kScanThreads)
    rows_kernel(N* out, const N* x, const Index<2> lines, std::int64_t length, bool aligned) {
  // Eight numbers of f16 are summed well enough in f32, without two conversions from and to f64 for each.
  using L = std::conditional_t<std::is_same_v<N, __half>, float, S>;
  constexpr int V = kVector<N>;
  const std::int64_t line = std::int64_t{blockIdx.x} * (kScanThreads / 32) + threadIdx.x / 32;
  if (line >= lines.numel) return;  // whole warps
  const auto at = lines.at(line);
  const N* from = x + at.v[1];
  N* to = out + at.v[0];
  const int lane = threadIdx.x % 32;
  const auto read = [&](std::int64_t own) {
    Pack<N, V> pack;
    if (aligned && own + V <= length) {
      pack = *reinterpret_cast<const Pack<N, V>*>(from + own);
    } else {
#pragma unroll
      for (int v = 0; v < V; ++v) pack.v[v] = own + v < length ? from[own + v] : store<N>(0.0f);
    }
    return pack;
  };
  S before = 0;  // sum of all earlier rounds
  Pack<N, V> next = read(lane * V);
  for (std::int64_t first = 0; first < length; first += 32 * V) {
    const std::int64_t own = first + lane * V;
    const Pack<N, V> pack = next;
    next = read(own + 32 * V);  // on its way while this round is summed
    L sums[V];
    L sum = 0;
#pragma unroll
    for (int v = 0; v < V; ++v) sums[v] = sum += static_cast<L>(load(pack.v[v]));
    S up_to = static_cast<S>(sum);  // of this warp's threads, this one included
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const S other = __shfl_up_sync(0xffffffffu, up_to, offset);
      if (lane >= offset) up_to += other;
    }
    const S left = __shfl_up_sync(0xffffffffu, up_to, 1);
    const auto start = static_cast<L>(lane > 0 ? before + left : before);
    before += __shfl_sync(0xffffffffu, up_to, 31);
    Pack<N, V> result;
#pragma unroll
    for (int v = 0; v < V; ++v) result.v[v] = store<N>(start + sums[v]);
    if (aligned && own + V <= length) {
      *reinterpret_cast<Pack<N, V>*>(to + own) = result;
    } else {
#pragma unroll
      for (int v = 0; v < V; ++v)
        if (own + v < length) to[own + v] = result.v[v];
    }
  }
}

}  // namespace

void cumsum(const Context& ctx, View out, ConstView x, int dim, bool reverse) {
  if (x.numel() == 0) return;
  Dims sizes = x.sizes;
  sizes[dim] = 1;
  const std::int64_t length = x.sizes[dim], to = out.strides[dim], from = x.strides[dim];
  const Lines s{make_index<2>(sizes, {out.strides, x.strides}), length, reverse ? -to : to, reverse ? -from : from};
  const std::int64_t to_first = reverse ? (length - 1) * to : 0, from_first = reverse ? (length - 1) * from : 0;
  const bool side_by_side = length <= 32 || (s.lines.numel >= 4096 && s.lines.stride[1][0] < from);
  visit_comparable(x.dtype, "cumsum", [&]<class T>() {
    using N = native_t<T>;
    using Out = std::conditional_t<is_floating_native<N>, N, std::int64_t>;
    using S = std::conditional_t<is_floating_native<N>, double, std::int64_t>;
    auto* y = static_cast<Out*>(out.data) + to_first;
    const auto* v = static_cast<const N*>(x.data) + from_first;
    const auto stream = stream_of(ctx);
    if constexpr (is_floating_native<N>) {
      if (s.from_stride == 1 && s.to_stride == 1 && s.lines.numel >= 1024) {  // fewer would leave the device idle
        bool aligned = aligned_to(y, 16) && aligned_to(v, 16);
        for (int d = 0; d < s.lines.rank; ++d)
          aligned = aligned && (s.lines.size[d] == 1 ||
                                (s.lines.stride[0][d] % kVector<N> == 0 && s.lines.stride[1][d] % kVector<N> == 0));
        rows_kernel<S><<<static_cast<unsigned>(ceil_div(s.lines.numel, kScanThreads / 32)), kScanThreads, 0, stream>>>(
            y, v, s.lines, s.length, aligned);
        return;
      }
    }
    if (side_by_side)
      lines_kernel<S>
          <<<static_cast<unsigned>(ceil_div(s.lines.numel, kScanThreads)), kScanThreads, 0, stream>>>(y, v, s);
    else
      blocks_kernel<S><<<static_cast<unsigned>(s.lines.numel), kScanThreads, 0, stream>>>(y, v, s);
  });
  check_launch("cumsum");
}

}  // namespace apex::kernels::cuda
