// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "cross_entropy.cuh"

namespace apex::kernels::cuda {
namespace {

using namespace cross_entropy_detail;

template <class A>
struct Rows {
  std::int64_t classes, row_stride, stride, out_row_stride, out_stride, label_stride, g_stride, ignore_index;
  const std::int64_t* labels;
  const A *lse, *g;  // g_stride 0: one for all rows
  A on_label, on_all;
};

template <class N, int kThreads>
__global__ void __launch_bounds__(kThreads) backward(N* dlogits, const N* logits, const Rows<compute_t<N>> r) {
  using A = compute_t<N>;
  constexpr int V = kVector<N>;
  const std::int64_t i = blockIdx.x, label = r.labels[i * r.label_stride];
  const N* x = logits + i * r.row_stride;
  N* to = dlogits + i * r.out_row_stride;
  const Label kind = kind_of(label, r.classes, r.ignore_index);
  const A g = kind == Label::counts ? r.g[i * r.g_stride] : kind == Label::ignored ? A(0) : static_cast<A>(NAN);
  const A log_sum = r.lse[i];
  const auto at = [&](A value, bool is_label) {
    if (kind == Label::ignored) return store<N>(A(0));  // whatever the logit is
    return store<N>(g * (exp_of<N>(value - log_sum) - (r.on_all + (is_label ? r.on_label : A(0)))));
  };
  const bool together = reinterpret_cast<std::uintptr_t>(x) % 16 == reinterpret_cast<std::uintptr_t>(to) % 16;
  const Split<V> s(x, r.classes, r.stride == 1 && r.out_stride == 1 && together);
  const auto* from_vectors = reinterpret_cast<const Pack<N, V>*>(x + s.head);
  auto* to_vectors = reinterpret_cast<Pack<N, V>*>(to + s.head);
  for (std::int64_t c = threadIdx.x; c < s.vectors; c += kUnroll * kThreads) {
    Pack<N, V> in[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (c + u * kThreads < s.vectors) in[u] = from_vectors[c + u * kThreads];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const std::int64_t k = c + u * kThreads;
      if (k >= s.vectors) break;
      const std::int64_t slot = label - (s.head + k * V);
      const int hit = slot >= 0 && slot < V ? static_cast<int>(slot) : -1;
      Pack<N, V> out;
#pragma unroll
      for (int v = 0; v < V; ++v) out.v[v] = at(load(in[u].v[v]), v == hit);
      to_vectors[k] = out;
    }
  }
  for (std::int64_t c = threadIdx.x; c < s.head; c += kThreads)
    to[c * r.out_stride] = at(load(x[c * r.stride]), c == label);
  for (std::int64_t c = s.tail() + threadIdx.x; c < r.classes; c += kThreads)
    to[c * r.out_stride] = at(load(x[c * r.stride]), c == label);
}

/// The gradient of a mean, spread over the rows that count.
template <class A>
__global__ void __launch_bounds__(kSumThreads)
    spread(A* g, const A* dloss, std::int64_t rows, const std::int64_t* labels, std::int64_t label_stride,
           std::int64_t ignore_index) {
  const double count = count_rows(labels, label_stride, rows, ignore_index);
  if (threadIdx.x == 0) *g = *dloss / static_cast<A>(count);
}

}  // namespace

void cross_entropy_backward(const Context& ctx, View dlogits, ConstView dloss, ConstView logits, ConstView lse,
                            ConstView labels, const CrossEntropyOptions& options) {
  const std::int64_t rows = logits.size(0), classes = logits.size(1);
  if (rows == 0) return;
  const auto stream = stream_of(ctx);
  visit_floating(logits.dtype, "cross_entropy_backward", [&]<class T>() {
    using N = native_t<T>;
    using A = accum_t<T>;
    Rows<A> r{.classes = classes,
              .row_stride = logits.stride(0),
              .stride = logits.stride(1),
              .out_row_stride = dlogits.stride(0),
              .out_stride = dlogits.stride(1),
              .label_stride = labels.stride(0),
              .g_stride = options.reduction == Reduction::none ? dloss.stride(0) : 0,
              .ignore_index = options.ignore_index,
              .labels = labels.as<std::int64_t>(),
              .lse = lse.as<A>(),
              .g = dloss.as<A>(),
              .on_label = static_cast<A>(1.0 - options.label_smoothing),
              .on_all = static_cast<A>(options.label_smoothing / static_cast<double>(classes))};
    const Workspace memory = ctx.workspace(sizeof(A));
    if (options.reduction == Reduction::mean) {
      spread<A><<<1, kSumThreads, 0, stream>>>(memory.as<A>(), r.g, rows, r.labels, r.label_stride, r.ignore_index);
      r.g = memory.as<A>();
    }
    with_threads<512>(classes * static_cast<std::int64_t>(sizeof(N)), [&](auto threads) {
      backward<N, threads()><<<static_cast<unsigned>(rows), threads(), 0, stream>>>(
          static_cast<N*>(dlogits.data), static_cast<const N*>(logits.data), r);
    });
  });
  check_launch("cross_entropy_backward");
}

}  // namespace apex::kernels::cuda
