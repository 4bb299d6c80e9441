// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/reduce.hpp"

#include "common.hpp"

namespace apex::nn::functional {

namespace {

struct ReducedSizes {
  Dims kept;     ///< reduced dimensions as 1
  Dims dropped;  ///< left out
  std::int64_t terms = 1;
};

ReducedSizes reduced_sizes(const Tensor& x, const Dims& dims, const char* op) {
  bool reduce[kMaxRank] = {};
  for (const auto dim : dims) {
    const int d = wrap_dim(static_cast<int>(dim), x.dim(), op);
    if (reduce[d]) fail(Kind::argument, concat(op, ": dimension ", dim, " is named twice in ", dims));
    reduce[d] = true;
  }
  ReducedSizes out;
  for (int d = 0; d < x.dim(); ++d) {
    const bool gone = dims.empty() || reduce[d];
    out.kept.push_back(gone ? 1 : x.sizes()[d]);
    if (!gone) out.dropped.push_back(x.sizes()[d]);
    if (gone) out.terms *= x.sizes()[d];
  }
  return out;
}

Tensor reduce(Op which, kernels::ReduceOp kind, Tensor x, const Dims& dims, bool keepdim) {
  OpScope op(which, {&x});
  const auto sizes = reduced_sizes(x, dims, op.row().name);
  Tensor y = empty(sizes.kept, x.dtype(), x.device());
  kernels::reduce(x.context(), y.view(), x.view(), dims, kind);
  if (!keepdim) y = views::reshape(y, sizes.dropped);
  const double factor = which == Op::mean ? 1.0 / static_cast<double>(sizes.terms) : 1.0;
  return op.record(y, {x}, {}, [from = x.sizes(), kept = sizes.kept, factor](const Tensor& dy) -> Gradients {
    const Tensor wide = reshape(dy, kept);
    return {expand(factor == 1.0 ? wide : scale(wide, factor), from)};
  });
}

}  // namespace

Tensor sum(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce(Op::sum, kernels::ReduceOp::sum, x, dims, keepdim);
}
Tensor mean(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce(Op::mean, kernels::ReduceOp::mean, x, dims, keepdim);
}

}  // namespace apex::nn::functional
