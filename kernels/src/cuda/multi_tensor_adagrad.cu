// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "multi_tensor_step.cuh"

namespace apex::kernels::cuda {
namespace {

using namespace multi_tensor;

enum List { kParams, kSums, kGrads, kCopies, kAdagradLists };

/// P, G: types of params and grads; void: see the types at hand.
template <class C, class P, class G>
struct Adagrad {
  static constexpr int kBlocks = std::is_same_v<C, double> ? 2 : 3;

  optimizer::Adagrad<C> rule;
  StepValues<C> values;
  DType p_type, g_type, copy_type;
  bool decoupled;
  // of the tensor at hand
  void *params = nullptr, *sums = nullptr, *copies = nullptr;
  const void* grads = nullptr;

  template <int E>
  struct Item {
    Held<P, E> p;
    Held<C, E> h;
    Held<G, E> g;
  };

  __device__ __forceinline__ bool begin(const Table<kAdagradLists>& table, int i) {
    params = table.data[kParams][i];
    sums = table.data[kSums][i];
    grads = table.data[kGrads][i];
    copies = table.data[kCopies][i];
    return values.read();
  }
  template <int E>
  __device__ __forceinline__ void fetch(Item<E>& item, std::int64_t at) const {
    item.p.fetch(params, at, p_type);
    item.h.fetch(sums, at, {});
    item.g.fetch(grads, at, g_type);
  }
  template <int E>
  __device__ __forceinline__ void use(Item<E>& item, std::int64_t at) const {
    C updated[E], h[E];
#pragma unroll
    for (int e = 0; e < E; ++e) {
      const C p = item.p.template get<C>(e, p_type), g = item.g.template get<C>(e, g_type) * values.scale;
      h[e] = item.h.x.v[e];
      updated[e] = decoupled ? rule.template step<true>(p, h[e], g, values.lr)
                             : rule.template step<false>(p, h[e], g, values.lr);
    }
    put_any<C>(h, sums, at, {});
    put_any<P>(updated, params, at, p_type);
    if (copies != nullptr) put_any<void>(updated, copies, at, copy_type);
  }
  __device__ __forceinline__ void finish() const {}
};

template <class C, class P, class G>
void run(const Context& ctx, std::span<const View> params, std::span<const View> sums, std::span<const View> copies,
         std::span<const ConstView> grads, const AdagradOptions& o) {
  const Adagrad<C, P, G> op{.rule = optimizer::Adagrad<C>(o),
                            .values = StepValues<C>(OnDevice(o.in), o.in, o.lr),
                            .p_type = params[0].dtype,
                            .g_type = grads[0].dtype,
                            .copy_type = dtype_of_list(copies),
                            .decoupled = o.adagrad_w_mode};
  auto filler = make_filler<kAdagradLists>(
      kChunk, [&](const Table<kAdagradLists>& table, int) { launch_each(ctx, table, op, "multi_tensor_adagrad"); });
  for (std::size_t i = 0; i < params.size(); ++i)
    filler.add({params[i].data, sums[i].data, grads[i].data, data_at(copies, i)},
               {size_of(params[i].dtype), sizeof(C), size_of(grads[i].dtype), size_of(op.copy_type)}, params[i].numel(),
               0);
  filler.flush();
}

}  // namespace

void multi_tensor_adagrad(const Context& ctx, std::span<const View> params, std::span<const View> sums,
                          std::span<const View> copies, std::span<const ConstView> grads,
                          const AdagradOptions& options) {
  if (params[0].dtype == DType::f64) return run<double, double, double>(ctx, params, sums, copies, grads, options);
  if (params[0].dtype == DType::f32 && grads[0].dtype == DType::f32)
    return run<float, float, float>(ctx, params, sums, copies, grads, options);
  run<float, void, void>(ctx, params, sums, copies, grads, options);
}

}  // namespace apex::kernels::cuda
