// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "elementwise.cuh"

namespace apex::kernels::cuda {

template <class To>
struct Convert {
  template <class From>
  __device__ To operator()(From value) const {
    return convert<To>(value);
  }
};

/// dst = src by T's and S's conversion, dst of apex type T.
template <class T, class S>
void convert_map(const Context& ctx, const View& dst, const ConstView& src, const Index<2>& index) {
  map(ctx, "copy", Convert<native_t<T>>{}, index, native<T>(dst), native<S>(src));
}

/// Calls f.operator()<T>() for an integer type; a boolean source is read as u8.
template <class F>
void visit_integer_source(DType dtype, F&& f) {
  switch (dtype) {
    case DType::i64: return f.template operator()<std::int64_t>();
    case DType::i32: return f.template operator()<std::int32_t>();
    default: return f.template operator()<std::uint8_t>();
  }
}
template <class F>
void visit_integer(DType dtype, F&& f) {
  if (dtype == DType::boolean) return f.template operator()<bool>();
  visit_integer_source(dtype, f);
}

}  // namespace apex::kernels::cuda
