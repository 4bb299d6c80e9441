// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "elementwise.cuh"
#include "elementwise_parts.hpp"

// Integers wrap, as they do on the CPU: arithmetic is done unsigned. The op is chosen on the device: with so little to
// compute, memory decides.

namespace apex::kernels::cuda {
namespace {

struct Binary {
  BinaryOp op;
  template <class T>
  __device__ T operator()(T x, T y) const {
    using U = std::make_unsigned_t<T>;
    const U a = static_cast<U>(x), b = static_cast<U>(y);
    switch (op) {
      case BinaryOp::add: return static_cast<T>(a + b);
      case BinaryOp::sub: return static_cast<T>(a - b);
      case BinaryOp::mul: return static_cast<T>(a * b);
      case BinaryOp::minimum: return x < y ? x : y;
      default: return x > y ? x : y;  // maximum; the front lets no other through
    }
  }
};

struct Unary {
  UnaryOp op;
  template <class T>
  __device__ T operator()(T v) const {
    using U = std::make_unsigned_t<T>;
    const U u = static_cast<U>(v);
    switch (op) {
      case UnaryOp::neg: return static_cast<T>(U(0) - u);
      case UnaryOp::abs: return v < 0 ? static_cast<T>(U(0) - u) : v;
      case UnaryOp::sign: return static_cast<T>((v > 0) - (v < 0));
      case UnaryOp::square: return static_cast<T>(u * u);
      default: return v < 0 ? T(0) : v;  // relu; the front lets no other through
    }
  }
};

}  // namespace

void binary_integer(const Context& ctx, View out, ConstView a, ConstView b, BinaryOp op, const Index<3>& index) {
  const auto run = [&]<class T>() {
    map(ctx, name_of(op), Binary{op}, index, native<T>(out), native<T>(a), native<T>(b));
  };
  if (out.dtype == DType::i64) return run.operator()<std::int64_t>();
  if (out.dtype == DType::i32) return run.operator()<std::int32_t>();
  run.operator()<std::uint8_t>();
}

void unary_integer(const Context& ctx, View out, ConstView x, UnaryOp op, const Index<2>& index) {
  const auto run = [&]<class T>() { map(ctx, name_of(op), Unary{op}, index, native<T>(out), native<T>(x)); };
  if (out.dtype == DType::i64) return run.operator()<std::int64_t>();
  run.operator()<std::int32_t>();
}

}  // namespace apex::kernels::cuda
