// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "vec.hpp"

// Functions for one number or for vectors: no branch, no table, no call. f32 within 2 units in the last place (sigmoid,
// erf and softplus 2.5, normal_cdf 6); the same bits on every machine with fused multiply-add, others in a build
// without it; f64 is the C library's. NaN goes through, and infinities give the limits.

namespace apex::kernels::cpu::vm {

#define APEX_INLINED [[gnu::always_inline]] inline

using Float8 = VectorOps<float>::Value;
typedef std::int32_t Int8 __attribute__((vector_size(32)));
typedef std::uint32_t Word8 __attribute__((vector_size(32)));

/// What the f32 functions below take: one number, or eight, whose results have the same bits.
template <class V>
concept Real = std::is_same_v<V, float> || std::is_same_v<V, Float8>;
template <class V>
using IntOf = std::conditional_t<std::is_same_v<V, float>, std::int32_t, Int8>;
template <class V>
using WordOf = std::conditional_t<std::is_same_v<V, float>, std::uint32_t, Word8>;

/// c, or c in every lane.
template <class V, class C>
APEX_INLINED V all(C c) {
  if constexpr (std::is_same_v<V, Float8> && !std::is_same_v<C, Float8>)
    return Float8{c, c, c, c, c, c, c, c};
  else
    return c;
}
/// a * b + c, rounded once where the build has the instruction.
template <class A, class B, class C>
APEX_INLINED auto fma(A a, B b, C c) {
  constexpr bool one = std::is_same_v<A, float> && std::is_same_v<B, float> && std::is_same_v<C, float>;
#ifdef __FMA__
  if constexpr (one)
    return __builtin_fmaf(a, b, c);
  else
    return Float8(_mm256_fmadd_ps(__m256(all<Float8>(a)), __m256(all<Float8>(b)), __m256(all<Float8>(c))));
#else
  if constexpr (one)
    return a * b + c;
  else
    return all<Float8>(a) * all<Float8>(b) + all<Float8>(c);
#endif
}
/// x, or the limit where it lies beyond; NaN stays, which is the instruction's second operand.
template <class V>
APEX_INLINED V at_least(V x, std::type_identity_t<V> low) {
#ifdef __AVX2__
  if constexpr (std::is_same_v<V, Float8>) return Float8(_mm256_max_ps(__m256(low), __m256(x)));
#endif
  return x < low ? low : x;
}
template <class V>
APEX_INLINED V at_most(V x, std::type_identity_t<V> high) {
#ifdef __AVX2__
  if constexpr (std::is_same_v<V, Float8>) return Float8(_mm256_min_ps(__m256(high), __m256(x)));
#endif
  return x > high ? high : x;
}
/// The larger and the smaller, NaN if one is: the first where both are; of zeros the second.
template <class V>
APEX_INLINED V maximum(V x, V y) {
#ifdef __AVX2__
  if constexpr (std::is_same_v<V, Float8>) return x != x ? x : Float8(_mm256_max_ps(__m256(x), __m256(y)));
#endif
  return (x > y) | (x != x) ? x : y;
}
template <class V>
APEX_INLINED V minimum(V x, V y) {
#ifdef __AVX2__
  if constexpr (std::is_same_v<V, Float8>) return x != x ? x : Float8(_mm256_min_ps(__m256(x), __m256(y)));
#endif
  return (x < y) | (x != x) ? x : y;
}
template <class V>
APEX_INLINED V sqrt(V x) {
#ifdef __AVX2__
  if constexpr (std::is_same_v<V, Float8>) return Float8(_mm256_sqrt_ps(__m256(x)));
#endif
  if constexpr (std::is_same_v<V, Float8>) {
    for (int l = 0; l < 8; ++l) x[l] = std::sqrt(x[l]);
    return x;
  } else {
    return std::sqrt(x);
  }
}
template <Real V>
APEX_INLINED WordOf<V> bits_of(V x) {
  return std::bit_cast<WordOf<V>>(x);
}
template <class V>
APEX_INLINED V fabs(V x) {
  if constexpr (Real<V>)
    return std::bit_cast<V>(bits_of(x) & 0x7fffffffu);
  else
    return std::fabs(x);
}
template <Real V>
APEX_INLINED V copysign(V size, V sign) {
  return std::bit_cast<V>((bits_of(size) & 0x7fffffffu) | (bits_of(sign) & 0x80000000u));
}

inline constexpr float kRounder = 0x1.8p23f;  // adding it leaves the nearest integer in the last bits

/// x = n ln 2 + rest, |rest| <= ln 2 / 2; for |x| below 2^21. n as kRounder + n.
template <Real V>
struct Reduced {
  V rest, shifted;
};
template <Real V>
APEX_INLINED Reduced<V> reduce_exponent(V x) {
  const V shifted = fma(x, 0x1.715476p0f, kRounder);
  const V n = shifted - kRounder;
  // ln 2 in two parts: n times the first is exact.
  return {fma(n, -0x1.7f7d1dp-20f, fma(n, -0x1.62e4p-1f, x)), shifted};
}
/// e^r - 1 for |r| <= ln 2 / 2: r + r^2 Q(r), Q the polynomial of least relative error, 2^-28.
template <Real V>
APEX_INLINED V expm1_of_rest(V r) {
  V q = fma(r, 0.0013814222f, 0.008368899f);
  q = fma(q, r, 0.041668406f);
  q = fma(q, r, 0.1666652f);
  q = fma(q, r, 0.49999994f);
  return fma(q, r * r, r);
}
/// 2^(e - 127) for e in [1, 254].
template <Real V>
APEX_INLINED V power_of_exponent(WordOf<V> e) {
  return std::bit_cast<V>(e << 23);
}

template <Real V>
APEX_INLINED V exp(V x) {  // beyond the limits all is 0 or infinity
  const auto r = reduce_exponent(at_most(at_least(x, all<V>(-104.0f)), all<V>(89.0f)));
  const auto both = bits_of(r.shifted) - (bits_of(kRounder) - 2 * 127u);
  const auto half = both >> 1;  // in two steps, so that denormal results are rounded once
  return (expm1_of_rest(r.rest) + 1.0f) * power_of_exponent<V>(half) * power_of_exponent<V>(both - half);
}

/// e^x - 1 for x <= 88.
template <Real V>
APEX_INLINED V expm1(V x) {
  const auto r = reduce_exponent(at_least(x, all<V>(-20.0f)));
  const V scale = power_of_exponent<V>(bits_of(r.shifted) - (bits_of(kRounder) - 127u));
  return fma(expm1_of_rest(r.rest), scale, scale - 1.0f);
}

template <Real V>
APEX_INLINED V tanh(V x) {
  const V size = fabs(x), a = at_most(size, all<V>(10.0f));  // beyond, the result rounds to 1
  const V e = expm1(a + a), u = x * x;
  V p = fma(u, -0.005351520f, 0.020318318f);  // x + x^3 P(x^2) below 0.6, where the quotient loses more
  p = fma(p, u, -0.05364044f);
  p = fma(p, u, 0.13330252f);
  p = fma(p, u, -0.3333324f);
  return size < 0.6f ? fma(x * u, p, x) : copysign(e / (e + 2.0f), x);
}

/// ln m for m = (1 + s) / (1 - s), |s| <= 1/3: 2 artanh s.
template <Real V>
APEX_INLINED V log_of_ratio(V s) {
  const V u = s * s;
  V p = fma(u, 1.0f / 17, 1.0f / 15);
  p = fma(p, u, 1.0f / 13);
  p = fma(p, u, 1.0f / 11);
  p = fma(p, u, 1.0f / 9);
  p = fma(p, u, 1.0f / 7);
  p = fma(p, u, 1.0f / 5);
  p = fma(p, u, 1.0f / 3);
  const V twice = 2.0f * s;
  return fma(twice * u, p, twice);
}

/// ln (1 + z) for z in [0, 1].
template <Real V>
APEX_INLINED V log1p_of_unit(V z) {
  return log_of_ratio(z / (2.0f + z));
}

template <Real V>
APEX_INLINED V log(V x) {
  using I = IntOf<V>;
  const auto tiny = x < std::numeric_limits<float>::min();
  const I bits = std::bit_cast<I>(tiny ? x * 0x1p23f : x);
  const I e = (bits - 0x3f3504f3) >> 23;  // the mantissa then lies in [sqrt(1/2), sqrt(2))
  const V m = std::bit_cast<V>(bits - std::bit_cast<I>(std::bit_cast<WordOf<V>>(e) << 23));
  V whole;
  if constexpr (std::is_same_v<V, float>)
    whole = static_cast<float>(e);
  else
    whole = __builtin_convertvector(e, Float8);
  const V n = whole - (tiny ? all<V>(23.0f) : V{});
  const V result = fma(n, 0x1.62e4p-1f, fma(n, 0x1.7f7d1dp-20f, log_of_ratio((m - 1.0f) / (m + 1.0f))));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const V nan = all<V>(std::numeric_limits<float>::quiet_NaN());
  const V special = x == 0.0f ? all<V>(-kInfinity) : x < 0.0f ? nan : x;
  return (x > 0.0f) & (x < kInfinity) ? result : special;
}

/// 1 - erf(t) for t >= 0: e^(-t^2) q P(q), q = 1 / (1 + t / 2), P an interpolation in Chebyshev points. `square` is
/// t^2 and `lost` what rounding took from it: where results end it would be 5e-6 of them.
template <Real V>
APEX_INLINED V erfc_of_positive(V t, V square, V lost) {
  const V q = 1.0f / fma(t, 0.5f, 1.0f);
  V p = fma(q, 0.0174617488f, -0.149686441f);
  p = fma(p, q, 0.486789882f);
  p = fma(p, q, -0.74103719f);
  p = fma(p, q, 0.474895567f);
  p = fma(p, q, -0.12403056f);
  p = fma(p, q, 0.233335376f);
  p = fma(p, q, 0.2372116f);
  p = fma(p, q, 0.283001602f);
  p = fma(p, q, 0.282058418f);
  const V e = p * q * exp(-square);
  return fma(e, -lost, e);
}

template <Real V>
APEX_INLINED V erf(V x) {
  const V a = fabs(x), u = x * x;
  V p = fma(u, 7.87587487e-05f, -0.00080168643f);  // x P(x^2) below 1, so that small results keep their digits
  p = fma(p, u, 0.00518908724f);
  p = fma(p, u, -0.0268542115f);
  p = fma(p, u, 0.112835944f);
  p = fma(p, u, -0.37612626f);
  p = fma(p, u, 1.12837911f);
  return a < 1.0f ? x * p : copysign(1.0f - erfc_of_positive(a, u, V{}), x);
}

/// The distribution function of the standard normal distribution.
template <Real V>
APEX_INLINED V normal_cdf(V x) {
  const V a = at_most(fabs(x), all<V>(15.0f));  // beyond, the tail is 0; squares stay finite
  const V square = a * a;
  const V half = 0.5f * erfc_of_positive(a * 0x1.6a09e6p-1f, 0.5f * square, 0.5f * fma(a, a, -square));
  return x < 0.0f ? half : 1.0f - half;
}

template <Real V>
APEX_INLINED V sigmoid(V x) {
  return 1.0f / (1.0f + exp(-x));
}

inline double exp(double x) { return std::exp(x); }
inline double expm1(double x) { return std::expm1(x); }
inline double tanh(double x) { return std::tanh(x); }
inline double log1p_of_unit(double z) { return std::log1p(z); }
inline double log(double x) { return std::log(x); }
inline double erf(double x) { return std::erf(x); }
inline double normal_cdf(double x) { return 0.5 * std::erfc(-x * 0x1.6a09e667f3bcdp-1); }
inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// ln (1 + e^x) without overflow.
template <class C>
APEX_INLINED C softplus(C x) {
  return at_least(x, C{}) + log1p_of_unit(exp(-fabs(x)));
}

#undef APEX_INLINED

}  // namespace apex::kernels::cpu::vm
