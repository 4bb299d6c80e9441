// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/indexing.hpp"

// What a backend provides for this family; the front has checked the arguments. Declared-only functions of a backend
// that is not built are never referenced. `dim` counts from 0.

namespace apex::kernels::cpu {
void gather(const Context& ctx, View out, ConstView x, ConstView index, int dim, const IndexSource& source);
void scatter_add(const Context& ctx, View out, ConstView base, ConstView src, ConstView index, int dim,
                 const ScatterOptions& options);
void one_hot(const Context& ctx, View out, ConstView labels);
}  // namespace apex::kernels::cpu

namespace apex::kernels::cuda {
void gather(const Context& ctx, View out, ConstView x, ConstView index, int dim, const IndexSource& source);
void scatter_add(const Context& ctx, View out, ConstView base, ConstView src, ConstView index, int dim,
                 const ScatterOptions& options);
void one_hot(const Context& ctx, View out, ConstView labels);
}  // namespace apex::kernels::cuda
