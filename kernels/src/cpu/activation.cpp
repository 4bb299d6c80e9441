// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <numbers>

#include "../activation_impl.hpp"
#include "map.hpp"
#include "vector_math.hpp"

namespace apex::kernels::cpu {
namespace {

constexpr double kRootTwoOverPi = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;

/// v within [-end, end]; NaN stays.
template <class C, class V>
V within(V v, C end) {
  return vm::at_most(vm::at_least(v, vm::all<V>(-end)), vm::all<V>(end));
}
/// Twice the argument of gelu_tanh's tanh: (1 + tanh u) / 2 = sigmoid(2 u), which keeps its digits where tanh is near
/// -1.
template <class C, class V>
V gelu_exponent(V v) {
  return C(2 * kRootTwoOverPi) * (v + C(kGeluCubic) * v * v * v);
}

template <class T>
void forward(T* y, const T* x, const Loop<2>& loop, const Activation& f) {
  using C = compute_t<T>;
  const C a = static_cast<C>(f.a), b = static_cast<C>(f.b);
  const auto run = [&](auto g) { map1(y, x, loop, g); };
  switch (f.kind) {
    case ActivationKind::gelu:
      return run([](auto v) { return v < C(-kGeluEnd) ? -decltype(v){} : v * vm::normal_cdf(v); });
    case ActivationKind::gelu_tanh:
      return run([](auto v) { return v < C(-kGeluEnd) ? -decltype(v){} : v * vm::sigmoid(gelu_exponent<C>(v)); });
    case ActivationKind::silu:
      return run([](auto v) { return v < C(-kSiluEnd) ? -decltype(v){} : v * vm::sigmoid(v); });
    case ActivationKind::leaky_relu: return run([a](auto v) { return v > C(0) ? v : a * v; });
    case ActivationKind::elu:
      return run([a](auto v) { return v > C(0) ? v : a * vm::expm1(vm::at_most(v, decltype(v){})); });
    case ActivationKind::softplus: return run([a, b](auto v) { return a * v > b ? v : vm::softplus(a * v) / a; });
    case ActivationKind::clamp:
    case ActivationKind::hardtanh:
      return run([a, b](auto v) {
        using V = decltype(v);
        return v < a ? vm::all<V>(a) : v > b ? vm::all<V>(b) : v;
      });
    case ActivationKind::log_sigmoid: return run([](auto v) { return -vm::softplus(-v); });
  }
}

template <class T>
void backward(T* dx, const T* dy, const T* x, const Loop<3>& loop, const Activation& f) {
  using C = compute_t<T>;
  const C a = static_cast<C>(f.a), b = static_cast<C>(f.b);
  const auto run = [&](auto g) { map2(dx, dy, x, loop, g); };
  switch (f.kind) {
    case ActivationKind::gelu:
      return run([](auto g, auto v) {
        const auto w = within(v, C(kGeluEnd));
        constexpr C kDensity = C(std::numbers::inv_sqrtpi / std::numbers::sqrt2);
        return g * (vm::normal_cdf(w) + w * kDensity * vm::exp(C(-0.5) * w * w));
      });
    case ActivationKind::gelu_tanh:
      return run([](auto g, auto v) {
        const auto w = within(v, C(kGeluEnd)), s = vm::sigmoid(gelu_exponent<C>(w));
        return g * (s + w * s * (C(1) - s) * C(2 * kRootTwoOverPi) * (C(1) + C(3 * kGeluCubic) * w * w));
      });
    case ActivationKind::silu:
      return run([](auto g, auto v) {
        const auto w = within(v, C(kSiluEnd)), s = vm::sigmoid(w);
        return g * s * (C(1) + w * (C(1) - s));
      });
    case ActivationKind::leaky_relu:
      if (a == C(0)) return run([](auto g, auto v) { return v > C(0) ? g : decltype(g){}; });
      return run([a](auto g, auto v) { return v > C(0) ? g : a * g; });
    case ActivationKind::elu: return run([a](auto g, auto v) { return v > C(0) ? g : g * a * vm::exp(v); });
    case ActivationKind::softplus:
      return run([a, b](auto g, auto v) { return a * v > b ? g : g * vm::sigmoid(a * v); });
    case ActivationKind::clamp: return run([a, b](auto g, auto v) { return (v < a) | (v > b) ? decltype(g){} : g; });
    case ActivationKind::hardtanh:
      return run([a, b](auto g, auto v) { return (v <= a) | (v >= b) ? decltype(g){} : g; });
    case ActivationKind::log_sigmoid: return run([](auto g, auto v) { return g * vm::sigmoid(-v); });
  }
}

}  // namespace

void activation(const Context&, View y, ConstView x, const Activation& f) {
  const auto loop = loop_of(y, x);
  visit_floating(y.dtype, name_of(f.kind), [&]<class T>() { forward(y.as<T>(), x.as<T>(), loop, f); });
}

void activation_backward(const Context&, View dx, ConstView dy, ConstView x, const Activation& f) {
  const auto loop = loop_of(dx, dy, x);
  visit_floating(dx.dtype, name_of(f.kind), [&]<class T>() { backward(dx.as<T>(), dy.as<T>(), x.as<T>(), loop, f); });
}

}  // namespace apex::kernels::cpu
