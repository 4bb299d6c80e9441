// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#if defined(__F16C__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#include "apex/core/dtype.hpp"

namespace apex::kernels::cpu {

template <class T>
inline constexpr bool is_half_type = std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>;
template <class T>
inline constexpr bool is_floating_type = is_half_type<T> || std::is_floating_point_v<T>;

/// Calls f with an unsigned integer as wide as `dtype`: moving bytes does not care what they mean.
template <class F>
void visit_width(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 1: return f.template operator()<std::uint8_t>();
    case 2: return f.template operator()<std::uint16_t>();
    case 4: return f.template operator()<std::uint32_t>();
    default: return f.template operator()<std::uint64_t>();
  }
}

/// The type an element is computed in: accum_t for floating types, the type itself for integers.
template <class T>
struct ComputeType {
  using type = std::conditional_t<is_floating_type<T>, accum_t<T>, T>;
};
template <class T>
using compute_t = typename ComputeType<T>::type;

/// One element to another type, as kernels/copy.hpp says.
template <class To, class From>
inline To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (is_half_type<From>) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else if constexpr (is_half_type<To>) {
    return To(static_cast<float>(value));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    using Limits = std::numeric_limits<To>;
    if (value != value) return To(0);
    if (value >= static_cast<From>(Limits::max())) return Limits::max();
    if (value <= static_cast<From>(Limits::min())) return Limits::min();
    return static_cast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

// Eight at a time, in registers.
#if defined(__F16C__) && defined(__AVX2__)
#define APEX_HALVES_BY_8 1
inline __m256 widen_8(const float16* src) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src)));
}
inline __m256 widen_8(const bfloat16* src) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
/// Sixteen, rounded to nearest even, NaN quiet.
template <class T>
inline __m256i narrowed_16(__m256 low, __m256 high);
template <>
inline __m256i narrowed_16<float16>(__m256 low, __m256 high) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return _mm256_set_m128i(_mm256_cvtps_ph(high, kNearest), _mm256_cvtps_ph(low, kNearest));
}
/// The same steps as detail::bfloat_from_float: an f32 with the rounded bits in its upper half.
inline __m256i rounded_to_bfloat(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}
inline __m256i quiet_where_nan(__m256i rounded, __m256 value) {
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  const __m256i quiet = _mm256_or_si256(_mm256_castps_si256(value), _mm256_set1_epi32(0x400000));
  return _mm256_blendv_epi8(rounded, quiet, is_nan);
}
template <>
inline __m256i narrowed_16<bfloat16>(__m256 low, __m256 high) {
  __m256i a = rounded_to_bfloat(low), b = rounded_to_bfloat(high);
  if (_mm256_movemask_ps(_mm256_cmp_ps(low, high, _CMP_UNORD_Q)) != 0) [[unlikely]] {
    a = quiet_where_nan(a, low);
    b = quiet_where_nan(b, high);
  }
  const __m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16));
  return _mm256_permute4x64_epi64(packed, 0b11011000);  // packing works within halves of the register
}
/// Sixteen as their even and their odd elements: for bf16 cheaper than as lower and upper halves.
inline __m256 even_of_16(const bfloat16* src) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(src)), 16));
}
inline __m256 odd_of_16(const bfloat16* src) {
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
  return _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
inline __m256i joined_16(__m256 even, __m256 odd) {
  __m256i a = rounded_to_bfloat(even), b = rounded_to_bfloat(odd);
  if (_mm256_movemask_ps(_mm256_cmp_ps(even, odd, _CMP_UNORD_Q)) != 0) [[unlikely]] {
    a = quiet_where_nan(a, even);
    b = quiet_where_nan(b, odd);
  }
  return _mm256_blend_epi16(_mm256_srli_epi32(a, 16), b, 0b10101010);
}
inline void narrow_8(float16* dst, __m256 value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(dst),
                   _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline void narrow_8(bfloat16* dst, __m256 value) {
  const __m256i result = _mm256_srli_epi32(quiet_where_nan(rounded_to_bfloat(value), value), 16);
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(dst), packed);
}
#else
#define APEX_HALVES_BY_8 0
#endif

template <class T>
inline void load_halves(float* dst, const T* src, std::int64_t n) {
  std::int64_t i = 0;
#if APEX_HALVES_BY_8
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(dst + i, widen_8(src + i));
#endif
  for (; i < n; ++i) dst[i] = static_cast<float>(src[i]);
}
template <class T>
inline void store_halves(T* dst, const float* src, std::int64_t n) {
  std::int64_t i = 0;
#if APEX_HALVES_BY_8
  for (; i + 16 <= n; i += 16)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + i),
                        narrowed_16<T>(_mm256_loadu_ps(src + i), _mm256_loadu_ps(src + i + 8)));
  for (; i + 8 <= n; i += 8) narrow_8(dst + i, _mm256_loadu_ps(src + i));
#endif
  for (; i < n; ++i) dst[i] = T(src[i]);
}

/// dst[i] = src[i * stride], converted.
template <class C, class T>
inline void load_block(C* dst, const T* src, std::int64_t stride, std::int64_t n) {
  if constexpr (is_half_type<T> && std::is_same_v<C, float>) {
    if (stride == 1) return load_halves(dst, src, n);
  }
  if (stride == 1) {
    for (std::int64_t i = 0; i < n; ++i) dst[i] = convert<C>(src[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) dst[i] = convert<C>(src[i * stride]);
  }
}

/// dst[i * stride] = src[i], converted.
template <class T, class C>
inline void store_block(T* dst, std::int64_t stride, const C* src, std::int64_t n) {
  if constexpr (is_half_type<T> && std::is_same_v<C, float>) {
    if (stride == 1) return store_halves(dst, src, n);
  }
  if (stride == 1) {
    for (std::int64_t i = 0; i < n; ++i) dst[i] = convert<T>(src[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) dst[i * stride] = convert<T>(src[i]);
  }
}

}  // namespace apex::kernels::cpu
