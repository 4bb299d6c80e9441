// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "../conv_impl.hpp"

// A convolution of stride 2 over few channels, the first of many networks, starves tensor cores: three of eight or
// sixteen lanes hold data. Folding squares of 2 x 2 pixels, padding included, into 16 channels
//
//   x'[n, a, b, (p, q, c)] = x[n, c, 2a + p - padding, 2b + q - padding]
//   w'[k, a, b, (p, q, c)] = w[k, c, 2a + p, 2b + q]
//
// makes it a convolution of stride 1 without padding and with all lanes in use. (p, q, c) counts c to 4; what lies
// outside x or w is 0. Products are the same, so only the order of sums differs.

namespace apex::kernels::cuda::stem {

/// 16 bits, at most 4 channels, one group, stride 2, no dilation, a window larger than the stride, y channels-last.
bool applies(const ConstView& x, const ConstView& w, const ConstView& y, const Conv2dOptions& options);

/// Sizes of x' and w' as convolution operands, channels-last in memory.
Dims folded_input(const ConstView& w, const ConstView& y);
Dims folded_weight(const ConstView& w);

void fold_input(const Context& ctx, View folded, ConstView x, const Conv2dOptions& options);
void fold_weight(const Context& ctx, View folded, ConstView w);
void unfold_weight(const Context& ctx, View w, ConstView folded);

}  // namespace apex::kernels::cuda::stem
