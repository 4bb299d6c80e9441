// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <type_traits>

#include "../activation_impl.hpp"
#include "elementwise.cuh"
#include "exponential.cuh"

// What activations and their backward share.

namespace apex::kernels::cuda {

template <class N>
__device__ __forceinline__ compute_t<N> sigmoid_of(compute_t<N> x) {
  return reciprocal_of<N>(compute_t<N>(1) + exp_of<N>(-x));
}

/// The distribution function of the standard normal distribution. In 16 bits erfc(t) = e^(-t^2) q P(q) with
/// q = 1 / (1 + t / 2) and P an interpolation in Chebyshev points, within 4e-6.
template <class N>
__device__ __forceinline__ compute_t<N> normal_cdf_of(compute_t<N> x) {
  using C = compute_t<N>;
  if constexpr (kFast<N>) {
    const float t = fabsf(x) * 0.707106781f, q = reciprocal_of<N>(1.0f + 0.5f * t);
    float p = 0.0935213246f;
    p = p * q - 0.374683503f;
    p = p * q + 0.413068524f;
    p = p * q + 0.0220800022f;
    p = p * q + 0.286961594f;
    p = p * q + 0.276662463f;
    p = p * q + 0.282390028f;
    const float half = 0.5f * p * q * exp_of<N>(-t * t);
    return x < 0.0f ? half : 1.0f - half;
  } else {
    return C(0.5) * erfc(x * C(-0.70710678118654752440));
  }
}

/// ln (1 + e^x) without overflow. NaN stays: it is in the second term.
template <class N>
__device__ __forceinline__ compute_t<N> softplus_of(compute_t<N> x) {
  using C = compute_t<N>;
  return max(x, C(0)) + log1p_of_unit<N>(exp_of<N>(-fabs(x)));
}

/// e^x - 1 of x up to 0. In 16 bits the first terms of the series near 0, where the difference would be rough.
template <class N>
__device__ __forceinline__ compute_t<N> expm1_of(compute_t<N> x) {
  if constexpr (kFast<N>) {
    const float series = x * (x * (x * 0.166666667f + 0.5f) + 1.0f);
    float power;  // volatile: or the compiler would branch around it
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
    return x > -0.03125f ? series : power - 1.0f;
  } else {
    return expm1(x);
  }
}

/// Twice the argument of gelu_tanh's tanh: (1 + tanh u) / 2 = sigmoid(2 u).
template <class C>
__device__ __forceinline__ C gelu_exponent(C v) {
  return C(1.5957691216057308) * (v + C(kGeluCubic) * v * v * v);
}

/// v within [-end, end]; NaN stays.
template <class C>
__device__ __forceinline__ C within(C v, C end) {
  return v < -end ? -end : v > end ? end : v;
}

/// Calls f with the kind as a std::integral_constant.
template <class F>
void visit_activation(ActivationKind kind, F&& f) {
  using K = ActivationKind;
  switch (kind) {
    case K::gelu: return f(std::integral_constant<K, K::gelu>());
    case K::gelu_tanh: return f(std::integral_constant<K, K::gelu_tanh>());
    case K::silu: return f(std::integral_constant<K, K::silu>());
    case K::leaky_relu: return f(std::integral_constant<K, K::leaky_relu>());
    case K::elu: return f(std::integral_constant<K, K::elu>());
    case K::softplus: return f(std::integral_constant<K, K::softplus>());
    case K::clamp: return f(std::integral_constant<K, K::clamp>());
    case K::hardtanh: return f(std::integral_constant<K, K::hardtanh>());
    case K::log_sigmoid: return f(std::integral_constant<K, K::log_sigmoid>());
  }
}

}  // namespace apex::kernels::cuda
