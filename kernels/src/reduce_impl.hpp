// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/reduce.hpp"

// What a backend provides for this family; the front has checked the arguments. Declared-only functions of a backend
// that is not built are never referenced. The front hands over `out` at x's rank, 1 for every reduced dimension (argmax
// too): sum_to is the same reduction.

namespace apex::kernels::cpu {
void reduce(const Context& ctx, View out, ConstView x, ReduceOp op);
void argmax(const Context& ctx, View out, ConstView x, int dim);
void argmin(const Context& ctx, View out, ConstView x, int dim);
void topk(const Context& ctx, View values, View indices, ConstView x, std::int64_t k, int dim, bool largest);
}  // namespace apex::kernels::cpu

namespace apex::kernels::cuda {
void reduce(const Context& ctx, View out, ConstView x, ReduceOp op);
void argmax(const Context& ctx, View out, ConstView x, int dim);
void argmin(const Context& ctx, View out, ConstView x, int dim);
void topk(const Context& ctx, View values, View indices, ConstView x, std::int64_t k, int dim, bool largest);
}  // namespace apex::kernels::cuda
