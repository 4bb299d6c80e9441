// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"

namespace apex::kernels::cuda {

/// Sorts the lines of x along `dim`, smallest first or largest first, and writes the first k of each to values and
/// indices (either may be undefined).
void order_lines(const Context& ctx, const char* op, const View& values, const View& indices, const ConstView& x,
                 std::int64_t k, int dim, bool descending);

}  // namespace apex::kernels::cuda
