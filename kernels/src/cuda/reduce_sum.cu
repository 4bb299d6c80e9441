// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "reduce.cuh"

namespace apex::kernels::cuda {

void reduce(const Context& ctx, View out, ConstView x, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean: return reduce_with<Sum>(ctx, out, x, op == ReduceOp::mean);
    case ReduceOp::max: return reduce_max(ctx, out, x);
    case ReduceOp::min: return reduce_min(ctx, out, x);
  }
}

}  // namespace apex::kernels::cuda
