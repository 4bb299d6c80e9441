// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "pool.cuh"

namespace apex::kernels::cuda {
namespace {

using namespace pool;

/// Takes value for the largest so far; the first among equals stays, NaN is larger than all.
template <class N>
__device__ __forceinline__ void take(N& best, std::int32_t& where, N value, std::int32_t position) {
  const auto v = load(value), held = load(best);
  if (v > held || (v != v && held == held)) {
    best = value;
    where = position;
  }
}

/// A pair of 16-bit floating numbers to signed integers of the same order, and back.
__device__ __forceinline__ std::uint32_t turned(std::uint32_t pair) {
  std::uint32_t signs;  // of each half, all over it
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(signs) : "r"(pair));
  return pair ^ (signs & 0x7fff7fffu);
}

/// Adding 0 makes one number of both zeros and one, above infinity, of all NaNs.
template <class N>
__device__ __forceinline__ std::uint32_t canonical(N low, N high) {
  using Pair = std::conditional_t<std::is_same_v<N, __half>, __half2, __nv_bfloat162>;
  const N zero = store<N>(0.0f);
  const Pair sum = __hadd2(Pair(low, high), Pair(zero, zero));
  return *reinterpret_cast<const std::uint32_t*>(&sum);
}

/// The largest of the nine values of each of V channels, and which it is: 16-bit values and what is left of the window
/// after them make one integer, so that a maximum of integers also finds the first among equals. This is where the
/// forward pass would otherwise take longer to compute than to read.
template <class N, int V>
__device__ __forceinline__ void largest_of_nine(const Pack<N, V> (&in)[9], Pack<N, V>& best, int (&position)[V]) {
  std::int32_t key[V];
#pragma unroll
  for (int k = 0; k < 9; ++k) {
#pragma unroll
    for (int v = 0; v < V; v += 2) {
      const std::uint32_t pair = turned(canonical(in[k].v[v], in[k].v[v + 1]));
      const auto low = static_cast<std::int32_t>(__byte_perm(pair, 8 - k, 0x1054)),
                 high = static_cast<std::int32_t>(__byte_perm(pair, 8 - k, 0x3254));
      key[v] = k == 0 ? low : max(key[v], low);
      key[v + 1] = k == 0 ? high : max(key[v + 1], high);
    }
  }
  Pack<std::uint32_t, V / 2> words;
#pragma unroll
  for (int v = 0; v < V; v += 2) words.v[v / 2] = turned(__byte_perm(key[v], key[v + 1], 0x7632));
  best = *reinterpret_cast<const Pack<N, V>*>(&words);
#pragma unroll
  for (int v = 0; v < V; ++v) position[v] = 8 - (key[v] & 0xffff);
}

/// kKernel: the extent of the window in both directions where it is known, so that all its loads are on their way
/// together; 0: any.
template <class N, int V, int kKernel>
__global__ void __launch_bounds__(kThreads) forward(N* y, std::int32_t* indices, const N* x, const Problem p) {
  const std::int64_t tasks = p.images * p.h.out * p.w.out * (p.c / V);
  for_each_task(tasks, [&](std::int64_t task) {
    const Pixel o(task, p, V, p.h.out, p.w.out);
    const Range rows = p.h.window(o.row), columns = p.w.window(o.column);
    const N* image = x + at(p, o.image, p.h.in, p.w.in, 0, 0, o.channel);
    Pack<N, V> best = fetch<V>(image + (std::int64_t{rows.begin} * p.w.in + columns.begin) * p.c);
    Pack<std::int32_t, V> where;
#pragma unroll
    for (int v = 0; v < V; ++v) where.v[v] = rows.begin * p.w.in + columns.begin;
    if constexpr (kKernel > 0) {
      Pack<N, V> in[kKernel * kKernel];
#pragma unroll
      for (int k = 0; k < kKernel * kKernel; ++k) {
        const int r = min(rows.begin + k / kKernel, rows.end - 1),
                  q = min(columns.begin + k % kKernel, columns.end - 1);
        in[k] = fetch<V>(image + (std::int64_t{r} * p.w.in + q) * p.c);  // a pixel again, after itself, changes nothing
      }
      if constexpr (sizeof(N) == 2 && kKernel == 3) {
        int position[V];
        largest_of_nine(in, best, position);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const int r = position[v] * 11 >> 5;  // a third of 0 to 8
          where.v[v] += r * (p.w.in - 3) + position[v];
        }
      } else {
#pragma unroll
        for (int k = 1; k < kKernel * kKernel; ++k) {
          const int r = min(rows.begin + k / kKernel, rows.end - 1),
                    q = min(columns.begin + k % kKernel, columns.end - 1);
#pragma unroll
          for (int v = 0; v < V; ++v) take(best.v[v], where.v[v], in[k].v[v], r * p.w.in + q);
        }
      }
    } else {
      for (int r = rows.begin; r < rows.end; ++r)
#pragma unroll 4
        for (int q = columns.begin; q < columns.end; ++q) {
          const auto in = fetch<V>(image + (std::int64_t{r} * p.w.in + q) * p.c);
#pragma unroll
          for (int v = 0; v < V; ++v) take(best.v[v], where.v[v], in.v[v], r * p.w.in + q);
        }
    }
    put(y + task * V, best);
    if (indices != nullptr) put(indices + task * V, where);
  });
}

