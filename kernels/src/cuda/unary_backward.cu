// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../elementwise_impl.hpp"
#include "elementwise.cuh"

namespace apex::kernels::cuda {
namespace {

/// From dy and what was saved. Hardly anything here computes much, so the op is chosen on the device.
struct Backward {
  UnaryOp op;
  template <class C>
  __device__ C operator()(C g, C v) const {
    switch (op) {
      case UnaryOp::neg: return -g;
      case UnaryOp::abs: return v > C(0) ? g : v < C(0) ? -g : C(0) * g;
      case UnaryOp::sign: return C(0) * g;
      case UnaryOp::exp: return g * v;
      case UnaryOp::log: return g / v;
      case UnaryOp::sqrt: return g / (C(2) * v);
      case UnaryOp::rsqrt: return C(-0.5) * g * v * v * v;
      case UnaryOp::reciprocal: return -g * v * v;
      case UnaryOp::square: return C(2) * g * v;
      case UnaryOp::tanh: return g * (C(1) - v * v);
      case UnaryOp::sigmoid: return g * v * (C(1) - v);
      case UnaryOp::erf: return g * C(1.1283791670955126) * exp(-v * v);  // 2 / sqrt(pi)
      default: return v > C(0) ? g : C(0);                                // relu
    }
  }
};

}  // namespace

void unary_backward(const Context& ctx, View dx, ConstView dy, ConstView saved, UnaryOp op) {
  const ConstView& second = saves_of(op) == Saves::nothing ? dy : saved;
  const auto index = index_of(dx, dy, second);
  visit_floating(dx.dtype, name_of(op), [&]<class T>() {
    map(ctx, name_of(op), Backward{op}, index, native<T>(dx), native<T>(dy), native<T>(second));
  });
}

}  // namespace apex::kernels::cuda
