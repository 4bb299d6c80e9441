// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "apex/core/dtype.hpp"

// Every tolerance the tests use, by the rule it comes from. Bounds are |got - want| <= atol + rtol |want| unless said.

namespace apex::test {

struct Tolerance {
  double rtol = 0, atol = 0;
  double bound(double want) const { return atol + rtol * std::abs(want); }
};

/// Forward results of fused kernels against a float64 reference on the rounded inputs (kernels 1.8).
inline Tolerance forward_tolerance(DType dtype) {
  switch (dtype) {
    case DType::f64: return {1e-12, 1e-12};
    case DType::f32: return {1e-5, 1e-6};
    case DType::f16: return {1e-3, 1e-3};
    default: return {1.6e-2, 1e-3};
  }
}

/// Gradients with respect to inputs (kernels 1.8).
inline Tolerance backward_tolerance(DType dtype) {
  switch (dtype) {
    case DType::f64: return {1e-12, 1e-12};
    case DType::f32: return {1e-4, 1e-5};
    default: return forward_tolerance(dtype);
  }
}

/// Parameter gradients and other sums over n rows (kernels 1.8): rtol x 4, atol x sqrt(n).
inline Tolerance sum_tolerance(DType dtype, std::int64_t n) {
  const Tolerance t = backward_tolerance(dtype);
  return {t.rtol * 4, t.atol * std::sqrt(static_cast<double>(std::max<std::int64_t>(n, 1)))};
}

/// Products and convolutions that sum n terms of magnitude about 1: the forward rule with the same allowance.
inline Tolerance product_tolerance(DType dtype, std::int64_t n) {
  const Tolerance t = forward_tolerance(dtype);
  return {t.rtol * 4, t.atol * std::sqrt(static_cast<double>(std::max<std::int64_t>(n, 1)))};
}

/// Optimizers and multi-tensor ops (optimizers N4): f32 2e-6 and 1e-7; f64 the same rule at its precision; 16-bit one
/// unit in the last place, here as a bound of one step of the type's significand.
inline Tolerance optimizer_tolerance(DType dtype) {
  switch (dtype) {
    case DType::f64: return {4e-15, 2e-16};
    case DType::f32: return {2e-6, 1e-7};
    case DType::f16: return {0x1p-10, 0x1p-24};
    default: return {0x1p-7, 0x1p-133};
  }
}
/// Norms (optimizers N4).
inline constexpr Tolerance kNormTolerance{1e-6, 0};

/// Base values of the recorded cases (goldens 4): |got - want| <= tol max(|want|, s).
inline double golden_tolerance(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::f32: return 2e-5;
    case DType::f16: return 2e-3;
    default: return 1.6e-2;
  }
}
/// s of goldens 4: min(1, max |want|), 1 if that is 0.
inline double golden_scale(std::span<const double> want) {
  double largest = 0;
  for (const double w : want) largest = std::max(largest, std::abs(w));
  return largest == 0 ? 1.0 : std::min(1.0, largest);
}

/// Central differences in float64 with step 1e-6: truncation and cancellation both stay below this.
inline constexpr Tolerance kDifferenceTolerance{2e-6, 2e-8};

}  // namespace apex::test
