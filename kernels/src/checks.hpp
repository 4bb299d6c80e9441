// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <initializer_list>
#include <optional>

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"

// Argument checks the fronts share. Every message reads "op: name ...: what was wanted, what was given".

namespace apex::kernels {

/// Defined and on the context's device.
void check_given(const char* op, const Context& ctx, const char* name, const ConstView& v);
/// Undefined, or on the context's device.
void check_optional(const char* op, const Context& ctx, const char* name, const ConstView& v);
void check_sizes(const char* op, const char* name, const ConstView& v, const Dims& wanted);
void check_rank(const char* op, const char* name, const ConstView& v, int rank);
void check_dtype(const char* op, const char* name, const ConstView& v, DType wanted);
/// One of several types is an argument error when none fits.
void check_dtype(const char* op, const char* name, const ConstView& v, std::initializer_list<DType> wanted);
/// Floating, else Kind::unsupported.
void check_floating(const char* op, const char* name, const ConstView& v);
/// f32 or f64, else Kind::unsupported.
void check_wide_floating(const char* op, const char* name, const ConstView& v);
/// `v` broadcasts to `target`.
void check_broadcasts(const char* op, const char* name, const ConstView& v, const Dims& target);
/// No two elements of an output share an address through a stride of 0.
void check_writable(const char* op, const char* name, const ConstView& v);
/// [n] with stride 1.
void check_vector(const char* op, const char* name, const ConstView& v, std::int64_t n);
/// The dense format of a rank-4 view, row-major preferred where both match. @throws Kind::argument when it has gaps
MemoryFormat check_dense(const char* op, const char* name, const ConstView& v);
/// Equal strides, dimensions of size 1 and empty tensors aside.
bool same_strides(const ConstView& a, const ConstView& b) noexcept;
/// Dimension counted from the end if negative. @throws Kind::argument
int check_dim(const char* op, int dim, int rank);

}  // namespace apex::kernels
