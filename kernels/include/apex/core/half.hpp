// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <bit>
#include <cstdint>

namespace apex {

namespace detail {

/// f32 to IEEE half, nearest, ties to even; overflow gives infinity, NaN stays a (quiet) NaN.
constexpr std::uint16_t half_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) {
    const bool nan = magnitude > 0x7f800000u;
    return static_cast<std::uint16_t>(sign | 0x7c00u | (nan ? 0x0200u | ((magnitude >> 13) & 0x3ffu) : 0u));
  }
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds past 65504
  if (magnitude < 0x33000001u) return sign;  // at most half the smallest subnormal
  const int exponent = static_cast<int>(magnitude >> 23);
  std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const int shift = exponent >= 113 ? 13 : 126 - exponent;  // subnormal results keep fewer bits
  const std::uint32_t half_way = 1u << (shift - 1);
  const std::uint32_t rest = mantissa & ((1u << shift) - 1);
  mantissa >>= shift;
  if (rest > half_way || (rest == half_way && (mantissa & 1u))) ++mantissa;
  const std::uint32_t base = exponent >= 113 ? static_cast<std::uint32_t>(exponent - 113) << 10 : 0u;
  return static_cast<std::uint16_t>(sign | (base + mantissa));  // the hidden bit adds the last exponent step
}

constexpr float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  std::uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  if (mantissa == 0) return std::bit_cast<float>(sign);
  std::uint32_t e = 113;
  while ((mantissa & 0x400u) == 0) {
    mantissa <<= 1;
    --e;
  }
  return std::bit_cast<float>(sign | (e << 23) | ((mantissa & 0x3ffu) << 13));
}

constexpr std::uint16_t bfloat_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float bfloat_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

}  // namespace detail

/// IEEE binary16. Arithmetic happens in float: convert, compute, convert once.
struct float16 {
  std::uint16_t bits = 0;
  float16() = default;
  constexpr explicit float16(float value) : bits(detail::half_from_float(value)) {}
  constexpr explicit float16(double value) : float16(static_cast<float>(value)) {}
  constexpr explicit operator float() const { return detail::half_to_float(bits); }
  constexpr explicit operator double() const { return detail::half_to_float(bits); }
};

/// bfloat16: the upper half of a float.
struct bfloat16 {
  std::uint16_t bits = 0;
  bfloat16() = default;
  constexpr explicit bfloat16(float value) : bits(detail::bfloat_from_float(value)) {}
  constexpr explicit bfloat16(double value) : bfloat16(static_cast<float>(value)) {}
  constexpr explicit operator float() const { return detail::bfloat_to_float(bits); }
  constexpr explicit operator double() const { return detail::bfloat_to_float(bits); }
};

}  // namespace apex
