// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#ifdef __F16C__
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
  for (std::int64_t i = 0; i < n; ++i) dst[i] = static_cast<float>(src[i]);
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
  for (std::int64_t i = 0; i < n; ++i) dst[i] = bfloat16(src[i]);
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
