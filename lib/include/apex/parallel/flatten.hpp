// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <span>
#include <vector>

#include "apex/core/tensor.hpp"

namespace apex {

/// All elements one after the other: the tensors in list order, each in its logical row-major order whatever its
/// strides. Always a fresh 1-D tensor. Empty tensors contribute nothing. No gradient is recorded.
/// @throws Kind::argument for an empty list, an undefined tensor, or several dtypes or devices
Tensor flatten(std::span<const Tensor> tensors);

/// Views of `flat`, a contiguous 1-D tensor: entry i has the sizes of like[i] and starts where entry i-1 ends. Writing
/// to a view writes to `flat`.
/// @throws Kind::argument when flat is not 1-D contiguous or has another number of elements than `like` together
std::vector<Tensor> unflatten(const Tensor& flat, std::span<const Tensor> like);

}  // namespace apex
