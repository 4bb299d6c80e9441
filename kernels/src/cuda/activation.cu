// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "activation.cuh"

namespace apex::kernels::cuda {
namespace {

template <ActivationKind kKind, class N>
struct Forward {
  using C = compute_t<N>;
  C a, b;
  __device__ C operator()(C v) const {
    using K = ActivationKind;
    if constexpr (kKind == K::gelu) return v < C(-kGeluEnd) ? C(-0.0) : v * normal_cdf_of<N>(v);
    if constexpr (kKind == K::gelu_tanh) return v < C(-kGeluEnd) ? C(-0.0) : v * sigmoid_of<N>(gelu_exponent(v));
    if constexpr (kKind == K::silu) return v < C(-kSiluEnd) ? C(-0.0) : v * sigmoid_of<N>(v);
    if constexpr (kKind == K::leaky_relu) return v > C(0) ? v : a * v;
    // A sum and choices between what is at hand: the compiler would branch around an expensive side of a choice.
    if constexpr (kKind == K::elu) return max(v, C(0)) + a * expm1_of<N>(v > C(0) ? C(0) : v);
    if constexpr (kKind == K::softplus) {
      const C x = a * v;
      if constexpr (!kFast<N>) return x > b ? v : softplus_of<N>(x) / a;
      const C line = x > b ? x : max(x, C(0)), decay = x > b ? -std::numeric_limits<C>::infinity() : -fabs(x);
      return (line + log1p_of_unit<N>(exp_of<N>(decay))) * reciprocal_of<N>(a);
    }
    if constexpr (kKind == K::clamp || kKind == K::hardtanh) return v < a ? a : v > b ? b : v;
    if constexpr (kKind == K::log_sigmoid) return -softplus_of<N>(-v);
  }
};

/// Any of them, for elements taken one by one.
template <class N>
struct Any {
  ActivationKind kind;
  compute_t<N> a, b;
  template <ActivationKind kKind>
  __device__ compute_t<N> as(compute_t<N> v) const {
    return Forward<kKind, N>{a, b}(v);
  }
  __device__ compute_t<N> operator()(compute_t<N> v) const {
    using K = ActivationKind;
    switch (kind) {
      case K::gelu: return as<K::gelu>(v);
      case K::gelu_tanh: return as<K::gelu_tanh>(v);
      case K::silu: return as<K::silu>(v);
      case K::leaky_relu: return as<K::leaky_relu>(v);
      case K::elu: return as<K::elu>(v);
      case K::softplus: return as<K::softplus>(v);
      case K::log_sigmoid: return as<K::log_sigmoid>(v);
      default: return as<K::clamp>(v);
    }
  }
};

}  // namespace

void activation(const Context& ctx, View y, ConstView x, const Activation& f) {
  const auto index = index_of(y, x);
  // hardtanh's values are clamp's.
  const auto kind = f.kind == ActivationKind::hardtanh ? ActivationKind::clamp : f.kind;
  visit_floating(y.dtype, name_of(f.kind), [&]<class T>() {
    using N = native_t<T>;
    const auto a = static_cast<compute_t<N>>(f.a), b = static_cast<compute_t<N>>(f.b);
    visit_activation(kind, [&](auto k) {
      map_or(ctx, name_of(f.kind), Forward<k(), N>{a, b}, Any<N>{kind, a, b}, index, native<T>(y), native<T>(x));
    });
  });
}

}  // namespace apex::kernels::cuda
