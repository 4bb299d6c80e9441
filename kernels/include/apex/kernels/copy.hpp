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

/// dst = src between devices (one may be the host): same sizes and dtype. Where both are dense with equal strides it is
/// one copy; else one side is laid out first. Queued on `ctx`, which belongs to one of the two devices; the caller's
/// thread waits only where host memory is not page-locked (cuda::pinned_pool) and where a host result was laid out.
/// On one device it is copy().
/// @throws Kind::argument when sizes or dtypes differ or ctx belongs to neither
void transfer(const Context& ctx, View dst, ConstView src);

/// Every element of dst becomes `value`, converted as copy converts.
/// @param dst  any dtype and strides
void fill(const Context& ctx, View dst, double value);

/// dst[i] = start + i * step: formed in f64 and converted as copy converts; in i64 for integer types when start and
/// step are whole.
/// @param dst  rank 1, any dtype and stride
/// @throws Kind::argument for another rank
void arange(const Context& ctx, View dst, double start = 0.0, double step = 1.0);

}  // namespace apex::kernels
