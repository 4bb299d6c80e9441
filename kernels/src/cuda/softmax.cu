// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "softmax.cuh"

namespace apex::kernels::cuda {
namespace {

template <class N>
struct Forward {
  using C = compute_t<N>;
  static constexpr bool kMax = true, kTwo = false;
  bool logarithm;
  __device__ C term(C x, C, C high) const { return exp_of<N>(x - high); }
  __device__ C finish(C sum) const { return logarithm ? log(sum) : C(1) / sum; }
  __device__ C apply(C x, C, C term, C high, C sum) const { return logarithm ? x - high - sum : term * sum; }
};

}  // namespace

void softmax(const Context& ctx, View y, ConstView x, int dim) {
  over_lines<Forward>(ctx, "softmax", y, x, x, dim, false);
}
void log_softmax(const Context& ctx, View y, ConstView x, int dim) {
  over_lines<Forward>(ctx, "log_softmax", y, x, x, dim, true);
}

}  // namespace apex::kernels::cuda
