// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "loss.cuh"

namespace apex::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostParts = 1024;

template <class N>
struct Value {
  LossOp<N> op;
  using C = compute_t<N>;
  __device__ C operator()(C x, C t) const { return op.template plain<LossTerm::value>(x, t); }
  __device__ C operator()(C x, C t, C w, C p) const { return op.template any<LossTerm::value>(x, t, w, p); }
};

/// A sum a block. V > 1: operands that lie alike, in packs, and `rest` elements behind them.
template <int V, class F, class... In>
__global__ void __launch_bounds__(kThreads)
    sum_parts(F f, Index<sizeof...(In)> index, int rest, double* parts, const In*... in) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  double sum = 0;
  for (std::int64_t p = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; p < index.numel; p += step) {
    if constexpr (V == 1) {
      sum += static_cast<double>(call(f, read_packs<1, 0>(index, index.at(p), in...), 0));
    } else {
      const auto packs = read_alike<V>(p * V, in...);
#pragma unroll
      for (int i = 0; i < V; ++i) sum += static_cast<double>(call(f, packs, i));
    }
  }
  if (V > 1 && blockIdx.x == 0 && static_cast<int>(threadIdx.x) < rest)
    sum += static_cast<double>(call(f, read_alike<1>(index.numel * V + threadIdx.x, in...), 0));
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

/// loss = sum of parts / divisor; one block.
template <class A>
__global__ void __launch_bounds__(kThreads) sum_of_parts(A* loss, const double* parts, int count, double divisor) {
  double sum = 0;
  for (int i = threadIdx.x; i < count; i += kThreads) sum += parts[i];
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) *loss = static_cast<A>(sum / divisor);
}

template <class F, class A, class... In>
void reduce_to(const Context& ctx, const char* op, const F& f, A* loss, double divisor,
               const Index<sizeof...(In)>& index, const In*... in) {
  constexpr int N = sizeof...(In);
  constexpr int V = std::min({kVector<In>...});
  bool alike = index.rank == 1;
  for (int k = 0; k < N; ++k) alike = alike && index.stride[k][0] == 1;
  alike = alike && packs<N>(index, V, {in...}, {sizeof(In)...});
  const std::int64_t each = kThreads * (alike ? 4 * V : 8);
  const int parts = static_cast<int>(std::clamp<std::int64_t>(ceil_div(index.numel, each), 1, kMostParts));
  const Workspace memory = ctx.workspace(static_cast<std::size_t>(parts) * sizeof(double));
  const auto stream = stream_of(ctx);
  if (alike)
    sum_parts<V><<<static_cast<unsigned>(parts), kThreads, 0, stream>>>(
        f, packed(index, V), static_cast<int>(index.numel % V), memory.as<double>(), in...);
  else
    sum_parts<1><<<static_cast<unsigned>(parts), kThreads, 0, stream>>>(f, index, 0, memory.as<double>(), in...);
  check_launch(op);
  sum_of_parts<<<1, kThreads, 0, stream>>>(loss, memory.as<double>(), parts, divisor);
  check_launch(op);
}

/// The space of x and what broadcasts to it.
template <class... Others>
Index<1 + sizeof...(Others)> space_of(const ConstView& x, const Others&... other) {
  return make_index<1 + sizeof...(Others)>(x.sizes,
                                           {x.strides, broadcast_strides(other.sizes, other.strides, x.sizes)...});
}

}  // namespace

void pointwise_loss(const Context& ctx, View loss, ConstView x, ConstView target, ConstView weight,
                    ConstView pos_weight, const PointwiseLoss& options) {
  const char* op = name_of(options.kind);
  const bool each = options.reduction == Reduction::none;
  if (each && x.numel() == 0) return;
  const bool weighted = (weight.defined() || pos_weight.defined()) && x.numel() != 0;
  const double divisor = options.reduction == Reduction::mean ? static_cast<double>(x.numel()) : 1.0;
  const ConstView w = or_any(weight, x), p = or_any(pos_weight, x);
  visit_floating(x.dtype, op, [&]<class T>() {
    using N = native_t<T>;
    using A = accum_t<T>;
    const Value<N> f{loss_op<N>(options, weight, pos_weight)};
    const N *xs = native<T>(x), *ts = native<T>(target), *ws = native<T>(w), *ps = native<T>(p);
    A* to = loss.as<A>();
    if (each && weighted)
      map(ctx, op, f, index_of(loss, x, target, w, p), to, xs, ts, ws, ps);
    else if (each)
      map(ctx, op, f, index_of(loss, x, target), to, xs, ts);
    else if (weighted)
      reduce_to(ctx, op, f, to, divisor, space_of(x, target, w, p), xs, ts, ws, ps);
    else
      reduce_to(ctx, op, f, to, divisor, space_of(x, target), xs, ts);
  });
}

}  // namespace apex::kernels::cuda
