// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/activation.hpp"

// What a backend provides for this family; the front has checked the arguments. Declared-only functions of a backend
// that is not built are never referenced.

namespace apex::kernels {

/// Below this gelu, gelu_tanh and silu are 0 in every type; formulas are not taken further out.
inline constexpr double kGeluEnd = 40, kSiluEnd = 800;
inline constexpr double kGeluCubic = 0.044715;

namespace cpu {
void activation(const Context& ctx, View y, ConstView x, const Activation& f);
void activation_backward(const Context& ctx, View dx, ConstView dy, ConstView x, const Activation& f);
}  // namespace cpu

namespace cuda {
void activation(const Context& ctx, View y, ConstView x, const Activation& f);
void activation_backward(const Context& ctx, View dx, ConstView dy, ConstView x, const Activation& f);
}  // namespace cuda

}  // namespace apex::kernels