template <class N, int V>
__global__ void __launch_bounds__(kThreads) backward(N* dx, const N* dy, const std::int32_t* indices, const Problem p) {
  using A = compute_t<N>;
  const std::int64_t tasks = p.images * p.h.in * p.w.in * (p.c / V);
  for_each_task(tasks, [&](std::int64_t task) {
    const Pixel i(task, p, V, p.h.in, p.w.in);
    const Range rows = p.h.outputs(i.row), columns = p.w.outputs(i.column);
    const std::int32_t position = i.row * p.w.in + i.column;
    A sum[V] = {};
    for (int r = rows.begin; r < rows.end; ++r)
#pragma unroll 2
      for (int q = columns.begin; q < columns.end; ++q) {
        const std::int64_t from = at(p, i.image, p.h.out, p.w.out, r, q, i.channel);
        const auto gradient = fetch<V>(dy + from);
        const auto where = fetch<V>(indices + from);
#pragma unroll
        for (int v = 0; v < V; ++v) sum[v] += where.v[v] == position ? load(gradient.v[v]) : A(0);
      }
    Pack<N, V> out;
#pragma unroll
    for (int v = 0; v < V; ++v) out.v[v] = store<N>(sum[v]);
    put(dx + task * V, out);
  });
}

constexpr int kAcross = 64;  // threads of a block along a row of packs; the others take the rows below
constexpr int kDown = kThreads / kAcross;

/// The patches of 2 x 2 pixels of an image, and the blocks that take them.
struct Patches {
  int rows, columns, blocks_down, blocks_across;
};

/// Windows of 3 x 3 that advance by 2. A thread has the four pixels (2m - padding, 2n - padding) and their neighbours
/// to the right and below: they lie in the four windows (m - 1 or m, n - 1 or n) and no others, which are read at once.
/// The threads of a block share most of their windows, through the L1 cache.
template <class N, int V>
__global__ void __launch_bounds__(kThreads)
    backward_three_by_two(N* dx, const N* dy, const std::int32_t* indices, const Problem p, const Patches s) {
  using A = compute_t<N>;
  const auto packs = static_cast<int>(p.c / V);
  std::int64_t block = blockIdx.x;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto along = static_cast<int>(split(block, s.blocks_across)) * kAcross + thread % kAcross;
  const auto m = static_cast<int>(split(block, s.blocks_down)) * kDown + thread / kAcross;
  const std::int64_t image = block, channel = std::int64_t{along % packs} * V;
  const int n = along / packs;
  if (m >= s.rows || n >= s.columns) return;

  Pack<N, V> gradient[4];
  Pack<std::int32_t, V> where[4];
  bool exists[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int r = m - 1 + k / 2, q = n - 1 + k % 2;
    exists[k] = r >= 0 && r < p.h.out && q >= 0 && q < p.w.out;
    // Some window is read even so: loads without branches are all on their way together.
    const std::int64_t from =
        at(p, image, p.h.out, p.w.out, min(max(r, 0), p.h.out - 1), min(max(q, 0), p.w.out - 1), channel);
    gradient[k] = fetch<V>(dy + from);
    where[k] = fetch<V>(indices + from);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = 2 * m - p.h.padding + i / 2, column = 2 * n - p.w.padding + i % 2;
    if (row < 0 || row >= p.h.in || column < 0 || column >= p.w.in) continue;
    const std::int32_t position = row * p.w.in + column;
    A sum[V] = {};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (k / 2 < i / 2 || k % 2 < i % 2) continue;  // the earlier window ends before the second pixel
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += exists[k] && where[k].v[v] == position ? load(gradient[k].v[v]) : A(0);
    }
    Pack<N, V> out;
#pragma unroll
    for (int v = 0; v < V; ++v) out.v[v] = store<N>(sum[v]);
    put(dx + at(p, image, p.h.in, p.w.in, row, column, channel), out);
  }
}

