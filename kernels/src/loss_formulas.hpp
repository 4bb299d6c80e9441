// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/loss.hpp"

// The formulas of pointwise losses, one statement for both backends. M gives exp, log, log_normal (of what is not
// subnormal), fabs, log1p_of_unit (ln(1 + z) for z in [0, 1]) and divide of the compute type C.

// Inlined, or loops over them would not vectorise.
#ifdef __CUDACC__
#define APEX_FORMULA __device__ __forceinline__
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
  APEX_FORMULA static C cut(C l) { return l < C(-100) ? C(-100) : l; }
  APEX_FORMULA static C cut_log(C x) { return cut(M::log(x)); }
  APEX_FORMULA static C cut_log_of_rest(C x) { return cut(M::log_normal(C(1) - x)); }
  /// A share of 0 counts for nothing, also of infinity.
  APEX_FORMULA static C share(C a, C v) { return a == C(0) ? C(0) : a * v; }
  APEX_FORMULA static C positive(C v) { return v > C(0) ? v : C(0); }

  APEX_FORMULA C value(C x, C t, C w, C p) const {
    const C d = x - t, size = M::fabs(d);
    if constexpr (kKind == LossKind::mse) return d * d;
    if constexpr (kKind == LossKind::l1) return size;
    if constexpr (kKind == LossKind::smooth_l1)
      return size < delta ? M::divide(C(0.5) * d * d, delta) : size - C(0.5) * delta;
    if constexpr (kKind == LossKind::huber) return size <= delta ? C(0.5) * d * d : delta * (size - C(0.5) * delta);
    if constexpr (kKind == LossKind::bce) return -w * (t * cut_log(x) + (C(1) - t) * cut_log_of_rest(x));
    if constexpr (kKind == LossKind::bce_with_logits) {
      const C negatives = C(1) - t, positives = p * t;
      const C both = M::log1p_of_unit(M::exp(-M::fabs(x)));
      const C all = p == C(1) ? C(1) : negatives + positives;  // known where there is no p
      // Of max(x, 0) and max(-x, 0) one is 0, the other |x|.
      return w * (share(x > C(0) ? negatives : positives, M::fabs(x)) + all * both);
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
    if constexpr (kKind == LossKind::smooth_l1) return M::fabs(d) < delta ? M::divide(d, delta) : sign(d);
    if constexpr (kKind == LossKind::huber) return M::fabs(d) <= delta ? d : delta * sign(d);
    if constexpr (kKind == LossKind::bce) {
      const C product = x * (C(1) - x);
      return M::divide(w * d, product < C(1e-12) ? C(1e-12) : product);
    }
    if constexpr (kKind == LossKind::bce_with_logits) {
      // sigmoid(|x|) and sigmoid(-|x|), neither a difference from 1.
      const C e = M::exp(-M::fabs(x)), large = M::divide(C(1), C(1) + e), small = e * large;
      return w * ((C(1) - t) * (x > C(0) ? large : small) - p * t * (x > C(0) ? small : large));
    }
    if constexpr (kKind == LossKind::kl_div) {
      if constexpr (kLogTarget) return -M::exp(t);
      return -t;
    }
  }

  APEX_FORMULA C by_target(C x, C t, C w, C p) const {
    if constexpr (kKind == LossKind::bce) return w * (cut_log_of_rest(x) - cut_log(x));
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

/// Whether a kind is a function of x - target, so that its derivative by the target is that by x turned round.
constexpr bool is_of_difference(LossKind kind) {
  return kind == LossKind::mse || kind == LossKind::l1 || kind == LossKind::smooth_l1 || kind == LossKind::huber;
}

}  // namespace apex::kernels

#undef APEX_FORMULA
