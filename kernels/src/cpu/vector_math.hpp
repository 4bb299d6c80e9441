// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

// Functions that a compiler turns into vector code: no branch, no table, no call. f32 within 3 units in the last place
// (but see erfc_of_positive), the same bits on every machine; f64 is the C library's. NaN goes through, and infinities
// give the limits.

namespace apex::kernels::cpu::vm {

#define APEX_INLINED [[gnu::always_inline]] inline

/// x = n ln 2 + rest, |rest| <= ln 2 / 2; for |x| below 2^21.
struct Reduced {
  float rest;
  std::int32_t n;
};
APEX_INLINED Reduced reduce_exponent(float x) {
  constexpr float kRounder = 0x1.8p23f;  // adding it leaves the nearest integer in the last bits
  const float shifted = x * 0x1.715476p0f + kRounder;
  const float n = shifted - kRounder;
  // ln 2 in two parts: n times the first is exact.
  return {(x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1dp-20f,
          std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kRounder)};
}
/// e^r - 1 for |r| <= ln 2 / 2: the series, whose first term left out is below 2^-27 of the result.
APEX_INLINED float expm1_of_rest(float r) {
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  return p * r * r + r;
}
/// 2^n for n in [-126, 127].
APEX_INLINED float power_of_two(std::int32_t n) {
  return std::bit_cast<float>((static_cast<std::uint32_t>(n) + 127u) << 23);
}

APEX_INLINED float exp(float x) {
  const float low = x < -104.0f ? -104.0f : x;  // beyond these all is 0 or infinity
  const auto r = reduce_exponent(low > 89.0f ? 89.0f : low);
  const std::int32_t half = r.n >> 1;  // in two steps, so that denormal results are rounded once
  return (expm1_of_rest(r.rest) + 1.0f) * power_of_two(half) * power_of_two(r.n - half);
}

/// e^x - 1 for x <= 88.
APEX_INLINED float expm1(float x) {
  const auto r = reduce_exponent(x < -20.0f ? -20.0f : x);
  const float scale = power_of_two(r.n);
  return expm1_of_rest(r.rest) * scale + (scale - 1.0f);
}

APEX_INLINED float tanh(float x) {
  const float a = std::fabs(x);
  const float e = expm1(2.0f * (a > 10.0f ? 10.0f : a));  // beyond 10 the result rounds to 1
  return std::copysign(e / (e + 2.0f), x);
}

/// ln m for m = (1 + s) / (1 - s), |s| <= 1/3: 2 artanh s.
APEX_INLINED float log_of_ratio(float s) {
  const float u = s * s;
  float p = 1.0f / 17;
  p = p * u + 1.0f / 15;
  p = p * u + 1.0f / 13;
  p = p * u + 1.0f / 11;
  p = p * u + 1.0f / 9;
  p = p * u + 1.0f / 7;
  p = p * u + 1.0f / 5;
  p = p * u + 1.0f / 3;
  return 2.0f * s + 2.0f * s * u * p;
}

/// ln (1 + z) for z in [0, 1].
APEX_INLINED float log1p_of_unit(float z) { return log_of_ratio(z / (2.0f + z)); }

APEX_INLINED float log(float x) {
  const bool tiny = x < std::numeric_limits<float>::min();
  const auto bits = std::bit_cast<std::int32_t>(tiny ? x * 0x1p23f : x);
  const std::int32_t e = (bits - 0x3f3504f3) >> 23;  // the mantissa then lies in [sqrt(1/2), sqrt(2))
  const float m = std::bit_cast<float>(bits - static_cast<std::int32_t>(static_cast<std::uint32_t>(e) << 23));
  const float n = static_cast<float>(e) - (tiny ? 23.0f : 0.0f);
  const float result = n * 0x1.62e4p-1f + (n * 0x1.7f7d1dp-20f + log_of_ratio((m - 1.0f) / (m + 1.0f)));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float special = x == 0.0f ? -kInfinity : x < 0.0f ? std::numeric_limits<float>::quiet_NaN() : x;
  return x > 0.0f && x < kInfinity ? result : special;
}

/// 1 - erf(t) for t >= 0: e^(-t^2) q P(q), q = 1 / (1 + t / 2), P an interpolation in Chebyshev points. The relative
/// error is that of the rounded t^2 in the exponent: 5e-6 where results end.
APEX_INLINED float erfc_of_positive(float t) {
  const float q = 1.0f / (1.0f + 0.5f * t);
  float p = 0.0174617488f;
  p = p * q - 0.149686441f;
  p = p * q + 0.486789882f;
  p = p * q - 0.74103719f;
  p = p * q + 0.474895567f;
  p = p * q - 0.12403056f;
  p = p * q + 0.233335376f;
  p = p * q + 0.2372116f;
  p = p * q + 0.283001602f;
  p = p * q + 0.282058418f;
  return p * q * exp(-t * t);
}

APEX_INLINED float erf(float x) {
  const float a = std::fabs(x), u = x * x;
  float p = 7.87587487e-05f;  // x P(x^2) below 1, so that small results keep their digits
  p = p * u - 0.00080168643f;
  p = p * u + 0.00518908724f;
  p = p * u - 0.0268542115f;
  p = p * u + 0.112835944f;
  p = p * u - 0.37612626f;
  p = p * u + 1.12837911f;
  return a < 1.0f ? x * p : std::copysign(1.0f - erfc_of_positive(a), x);
}

/// The distribution function of the standard normal distribution.
APEX_INLINED float normal_cdf(float x) {
  const float half = 0.5f * erfc_of_positive(std::fabs(x) * 0x1.6a09e6p-1f);
  return x < 0.0f ? half : 1.0f - half;
}

APEX_INLINED float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

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
  const C positive = x > C(0) ? x : x != x ? x : C(0);
  return positive + log1p_of_unit(exp(-std::fabs(x)));
}

#undef APEX_INLINED

}  // namespace apex::kernels::cpu::vm
