// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/sort.hpp"

// What a backend provides for this family; the front has checked the arguments. Declared-only functions of a backend
// that is not built are never referenced. `dim` counts from 0.

namespace apex::kernels::cpu {
void sort(const Context& ctx, View values, View indices, ConstView x, int dim, bool descending);
}  // namespace apex::kernels::cpu

namespace apex::kernels::cuda {
void sort(const Context& ctx, View values, View indices, ConstView x, int dim, bool descending);
}  // namespace apex::kernels::cuda
