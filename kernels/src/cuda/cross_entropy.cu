// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../index_faults.hpp"
#include "cross_entropy.cuh"

namespace apex::kernels::cuda {
namespace {

using namespace cross_entropy_detail;

/// The sum of exponentials of what was seen so far, about its largest value; and the plain sum.
template <class N>
struct Online {
  using A = compute_t<N>;
  A high = -static_cast<A>(INFINITY), sum = 0, total = 0;

  /// What exponents are taken about: 0 as long as all was -infinity.
  __device__ __forceinline__ A base() const { return high == -static_cast<A>(INFINITY) ? A(0) : high; }
  __device__ __forceinline__ void raise(A top) {
    if (!(top > high)) return;
    sum *= exp_of<N>(high - top);
    high = top;
  }
  __device__ __forceinline__ void add(A value) {
    raise(value);
    sum += exp_of<N>(value - base());
    total += value;
  }
};

template <int kThreads, class A>
__device__ __forceinline__ A block_max(A value) {
  __shared__ A partial[kThreads / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = max(value, __shfl_xor_sync(0xffffffffu, value, offset));
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) value = max(value, partial[w]);
  return value;
}

struct Rows {
  std::int64_t classes, row_stride, stride, label_stride, loss_stride, ignore_index;
  const std::int64_t* labels;
  double smoothing;
};

/// One read of the row gives its largest value, its sum of exponentials and its sum.
template <class N, int kThreads>
__global__ void __launch_bounds__(kThreads)
    forward(compute_t<N>* losses, compute_t<N>* lse, const N* logits, const Rows r) {
  using A = compute_t<N>;
  constexpr int V = kVector<N>;
  const std::int64_t i = blockIdx.x, label = r.labels[i * r.label_stride];
  const N* x = logits + i * r.row_stride;
  const Label kind = kind_of(label, r.classes, r.ignore_index);
  const A on_label = kind == Label::counts ? load(x[label * r.stride]) : A(0);
  const bool smooth = r.smoothing != 0;  // else nobody asks for the plain sum
  Online<N> online;
  const Split<V> s(x, r.classes, r.stride == 1);
  const auto* vectors = reinterpret_cast<const Pack<N, V>*>(x + s.head);
  for (std::int64_t c = threadIdx.x; c < s.vectors; c += kUnroll * kThreads) {
    Pack<N, V> in[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (c + u * kThreads < s.vectors) in[u] = vectors[c + u * kThreads];
    A top = -static_cast<A>(INFINITY);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (c + u * kThreads < s.vectors) top = max(top, largest_of(in[u]));
    online.raise(top);
    const A base = online.base();
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (c + u * kThreads >= s.vectors) break;
#pragma unroll
      for (int v = 0; v < V; ++v) online.sum += exp_of<N>(load(in[u].v[v]) - base);
      if (!smooth) continue;
#pragma unroll
      for (int v = 0; v < V; ++v) online.total += load(in[u].v[v]);
    }
  }
  for (std::int64_t c = threadIdx.x; c < s.head; c += kThreads) online.add(load(x[c * r.stride]));
  for (std::int64_t c = s.tail() + threadIdx.x; c < r.classes; c += kThreads) online.add(load(x[c * r.stride]));

  const A own = online.high;
  online.high = block_max<kThreads>(own);
  const A sum = block_sum<kThreads>(online.sum * exp_of<N>(own - online.base()));
  const A total = smooth ? block_sum<kThreads>(online.total) : A(0);
  if (threadIdx.x != 0) return;
  const A log_sum = online.high + log(sum);
  if (lse != nullptr) lse[i] = log_sum;
  A loss = log_sum - on_label;
  if (smooth) {  // without it a logit of -infinity must not meet a factor of 0
    const A smoothing = static_cast<A>(r.smoothing);
    loss = (A(1) - smoothing) * loss + smoothing * (log_sum - total / static_cast<A>(r.classes));
  }
  if (kind == Label::ignored) loss = A(0);
  if (kind == Label::invalid) loss = static_cast<A>(NAN);
  losses[i * r.loss_stride] = loss;
}

template <class A>
__global__ void __launch_bounds__(kSumThreads)
    reduce(A* loss, const A* losses, std::int64_t rows, const std::int64_t* labels, std::int64_t label_stride,
           std::int64_t ignore_index, bool mean) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < rows; i += kSumThreads) sum += static_cast<double>(losses[i]);
  sum = block_sum<kSumThreads>(sum);
  if (mean) sum /= count_rows(labels, label_stride, rows, ignore_index);
  if (threadIdx.x == 0) *loss = static_cast<A>(sum);
}

}  // namespace

void cross_entropy(const Context& ctx, View loss, View lse, ConstView logits, ConstView labels,
                   const CrossEntropyOptions& options) {
  const std::int64_t rows = logits.size(0);
  check_indices(ctx, {"cross_entropy", "label", logits.size(1), options.ignore_index}, labels);
  const auto stream = stream_of(ctx);
  const bool each = options.reduction == Reduction::none;
  const Rows r{.classes = logits.size(1),
               .row_stride = logits.stride(0),
               .stride = logits.stride(1),
               .label_stride = labels.stride(0),
               .loss_stride = each ? loss.stride(0) : 1,
               .ignore_index = options.ignore_index,
               .labels = labels.as<std::int64_t>(),
               .smoothing = options.label_smoothing};
  visit_floating(logits.dtype, "cross_entropy", [&]<class T>() {
    using N = native_t<T>;
    using A = accum_t<T>;
    const Workspace memory = ctx.workspace(each ? 0 : static_cast<std::size_t>(rows) * sizeof(A));
    A* losses = each ? loss.as<A>() : memory.as<A>();
    A* sums = lse.defined() ? lse.as<A>() : nullptr;
    const auto* x = static_cast<const N*>(logits.data);
    if (rows > 0)
      with_threads<256>(r.classes * static_cast<std::int64_t>(sizeof(N)), [&](auto threads) {
        forward<N, threads()><<<static_cast<unsigned>(rows), threads(), 0, stream>>>(losses, sums, x, r);
      });
    if (!each)
      reduce<A><<<1, kSumThreads, 0, stream>>>(loss.as<A>(), losses, rows, r.labels, r.label_stride, r.ignore_index,
                                               options.reduction == Reduction::mean);
  });
  check_launch("cross_entropy");
}

}  // namespace apex::kernels::cuda
