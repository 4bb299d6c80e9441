// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <span>

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"

namespace apex::kernels {

/// y[n,c,h,w] = (x[n,c,h,w] - mean[c]) / std[c], mean and std in units of x (0 to 255): decoded pixels to network input
/// in one pass.
///
/// @param y     [N, C, H, W] of any floating dtype, any strides
/// @param x     [N, C, H, W] u8, any strides (decoders give channels-last)
/// @param mean  C values, host
/// @param std   C values, host, > 0
/// @throws Kind::argument when shapes, dtypes, devices or the number of constants do not fit
void image_normalize(const Context& ctx, View y, ConstView x, std::span<const float> mean, std::span<const float> std);

}  // namespace apex::kernels
