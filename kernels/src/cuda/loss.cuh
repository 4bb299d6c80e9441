// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "../loss_formulas.hpp"
#include "../loss_impl.hpp"
#include "elementwise.cuh"

namespace apex::kernels::cuda {

/// The functions of loss_formulas.hpp.
struct LossMath {
  template <class C>
  __host__ __device__ static C exp(C x) {
    return ::exp(x);
  }
  template <class C>
  __host__ __device__ static C log(C x) {
    return ::log(x);
  }
  template <class C>
  __host__ __device__ static C fabs(C x) {
    return ::fabs(x);
  }
  template <class C>
  __host__ __device__ static C sigmoid(C x) {
    return C(1) / (C(1) + ::exp(-x));
  }
  template <class C>
  __host__ __device__ static C log1p_of_unit(C x) {
    return ::log1p(x);
  }
};

/// A term of any loss for elements of N, the loss chosen on the device: few kernels serve all, and what they wait for
/// is memory.
template <class N>
struct LossOp {
  using C = compute_t<N>;
  LossKind kind;
  bool log_target;
  C delta;
  bool has_weight = false, has_pos_weight = false;

  template <LossTerm kTerm, LossKind kKind, bool kLogTarget = false>
  __device__ C of(C x, C t, C w, C p) const {
    const LossFormula<kKind, kLogTarget, LossMath, C> f{delta};
    if constexpr (kTerm == LossTerm::value) return f.value(x, t, w, p);
    if constexpr (kTerm == LossTerm::by_x) return f.by_x(x, t, w, p);
    if constexpr (kTerm == LossTerm::by_target) return f.by_target(x, t, w, p);
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

template <class N>
LossOp<N> loss_op(const PointwiseLoss& o, const ConstView& weight, const ConstView& pos_weight) {
  return {o.kind, o.log_target, static_cast<compute_t<N>>(o.delta), weight.defined(), pos_weight.defined()};
}

/// What stands for a weight that was not given: one element of x, read and not used.
inline ConstView or_any(const ConstView& weight, const ConstView& x) {
  if (weight.defined()) return weight;
  ConstView one = x;
  one.sizes = one.strides = Dims{};
  return one;
}

}  // namespace apex::kernels::cuda
