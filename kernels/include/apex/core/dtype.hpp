// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#include "apex/core/error.hpp"
#include "apex/core/half.hpp"

namespace apex {

/// Element types. `boolean` is one byte, 0 or 1.
enum class DType : std::uint8_t { f64, f32, f16, bf16, i64, i32, u8, boolean };

constexpr std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
    case DType::u8:
    case DType::boolean: return 1;
  }
  return 0;
}

constexpr bool is_floating(DType dtype) noexcept { return dtype <= DType::bf16; }
constexpr bool is_16bit(DType dtype) noexcept { return dtype == DType::f16 || dtype == DType::bf16; }

/// "f64", "f32", "f16", "bf16", "i64", "i32", "u8", "bool".
const char* name_of(DType dtype) noexcept;
std::ostream& operator<<(std::ostream& out, DType dtype);
/// The inverse of name_of; also takes float64, double, float32, float, float16, half, bfloat16, int64, int32, uint8.
std::optional<DType> parse_dtype(std::string_view name) noexcept;

/// The type sums are formed in: f64 for f64, f32 for every narrower floating type.
constexpr DType accum_dtype(DType dtype) noexcept { return dtype == DType::f64 ? DType::f64 : DType::f32; }

template <class T>
using accum_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<float16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<bfloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::boolean;
};
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

[[noreturn]] void throw_unsupported(const char* op, DType dtype);

/// Calls `f.operator()<T>()` with the C++ type of a floating dtype; anything else throws Kind::unsupported naming `op`.
template <class F>
decltype(auto) visit_floating(DType dtype, const char* op, F&& f) {
  switch (dtype) {
    case DType::f64: return f.template operator()<double>();
    case DType::f32: return f.template operator()<float>();
    case DType::f16: return f.template operator()<float16>();
    case DType::bf16: return f.template operator()<bfloat16>();
    default: throw_unsupported(op, dtype);
  }
}

/// f32 and f64 only.
template <class F>
decltype(auto) visit_wide_floating(DType dtype, const char* op, F&& f) {
  switch (dtype) {
    case DType::f64: return f.template operator()<double>();
    case DType::f32: return f.template operator()<float>();
    default: throw_unsupported(op, dtype);
  }
}

/// Every dtype.
template <class F>
decltype(auto) visit_any(DType dtype, const char* op, F&& f) {
  switch (dtype) {
    case DType::f64: return f.template operator()<double>();
    case DType::f32: return f.template operator()<float>();
    case DType::f16: return f.template operator()<float16>();
    case DType::bf16: return f.template operator()<bfloat16>();
    case DType::i64: return f.template operator()<std::int64_t>();
    case DType::i32: return f.template operator()<std::int32_t>();
    case DType::u8: return f.template operator()<std::uint8_t>();
    case DType::boolean: return f.template operator()<bool>();
  }
  throw_unsupported(op, dtype);
}

}  // namespace apex
