// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <numbers>

#include "../elementwise_impl.hpp"
#include "map.hpp"
#include "vector_math.hpp"

namespace apex::kernels::cpu {
namespace {

template <class T>
void unary_integer(T* out, const T* x, const Loop<2>& loop, UnaryOp op) {
  using U = std::make_unsigned_t<T>;
  const auto run = [&](auto f) { map1(out, x, loop, f); };
  switch (op) {
    case UnaryOp::neg: return run([](T v) { return static_cast<T>(U(0) - static_cast<U>(v)); });
    case UnaryOp::abs: return run([](T v) { return v < 0 ? static_cast<T>(U(0) - static_cast<U>(v)) : v; });
    case UnaryOp::sign: return run([](T v) { return static_cast<T>((v > 0) - (v < 0)); });
    case UnaryOp::square: return run([](T v) { return static_cast<T>(static_cast<U>(v) * static_cast<U>(v)); });
    case UnaryOp::relu: return run([](T v) { return v < 0 ? T(0) : v; });
    default: return;  // the front let floating types only through
  }
}

template <class T>
void unary_floating(T* out, const T* x, const Loop<2>& loop, UnaryOp op) {
  using C = compute_t<T>;
  const auto run = [&](auto f) { map1(out, x, loop, f); };
  switch (op) {
    case UnaryOp::neg: return run([](auto v) { return -v; });
    case UnaryOp::abs: return run([](auto v) { return vm::fabs(v); });
    case UnaryOp::sign: return run([](C v) { return v > C(0) ? C(1) : v < C(0) ? C(-1) : v; });
    case UnaryOp::exp: return run([](auto v) { return vm::exp(v); });
    case UnaryOp::log: return run([](auto v) { return vm::log(v); });
    case UnaryOp::sqrt: return run([](auto v) { return vm::sqrt(v); });
    case UnaryOp::rsqrt: return run([](auto v) { return C(1) / vm::sqrt(v); });
    case UnaryOp::reciprocal: return run([](auto v) { return C(1) / v; });
    case UnaryOp::square: return run([](auto v) { return v * v; });
    case UnaryOp::tanh: return run([](auto v) { return vm::tanh(v); });
    case UnaryOp::sigmoid: return run([](auto v) { return vm::sigmoid(v); });
    case UnaryOp::relu: return run([](auto v) { return v <= C(0) ? decltype(v){} : v; });
    case UnaryOp::erf: return run([](auto v) { return vm::erf(v); });
  }
}

template <class T>
void unary_backward_typed(T* dx, const T* dy, const T* saved, const Loop<3>& loop, UnaryOp op) {
  using C = compute_t<T>;
  const auto run = [&](auto f) { map2(dx, dy, saved, loop, f); };
  switch (op) {
    case UnaryOp::neg: return run([](auto g, auto) { return -g; });
    case UnaryOp::abs: return run([](auto g, auto x) { return x > C(0) ? g : x < C(0) ? -g : C(0) * g; });
    case UnaryOp::sign: return run([](auto g, auto) { return C(0) * g; });
    case UnaryOp::exp: return run([](auto g, auto y) { return g * y; });
    case UnaryOp::log: return run([](auto g, auto x) { return g / x; });
    case UnaryOp::sqrt: return run([](auto g, auto y) { return g / (C(2) * y); });
    case UnaryOp::rsqrt: return run([](auto g, auto y) { return C(-0.5) * g * y * y * y; });
    case UnaryOp::reciprocal: return run([](auto g, auto y) { return -g * y * y; });
    case UnaryOp::square: return run([](auto g, auto x) { return C(2) * g * x; });
    case UnaryOp::tanh: return run([](auto g, auto y) { return g * (C(1) - y * y); });
    case UnaryOp::sigmoid: return run([](auto g, auto y) { return g * y * (C(1) - y); });
    case UnaryOp::relu: return run([](auto g, auto y) { return y > C(0) ? g : decltype(g){}; });
    case UnaryOp::erf: return run([](auto g, auto x) { return g * C(2 * std::numbers::inv_sqrtpi) * vm::exp(-x * x); });
  }
}

}  // namespace

void unary(const Context&, View out, ConstView x, UnaryOp op) {
  const auto loop = loop_of(out, x);
  if (out.dtype == DType::i64) return unary_integer(out.as<std::int64_t>(), x.as<std::int64_t>(), loop, op);
  if (out.dtype == DType::i32) return unary_integer(out.as<std::int32_t>(), x.as<std::int32_t>(), loop, op);
  visit_floating(out.dtype, name_of(op), [&]<class T>() { unary_floating(out.as<T>(), x.as<T>(), loop, op); });
}

void unary_backward(const Context&, View dx, ConstView dy, ConstView saved, UnaryOp op) {
  const ConstView& second = saves_of(op) == Saves::nothing ? dy : saved;
  const auto loop = loop_of(dx, dy, second);
  visit_floating(dx.dtype, name_of(op),
                 [&]<class T>() { unary_backward_typed(dx.as<T>(), dy.as<T>(), second.as<T>(), loop, op); });
}

}  // namespace apex::kernels::cpu
