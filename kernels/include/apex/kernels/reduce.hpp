// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"

// Reductions run in a fixed order that depends on sizes and strides only: the same bits for every thread count.
// Sums are formed in accum_t of the input in 16 lanes (core/simd.hpp), f32 sums of more than 4096 terms in blocks; on
// CUDA by groups of threads, f32 sums of more than 512 terms of a thread in blocks. Blocks are added in f64.

namespace apex::kernels {

enum class ReduceOp { sum, mean, max, min };
const char* name_of(ReduceOp op) noexcept;

/// Reduces x over `dims` (negative counts from the end; an empty list means all).
///
/// The sum of nothing is 0 and the mean of nothing NaN. max and min are NaN where any element is.
/// @param out  x's sizes with the reduced dimensions 1 or left out. Floating x: any floating dtype. Integer or boolean
///             x: i64 for sum, x's dtype for max and min; mean is unsupported
/// @param x    any strides
/// @throws Kind::argument for wrong sizes, a dimension named twice or out of range, max or min over nothing
void reduce(const Context& ctx, View out, ConstView x, const Dims& dims, ReduceOp op);

/// The reverse of broadcasting: out[i] = sum of all elements of x that a broadcast of out to x's sizes would fill from
/// out[i]. The gradient of every broadcasting op. Floating, out and x of any floating dtype.
/// @throws Kind::argument when out does not broadcast to x's sizes
void sum_to(const Context& ctx, View out, ConstView x);

/// Index of the largest element along `dim`: the first among equals; NaN counts as larger than every number.
/// @param out  i64, x's sizes with `dim` 1 or left out
/// @throws Kind::argument when the dimension is empty but the output is not
void argmax(const Context& ctx, View out, ConstView x, int dim);
/// The same of the smallest; NaN counts as smaller than every number, as in min.
void argmin(const Context& ctx, View out, ConstView x, int dim);

/// The k largest along `dim`, largest first (or the k smallest, smallest first), earlier index first among equals; NaN
/// counts as larger than every number.
/// @param values   x's dtype, x's sizes with size k at `dim`; may be undefined
/// @param indices  i64, the same sizes; may be undefined
/// @throws Kind::argument for k < 0 or k > size(dim); on CUDA Kind::unsupported for a dimension of 2^31 elements or
/// more
void topk(const Context& ctx, View values, View indices, ConstView x, std::int64_t k, int dim, bool largest = true);

}  // namespace apex::kernels
