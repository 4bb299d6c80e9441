// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "../copy_impl.hpp"
#include "elementwise_index.hpp"

// The conversions of copy(), a file for each group of types to keep compile times short. operand 0 of `index` is dst.

namespace apex::kernels::cuda {

void convert_floating(const Context& ctx, View dst, ConstView src, const Index<2>& index);
void convert_to_integer(const Context& ctx, View dst, ConstView src, const Index<2>& index);    // from floating
void convert_from_integer(const Context& ctx, View dst, ConstView src, const Index<2>& index);  // to floating
void convert_integer(const Context& ctx, View dst, ConstView src, const Index<2>& index);

}  // namespace apex::kernels::cuda
