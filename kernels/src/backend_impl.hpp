// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/backend.hpp"

// The plan store of the CUDA backend; never referenced in builds without it.

namespace apex::kernels::cuda {
std::string export_plans();
std::size_t import_plans(std::string_view bytes);
std::size_t plans_chosen() noexcept;
void clear_plans() noexcept;
}  // namespace apex::kernels::cuda
