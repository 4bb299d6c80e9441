// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "copy_convert.cuh"
#include "copy_parts.hpp"
#include "copy_transpose.cuh"

namespace apex::kernels::cuda {

void convert_floating(const Context& ctx, View dst, ConstView src, const Index<2>& index) {
  visit_floating(dst.dtype, "copy", [&]<class T>() {
    visit_floating(src.dtype, "copy", [&]<class S>() {
      if constexpr (!std::is_same_v<T, S>) {
        Transpose t;
        if (as_transpose(index, t)) return transpose(ctx, native<T>(dst), native<S>(src), t);
        convert_map<T, S>(ctx, dst, src, index);
      }
    });
  });
}

}  // namespace apex::kernels::cuda
