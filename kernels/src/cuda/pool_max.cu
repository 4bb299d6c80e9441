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
        in[k] = fetch<V>(image + (std::int64_t{r} * p.w.in + q) * p.c);  // a pixel twice changes nothing
      }
#pragma unroll
      for (int k = 1; k < kKernel * kKernel; ++k) {
        const int r = min(rows.begin + k / kKernel, rows.end - 1),
                  q = min(columns.begin + k % kKernel, columns.end - 1);
#pragma unroll
        for (int v = 0; v < V; ++v) take(best.v[v], where.v[v], in[k].v[v], r * p.w.in + q);
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
    with_vector<N>(p, [&]<int V>() {
      backward<N, V><<<blocks_for(dx.numel() / V), kThreads, 0, stream_of(ctx)>>>(
          static_cast<N*>(dx.data), static_cast<const N*>(dy.data), where, p);
    });
  });
  check_launch("max_pool2d_backward");
}

}  // namespace apex::kernels::cuda
