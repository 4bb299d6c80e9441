// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "loss.cuh"

namespace apex::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 4;                 // of a multiprocessor
constexpr int kMostParts = 132 * kBlocks;  // whatever the device: the order of a sum depends on sizes only
/// Packs of each of so many operands that are on their way together.
template <std::size_t operands>
inline constexpr int kAheadPacks = operands == 2 ? 4 : 1;

/// Any loss of an element.
template <class M>
struct Value {
  LossOp<M> op;
  using C = compute_t<M>;
  __device__ C operator()(C x, C t) const { return op.template plain<LossTerm::value>(x, t); }
  __device__ C operator()(C x, C t, C w, C p) const { return op.template any<LossTerm::value>(x, t, w, p); }
};

/// The losses of a pack: in their own type, two by two. Only then are they summed in f64, whose conversions would take
/// longer than the loads.
template <int V, class F, class... In>
__device__ __forceinline__ double sum_of(const F& f, const Packs<V, In...>& packs) {
  decltype(call(f, packs, 0)) value[V];
#pragma unroll
  for (int i = 0; i < V; ++i) value[i] = call(f, packs, i);
#pragma unroll
  for (int width = V / 2; width > 0; width /= 2)
#pragma unroll
    for (int i = 0; i < width; ++i) value[i] += value[i + width];
  return static_cast<double>(value[0]);
}

/// A sum a block, of operands that lie alike: `packs` packs and `rest` elements behind them.
template <int V, class F, class... In>
__global__ void __launch_bounds__(kThreads, kBlocks)
    sum_alike(F f, std::int64_t packs, int rest, double* parts, const In*... in) {
  constexpr int kAhead = kAheadPacks<sizeof...(In)>;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  double sum = 0;
  std::int64_t p = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; p + (kAhead - 1) * step < packs; p += kAhead * step) {
    Packs<V, In...> read[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) read[u] = read_alike<V>((p + u * step) * V, in...);
#pragma unroll
    for (int u = 0; u < kAhead; ++u) sum += sum_of(f, read[u]);
  }
#pragma unroll 1
  for (; p < packs; p += step) sum += sum_of(f, read_alike<V>(p * V, in...));
  if (blockIdx.x == 0 && static_cast<int>(threadIdx.x) < rest)
    sum += static_cast<double>(call(f, read_alike<1>(packs * V + threadIdx.x, in...), 0));
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

/// A sum a block, over any strides.
template <class F, class... In>
__global__ void __launch_bounds__(kThreads)
    sum_strided(F f, Index<sizeof...(In)> index, double* parts, const In*... in) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  double sum = 0;
  for (std::int64_t p = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; p < index.numel; p += step)
    sum += static_cast<double>(call(f, read_packs<1, 0>(index, index.at(p), in...), 0));
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

/// The sum over blocks of `each` elements or more; launch(blocks, parts) sums a block each.
template <class A, class Launch>
void sum_blocks(const Context& ctx, const char* op, A* loss, double divisor, std::int64_t numel, std::int64_t each,
                const Launch& launch) {
  const int parts = static_cast<int>(std::clamp<std::int64_t>(ceil_div(numel, each), 1, kMostParts));
  const Workspace memory = ctx.workspace(static_cast<std::size_t>(parts) * sizeof(double));
  launch(static_cast<unsigned>(parts), memory.as<double>());
  check_launch(op);
  sum_of_parts<<<1, kThreads, 0, stream_of(ctx)>>>(loss, memory.as<double>(), parts, divisor);
  check_launch(op);
}

template <class... In>
inline constexpr int kSumVector = std::min({kVector<In>...});

/// Whether all operands lie alike, at aligned addresses.
template <class... In>
bool lie_alike(const Index<sizeof...(In)>& index, const In*... in) {
  constexpr int N = sizeof...(In);
  if (index.rank != 1) return false;
  for (int k = 0; k < N; ++k)
    if (index.stride[k][0] != 1) return false;
  return packs<N>(index, kSumVector<In...>, {in...}, {sizeof(In)...});
}

template <class F, class A, class... In>
void sum_where_alike(const Context& ctx, const char* op, const F& f, A* loss, double divisor, std::int64_t numel,
                     const In*... in) {
  constexpr int V = kSumVector<In...>;
  sum_blocks(
      ctx, op, loss, divisor, numel, kThreads * kAheadPacks<sizeof...(In)> * V, [&](unsigned blocks, double* parts) {
        sum_alike<V><<<blocks, kThreads, 0, stream_of(ctx)>>>(f, numel / V, static_cast<int>(numel % V), parts, in...);
      });
}

template <class F, class A, class... In>
void sum_anyhow(const Context& ctx, const char* op, const F& f, A* loss, double divisor,
                const Index<sizeof...(In)>& index, const In*... in) {
  sum_blocks(ctx, op, loss, divisor, index.numel, kThreads * 8, [&](unsigned blocks, double* parts) {
    sum_strided<<<blocks, kThreads, 0, stream_of(ctx)>>>(f, index, parts, in...);
  });
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
    using C = compute_t<N>;
    const N *xs = native<T>(x), *ts = native<T>(target), *ws = native<T>(w), *ps = native<T>(p);
    A* to = loss.as<A>();
    if (each) {  // results of C
      const Value<C> f{loss_op<C>(options, weight, pos_weight)};
      if (weighted) return map(ctx, op, f, index_of(loss, x, target, w, p), to, xs, ts, ws, ps);
      const auto index = index_of(loss, x, target);
      const bool done = visit_loss(options, [&]<LossKind kKind, bool kLogTarget>() {
        const OneLoss<LossTerm::value, kKind, kLogTarget, C> one{delta_of<C>(options)};
        return map_alike(ctx, op, one, index, to, xs, ts);
      });
      if (!done) map_strided(ctx, op, f, f, index, to, xs, ts);
      return;
    }
    const Value<N> f{loss_op<N>(options, weight, pos_weight)};
    if (weighted) {
      const auto index = space_of(x, target, w, p);
      if (lie_alike(index, xs, ts, ws, ps))
        return sum_where_alike(ctx, op, f, to, divisor, index.numel, xs, ts, ws, ps);
      return sum_anyhow(ctx, op, f, to, divisor, index, xs, ts, ws, ps);
    }
    const auto index = space_of(x, target);
    if (!lie_alike(index, xs, ts)) return sum_anyhow(ctx, op, f, to, divisor, index, xs, ts);
    visit_loss(options, [&]<LossKind kKind, bool kLogTarget>() {
      const OneLoss<LossTerm::value, kKind, kLogTarget, N> one{delta_of<N>(options)};
      sum_where_alike(ctx, op, one, to, divisor, index.numel, xs, ts);
    });
  });
}

}  // namespace apex::kernels::cuda
