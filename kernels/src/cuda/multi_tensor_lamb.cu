// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <bit>
#include <vector>

#include "multi_tensor_measure.cuh"

// Moments first, with the squares of p and u chunk by chunk; then the squares of each tensor; then p, with u formed
// again: cheaper than to store and load it.

namespace apex::kernels::cuda {
namespace {

using namespace multi_tensor;

namespace moment_list {
enum { kParams, kExpAvg, kExpAvgSq, kGrads, kUpdates, kDecays, kCount };
}
namespace apply_list {
enum { kParams, kExpAvg, kExpAvgSq, kCopies, kCount };
}

/// P, G: types of params and grads; void: see the types at hand.
template <class C, class P, class G>
struct LambMomentsOp {
  static constexpr int kAtOnce = 2;
  static constexpr int kBlocks = std::is_same_v<C, double> ? 2 : 3;

  optimizer::Lamb<C> rule;
  StepValues<C> values;
  typename Counted<C>::Given counted;
  DType p_type, g_type, u_type;
  double* chunks;
  // of the tensor at hand
  const void *params = nullptr, *grads = nullptr;
  void *exp_avg = nullptr, *exp_avg_sq = nullptr, *updates = nullptr;
  Corrections<C> corrections{};
  C below{}, decay{};
  C p_squares = C(0), u_squares = C(0);

  template <int E>
  struct Item {
    Held<P, E> p;
    Held<C, E> m, v;
    Held<G, E> g;
  };

  __device__ __forceinline__ bool begin(const Table<moment_list::kCount>& table, int i) {
    if (!values.read()) return false;
    params = table.data[moment_list::kParams][i];
    exp_avg = table.data[moment_list::kExpAvg][i];
    exp_avg_sq = table.data[moment_list::kExpAvgSq][i];
    grads = table.data[moment_list::kGrads][i];
    updates = table.data[moment_list::kUpdates][i];
    corrections = counted.at(i);
    below = rule.clip(static_cast<C>(values.device.grad_norm()));
    decay = static_cast<C>(__longlong_as_double(reinterpret_cast<long long>(table.data[moment_list::kDecays][i])));
    return true;
  }
  template <int E>
  __device__ __forceinline__ void fetch(Item<E>& item, std::int64_t at) const {
    item.p.fetch(params, at, p_type);
    item.m.fetch(exp_avg, at, {});
    item.v.fetch(exp_avg_sq, at, {});
    item.g.fetch(grads, at, g_type);
  }
  template <int E>
  __device__ __forceinline__ void use(Item<E>& item, std::int64_t at) {
    C m[E], v[E], u[E];
#pragma unroll
    for (int e = 0; e < E; ++e) {
      const C p = item.p.template get<C>(e, p_type), g = item.g.template get<C>(e, g_type) * values.scale;
      m[e] = item.m.x.v[e];
      v[e] = item.v.x.v[e];
      u[e] = rule.moment(p, m[e], v[e], g, below, decay, corrections);
      p_squares = fma(p, p, p_squares);
      u_squares = fma(u[e], u[e], u_squares);
    }
    put_any<C>(m, exp_avg, at, {});
    put_any<C>(v, exp_avg_sq, at, {});
    if (updates != nullptr) put_any<void>(u, updates, at, u_type);
  }
  __device__ __forceinline__ void finish() const {
    if (chunks == nullptr) return;
    const double p = block_sum<kThreads>(static_cast<double>(p_squares));
    const double u = block_sum<kThreads>(static_cast<double>(u_squares));
    if (threadIdx.x != 0) return;
    chunks[2 * std::int64_t{blockIdx.x}] = p;
    chunks[2 * std::int64_t{blockIdx.x} + 1] = u;
  }
};

/// The squares of the tensors of one table, a block each.
__global__ void __launch_bounds__(kReduceThreads)
    sum_squares(const __grid_constant__ Table<moment_list::kCount> table, const double* chunks, double* squares,
                const OnDevice device) {
  if (device.stops()) return;
  const int i = static_cast<int>(blockIdx.x);
  const auto sums = reduce_chunks<2>(table, i, chunks, false);
  if (threadIdx.x != 0) return;
  squares[2 * i] = sums.value[0];
  squares[2 * i + 1] = sums.value[1];
}

template <class C, class P, class G>
void run_moments(const Context& ctx, double* squares, const LambMoments& l, const LambOptions& o,
                 const Counted<C>& counted) {
  constexpr const char* name = "multi_tensor_lamb";
  const optimizer::Lamb<C> rule(o);
  const OnDevice device(o.in, o.grad_norm);
  std::int64_t chunks = 0;
  for (const auto& p : l.params) chunks += ceil_div(p.numel(), kChunk);
  Workspace memory;
  if (squares != nullptr) memory = ctx.workspace(static_cast<std::size_t>(chunks) * 2 * sizeof(double));
  double* sums = memory.as<double>();
  auto filler = make_filler<moment_list::kCount>(kChunk, [&](const Table<moment_list::kCount>& table, int first) {
    const LambMomentsOp<C, P, G> op{.rule = rule,
                                    .values = StepValues<C>(device, o.in, o.lr),
                                    .counted = counted.from(first),
                                    .p_type = l.params[0].dtype,
                                    .g_type = l.grads[0].dtype,
                                    .u_type = dtype_of_list(l.updates),
                                    .chunks = sums};
    launch_each(ctx, table, op, name);
    if (squares == nullptr) return;
    sum_squares<<<static_cast<unsigned>(table.count), kReduceThreads, 0, stream_of(ctx)>>>(table, sums,
                                                                                           squares + 2 * first, device);
    check_launch(name);
    sums += 2 * std::int64_t{table.start[table.count]};
  });
  for (std::size_t i = 0; i < l.params.size(); ++i) {
    const double decay = l.weight_decay.empty() ? o.weight_decay : l.weight_decay[i];
    filler.add({l.params[i].data, l.exp_avg[i].data, l.exp_avg_sq[i].data, l.grads[i].data, data_at(l.updates, i),
                std::bit_cast<const void*>(decay)},
               {size_of(l.params[i].dtype), sizeof(C), sizeof(C), size_of(l.grads[i].dtype),
                size_of(dtype_of_list(l.updates)), 0},
               l.params[i].numel(), 0);
  }
  filler.flush();
}

template <class C>
void moments(const Context& ctx, double* squares, const LambMoments& l, const LambOptions& o,
             const Counted<C>& counted) {
  const DType p = l.params[0].dtype, g = l.grads[0].dtype;
  if constexpr (std::is_same_v<C, double>) {
    run_moments<double, double, double>(ctx, squares, l, o, counted);
  } else if (p == DType::f32 && g == DType::f32) {
    run_moments<float, float, float>(ctx, squares, l, o, counted);
  } else if (p == DType::f32 && g == DType::bf16) {
    run_moments<float, float, __nv_bfloat16>(ctx, squares, l, o, counted);
  } else {
    run_moments<float, void, void>(ctx, squares, l, o, counted);
  }
}

/// p -= ratio u; P: type of params, void: see the type at hand. u is formed from the moments, or (stage 2) it is the
/// second list.
template <class C, class P, bool kFormed>
struct LambApplyOp {
  static constexpr int kBlocks = std::is_same_v<C, double> ? 2 : 3;

