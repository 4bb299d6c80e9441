// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/reduce.hpp"

#include "apex/kernels/scan.hpp"
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
  Tensor y = empty(sizes.kept, is_floating(x.dtype()) ? x.dtype() : DType::i64, x.device());
  kernels::reduce(x.context(), y.view(), x.view(), dims, kind);
  if (!keepdim) y = views::reshape(y, sizes.dropped);
  const double factor = which == Op::mean ? 1.0 / static_cast<double>(sizes.terms) : 1.0;
  return op.record(y, {x}, {}, [from = x.sizes(), kept = sizes.kept, factor](const Tensor& dy) -> Gradients {
    const Tensor wide = reshape(dy, kept);
    return {expand(factor == 1.0 ? wide : scale(wide, factor), from)};
  });
}

/// max or min. Elements equal to the result share its gradient.
Tensor extremum(Op which, kernels::ReduceOp kind, Tensor x, const Dims& dims, bool keepdim) {
  OpScope op(which, {&x});
  const auto sizes = reduced_sizes(x, dims, op.row().name);
  const Tensor kept = empty(sizes.kept, x.dtype(), x.device());
  kernels::reduce(x.context(), kept.view(), x.view(), dims, kind);
  Tensor y = keepdim ? kept.detach() : views::reshape(kept, sizes.dropped);
  return op.record(y, {x}, {{"x", x}, {"output", kept}}, [x = x.detach(), kept, dims](const Tensor& dy) -> Gradients {
    Tensor mask, shares;
    {
      NoGradGuard constant;
      mask = eq(x, kept);
      shares = sum(cast(mask, dy.dtype()), dims, true);
    }
    return {where(mask, div(reshape(dy, kept.sizes()), shares), zeros({}, dy.dtype(), dy.device()))};
  });
}

/// any or all.
Tensor truth(Op which, Tensor x, const Dims& dims, bool keepdim) {
  OpScope op(which, {&x});
  const auto sizes = reduced_sizes(x, dims, op.row().name);
  const Tensor y = empty(sizes.kept, DType::boolean, x.device());
  if (x.numel() == 0) {
    kernels::fill(y.context(), y.view(), which == Op::all);
  } else {
    const Tensor facts = x.dtype() == DType::boolean ? x : copy_of(x, empty_like(x, DType::boolean));
    kernels::reduce(y.context(), y.view(), facts.view(), dims,
                    which == Op::all ? kernels::ReduceOp::min : kernels::ReduceOp::max);
  }
  return keepdim ? y : views::reshape(y, sizes.dropped);
}

using PlaceKernel = void (*)(const Context&, View, ConstView, int);

Tensor place_of(Op which, PlaceKernel kernel, Tensor x, int dim, bool keepdim) {
  OpScope op(which, {&x});
  const auto sizes = reduced_sizes(x, {wrap_dim(dim, x.dim(), op.row().name)}, op.row().name);
  const Tensor y = empty(sizes.kept, DType::i64, x.device());
  kernel(y.context(), y.view(), x.view(), dim);
  return keepdim ? y : views::reshape(y, sizes.dropped);
}

Tensor running_sum(Tensor x, int dim, bool reverse) {
  OpScope op(Op::cumsum, {&x});
  const int d = wrap_dim(dim, x.dim(), op.row().name);
  Tensor y = empty_like(x, is_floating(x.dtype()) ? x.dtype() : DType::i64);
  kernels::cumsum(x.context(), y.view(), x.view(), d, reverse);
  return op.record(y, {x}, {}, [d, reverse](const Tensor& dy) -> Gradients { return {running_sum(dy, d, !reverse)}; });
}

}  // namespace

Tensor sum(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce(Op::sum, kernels::ReduceOp::sum, x, dims, keepdim);
}
Tensor mean(const Tensor& x, const Dims& dims, bool keepdim) {
  return reduce(Op::mean, kernels::ReduceOp::mean, x, dims, keepdim);
}
Tensor max(const Tensor& x, const Dims& dims, bool keepdim) {
  return extremum(Op::max, kernels::ReduceOp::max, x, dims, keepdim);
}
Tensor min(const Tensor& x, const Dims& dims, bool keepdim) {
  return extremum(Op::min, kernels::ReduceOp::min, x, dims, keepdim);
}
Tensor any(const Tensor& x, const Dims& dims, bool keepdim) { return truth(Op::any, x, dims, keepdim); }
Tensor all(const Tensor& x, const Dims& dims, bool keepdim) { return truth(Op::all, x, dims, keepdim); }
Tensor argmax(const Tensor& x, int dim, bool keepdim) { return place_of(Op::argmax, kernels::argmax, x, dim, keepdim); }
Tensor argmin(const Tensor& x, int dim, bool keepdim) { return place_of(Op::argmin, kernels::argmin, x, dim, keepdim); }
Tensor cumsum(const Tensor& x, int dim) { return running_sum(x, dim, false); }

}  // namespace apex::nn::functional
