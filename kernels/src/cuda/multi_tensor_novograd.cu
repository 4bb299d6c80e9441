// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "multi_tensor_measure.cuh"

// The norms of the gradients, chunk by chunk; then the kept norms; then the weights.

namespace apex::kernels::cuda {
namespace {

using namespace multi_tensor;

enum List { kParams, kExpAvg, kGrads, kCopies, kNorms, kNovoGradLists };

/// The kept norms of the tensors of one table, a block each. The second list holds their addresses.
template <class C>
__global__ void __launch_bounds__(kReduceThreads)
    blend_norms(const __grid_constant__ Table<2> table, const double* chunks, const optimizer::NovoGrad<C> rule,
                const OnDevice device, const typename Counted<C>::Given counted) {
  if (device.stops()) return;
  const int i = static_cast<int>(blockIdx.x);
  const double measure = reduce_chunks<1>(table, i, chunks, rule.inf).value[0];
  if (threadIdx.x != 0) return;
  C* kept = static_cast<C*>(table.data[1][i]);
  *kept = rule.blend(*kept, static_cast<C>(rule.inf ? measure : sqrt(measure)), counted.is_first(i));
}

/// P, G: types of params and grads; void: see the types at hand.
template <class C, class P, class G>
struct NovoGradOp {
  static constexpr int kBlocks = std::is_same_v<C, double> ? 2 : 3;

  optimizer::NovoGrad<C> rule;
  StepValues<C> values;
  typename Counted<C>::Given counted;
  DType p_type, g_type, copy_type;
  // of the tensor at hand
  void *params = nullptr, *exp_avg = nullptr, *copies = nullptr;
  const void* grads = nullptr;
  Corrections<C> corrections{};
  C below{};

  template <int E>
  struct Item {
    Held<P, E> p;
    Held<C, E> m;
    Held<G, E> g;
  };

  __device__ __forceinline__ bool begin(const Table<kNovoGradLists>& table, int i) {
    if (!values.read()) return false;
    params = table.data[kParams][i];
    exp_avg = table.data[kExpAvg][i];
    grads = table.data[kGrads][i];
    copies = table.data[kCopies][i];
    corrections = counted.at(i);
    below = rule.divisor(*static_cast<const C*>(table.data[kNorms][i]), corrections);
    return true;
  }
  template <int E>
  __device__ __forceinline__ void fetch(Item<E>& item, std::int64_t at) const {
    item.p.fetch(params, at, p_type);
    item.m.fetch(exp_avg, at, {});
    item.g.fetch(grads, at, g_type);
  }
  template <int E>
  __device__ __forceinline__ void use(Item<E>& item, std::int64_t at) const {
    C updated[E], m[E];
#pragma unroll
    for (int e = 0; e < E; ++e) {
      const C p = item.p.template get<C>(e, p_type), g = item.g.template get<C>(e, g_type) * values.scale;
      m[e] = item.m.x.v[e];
      updated[e] = rule.inside ? rule.template step<true>(p, m[e], g, below, corrections, values.lr)
                               : rule.template step<false>(p, m[e], g, below, corrections, values.lr);
    }
    put_any<C>(m, exp_avg, at, {});
    put_any<P>(updated, params, at, p_type);
    if (copies != nullptr) put_any<void>(updated, copies, at, copy_type);
  }
  __device__ __forceinline__ void finish() const {}
};

template <class C, class P, class G>
void run(const Context& ctx, std::span<const View> params, std::span<const View> exp_avg, std::span<const View> norms,
         std::span<const View> copies, std::span<const ConstView> grads, std::span<const View> steps,
         const NovoGradOptions& o) {
  constexpr const char* name = "multi_tensor_novograd";
  const optimizer::NovoGrad<C> rule(o);
  const OnDevice device(o.in);
  const Counted<C> counted(ctx, steps, o.step, device, rule.corrections(o), true);
  const DType copy_type = dtype_of_list(copies);
  std::int64_t chunks = 0;
  for (const auto& g : grads) chunks += ceil_div(g.numel(), kChunk);
  const Workspace memory = ctx.workspace(static_cast<std::size_t>(chunks) * sizeof(double));
  double* sums = memory.as<double>();
  auto measure = make_filler<2>(kChunk, [&](const Table<2>& table, int first) {
    const Measure<C, G> op{.device = device,
                           .scale = static_cast<C>(o.in.grad_scale),
                           .out_scale = C(1),
                           .type = grads[0].dtype,
                           .out_type = DType::f32,
                           .largest = rule.inf,
                           .writes = false,
                           .chunks = sums};
    launch_each(ctx, table, op, name);
    blend_norms<C><<<static_cast<unsigned>(table.count), kReduceThreads, 0, stream_of(ctx)>>>(table, sums, rule, device,
                                                                                              counted.from(first));
    check_launch(name);
    sums += table.start[table.count];
  });
  for (std::size_t i = 0; i < params.size(); ++i)
    measure.add({grads[i].data, norms[i].data}, {size_of(grads[i].dtype), 1}, grads[i].numel(), 0);
  measure.flush();
  auto filler = make_filler<kNovoGradLists>(kChunk, [&](const Table<kNovoGradLists>& table, int first) {
    const NovoGradOp<C, P, G> op{.rule = rule,
                                 .values = StepValues<C>(device, o.in, o.lr),
                                 .counted = counted.from(first),
                                 .p_type = params[0].dtype,
                                 .g_type = grads[0].dtype,
                                 .copy_type = copy_type};
    launch_each(ctx, table, op, name);
  });
  for (std::size_t i = 0; i < params.size(); ++i)
    filler.add({params[i].data, exp_avg[i].data, grads[i].data, data_at(copies, i), norms[i].data},
               {size_of(params[i].dtype), sizeof(C), size_of(grads[i].dtype), size_of(copy_type), 1}, params[i].numel(),
               0);
  filler.flush();
}

}  // namespace

void multi_tensor_novograd(const Context& ctx, std::span<const View> params, std::span<const View> exp_avg,
                           std::span<const View> norms, std::span<const View> copies, std::span<const ConstView> grads,
                           std::span<const View> steps, const NovoGradOptions& options) {
  if (params[0].dtype == DType::f64)
    return run<double, double, double>(ctx, params, exp_avg, norms, copies, grads, steps, options);
  if (params[0].dtype == DType::f32 && grads[0].dtype == DType::f32)
    return run<float, float, float>(ctx, params, exp_avg, norms, copies, grads, steps, options);
  run<float, void, void>(ctx, params, exp_avg, norms, copies, grads, steps, options);
}

}  // namespace apex::kernels::cuda
