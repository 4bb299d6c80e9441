// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/kernels/cross_entropy.hpp"

// What a backend provides for this family; the front has checked the arguments. Declared-only functions of a backend
// that is not built are never referenced.

namespace apex::kernels::cpu {
void cross_entropy(const Context& ctx, View loss, View lse, ConstView logits, ConstView labels,
                   const CrossEntropyOptions& options);
void cross_entropy_backward(const Context& ctx, View dlogits, ConstView dloss, ConstView logits, ConstView lse,
                            ConstView labels, const CrossEntropyOptions& options);
}  // namespace apex::kernels::cpu

namespace apex::kernels::cuda {
void cross_entropy(const Context& ctx, View loss, View lse, ConstView logits, ConstView labels,
                   const CrossEntropyOptions& options);
void cross_entropy_backward(const Context& ctx, View dlogits, ConstView dloss, ConstView logits, ConstView lse,
                            ConstView labels, const CrossEntropyOptions& options);
}  // namespace apex::kernels::cuda
