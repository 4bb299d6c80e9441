// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cmath>
#include <cstdint>

#include "apex/kernels/multi_tensor_optimizers.hpp"

// The formulas of the optimizers, one statement for both backends.

// Inlined, or loops over them would not vectorise.
#ifdef __CUDACC__
#define APEX_FORMULA __host__ __device__ __forceinline__
#else
#define APEX_FORMULA [[gnu::always_inline]] inline
#endif

namespace apex::kernels::optimizer {

APEX_FORMULA float root(float x) { return ::sqrtf(x); }
APEX_FORMULA double root(double x) { return ::sqrt(x); }
APEX_FORMULA float magnitude(float x) { return ::fabsf(x); }
APEX_FORMULA double magnitude(double x) { return ::fabs(x); }

/// c + a b. On the device one operation, said so: left to the compiler, kernels for other types might round otherwise.
template <class C>
APEX_FORMULA C plus_product(C c, C a, C b) {
#ifdef __CUDA_ARCH__
  return fma(a, b, c);
#else
  return c + a * b;
#endif
}

/// 1 - beta^t by squaring, in pairs of doubles: pow differs by a bit between libraries, and a step that is counted on
/// the device has to give the bits of one that is counted on the host.
APEX_FORMULA double bias_correction(double beta, std::int64_t t) {
  double high = 1, low = 0, base = beta, base_low = 0;
  for (; t > 0; t >>= 1) {
    if (t & 1) {
      const double p = high * base;
      const double e = ::fma(high, base, -p) + ::fma(high, base_low, low * base);
      high = p + e;
      low = e - (high - p);
    }
    const double p = base * base;
    const double e = ::fma(base, base, -p) + 2 * base * base_low;
    base = p + e;
    base_low = e - (base - p);
  }
  return (1 - high) - low;
}

/// What an update divides by; the meaning of each is the op's.
template <class C>
struct Corrections {
  C first = C(1), second = C(1);
};

/// What Corrections of one op are made of.
struct CorrectionRule {
  enum Kind { plain, root_second, legacy };
  double beta1 = 0, beta2 = 0;  // as the compute type holds them
  Kind kind = plain;
  bool on = true;

  template <class C>
  APEX_FORMULA Corrections<C> at(std::int64_t step) const {
    if (!on) return {};
    const double bc1 = bias_correction(beta1, step), bc2 = bias_correction(beta2, step);
    if (kind == legacy) return {static_cast<C>(::sqrt(bc2) / bc1), C(1)};
    return {static_cast<C>(bc1), static_cast<C>(kind == root_second ? ::sqrt(bc2) : bc2)};
  }
};

/// First and second moments; betas narrowed once, complements formed from them.
template <class C>
struct Moments {
  C b1, c1, b3, b2, c2;

  Moments(double beta1, double beta2, bool averaged)
      : b1(static_cast<C>(beta1)), c1(C(1) - b1), b3(averaged ? c1 : C(1)), b2(static_cast<C>(beta2)), c2(C(1) - b2) {}
  /// Not inlined: g++ 12 takes a pair of doubles that went through f32 and back for the doubles themselves.
  [[gnu::noinline]] CorrectionRule corrections(bool on, CorrectionRule::Kind kind) const {
    return {static_cast<double>(b1), static_cast<double>(b2), kind, on};
  }
  APEX_FORMULA void advance(C& m, C& v, C g) const {
    m = plus_product(b3 * g, b1, m);
    v = plus_product(c2 * g * g, b2, v);
  }
};

/// What the modes of Adam differ in. A constant folds away; at run time it costs a branch that all threads take alike.
struct AdamForm {
  bool decay_first = false, decay_last = false;
  bool corrects_mean = true, corrects_square = true, corrects_root = false;
  bool eps_inside = false;

  static constexpr AdamForm of(AdamMode mode) {
    AdamForm f;
    const bool legacy = mode >= AdamMode::legacy, torch = mode == AdamMode::torch_order;
    f.decay_first = mode == AdamMode::l2 || torch;
    f.decay_last = !f.decay_first;
    f.corrects_mean = !legacy;
    f.corrects_square = !legacy && !torch;
    f.corrects_root = torch;
    f.eps_inside = mode == AdamMode::legacy_eps_inside;
    return f;
  }
};

template <class C>
struct Adam {
  Moments<C> moments;
  C eps, weight_decay;

  explicit Adam(const AdamOptions& o)
      : moments(o.beta1, o.beta2, true), eps(static_cast<C>(o.eps)), weight_decay(static_cast<C>(o.weight_decay)) {}
  CorrectionRule corrections(const AdamOptions& o) const {
    return moments.corrections(o.bias_correction, o.mode >= AdamMode::legacy        ? CorrectionRule::legacy
                                                  : o.mode == AdamMode::torch_order ? CorrectionRule::root_second
                                                                                    : CorrectionRule::plain);
  }
  /// How far a step goes: the legacy modes correct it instead of the moments.
  APEX_FORMULA static C length(const AdamForm& f, C lr, const Corrections<C>& c) {
    return f.corrects_mean ? lr : lr * c.first;
  }
  /// The new p.
  APEX_FORMULA C step(const AdamForm& f, C p, C& m, C& v, C g, const Corrections<C>& c, C length) const {
    if (f.decay_first) g = plus_product(g, weight_decay, p);
    moments.advance(m, v, g);
    C below = f.corrects_square ? v / c.second : v;
    if (f.eps_inside) below += eps;
    below = root(below);
    if (f.corrects_root) below = below / c.second;
    if (!f.eps_inside) below += eps;
    C u = (f.corrects_mean ? m / c.first : m) / below;
    if (f.decay_last) u = plus_product(u, weight_decay, p);
    return plus_product(p, -length, u);
  }
};

template <class C>
struct Adagrad {
  C eps, weight_decay;

