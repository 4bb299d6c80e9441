// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "common.hpp"

namespace apex::nn::functional {

/// The gradients of conv2d(x, weight, bias) as recorded ops: a convolution and its two gradients are one another's
/// derivatives, so any order can be had.
Gradients conv2d_gradients(const Tensor& dy, const Tensor& x, const Tensor& weight, const Conv2dOptions& options,
                           std::span<const bool> needs);

}  // namespace apex::nn::functional
