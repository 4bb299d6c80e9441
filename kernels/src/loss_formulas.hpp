// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/loss.hpp"

// The formulas of pointwise losses, one statement for both backends. M gives exp, log, fabs, sigmoid and
// log1p_of_unit (ln(1 + z) for z in [0, 1]) of the compute type C.

// Inlined, or loops over them would not vectorise.
#ifdef __CUDACC__
#define APEX_FORMULA __host__ __device__ __forceinline__
#else
#define APEX_FORMULA [[gnu::always_inline]] inline
#endif

namespace apex::kernels {

/// One kind of loss; log_target is the kl_div of logarithms.
template <LossKind kKind, bool kLogTarget, class M, class C>
struct LossFormula {
  C delta;

  APEX_FORMULA static C sign(C d) { return d > C(0) ? C(1) : d < C(0) ? C(-1) : d; }  // NaN stays
  /// Logarithms in bce: not below -100.
  APEX_FORMULA static C cut_log(C v) {
    const C l = M::log(v);
    return l < C(-100) ? C(-100) : l;
  }
  /// A share of 0 counts for nothing, also of infinity.
  APEX_FORMULA static C share(C a, C v) { return a == C(0) ? C(0) : a * v; }
  APEX_FORMULA static C positive(C v) { return v > C(0) ? v : C(0); }

  APEX_FORMULA C value(C x, C t, C w, C p) const {
    const C d = x - t, size = M::fabs(d);
    if constexpr (kKind == LossKind::mse) return d * d;
    if constexpr (kKind == LossKind::l1) return size;
    if constexpr (kKind == LossKind::smooth_l1) return size < delta ? C(0.5) * d * d / delta : size - C(0.5) * delta;
    if constexpr (kKind == LossKind::huber) return size <= delta ? C(0.5) * d * d : delta * (size - C(0.5) * delta);
    if constexpr (kKind == LossKind::bce) return -w * (t * cut_log(x) + (C(1) - t) * cut_log(C(1) - x));
    if constexpr (kKind == LossKind::bce_with_logits) {
      const C negatives = C(1) - t, positives = p * t;
      const C both = M::log1p_of_unit(M::exp(-M::fabs(x)));
      return w * (share(negatives, positive(x)) + share(positives, positive(-x)) + (negatives + positives) * both);
    }
    if constexpr (kKind == LossKind::kl_div) {
      if constexpr (kLogTarget) return share(M::exp(t), t - x);
      return t == C(0) ? C(0) : t * (M::log(t) - x);
    }
  }

  APEX_FORMULA C by_x(C x, C t, C w, C p) const {
    const C d = x - t;
    if constexpr (kKind == LossKind::mse) return C(2) * d;
    if constexpr (kKind == LossKind::l1) return sign(d);
    if constexpr (kKind == LossKind::smooth_l1) return M::fabs(d) < delta ? d / delta : sign(d);
    if constexpr (kKind == LossKind::huber) return M::fabs(d) <= delta ? d : delta * sign(d);
    if constexpr (kKind == LossKind::bce) {
      const C product = x * (C(1) - x);
      return w * d / (product < C(1e-12) ? C(1e-12) : product);
    }
    if constexpr (kKind == LossKind::bce_with_logits) return w * ((C(1) - t) * M::sigmoid(x) - p * t * M::sigmoid(-x));
    if constexpr (kKind == LossKind::kl_div) {
      if constexpr (kLogTarget) return -M::exp(t);
      return -t;
    }
  }

  APEX_FORMULA C by_target(C x, C t, C w, C p) const {
    if constexpr (kKind == LossKind::bce) return w * (cut_log(C(1) - x) - cut_log(x));
    if constexpr (kKind == LossKind::bce_with_logits) {
      const C both = M::log1p_of_unit(M::exp(-M::fabs(x)));
      return w * (p * (positive(-x) + both) - (positive(x) + both));
    }
    if constexpr (kKind == LossKind::kl_div) {
      if constexpr (kLogTarget) return share(M::exp(t), t - x + C(1));
      return t == C(0) ? C(0) : M::log(t) + C(1) - x;
    }
    return -by_x(x, t, w, p);
  }
};

/// What is wanted of a formula.
enum class LossTerm { value, by_x, by_target };

}  // namespace apex::kernels

#undef APEX_FORMULA
