// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "pool.cuh"

namespace apex::kernels::cuda {
namespace {

using namespace pool;

template <class N, int V>
__global__ void __launch_bounds__(kThreads) forward(N* y, const N* x, const Problem p) {
  using A = compute_t<N>;
  const std::int64_t tasks = p.images * p.h.out * p.w.out * (p.c / V);
  for_each_task(tasks, [&](std::int64_t task) {
    const Pixel o(task, p, V, p.h.out, p.w.out);
    const Range rows = p.h.window(o.row), columns = p.w.window(o.column);
    const N* image = x + at(p, o.image, p.h.in, p.w.in, 0, 0, o.channel);
    A sum[V] = {};
    for (int r = rows.begin; r < rows.end; ++r)
#pragma unroll 8
      for (int q = columns.begin; q < columns.end; ++q) {
        const auto in = fetch<V>(image + (std::int64_t{r} * p.w.in + q) * p.c);
#pragma unroll
        for (int v = 0; v < V; ++v) sum[v] += load(in.v[v]);
      }
    const A divisor = static_cast<A>(std::int64_t{p.h.divisor(o.row)} * p.w.divisor(o.column));
    Pack<N, V> out;
#pragma unroll
    for (int v = 0; v < V; ++v) out.v[v] = store<N>(sum[v] / divisor);
    put(y + task * V, out);
  });
}

/// Large windows of row-major images: a warp each.
template <class N>
__global__ void __launch_bounds__(kThreads) forward_by_warp(N* y, const N* x, const Problem p) {
  using A = compute_t<N>;
  const std::int64_t tasks = p.images * p.h.out * p.w.out, step = std::int64_t{gridDim.x} * (kThreads / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (std::int64_t task = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32; task < tasks; task += step) {
    const Pixel o(task, p, 1, p.h.out, p.w.out);
    const Range rows = p.h.window(o.row), columns = p.w.window(o.column);
    const N* image = x + at(p, o.image, p.h.in, p.w.in, 0, 0, 0);
    const int width = columns.length(), area = rows.length() * width;
    A sum{};
#pragma unroll 4
    for (int k = lane; k < area; k += 32)
      sum += load(image[std::int64_t{rows.begin + k / width} * p.w.in + columns.begin + k % width]);
    sum = warp_sum(sum);
    if (lane == 0) y[task] = store<N>(sum / static_cast<A>(std::int64_t{p.h.divisor(o.row)} * p.w.divisor(o.column)));
  }
}

template <class N, int V>
__global__ void __launch_bounds__(kThreads) backward(N* dx, const N* dy, const Problem p) {
  using A = compute_t<N>;
  const std::int64_t tasks = p.images * p.h.in * p.w.in * (p.c / V);
  for_each_task(tasks, [&](std::int64_t task) {
    const Pixel i(task, p, V, p.h.in, p.w.in);
    const Range rows = p.h.outputs(i.row), columns = p.w.outputs(i.column);
    A sum[V] = {};
    for (int r = rows.begin; r < rows.end; ++r)
      for (int q = columns.begin; q < columns.end; ++q) {
        const A share = A(1) / static_cast<A>(std::int64_t{p.h.divisor(r)} * p.w.divisor(q));
        const auto gradient = fetch<V>(dy + at(p, i.image, p.h.out, p.w.out, r, q, i.channel));
#pragma unroll
        for (int v = 0; v < V; ++v) sum[v] += load(gradient.v[v]) * share;
      }
    Pack<N, V> out;
#pragma unroll
    for (int v = 0; v < V; ++v) out.v[v] = store<N>(sum[v]);
    put(dx + task * V, out);
  });
}

bool aligned_both(const void* a, const void* b) { return aligned_to(a, 16) && aligned_to(b, 16); }

void average(const Context& ctx, const View& y, const ConstView& x, Axis h, Axis w) {
  const Problem p(x, y, h, w, aligned_both(x.data, y.data));
  const std::int64_t area = x.size(2) * x.size(3) / (y.size(2) * y.size(3));  // of a window, about
  visit_floating(x.dtype, "avg_pool2d", [&]<class T>() {
    using N = native_t<T>;
    N* to = static_cast<N*>(y.data);
    const N* from = static_cast<const N*>(x.data);
    if (p.c == 1 && area >= 32)
      forward_by_warp<N><<<blocks_for(y.numel() * 32), kThreads, 0, stream_of(ctx)>>>(to, from, p);
    else
      with_vector<N>(
          p, [&]<int V>() { forward<N, V><<<blocks_for(y.numel() / V), kThreads, 0, stream_of(ctx)>>>(to, from, p); });
  });
  check_launch("avg_pool2d");
}

void average_gradient(const Context& ctx, const View& dx, const ConstView& dy, Axis h, Axis w) {
  const Problem p(dx, dy, h, w, aligned_both(dx.data, dy.data));
  visit_floating(dx.dtype, "avg_pool2d_backward", [&]<class T>() {
    using N = native_t<T>;
    with_vector<N>(p, [&]<int V>() {
      backward<N, V><<<blocks_for(dx.numel() / V), kThreads, 0, stream_of(ctx)>>>(static_cast<N*>(dx.data),
                                                                                  static_cast<const N*>(dy.data), p);
    });
  });
  check_launch("avg_pool2d_backward");
}

}  // namespace

void avg_pool2d(const Context& ctx, View y, ConstView x, const Pool2dOptions& options) {
  if (y.numel() == 0) return;
  average(ctx, y, x, Axis::strided(x.size(2), y.size(2), options, 0), Axis::strided(x.size(3), y.size(3), options, 1));
}

void avg_pool2d_backward(const Context& ctx, View dx, ConstView dy, const Pool2dOptions& options) {
  if (dx.numel() == 0) return;
  average_gradient(ctx, dx, dy, Axis::strided(dx.size(2), dy.size(2), options, 0),
                   Axis::strided(dx.size(3), dy.size(3), options, 1));
}

void adaptive_avg_pool2d(const Context& ctx, View y, ConstView x) {
  if (y.numel() == 0) return;
  average(ctx, y, x, Axis::divided(x.size(2), y.size(2)), Axis::divided(x.size(3), y.size(3)));
}

void adaptive_avg_pool2d_backward(const Context& ctx, View dx, ConstView dy) {
  if (dx.numel() == 0) return;
  average_gradient(ctx, dx, dy, Axis::divided(dx.size(2), dy.size(2)), Axis::divided(dx.size(3), dy.size(3)));
}

}  // namespace apex::kernels::cuda
