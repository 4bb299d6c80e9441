// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "../elementwise_impl.hpp"
#include "elementwise_index.hpp"

// Integer halves of ops, a file of their own to keep compile times short. Operand 0 of `index` is out.

namespace apex::kernels::cuda {

void binary_integer(const Context& ctx, View out, ConstView a, ConstView b, BinaryOp op, const Index<3>& index);
void unary_integer(const Context& ctx, View out, ConstView x, UnaryOp op, const Index<2>& index);

}  // namespace apex::kernels::cuda
