// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/pool.hpp"

// What a backend provides for this family; the front has checked the arguments. Declared-only functions of a backend
// that is not built are never referenced.

namespace apex::kernels::cpu {
void max_pool2d(const Context& ctx, View y, View indices, ConstView x, const Pool2dOptions& options);
void max_pool2d_backward(const Context& ctx, View dx, ConstView dy, ConstView indices, const Pool2dOptions& options);
void avg_pool2d(const Context& ctx, View y, ConstView x, const Pool2dOptions& options);
void avg_pool2d_backward(const Context& ctx, View dx, ConstView dy, const Pool2dOptions& options);
void adaptive_avg_pool2d(const Context& ctx, View y, ConstView x);
void adaptive_avg_pool2d_backward(const Context& ctx, View dx, ConstView dy);
}  // namespace apex::kernels::cpu

namespace apex::kernels::cuda {
void max_pool2d(const Context& ctx, View y, View indices, ConstView x, const Pool2dOptions& options);
void max_pool2d_backward(const Context& ctx, View dx, ConstView dy, ConstView indices, const Pool2dOptions& options);
void avg_pool2d(const Context& ctx, View y, ConstView x, const Pool2dOptions& options);
void avg_pool2d_backward(const Context& ctx, View dx, ConstView dy, const Pool2dOptions& options);
void adaptive_avg_pool2d(const Context& ctx, View y, ConstView x);
void adaptive_avg_pool2d_backward(const Context& ctx, View dx, ConstView dy);
}  // namespace apex::kernels::cuda
