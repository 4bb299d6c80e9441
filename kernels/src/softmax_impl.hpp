// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/softmax.hpp"

// What a backend provides for this family; the front has checked the arguments. Declared-only functions of a backend
// that is not built are never referenced.

namespace apex::kernels::cpu {
void softmax(const Context& ctx, View y, ConstView x, int dim);
void softmax_backward(const Context& ctx, View dx, ConstView dy, ConstView y, int dim);
void log_softmax(const Context& ctx, View y, ConstView x, int dim);
void log_softmax_backward(const Context& ctx, View dx, ConstView dy, ConstView y, int dim);
}  // namespace apex::kernels::cpu

namespace apex::kernels::cuda {
void softmax(const Context& ctx, View y, ConstView x, int dim);
void softmax_backward(const Context& ctx, View dx, ConstView dy, ConstView y, int dim);
void log_softmax(const Context& ctx, View y, ConstView x, int dim);
void log_softmax_backward(const Context& ctx, View dx, ConstView dy, ConstView y, int dim);
}  // namespace apex::kernels::cuda
