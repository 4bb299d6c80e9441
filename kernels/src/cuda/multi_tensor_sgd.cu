// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../multi_tensor_impl.hpp"
#include "multi_tensor.cuh"

namespace apex::kernels::cuda {
namespace {

using namespace multi_tensor;

enum List { kParams, kMomenta, kGrads, kCopies, kSgdLists };

/// What may stop the step, and what may change it, without the host knowing.
struct OnDevice {
  const std::int32_t* flag = nullptr;
  const float* found_inf = nullptr;
  const float* inv_scale = nullptr;
  const double* lr = nullptr;
};

template <class P, class M, class G>
struct Sgd {
  using C = compute_t<P>;

  OnDevice device;
  C lr, momentum, damped, weight_decay, scale;
  bool has_momentum, nesterov, decay_first, decay_last, half_copies;
  // of the tensor at hand
  void *params = nullptr, *momenta = nullptr, *copies = nullptr;
  const void* grads = nullptr;
  bool first_run = false;

  Sgd(const SgdOptions& o, const OnDevice& d, bool copies_are_half)
      : device(d),
        lr(static_cast<C>(o.lr)),
        momentum(static_cast<C>(o.momentum)),
        damped(C(1) - static_cast<C>(o.dampening)),
        weight_decay(static_cast<C>(o.weight_decay)),
        scale(static_cast<C>(o.scale)),
        has_momentum(o.momentum != 0),
        nesterov(o.nesterov),
        decay_first(o.weight_decay != 0 && !o.wd_after_momentum),
        decay_last(o.weight_decay != 0 && o.wd_after_momentum),
        half_copies(copies_are_half) {}

  template <int E>
  struct Item {
    Pack<P, E> p;
    Pack<M, E> m;
    Pack<G, E> g;
  };

  __device__ __forceinline__ bool begin(const Table<kSgdLists>& table, int i) {
    if (device.flag != nullptr && *device.flag != 0) return false;
    if (device.found_inf != nullptr && *device.found_inf != 0.0f) return false;
    if (device.inv_scale != nullptr) scale *= static_cast<C>(*device.inv_scale);
    if (device.lr != nullptr) lr = static_cast<C>(*device.lr);
    params = table.data[kParams][i];
    momenta = table.data[kMomenta][i];
    grads = table.data[kGrads][i];
    copies = table.data[kCopies][i];
    first_run = table.tag[i] != 0;
    return true;
  }
  template <int E>
  __device__ __forceinline__ void fetch(Item<E>& item, std::int64_t at) const {
    item.p = multi_tensor::fetch<E, P>(params, at);
    item.g = multi_tensor::fetch<E, G>(grads, at);
    if (has_momentum && !first_run) item.m = multi_tensor::fetch<E, M>(momenta, at);
  }
  template <int E>
  __device__ __forceinline__ void use(Item<E>& item, std::int64_t at) const {
    C updated[E];
#pragma unroll
    for (int e = 0; e < E; ++e) {
      const C p = load(item.p.v[e]);
      C g = static_cast<C>(load(item.g.v[e])) * scale;
      if (decay_first) g += weight_decay * p;
      if (has_momentum) {
        const C buffer = first_run ? g : momentum * static_cast<C>(load(item.m.v[e])) + damped * g;
        item.m.v[e] = store<M>(buffer);
        g = nesterov ? g + momentum * buffer : buffer;
      }
      if (decay_last) g += weight_decay * p;
      updated[e] = p - lr * g;
      item.p.v[e] = store<P>(updated[e]);
    }
    put<E, P>(params, at, item.p);
    if (has_momentum) put<E, M>(momenta, at, item.m);
    if (copies == nullptr) return;
    half_copies ? put_copy<__half>(updated, at) : put_copy<__nv_bfloat16>(updated, at);
  }
  template <class H, int E>
  __device__ __forceinline__ void put_copy(const C (&values)[E], std::int64_t at) const {
    Pack<H, E> out;
#pragma unroll
    for (int e = 0; e < E; ++e) out.v[e] = store<H>(values[e]);
    put<E, H>(copies, at, out);
  }
  __device__ __forceinline__ void finish() const {}
};

template <class P, class M, class G>
void run(const Context& ctx, const OnDevice& device, std::span<const View> params, std::span<const View> momenta,
         std::span<const View> copies, std::span<const ConstView> grads, std::span<const std::uint8_t> first_run,
         const SgdOptions& options) {
  const bool has_momentum = options.momentum != 0;
  const Sgd<P, M, G> op(options, device, !copies.empty() && copies[0].dtype == DType::f16);
  auto filler = make_filler<kSgdLists>(
      kChunk, [&](const Table<kSgdLists>& table, int) { launch_each(ctx, table, op, "multi_tensor_sgd"); });
  for (std::size_t i = 0; i < params.size(); ++i)
    filler.add({params[i].data, has_momentum ? momenta[i].data : nullptr, grads[i].data,
                copies.empty() ? nullptr : copies[i].data},
               {sizeof(P), sizeof(M), sizeof(G), 2}, params[i].numel(), has_momentum ? first_run[i] : 0);
  filler.flush();
}

}  // namespace

void multi_tensor_sgd(const Context& ctx, View flag, std::span<const View> params, std::span<const View> momenta,
                      std::span<const View> copies, std::span<const ConstView> grads,
                      std::span<const std::uint8_t> first_run, const SgdOptions& options) {
  if (params.empty()) return;
  OnDevice device;
  device.flag = flag_of(flag);
  if (options.found_inf.defined()) device.found_inf = options.found_inf.as<float>();
  if (options.inv_scale.defined()) device.inv_scale = options.inv_scale.as<float>();
  if (options.lr_on_device.defined()) device.lr = options.lr_on_device.as<double>();
  const auto run_with = [&]<class P, class M, class G>() {
    run<P, M, G>(ctx, device, params, momenta, copies, grads, first_run, options);
  };
  const auto with_grads = [&]<class P, class M>() {
    switch (grads[0].dtype) {
      case DType::f16: return run_with.template operator()<P, M, __half>();
      case DType::bf16: return run_with.template operator()<P, M, __nv_bfloat16>();
      default: return run_with.template operator()<P, M, float>();
    }
  };
  const DType dtype = params[0].dtype;
  const bool wide_momenta = options.momentum == 0 || momenta[0].dtype != dtype;
  switch (dtype) {
    case DType::f64: return run_with.template operator()<double, double, double>();
    case DType::f32: return with_grads.template operator()<float, float>();
    case DType::f16:
      return wide_momenta ? with_grads.template operator()<__half, float>()
                          : with_grads.template operator()<__half, __half>();
    default:
      return wide_momenta ? with_grads.template operator()<__nv_bfloat16, float>()
                          : with_grads.template operator()<__nv_bfloat16, __nv_bfloat16>();
  }
}

}  // namespace apex::kernels::cuda
