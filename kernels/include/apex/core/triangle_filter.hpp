// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "apex/core/philox.hpp"  // APEX_HOST_DEVICE

namespace apex {

/// Bilinear resizing with antialiasing along one axis: `out` samples from `in`. With scale = in / out and
/// widen = max(scale, 1), output i lies at center = (i + 1/2) scale; input x has the raw weight
/// max(0, 1 - |x + 1/2 - center| / widen). Weights are divided by their sum and rounded to 22 fractional bits, half up.
/// What comes out is (sum of weight * byte + 2^21) >> 22, in 0 to 255, and integer from the weights on: the same bytes
/// on every device. Host and device form the weights by the same f64 operations, each rounded by itself.
struct TriangleFilter {
  static constexpr int kFractionBits = 22;  // 8 bits of value and 22 of weight leave two for sums beyond one
  static constexpr std::int32_t kHalf = std::int32_t{1} << (kFractionBits - 1);

  double scale, widen, narrow;  ///< narrow: 1 / widen
  int in;

  APEX_HOST_DEVICE TriangleFilter(int in_size, int out_size)
      : scale(static_cast<double>(in_size) / out_size),
        widen(scale > 1 ? scale : 1.0),
        narrow(1.0 / widen),
        in(in_size) {}

  /// No output reads more inputs than this.
  APEX_HOST_DEVICE int most_taps() const {
    const int whole = static_cast<int>(widen);
    return (whole < widen ? whole + 1 : whole) * 2 + 1;
  }
  /// Output i reads inputs begin(i) to end(i), the latter not included.
  APEX_HOST_DEVICE int begin(int i) const {
    const int x = static_cast<int>(center(i) - widen + 0.5);
    return x > 0 ? x : 0;
  }
  APEX_HOST_DEVICE int end(int i) const {
    const int x = static_cast<int>(center(i) + widen + 0.5);
    return x < in ? x : in;
  }
  /// Writes the end(i) - begin(i) weights of output i.
  APEX_HOST_DEVICE void weights(int i, std::int32_t* to) const {
    const int first = begin(i), last = end(i);
    double sum = 0;
    for (int x = first; x < last; ++x) sum += raw(i, x);
    for (int x = first; x < last; ++x) {
      const double weight = sum != 0 ? raw(i, x) / sum : 0;
      to[x - first] = static_cast<std::int32_t>(weight * (1 << kFractionBits) + 0.5);  // weights are never negative
    }
  }

  APEX_HOST_DEVICE static std::uint8_t to_byte(std::int32_t sum) {
    const std::int32_t value = sum >> kFractionBits;
    return static_cast<std::uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
  }

 private:
  /// Never joined with the addition that follows.
  APEX_HOST_DEVICE static double product(double a, double b) {
#ifdef __CUDA_ARCH__
    return __dmul_rn(a, b);
#else
    return a * b;
#endif
  }
  APEX_HOST_DEVICE double center(int i) const { return product(i + 0.5, scale); }
  APEX_HOST_DEVICE double raw(int i, int x) const {
    const double off = product(x - center(i) + 0.5, narrow);
    const double value = 1.0 - (off < 0 ? -off : off);
    return value > 0 ? value : 0;
  }
};

}  // namespace apex
