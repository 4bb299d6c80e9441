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

inline void load_halves(float* dst, const float16* src, std::int64_t n) {
  std::int64_t i = 0;
#ifdef __F16C__
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i))));
#endif
  for (; i < n; ++i) dst[i] = static_cast<float>(src[i]);
}
inline void load_halves(float* dst, const bfloat16* src, std::int64_t n) {
  std::int64_t i = 0;
#ifdef __AVX2__
  for (; i + 8 <= n; i += 8) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i)));
    _mm256_storeu_ps(dst + i, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
  }
#endif
  for (; i < n; ++i) dst[i] = static_cast<float>(src[i]);
}
inline void store_halves(float16* dst, const float* src, std::int64_t n) {
  std::int64_t i = 0;
#ifdef __F16C__
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#endif
  for (; i < n; ++i) dst[i] = float16(src[i]);
}
inline void store_halves(bfloat16* dst, const float* src, std::int64_t n) {
  std::int64_t i = 0;
#ifdef __AVX2__
  const __m256i one = _mm256_set1_epi32(1), almost_half = _mm256_set1_epi32(0x7fff), quiet = _mm256_set1_epi32(0x40);
  for (; i + 8 <= n; i += 8) {  // the same steps as detail::bfloat_from_float
    const __m256 value = _mm256_loadu_ps(src + i);
    const __m256i bits = _mm256_castps_si256(value), high = _mm256_srli_epi32(bits, 16);
    const __m256i step = _mm256_add_epi32(almost_half, _mm256_and_si256(high, one));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, step), 16);
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i result = _mm256_blendv_epi8(rounded, _mm256_or_si256(high, quiet), is_nan);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(result, result), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + i), _mm256_castsi256_si128(packed));
  }
#endif
  for (; i < n; ++i) dst[i] = bfloat16(src[i]);
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
