// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"

namespace apex::kernels {

/// x along `dim` in order, smallest first (descending: largest first). Stable: equals keep their order, 0 and -0 are
/// equal. NaN counts as larger than every number.
/// @param values   x's dtype and sizes; may be undefined
/// @param indices  i64, x's sizes: where each value was; may be undefined
/// @param x        any dtype and strides; shares no memory with the outputs
/// @throws Kind::argument for sizes, dtypes or devices that do not fit; on CUDA Kind::unsupported for a dimension of
///         2^31 elements or more
void sort(const Context& ctx, View values, View indices, ConstView x, int dim, bool descending = false);

}  // namespace apex::kernels
