// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "softmax.cuh"

namespace apex::kernels::cuda {
namespace {

template <class C>
struct Forward {
  static constexpr bool kMax = true, kTwo = false;
  bool logarithm;
  __device__ C term(C x, C, C high) const { return exp(x - high); }
  __device__ C finish(C sum) const { return logarithm ? log(sum) : sum; }
  __device__ C apply(C x, C, C high, C sum) const { return logarithm ? x - high - sum : exp(x - high) / sum; }
};

}  // namespace

void softmax(const Context& ctx, View y, ConstView x, int dim) {
  over_lines<Forward>(ctx, "softmax", y, x, x, dim, false);
}
void log_softmax(const Context& ctx, View y, ConstView x, int dim) {
  over_lines<Forward>(ctx, "log_softmax", y, x, x, dim, true);
}

}  // namespace apex::kernels::cuda
