// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/core/tensor.hpp"

struct DLManagedTensor;

namespace apex {

/// Hands a tensor to another framework without a copy (DLPack 0.6). The consumer calls the result's deleter once; the
/// storage lives until then. `boolean` travels as uint8. Sizes and strides are exported as they are.
DLManagedTensor* to_dlpack(const Tensor& tensor);

/// Takes over a tensor of another framework without a copy and calls its deleter when the last handle goes. Strides may
/// be null (row-major). On an error nothing is taken over: the caller still owns `managed`.
/// @throws Kind::unsupported for lanes != 1, a type or a device this build has not; Kind::argument for null, rank > 8
///         or negative strides
Tensor from_dlpack(DLManagedTensor* managed);

}  // namespace apex
