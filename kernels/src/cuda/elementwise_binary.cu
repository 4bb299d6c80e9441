// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "elementwise.cuh"
#include "elementwise_parts.hpp"

namespace apex::kernels::cuda {
namespace {

template <BinaryOp kOp>
struct Binary {
  template <class C>
  __device__ C operator()(C x, C y) const {
    if constexpr (kOp == BinaryOp::add) return x + y;
    if constexpr (kOp == BinaryOp::sub) return x - y;
    if constexpr (kOp == BinaryOp::mul) return x * y;
    if constexpr (kOp == BinaryOp::div) return x / y;
    if constexpr (kOp == BinaryOp::minimum) return x < y || x != x ? x : y;
    if constexpr (kOp == BinaryOp::maximum) return x > y || x != x ? x : y;
    if constexpr (kOp == BinaryOp::pow) return pow(x, y);
  }
};

/// The op chosen on the device, for elements taken one by one.
struct AnyBinary {
  BinaryOp op;
  template <class C>
  __device__ C operator()(C x, C y) const {
    switch (op) {
      case BinaryOp::add: return Binary<BinaryOp::add>{}(x, y);
      case BinaryOp::sub: return Binary<BinaryOp::sub>{}(x, y);
      case BinaryOp::mul: return Binary<BinaryOp::mul>{}(x, y);
      case BinaryOp::div: return Binary<BinaryOp::div>{}(x, y);
      case BinaryOp::minimum: return Binary<BinaryOp::minimum>{}(x, y);
      case BinaryOp::maximum: return Binary<BinaryOp::maximum>{}(x, y);
      default: return Binary<BinaryOp::pow>{}(x, y);
    }
  }
};

template <class F>
void visit_binary(BinaryOp op, F&& f) {
  switch (op) {
    case BinaryOp::add: return f(Binary<BinaryOp::add>{});
    case BinaryOp::sub: return f(Binary<BinaryOp::sub>{});
    case BinaryOp::mul: return f(Binary<BinaryOp::mul>{});
    case BinaryOp::div: return f(Binary<BinaryOp::div>{});
    case BinaryOp::minimum: return f(Binary<BinaryOp::minimum>{});
    case BinaryOp::maximum: return f(Binary<BinaryOp::maximum>{});
    case BinaryOp::pow: return f(AnyBinary{op});  // costs more than the choice
  }
}

}  // namespace

void binary(const Context& ctx, View out, ConstView a, ConstView b, BinaryOp op) {
  const auto index = index_of(out, a, b);
  if (!is_floating(out.dtype)) return binary_integer(ctx, out, a, b, op, index);
  visit_floating(out.dtype, name_of(op), [&]<class T>() {
    visit_binary(op, [&](auto f) {
      map_or(ctx, name_of(op), f, AnyBinary{op}, index, native<T>(out), native<T>(a), native<T>(b));
    });
  });
}

}  // namespace apex::kernels::cuda
