// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"

namespace apex::kernels {

/// out[..., i, ...] = sum of x[..., j, ...] over j <= i along `dim` (reverse: over j >= i, which is its gradient).
/// Summed in f64 in an order that depends on sizes and strides only; integers in i64, wrapping.
/// @param out  x's sizes; floating x: x's dtype; integer or boolean x: i64. May be x itself when the dtypes agree
/// @param x    any dtype and strides
/// @throws Kind::argument for sizes, dtypes or devices that do not fit
void cumsum(const Context& ctx, View out, ConstView x, int dim, bool reverse = false);

}  // namespace apex::kernels
