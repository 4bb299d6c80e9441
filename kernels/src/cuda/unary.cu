// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "elementwise.cuh"
#include "elementwise_parts.hpp"

namespace apex::kernels::cuda {
namespace {

template <class C>
__device__ __forceinline__ C relu(C v) {
  return v <= C(0) ? C(0) : v;  // NaN stays
}

/// Ops of little arithmetic share one kernel: the choice on the device hides behind memory, in 16 bits not quite.
struct Light {
  UnaryOp op;
  template <class C>
  __device__ C operator()(C v) const {
    switch (op) {
      case UnaryOp::neg: return -v;
      case UnaryOp::abs: return fabs(v);
      case UnaryOp::sign: return v > C(0) ? C(1) : v < C(0) ? C(-1) : v;
      case UnaryOp::square: return v * v;
      default: return relu(v);
    }
  }
};

/// An op with a kernel of its own.
template <UnaryOp kOp>
struct Own {
  template <class C>
  __device__ C operator()(C v) const {
    if constexpr (kOp == UnaryOp::exp) return exp(v);
    if constexpr (kOp == UnaryOp::log) return log(v);
    if constexpr (kOp == UnaryOp::sqrt) return sqrt(v);
    if constexpr (kOp == UnaryOp::rsqrt) return C(1) / sqrt(v);
    if constexpr (kOp == UnaryOp::reciprocal) return C(1) / v;
    if constexpr (kOp == UnaryOp::tanh) return tanh(v);
    if constexpr (kOp == UnaryOp::sigmoid) return C(1) / (C(1) + exp(-v));
    if constexpr (kOp == UnaryOp::relu) return relu(v);
    if constexpr (kOp == UnaryOp::erf) return erf(v);
  }
};

/// Any of them, for elements taken one by one.
struct Any {
  UnaryOp op;
  template <class C>
  __device__ C operator()(C v) const {
    switch (op) {
      case UnaryOp::exp: return Own<UnaryOp::exp>{}(v);
      case UnaryOp::log: return Own<UnaryOp::log>{}(v);
      case UnaryOp::sqrt: return Own<UnaryOp::sqrt>{}(v);
      case UnaryOp::rsqrt: return Own<UnaryOp::rsqrt>{}(v);
      case UnaryOp::reciprocal: return Own<UnaryOp::reciprocal>{}(v);
      case UnaryOp::tanh: return Own<UnaryOp::tanh>{}(v);
      case UnaryOp::sigmoid: return Own<UnaryOp::sigmoid>{}(v);
      case UnaryOp::erf: return Own<UnaryOp::erf>{}(v);
      default: return Light{op}(v);
    }
  }
};

template <class F>
void visit_unary(UnaryOp op, F&& f) {
  switch (op) {
    case UnaryOp::exp: return f(Own<UnaryOp::exp>{});
    case UnaryOp::log: return f(Own<UnaryOp::log>{});
    case UnaryOp::sqrt: return f(Own<UnaryOp::sqrt>{});
    case UnaryOp::rsqrt: return f(Own<UnaryOp::rsqrt>{});
    case UnaryOp::reciprocal: return f(Own<UnaryOp::reciprocal>{});
    case UnaryOp::tanh: return f(Own<UnaryOp::tanh>{});
    case UnaryOp::sigmoid: return f(Own<UnaryOp::sigmoid>{});
    case UnaryOp::erf: return f(Own<UnaryOp::erf>{});
    case UnaryOp::relu: return f(Own<UnaryOp::relu>{});  // every network's: a kernel of its own
    default: return f(Light{op});
  }
}

}  // namespace

void unary(const Context& ctx, View out, ConstView x, UnaryOp op) {
  const auto index = index_of(out, x);
  if (!is_floating(out.dtype)) return unary_integer(ctx, out, x, op, index);
  visit_floating(out.dtype, name_of(op), [&]<class T>() {
    visit_unary(op, [&](auto f) { map_or(ctx, name_of(op), f, Any{op}, index, native<T>(out), native<T>(x)); });
  });
}

}  // namespace apex::kernels::cuda
