// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "multi_tensor_step.cuh"

// f32 weights with f32 or bf16 gradients have kernels of their own; other types are looked up at each access.

namespace apex::kernels::cuda {
namespace {

using namespace multi_tensor;
using optimizer::AdamForm;

enum List { kParams, kExpAvg, kExpAvgSq, kGrads, kCopies, kExtra, kAdamLists };
/// What the extra list is.
enum class Extra { none, remainders, average };

/// P, S, G: types of params, moments and grads; void: see the types at hand.
template <class C, class P, class S, class G, Extra kKind>
struct Adam {
  static constexpr int kAtOnce = 2;
  static constexpr int kBlocks = std::is_same_v<C, double> ? 2 : 3;

  optimizer::Adam<C> rule;
  AdamForm form;
  StepValues<C> values;
  typename Counted<C>::Given counted;
  DType p_type, s_type, g_type, copy_type;
  C share;      // of the new weights in their average
  bool starts;  // the average
  // of the tensor at hand
  void *params = nullptr, *exp_avg = nullptr, *exp_avg_sq = nullptr, *copies = nullptr, *extra = nullptr;
  const void* grads = nullptr;
  Corrections<C> corrections{};
  C length{};

  template <int E>
  struct Item {
    Held<P, E> p;
    Held<S, E> m, v;
    Held<G, E> g;
    Held<std::conditional_t<kKind == Extra::none, unsigned char, P>, E> average;  // dead where there is none
    unsigned short low[E];
  };

