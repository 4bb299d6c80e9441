// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "activation.cuh"

namespace apex::kernels::cuda {
namespace {

template <ActivationKind kKind, class N>
struct Backward {
  using C = compute_t<N>;
  C a, b;
  __device__ C operator()(C g, C v) const {
    using K = ActivationKind;
    if constexpr (kKind == K::gelu) {
      const C w = within(v, C(kGeluEnd));
      return g * (normal_cdf_of<N>(w) + w * C(0.39894228040143268) * exp_of<N>(C(-0.5) * w * w));
    }
    if constexpr (kKind == K::gelu_tanh) {
      const C w = within(v, C(kGeluEnd)), s = sigmoid_of<N>(gelu_exponent(w));
      return g * (s + w * s * (C(1) - s) * C(1.5957691216057308) * (C(1) + C(3 * kGeluCubic) * w * w));
    }
    if constexpr (kKind == K::silu) {
      const C w = within(v, C(kSiluEnd)), s = sigmoid_of<N>(w);
      return g * s * (C(1) + w * (C(1) - s));
    }
    if constexpr (kKind == K::leaky_relu) return v > C(0) ? g : a == C(0) ? C(0) : a * g;
    if constexpr (kKind == K::elu) return v > C(0) ? g : g * a * exp_of<N>(v);
    if constexpr (kKind == K::softplus) return a * v > b ? g : g * sigmoid_of<N>(a * v);
    if constexpr (kKind == K::clamp) return v < a || v > b ? C(0) : g;
    if constexpr (kKind == K::hardtanh) return v <= a || v >= b ? C(0) : g;
    if constexpr (kKind == K::log_sigmoid) return g * sigmoid_of<N>(-v);
  }
};

/// Any of them, for elements taken one by one.
template <class N>
struct Any {
  using C = compute_t<N>;
  ActivationKind kind;
  C a, b;
  template <ActivationKind kKind>
  __device__ C as(C g, C v) const {
    return Backward<kKind, N>{a, b}(g, v);
  }
  __device__ C operator()(C g, C v) const {
    using K = ActivationKind;
    switch (kind) {
      case K::gelu: return as<K::gelu>(g, v);
      case K::gelu_tanh: return as<K::gelu_tanh>(g, v);
      case K::silu: return as<K::silu>(g, v);
      case K::leaky_relu: return as<K::leaky_relu>(g, v);
      case K::elu: return as<K::elu>(g, v);
      case K::softplus: return as<K::softplus>(g, v);
      case K::clamp: return as<K::clamp>(g, v);
      case K::hardtanh: return as<K::hardtanh>(g, v);
      default: return as<K::log_sigmoid>(g, v);
    }
  }
};

}  // namespace

void activation_backward(const Context& ctx, View dx, ConstView dy, ConstView x, const Activation& f) {
  const auto index = index_of(dx, dy, x);
  visit_floating(dx.dtype, name_of(f.kind), [&]<class T>() {
    using N = native_t<T>;
    const auto a = static_cast<compute_t<N>>(f.a), b = static_cast<compute_t<N>>(f.b);
    visit_activation(f.kind, [&](auto k) {
      map_or(ctx, name_of(f.kind), Backward<k(), N>{a, b}, Any<N>{f.kind, a, b}, index, native<T>(dx), native<T>(dy),
             native<T>(x));
    });
  });
}

}  // namespace apex::kernels::cuda
