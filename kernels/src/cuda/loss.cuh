// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <limits>

#include "../loss_formulas.hpp"
#include "../loss_impl.hpp"
#include "elementwise.cuh"
#include "exponential.cuh"

namespace apex::kernels::cuda {

/// The functions of loss_formulas.hpp, as accurate as a result of M needs.
template <class M>
struct LossMath {
  using C = compute_t<M>;
  __device__ static C exp(C x) { return exp_of<M>(x); }
  __device__ static C log(C x) { return log_of<M>(x); }
  __device__ static C log_normal(C x) { return log_of<M, false>(x); }
  __device__ static C fabs(C x) { return ::fabs(x); }
  __device__ static C log1p_of_unit(C x) { return cuda::log1p_of_unit<M>(x); }
  __device__ static C divide(C a, C b) {
    if constexpr (kFast<M>)
      return a * reciprocal_of<M>(b);
    else
      return a / b;
  }
};

/// One term of one loss.
template <LossTerm kTerm, LossKind kKind, bool kLogTarget, class M>
struct OneLoss {
  using C = compute_t<M>;
  C delta;

  __device__ __forceinline__ C operator()(C x, C t, C w = C(1), C p = C(1)) const {
    const LossFormula<kKind, kLogTarget, LossMath<M>, C> f{delta};
    if constexpr (kTerm == LossTerm::value) return f.value(x, t, w, p);
    if constexpr (kTerm == LossTerm::by_x) return f.by_x(x, t, w, p);
    if constexpr (kTerm == LossTerm::by_target) return f.by_target(x, t, w, p);
  }
};

/// A term of any loss, chosen on the device: few kernels serve all losses where operands do not all lie alike.
template <class M>
struct LossOp {
  using C = compute_t<M>;
  LossKind kind;
  bool log_target;
  C delta;
  bool has_weight = false, has_pos_weight = false;

  template <LossTerm kTerm, LossKind kKind, bool kLogTarget = false>
  __device__ C of(C x, C t, C w, C p) const {
    return OneLoss<kTerm, kKind, kLogTarget, M>{delta}(x, t, w, p);
  }
  template <LossTerm kTerm>
  __device__ C plain(C x, C t) const {
    using K = LossKind;
    switch (kind) {
      case K::mse: return of<kTerm, K::mse>(x, t, C(1), C(1));
      case K::l1: return of<kTerm, K::l1>(x, t, C(1), C(1));
      case K::smooth_l1: return of<kTerm, K::smooth_l1>(x, t, C(1), C(1));
      case K::huber: return of<kTerm, K::huber>(x, t, C(1), C(1));
      case K::kl_div:
        return log_target ? of<kTerm, K::kl_div, true>(x, t, C(1), C(1)) : of<kTerm, K::kl_div>(x, t, C(1), C(1));
      default: return weighted<kTerm>(x, t, C(1), C(1));
    }
  }
  /// The two that take weights.
  template <LossTerm kTerm>
  __device__ C weighted(C x, C t, C w, C p) const {
    return kind == LossKind::bce ? of<kTerm, LossKind::bce>(x, t, w, p)
                                 : of<kTerm, LossKind::bce_with_logits>(x, t, w, p);
  }
  template <LossTerm kTerm>
  __device__ C any(C x, C t, C w, C p) const {
    return weighted<kTerm>(x, t, has_weight ? w : C(1), has_pos_weight ? p : C(1));
  }
};

/// delta as the formulas take it: 0 where the fast division would know its inverse no more.
template <class M>
compute_t<M> delta_of(const PointwiseLoss& o) {
  const auto delta = static_cast<compute_t<M>>(o.delta);
  const bool lost = kFast<M> && o.kind == LossKind::smooth_l1 && delta < std::numeric_limits<float>::min();
  return lost ? compute_t<M>(0) : delta;
}

template <class M>
LossOp<M> loss_op(const PointwiseLoss& o, const ConstView& weight, const ConstView& pos_weight) {
  return {o.kind, o.log_target, delta_of<M>(o), weight.defined(), pos_weight.defined()};
}

/// Calls f.operator()<kind, log_target>().
template <class F>
decltype(auto) visit_loss(const PointwiseLoss& o, F&& f) {
  using K = LossKind;
  switch (o.kind) {
    case K::mse: return f.template operator()<K::mse, false>();
    case K::l1: return f.template operator()<K::l1, false>();
    case K::smooth_l1: return f.template operator()<K::smooth_l1, false>();
    case K::huber: return f.template operator()<K::huber, false>();
    case K::bce: return f.template operator()<K::bce, false>();
    case K::bce_with_logits: return f.template operator()<K::bce_with_logits, false>();
    default: return o.log_target ? f.template operator()<K::kl_div, true>() : f.template operator()<K::kl_div, false>();
  }
}

/// What stands for a weight that was not given: one element of x, read and not used.
inline ConstView or_any(const ConstView& weight, const ConstView& x) {
  if (weight.defined()) return weight;
  ConstView one = x;
  one.sizes = one.strides = Dims{};
  return one;
}

}  // namespace apex::kernels::cuda
