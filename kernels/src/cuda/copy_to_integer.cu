// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "copy_convert.cuh"
#include "copy_parts.hpp"

namespace apex::kernels::cuda {

void convert_to_integer(const Context& ctx, View dst, ConstView src, const Index<2>& index) {
  visit_integer(dst.dtype, [&]<class T>() {
    visit_floating(src.dtype, "copy", [&]<class S>() { convert_map<T, S>(ctx, dst, src, index); });
  });
}

}  // namespace apex::kernels::cuda
