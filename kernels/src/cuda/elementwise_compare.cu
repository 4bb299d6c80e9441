// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../elementwise_impl.hpp"
#include "elementwise.cuh"

namespace apex::kernels::cuda {
namespace {

/// eq, ne, lt or le, chosen on the device; gt and ge are lt and le with the operands exchanged.
struct Compare {
  CompareOp op;
  template <class C>
  __device__ bool operator()(C x, C y) const {
    switch (op) {
      case CompareOp::eq: return x == y;
      case CompareOp::ne: return x != y;
      case CompareOp::lt: return x < y;
      default: return x <= y;
    }
  }
};

template <class U>
struct Where {
  __device__ U operator()(std::uint8_t condition, U a, U b) const { return condition ? a : b; }
};

}  // namespace

void compare(const Context& ctx, View out, ConstView a, ConstView b, CompareOp op) {
  if (op == CompareOp::gt || op == CompareOp::ge) {
    std::swap(a, b);
    op = op == CompareOp::gt ? CompareOp::lt : CompareOp::le;
  }
  const auto index = index_of(out, a, b);
  const auto run = [&]<class T>() {
    map(ctx, "compare", Compare{op}, index, native<bool>(out), native<T>(a), native<T>(b));
  };
  if (is_floating(a.dtype)) return visit_floating(a.dtype, "compare", run);
  if (a.dtype == DType::i64) return run.operator()<std::int64_t>();
  if (a.dtype == DType::i32) return run.operator()<std::int32_t>();
  run.operator()<std::uint8_t>();  // a boolean is the byte 0 or 1
}

void where(const Context& ctx, View out, ConstView condition, ConstView a, ConstView b) {
  const auto index = index_of(out, condition, a, b);
  visit_width(out.dtype, [&]<class U>() {
    map(ctx, "where", Where<U>{}, index, static_cast<U*>(out.data), static_cast<const std::uint8_t*>(condition.data),
        static_cast<const U*>(a.data), static_cast<const U*>(b.data));
  });
}

}  // namespace apex::kernels::cuda