  explicit Adagrad(const AdagradOptions& o)
      : eps(static_cast<C>(o.eps)), weight_decay(static_cast<C>(o.weight_decay)) {}
  template <bool kDecoupled>
  APEX_FORMULA C step(C p, C& h, C g, C lr) const {
    if constexpr (!kDecoupled) g = plus_product(g, weight_decay, p);
    h = plus_product(h, g, g);
    C u = g / (root(h) + eps);
    if constexpr (kDecoupled) u = plus_product(u, weight_decay, p);
    return plus_product(p, -lr, u);
  }
};

template <class C>
struct NovoGrad {
  Moments<C> moments;
  C eps, weight_decay;
  bool inside, init_zero, norms_given, inf;

  explicit NovoGrad(const NovoGradOptions& o)
      : moments(o.beta1, o.beta2, o.grad_averaging),
        eps(static_cast<C>(o.eps)),
        weight_decay(static_cast<C>(o.weight_decay)),
        inside(o.reg_inside_moment),
        init_zero(o.init_zero),
        norms_given(o.norms_given),
        inf(o.norm_type == NormType::inf) {}
  CorrectionRule corrections(const NovoGradOptions& o) const {
    return moments.corrections(o.bias_correction, CorrectionRule::root_second);
  }
  APEX_FORMULA C blend(C kept, C norm, bool first) const {
    const bool starts = first && !norms_given;
    if (starts && !init_zero) return norm;
    const C s = starts ? C(0) : kept;
    return inf ? moments.b2 * s + moments.c2 * norm : root(moments.b2 * s * s + moments.c2 * norm * norm);
  }
  APEX_FORMULA C divisor(C norm, const Corrections<C>& c) const { return norm / c.second + eps; }
  template <bool kInside>
  APEX_FORMULA C step(C p, C& m, C g, C below, const Corrections<C>& c, C lr) const {
    if constexpr (kInside) {
      m = plus_product(moments.b3 * plus_product(g / below, weight_decay, p), moments.b1, m);
      return plus_product(p, -lr, m / c.first);
    } else {
      m = plus_product(moments.b3 * g, moments.b1, m);
      return plus_product(p, -lr, plus_product(m / c.first / below, weight_decay, p));
    }
  }
};

template <class C>
struct Lamb {
  Moments<C> moments;
  C eps, weight_decay, max_grad_norm;
  bool decoupled, adapts;

  explicit Lamb(const LambOptions& o)
      : moments(o.beta1, o.beta2, o.grad_averaging),
        eps(static_cast<C>(o.eps)),
        weight_decay(static_cast<C>(o.weight_decay)),
        max_grad_norm(static_cast<C>(o.max_grad_norm)),
        decoupled(o.adam_w_mode),
        adapts(o.use_nvlamb || o.weight_decay != 0) {}
  CorrectionRule corrections(const LambOptions& o) const {
    return moments.corrections(o.bias_correction, CorrectionRule::plain);
  }
  /// Gradients are divided by it.
  APEX_FORMULA C clip(C norm) const {
    return max_grad_norm > C(0) && norm > max_grad_norm ? norm / max_grad_norm : C(1);
  }
  APEX_FORMULA C update(C p, C m, C v, C decay, const Corrections<C>& c) const {
    const C u = m / c.first / (root(v / c.second) + eps);
    return decoupled ? plus_product(u, decay, p) : u;
  }
  APEX_FORMULA C moment(C p, C& m, C& v, C g, C below, C decay, const Corrections<C>& c) const {
    g = g / below;
    if (!decoupled) g = plus_product(g, decay, p);
    moments.advance(m, v, g);
    return update(p, m, v, decay, c);
  }
};

/// LAMB's step length of one tensor.
template <class C>
APEX_FORMULA C trust_ratio(C lr, C param_norm, C update_norm, bool adapts) {
  return adapts && param_norm != C(0) && update_norm != C(0) ? lr * (param_norm / update_norm) : lr;
}

/// f32 from its two halves, and back; see multi_tensor_adam_remainders.
APEX_FORMULA std::uint32_t join_halves(std::uint16_t high, std::uint16_t low) {
  return (static_cast<std::uint32_t>(high) << 16) + low - (low & 0x8000u ? 0x10000u : 0u);
}
APEX_FORMULA std::uint16_t high_half(std::uint32_t bits) {
  const std::uint32_t high = bits >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<std::uint16_t>(nan ? high | 0x40u : high + ((bits >> 15) & 1u));
}

/// e5m2 of the bits of an f16: the upper byte, rounded half away from zero; NaN stays NaN.
APEX_FORMULA std::uint8_t e5m2_of(std::uint16_t half) {
  const bool nan = (half & 0x7fffu) > 0x7c00u;
  return static_cast<std::uint8_t>(nan ? (half >> 8) | 0x02u : (half + 0x80u) >> 8);
}

}  // namespace apex::kernels::optimizer