  optimizer::Lamb<C> rule;
  StepValues<C> values;
  typename Counted<C>::Given counted;
  DType p_type, u_type, copy_type;
  const double* squares;  // of the first tensor of the table; or
  const C *param_norms, *update_norms;
  // of the tensor at hand
  void *params = nullptr, *copies = nullptr;
  const void *exp_avg = nullptr, *exp_avg_sq = nullptr;
  Corrections<C> corrections{};
  C ratio{};

  template <int E>
  struct Item {
    Held<P, E> p;
    Held<std::conditional_t<kFormed, C, P>, E> m;
    Held<std::conditional_t<kFormed, C, unsigned char>, E> v;  // dead in stage 2
  };

  __device__ __forceinline__ bool begin(const Table<apply_list::kCount>& table, int i) {
    if (!values.read()) return false;
    params = table.data[apply_list::kParams][i];
    exp_avg = table.data[apply_list::kExpAvg][i];
    exp_avg_sq = table.data[apply_list::kExpAvgSq][i];
    copies = table.data[apply_list::kCopies][i];
    corrections = counted.at(i);
    const C p = kFormed ? static_cast<C>(sqrt(squares[2 * i])) : param_norms[i];
    const C u = kFormed ? static_cast<C>(sqrt(squares[2 * i + 1])) : update_norms[i];
    ratio = optimizer::trust_ratio(values.lr, p, u, rule.adapts);
    return true;
  }
  template <int E>
  __device__ __forceinline__ void fetch(Item<E>& item, std::int64_t at) const {
    item.p.fetch(params, at, p_type);
    item.m.fetch(exp_avg, at, u_type);
    if constexpr (kFormed) item.v.fetch(exp_avg_sq, at, {});
  }
  template <int E>
  __device__ __forceinline__ void use(Item<E>& item, std::int64_t at) const {
    C updated[E];
#pragma unroll
    for (int e = 0; e < E; ++e) {
      const C p = item.p.template get<C>(e, p_type);
      C u = item.m.template get<C>(e, u_type);
      if constexpr (kFormed) u = rule.update(p, u, item.v.x.v[e], rule.weight_decay, corrections);
      updated[e] = optimizer::plus_product(p, -ratio, u);
    }
    put_any<P>(updated, params, at, p_type);
    if (copies != nullptr) put_any<void>(updated, copies, at, copy_type);
  }
  __device__ __forceinline__ void finish() const {}
};

template <class C, class P, bool kFormed>
void run_apply(const Context& ctx, const double* squares, ConstView param_norms, ConstView update_norms,
               const LambApply& l, const LambOptions& o, const Counted<C>& counted) {
  optimizer::Lamb<C> rule(o);
  const OnDevice device(o.in, o.grad_norm);
  const DType u_type = l.exp_avg[0].dtype, copy_type = dtype_of_list(l.copies);
  auto filler = make_filler<apply_list::kCount>(kChunk, [&](const Table<apply_list::kCount>& table, int first) {
    const LambApplyOp<C, P, kFormed> op{
        .rule = rule,
        .values = StepValues<C>(device, o.in, o.lr),
        .counted = counted.from(first),
        .p_type = l.params[0].dtype,
        .u_type = u_type,
        .copy_type = copy_type,
        .squares = squares == nullptr ? nullptr : squares + 2 * first,
        .param_norms = param_norms.defined() ? param_norms.as<C>() + first : nullptr,
        .update_norms = update_norms.defined() ? update_norms.as<C>() + first : nullptr};
    launch_each(ctx, table, op, "multi_tensor_lamb");
  });
  for (std::size_t i = 0; i < l.params.size(); ++i)
    filler.add({l.params[i].data, l.exp_avg[i].data, data_at(l.exp_avg_sq, i), data_at(l.copies, i)},
               {size_of(l.params[i].dtype), size_of(u_type), sizeof(C), size_of(copy_type)}, l.params[i].numel(), 0);
  filler.flush();
}

template <class C>
void apply(const Context& ctx, const double* squares, const LambApply& l, const LambOptions& o,
           const Counted<C>& counted) {
  if (l.params[0].dtype == dtype_of<C>)
    run_apply<C, C, true>(ctx, squares, {}, {}, l, o, counted);
  else if constexpr (std::is_same_v<C, float>)
    run_apply<float, void, true>(ctx, squares, {}, {}, l, o, counted);
}

template <class C>
Counted<C> counted_steps(const Context& ctx, std::span<const View> steps, const LambOptions& o, bool raise) {
  return Counted<C>(ctx, steps, o.step, OnDevice(o.in, o.grad_norm), optimizer::Lamb<C>(o).corrections(o), raise);
}

}  // namespace

void multi_tensor_lamb_moments(const Context& ctx, double* squares, const LambMoments& l, const LambOptions& o) {
  with_compute_type(l.params[0].dtype == DType::f64,
                    [&]<class C>() { moments<C>(ctx, squares, l, o, counted_steps<C>(ctx, l.steps, o, true)); });
}

void multi_tensor_lamb_apply(const Context& ctx, const double* squares, const LambApply& l, const LambOptions& o) {
  with_compute_type(l.params[0].dtype == DType::f64,
                    [&]<class C>() { apply<C>(ctx, squares, l, o, counted_steps<C>(ctx, l.steps, o, false)); });
}

void multi_tensor_lamb(const Context& ctx, std::span<const View> params, std::span<const View> exp_avg,
                       std::span<const View> exp_avg_sq, std::span<const View> copies, std::span<const ConstView> grads,
                       std::span<const View> steps, const LambOptions& o) {
  const std::vector<ConstView> read(params.begin(), params.end()), m(exp_avg.begin(), exp_avg.end()),
      v(exp_avg_sq.begin(), exp_avg_sq.end());
  const Workspace squares = ctx.workspace(2 * params.size() * sizeof(double));
  const LambMoments first{.params = read,
                          .exp_avg = exp_avg,
                          .exp_avg_sq = exp_avg_sq,
                          .updates = {},
                          .weight_decay = {},
                          .grads = grads,
                          .steps = steps};
  const LambApply second{.params = params, .copies = copies, .exp_avg = m, .exp_avg_sq = v, .steps = steps};
  with_compute_type(params[0].dtype == DType::f64, [&]<class C>() {
    const auto counted = counted_steps<C>(ctx, steps, o, true);
    moments<C>(ctx, squares.as<double>(), first, o, counted);
    apply<C>(ctx, squares.as<double>(), second, o, counted);
  });
}

void multi_tensor_lamb_stage2(const Context& ctx, std::span<const View> params, std::span<const ConstView> updates,
                              ConstView param_norms, ConstView update_norms, double lr, bool adapts) {
  LambOptions o;
  o.lr = lr;
  o.use_nvlamb = adapts;
  o.weight_decay = 0;
  o.bias_correction = false;
  o.step = 1;
  const LambApply l{.params = params, .copies = {}, .exp_avg = updates, .exp_avg_sq = {}, .steps = {}};
  if (params[0].dtype == DType::f64)
    run_apply<double, double, false>(ctx, nullptr, param_norms, update_norms, l, o,
                                     counted_steps<double>(ctx, {}, o, false));
  else
    run_apply<float, void, false>(ctx, nullptr, param_norms, update_norms, l, o,
                                  counted_steps<float>(ctx, {}, o, false));
}

}  // namespace apex::kernels::cuda
