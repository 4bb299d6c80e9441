// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/copy.hpp"

// What a backend provides for this family; the front has checked the arguments. Declared-only functions of a backend
// that is not built are never referenced.

namespace apex::kernels::cpu {
void copy(const Context& ctx, View dst, ConstView src);
void fill(const Context& ctx, View dst, double value);
void arange(const Context& ctx, View dst, double start, double step);
}  // namespace apex::kernels::cpu

namespace apex::kernels::cuda {
void copy(const Context& ctx, View dst, ConstView src);
/// Between two devices, one of them CUDA.
void transfer(const Context& ctx, View dst, ConstView src);
void fill(const Context& ctx, View dst, double value);
void arange(const Context& ctx, View dst, double start, double step);
}  // namespace apex::kernels::cuda
