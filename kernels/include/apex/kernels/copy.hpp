// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"

namespace apex::kernels {

/// dst = src, converted to dst's dtype: a strided copy, a change of memory format and a cast in one.
///
/// Floating to narrower floating rounds once, to nearest even (f64 to 16 bits through f32). Floating to integer
/// truncates towards zero and saturates; NaN gives 0. Integer to narrower integer keeps the low bits. Anything to
/// boolean is `value != 0`.
/// @param dst  any dtype and strides; no two elements at one address
/// @param src  any dtype and strides; broadcasts to dst's sizes; shares no memory with dst unless it is dst itself
/// @throws Kind::argument for sizes that do not broadcast or a device other than ctx.device
void copy(const Context& ctx, View dst, ConstView src);

/// Every element of dst becomes `value`, converted as copy converts.
/// @param dst  any dtype and strides
void fill(const Context& ctx, View dst, double value);

}  // namespace apex::kernels
