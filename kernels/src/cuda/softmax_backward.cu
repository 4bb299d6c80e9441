// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "softmax.cuh"

namespace apex::kernels::cuda {
namespace {

/// From the gradient g and the output y (its logarithm for log_softmax).
template <class N>
struct Backward {
  using C = compute_t<N>;
  static constexpr bool kMax = false, kTwo = true;
  bool logarithm;
  __device__ C term(C g, C y, C) const { return logarithm ? g : y * g; }
  __device__ C finish(C sum) const { return sum; }
  __device__ C apply(C g, C y, C, C, C sum) const { return logarithm ? g - exp_of<N>(y) * sum : y * (g - sum); }
};

}  // namespace

void softmax_backward(const Context& ctx, View dx, ConstView dy, ConstView y, int dim) {
  over_lines<Backward>(ctx, "softmax_backward", dx, dy, y, dim, false);
}
void log_softmax_backward(const Context& ctx, View dx, ConstView dy, ConstView y, int dim) {
  over_lines<Backward>(ctx, "log_softmax_backward", dx, dy, y, dim, true);
}

}  // namespace apex::kernels::cuda
