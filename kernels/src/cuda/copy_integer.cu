// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "copy_convert.cuh"
#include "copy_parts.hpp"

namespace apex::kernels::cuda {

void convert_integer(const Context& ctx, View dst, ConstView src, const Index<2>& index) {
  visit_integer(dst.dtype, [&]<class T>() {
    visit_integer_source(src.dtype, [&]<class S>() {
      if constexpr (!std::is_same_v<T, S>) convert_map<T, S>(ctx, dst, src, index);
    });
  });
}

void convert_from_integer(const Context& ctx, View dst, ConstView src, const Index<2>& index) {
  visit_floating(dst.dtype, "copy", [&]<class T>() {
    visit_integer_source(src.dtype, [&]<class S>() { convert_map<T, S>(ctx, dst, src, index); });
  });
}

}  // namespace apex::kernels::cuda
