// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"

// Ops that read places from a tensor of indices (i64 or i32, any strides, 0 included: a broadcast index is read once).
// An index counts from 0 and must be below the size it points into.
//
// A wrong index: on the CPU Kind::argument naming the index, its position and what it was for. On CUDA, where throwing
// would mean waiting for the device, nothing is read or written out of bounds and the result is as said below; with
// data checks on (kernels/data_checks.hpp) the op waits and throws the same error there too.

namespace apex::kernels {

/// How errors of gather name what was asked for, where it serves another op.
struct IndexSource {
  const char* op = "gather";
  ConstView given{};  ///< the indices as the caller gave them, of which `index` is a view: positions are those in it
};

/// out[..., i, ...] = x[..., index[..., i, ...], ...], where i and the index stand at dimension `dim`.
/// @param out    index's sizes, x's dtype; any strides; shares no memory with x
/// @param x      any dtype and strides, rank 1 or more
/// @param index  x's rank; along other dimensions than `dim` at most x's size
/// A wrong index on CUDA: NaN (0 in types that have none).
/// @throws Kind::argument for sizes, dtypes or devices that do not fit
void gather(const Context& ctx, View out, ConstView x, ConstView index, int dim, const IndexSource& source = {});

struct ScatterOptions {
  std::optional<std::int64_t> ignore_index = {};  ///< elements with this index are left out
};

/// out = base, then out[..., index[..., i, ...], ...] += src[..., i, ...]: the gradient of gather. Elements that meet
/// in one place are added in the order of i, in f32 for 16-bit types and rounded once, integers wrap: the same bits for
/// every thread count and on every run.
/// @param out    floating, i64 or i32; may be base itself
/// @param base   out's sizes and dtype; undefined: zeros
/// @param src    index's sizes, out's dtype; shares no memory with out
/// @param index  out's rank; along other dimensions than `dim` at most out's size
/// A wrong index on CUDA: its element is left out.
/// @throws Kind::argument for sizes, dtypes or devices that do not fit; Kind::unsupported for u8 and boolean
void scatter_add(const Context& ctx, View out, ConstView base, ConstView src, ConstView index, int dim,
                 const ScatterOptions& options = {});

/// out[..., c] = label[...] == c: 1 and 0 in out's dtype.
/// @param out     label's sizes and one dimension more, the classes; any dtype
/// @param labels  i64 or i32
/// A wrong label on CUDA: a row of NaN, or of 0 in types that have none.
/// @throws Kind::argument for sizes or devices that do not fit
void one_hot(const Context& ctx, View out, ConstView labels);

}  // namespace apex::kernels
