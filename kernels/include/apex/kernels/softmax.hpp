// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/core/context.hpp"
#include "apex/core/view.hpp"

// One floating dtype per call, any strides, sums in accum_t. An output may be an input itself.
//
// Derivatives are formed of y as it was stored, so that x need not be kept. Of a 16-bit y they are those of the rounded
// result: 1 - y, say, has no more digits than y's last place leaves, and is 0 where y was rounded to 1.

namespace apex::kernels {

/// y = exp(x - max) / sum exp(x - max) along dim. A row of nothing but -infinity is NaN.
void softmax(const Context& ctx, View y, ConstView x, int dim);
/// dx = y * (dy - sum(y * dy))
void softmax_backward(const Context& ctx, View dx, ConstView dy, ConstView y, int dim);

/// y = x - max - log(sum exp(x - max)) along dim.
void log_softmax(const Context& ctx, View y, ConstView x, int dim);
/// dx = dy - exp(y) * sum(dy)
void log_softmax_backward(const Context& ctx, View dx, ConstView dy, ConstView y, int dim);

}  // namespace apex::kernels