  __device__ __forceinline__ bool begin(const Table<kAdamLists>& table, int i) {
    if (!values.read()) return false;
    params = table.data[kParams][i];
    exp_avg = table.data[kExpAvg][i];
    exp_avg_sq = table.data[kExpAvgSq][i];
    grads = table.data[kGrads][i];
    copies = table.data[kCopies][i];
    extra = table.data[kExtra][i];
    corrections = counted.at(i);
    length = rule.length(form, values.lr, corrections);
    return true;
  }
  template <int E>
  __device__ __forceinline__ void fetch(Item<E>& item, std::int64_t at) const {
    item.p.fetch(params, at, p_type);
    item.m.fetch(exp_avg, at, s_type);
    item.v.fetch(exp_avg_sq, at, s_type);
    item.g.fetch(grads, at, g_type);
    if constexpr (kKind == Extra::average)
      if (!starts) item.average.fetch(extra, at, p_type);
    if constexpr (kKind == Extra::remainders) {
      if constexpr (E == 1) {
        const auto* bytes = static_cast<const unsigned char*>(extra) + 2 * at;  // may lie at an odd address
        item.low[0] = static_cast<unsigned short>(bytes[0] | bytes[1] << 8);
      } else {
        const auto low = multi_tensor::fetch<E, unsigned short>(extra, at);
#pragma unroll
        for (int e = 0; e < E; ++e) item.low[e] = low.v[e];
      }
    }
  }
  template <int E>
  __device__ __forceinline__ void use(Item<E>& item, std::int64_t at) const {
    C updated[E], m[E], v[E];
#pragma unroll
    for (int e = 0; e < E; ++e) {
      C p;
      if constexpr (kKind == Extra::remainders) {
        const auto high = static_cast<unsigned short>(item.p.w[E == 1 ? 0 : e / 2] >> (e % 2 * 16));
        p = __uint_as_float(optimizer::join_halves(high, item.low[e]));
      } else {
        p = item.p.template get<C>(e, p_type);
      }
      m[e] = item.m.template get<C>(e, s_type);
      v[e] = item.v.template get<C>(e, s_type);
      const C g = item.g.template get<C>(e, g_type) * values.scale;
      updated[e] = rule.step(form, p, m[e], v[e], g, corrections, length);
    }
    put_any<S>(m, exp_avg, at, s_type);
    put_any<S>(v, exp_avg_sq, at, s_type);
    if constexpr (kKind == Extra::remainders) return put_halves<E>(updated, at);
    put_any<P>(updated, params, at, p_type);
    if (copies != nullptr) put_any<void>(updated, copies, at, copy_type);
    if constexpr (kKind == Extra::average) {
      C average[E];
#pragma unroll
      for (int e = 0; e < E; ++e) {
        const C old = starts ? updated[e] : item.average.template get<C>(e, p_type);
        average[e] = starts ? updated[e] : optimizer::plus_product(old, share, updated[e] - old);
      }
      put_any<P>(average, extra, at, p_type);
    }
  }
  template <int E>
  __device__ __forceinline__ void put_halves(const C (&updated)[E], std::int64_t at) const {
    Pack<unsigned short, E> high, low;
#pragma unroll
    for (int e = 0; e < E; ++e) {
      const unsigned bits = __float_as_uint(static_cast<float>(updated[e]));
      high.v[e] = optimizer::high_half(bits);
      low.v[e] = static_cast<unsigned short>(bits & 0xffffu);
    }
    put<E, unsigned short>(params, at, high);
    if (copies != nullptr) put<E, unsigned short>(copies, at, high);
    if constexpr (E == 1) {
      auto* bytes = static_cast<unsigned char*>(extra) + 2 * at;
      bytes[0] = static_cast<unsigned char>(low.v[0] & 0xffu);
      bytes[1] = static_cast<unsigned char>(low.v[0] >> 8);
    } else {
      put<E, unsigned short>(extra, at, low);
    }
  }
  __device__ __forceinline__ void finish() const {}
};

template <class C, class P, class S, class G, Extra kKind>
void run(const Context& ctx, const AdamLists& l, const AdamOptions& o) {
  const optimizer::Adam<C> rule(o);
  const OnDevice device(o.in);
  const Counted<C> counted(ctx, l.steps, o.step, device, rule.corrections(o), true);
  const StepValues<C> values(device, o.in, o.lr, o.maximize);
  const std::span<const View> extra = kKind == Extra::remainders ? l.remainders : l.swa;
  const DType copy_type = dtype_of_list(l.copies);
  auto filler = make_filler<kAdamLists>(kChunk, [&](const Table<kAdamLists>& table, int first) {
    const Adam<C, P, S, G, kKind> op{.rule = rule,
                                     .form = AdamForm::of(o.mode),
                                     .values = values,
                                     .counted = counted.from(first),
                                     .p_type = l.params[0].dtype,
                                     .s_type = l.exp_avg[0].dtype,
                                     .g_type = l.grads[0].dtype,
                                     .copy_type = copy_type,
                                     .share = C(1) - static_cast<C>(l.swa_decay),
                                     .starts = l.swa_count == 0};
    launch_each(ctx, table, op, "multi_tensor_adam");
  });
  const std::size_t extra_size = kKind == Extra::remainders ? 2 : size_of(l.params[0].dtype);
  for (std::size_t i = 0; i < l.params.size(); ++i)
    filler.add({l.params[i].data, l.exp_avg[i].data, l.exp_avg_sq[i].data, l.grads[i].data, data_at(l.copies, i),
                data_at(extra, i)},
               {size_of(l.params[i].dtype), size_of(l.exp_avg[i].dtype), size_of(l.exp_avg[i].dtype),
                size_of(l.grads[i].dtype), size_of(copy_type), extra_size},
               l.params[i].numel(), 0);
  filler.flush();
}

}  // namespace

void multi_tensor_adam(const Context& ctx, const AdamLists& l, const AdamOptions& o) {
  const DType p = l.params[0].dtype, s = l.exp_avg[0].dtype, g = l.grads[0].dtype;
  if (!l.remainders.empty()) return run<float, void, void, void, Extra::remainders>(ctx, l, o);
  if (!l.swa.empty())
    return p == DType::f64 ? run<double, double, double, double, Extra::average>(ctx, l, o)
                           : run<float, void, void, void, Extra::average>(ctx, l, o);
  if (p == DType::f64) return run<double, double, double, double, Extra::none>(ctx, l, o);
  if (p == DType::f32 && s == DType::f32 && g == DType::f32)
    return run<float, float, float, float, Extra::none>(ctx, l, o);
  if (p == DType::f32 && s == DType::f32 && g == DType::bf16)
    return run<float, float, float, __nv_bfloat16, Extra::none>(ctx, l, o);
  run<float, void, void, void, Extra::none>(ctx, l, o);
}

}  // namespace apex::kernels::cuda
