// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "reduce.cuh"

namespace apex::kernels::cuda {

void reduce_min(const Context& ctx, const View& out, const ConstView& x) { reduce_with<Min>(ctx, out, x, false); }

}  // namespace apex::kernels::cuda
