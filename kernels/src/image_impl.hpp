// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/image.hpp"

// What a backend provides for this family; the front has checked the arguments. Declared-only functions of a backend
// that is not built are never referenced.

namespace apex::kernels::cpu {
void image_normalize(const Context& ctx, View y, ConstView x, std::span<const float> mean, std::span<const float> std);
}  // namespace apex::kernels::cpu

namespace apex::kernels::cuda {
void image_normalize(const Context& ctx, View y, ConstView x, std::span<const float> mean, std::span<const float> std);
}  // namespace apex::kernels::cuda