bool aligned_all(const void* a, const void* b, const void* indices, DType dtype) {
  return aligned_to(a, 16) && aligned_to(b, 16) && aligned_to(indices, 16 / size_of(dtype) * sizeof(std::int32_t));
}

}  // namespace

void max_pool2d(const Context& ctx, View y, View indices, ConstView x, const Pool2dOptions& options) {
  if (y.numel() == 0) return;
  auto* where = indices.defined() ? indices.as<std::int32_t>() : nullptr;
  const Problem p(x, y, Axis::strided(x.size(2), y.size(2), options, 0),
                  Axis::strided(x.size(3), y.size(3), options, 1), aligned_all(x.data, y.data, where, x.dtype));
  visit_floating(x.dtype, "max_pool2d", [&]<class T>() {
    using N = native_t<T>;
    with_vector<N>(p, [&]<int V>() {
      const bool three = V > 1 && p.h.kernel == 3 && p.w.kernel == 3;
      const auto kernel = three ? forward < N, V, V == 1 ? 0 : 3 > : forward<N, V, 0>;
      kernel<<<blocks_for(y.numel() / V), kThreads, 0, stream_of(ctx)>>>(static_cast<N*>(y.data), where,
                                                                         static_cast<const N*>(x.data), p);
    });
  });
  check_launch("max_pool2d");
}

void max_pool2d_backward(const Context& ctx, View dx, ConstView dy, ConstView indices, const Pool2dOptions& options) {
  if (dx.numel() == 0) return;
  const auto* where = indices.as<std::int32_t>();
  const Problem p(dx, dy, Axis::strided(dx.size(2), dy.size(2), options, 0),
                  Axis::strided(dx.size(3), dy.size(3), options, 1), aligned_all(dx.data, dy.data, where, dx.dtype));
  visit_floating(dx.dtype, "max_pool2d_backward", [&]<class T>() {
    using N = native_t<T>;
    auto* to = static_cast<N*>(dx.data);
    const auto* from = static_cast<const N*>(dy.data);
    with_vector<N>(p, [&]<int V>() {
      const auto three_by_two = [](const Axis& a) { return a.kernel == 3 && a.stride == 2; };
      if constexpr (V > 1) {
        const std::int64_t rows = ceil_div(p.h.in + p.h.padding, 2), columns = ceil_div(p.w.in + p.w.padding, 2);
        const std::int64_t down = ceil_div(rows, kDown), across = ceil_div(columns * (p.c / V), kAcross);
        const std::int64_t blocks = p.images * down * across;
        constexpr std::int64_t kMost = std::int64_t{1} << 30;
        if (three_by_two(p.h) && three_by_two(p.w) && across <= kMost / kAcross && blocks <= kMost) {
          const Patches patches{static_cast<int>(rows), static_cast<int>(columns), static_cast<int>(down),
                                static_cast<int>(across)};
          backward_three_by_two<N, V>
              <<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(ctx)>>>(to, from, where, p, patches);
          return;
        }
      }
      backward<N, V><<<blocks_for(dx.numel() / V), kThreads, 0, stream_of(ctx)>>>(to, from, where, p);
    });
  });
  check_launch("max_pool2d_backward");
}

}  // namespace apex::kernels::cuda
