// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/scan.hpp"

// What a backend provides for this family; the front has checked the arguments. Declared-only functions of a backend
// that is not built are never referenced. `dim` counts from 0.

namespace apex::kernels::cpu {
void cumsum(const Context& ctx, View out, ConstView x, int dim, bool reverse);
}  // namespace apex::kernels::cpu

namespace apex::kernels::cuda {
void cumsum(const Context& ctx, View out, ConstView x, int dim, bool reverse);
}  // namespace apex::kernels::cuda
