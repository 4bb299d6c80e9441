// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/reduce.hpp"

#include <utility>

#include "checks.hpp"
#include "reduce_impl.hpp"

namespace apex::kernels {
namespace {

/// `out` seen at x's rank, with 1 for every reduced dimension. @throws Kind::argument when its sizes fit neither way
View aligned(const char* op, const View& out, const ConstView& x, const bool* reduced) {
  Dims kept, dropped;
  for (int d = 0; d < x.rank(); ++d) {
    kept.push_back(reduced[d] ? 1 : x.sizes[d]);
    if (!reduced[d]) dropped.push_back(x.sizes[d]);
  }
  if (out.sizes == kept) return out;
  check_sizes(op, "out", out, dropped);
  View seen = out;
  seen.sizes = kept;
  seen.strides = Dims::filled(x.rank(), 0);
  for (int d = 0, next = 0; d < x.rank(); ++d)
    if (!reduced[d]) seen.strides[d] = out.strides[next++];
  return seen;
}

void check_reduce_dtypes(const char* name, const View& out, const ConstView& x, ReduceOp op) {
  if (is_floating(x.dtype)) {
    if (!is_floating(out.dtype)) check_dtype(name, "out", out, x.dtype);
    return;
  }
  if (op == ReduceOp::mean) throw_unsupported(name, x.dtype);
  check_dtype(name, "out", out, op == ReduceOp::sum ? DType::i64 : x.dtype);
}

void dispatch(const char* name, const Context& ctx, const View& out, const ConstView& x, ReduceOp op) {
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::reduce(ctx, out, x, op);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::reduce(ctx, out, x, op);
  }
  throw_not_built(name, ctx.device);
}

/// The output at x's rank, and `dim` counted from 0.
std::pair<View, int> check_arg_extremum(const char* op, const Context& ctx, const View& out, const ConstView& x,
                                        int dim) {
  check_given(op, ctx, "x", x);
  const int d = check_dim(op, dim, x.rank());
  check_given(op, ctx, "out", out);
  check_dtype(op, "out", out, DType::i64);
  bool reduced[kMaxRank] = {};
  reduced[d] = true;
  const View seen = aligned(op, out, x, reduced);
  check_writable(op, "out", seen);
  if (x.numel() == 0 && seen.numel() != 0)
    fail(Kind::argument, concat(op, ": the dimension of ", x.sizes, " is empty"));
  return {seen, d};
}

}  // namespace

const char* name_of(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::mean: return "mean";
    case ReduceOp::max: return "max";
    case ReduceOp::min: return "min";
  }
  return "unknown";
}

void reduce(const Context& ctx, View out, ConstView x, const Dims& dims, ReduceOp op) {
  const char* name = name_of(op);
  check_given(name, ctx, "out", out);
  check_given(name, ctx, "x", x);
  check_writable(name, "out", out);
  check_reduce_dtypes(name, out, x, op);
  bool reduced[kMaxRank] = {};
  for (const auto dim : dims) {
    const int d = check_dim(name, static_cast<int>(dim), x.rank());
    if (reduced[d]) fail(Kind::argument, concat(name, ": dimension ", dim, " is named twice in ", dims));
    reduced[d] = true;
  }
  if (dims.empty()) std::fill_n(reduced, x.rank(), true);
  const View seen = aligned(name, out, x, reduced);
  if (x.numel() == 0 && out.numel() != 0 && (op == ReduceOp::max || op == ReduceOp::min))
    fail(Kind::argument, concat(name, ": nothing to take it of, x has sizes ", x.sizes));
  dispatch(name, ctx, seen, x, op);
}

void sum_to(const Context& ctx, View out, ConstView x) {
  check_given("sum_to", ctx, "out", out);
  check_given("sum_to", ctx, "x", x);
  check_floating("sum_to", "out", out);
  check_floating("sum_to", "x", x);
  check_writable("sum_to", "out", out);
  check_broadcasts("sum_to", "out", out, x.sizes);
  View seen = out;
  const int lead = x.rank() - out.rank();
  seen.sizes = Dims::filled(x.rank(), 1);
  seen.strides = Dims::filled(x.rank(), 0);
  for (int d = 0; d < out.rank(); ++d) {
    seen.sizes[lead + d] = out.sizes[d];
    seen.strides[lead + d] = out.strides[d];
  }
  dispatch("sum_to", ctx, seen, x, ReduceOp::sum);
}

void argmax(const Context& ctx, View out, ConstView x, int dim) {
  const auto [seen, d] = check_arg_extremum("argmax", ctx, out, x, dim);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::argmax(ctx, seen, x, d);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::argmax(ctx, seen, x, d);
  }
  throw_not_built("argmax", ctx.device);
}

void argmin(const Context& ctx, View out, ConstView x, int dim) {
  const auto [seen, d] = check_arg_extremum("argmin", ctx, out, x, dim);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::argmin(ctx, seen, x, d);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::argmin(ctx, seen, x, d);
  }
  throw_not_built("argmin", ctx.device);
}

void topk(const Context& ctx, View values, View indices, ConstView x, std::int64_t k, int dim, bool largest) {
  check_given("topk", ctx, "x", x);
  const int d = check_dim("topk", dim, x.rank());
  if (k < 0 || k > x.sizes[d])
    fail(Kind::argument, concat("topk: k is ", k, ", dimension ", dim, " of x has size ", x.sizes[d]));
  Dims wanted = x.sizes;
  wanted[d] = k;
  check_optional("topk", ctx, "values", values);
  check_optional("topk", ctx, "indices", indices);
  if (values.defined()) {
    check_sizes("topk", "values", values, wanted);
    check_dtype("topk", "values", values, x.dtype);
    check_writable("topk", "values", values);
  }
  if (indices.defined()) {
    check_sizes("topk", "indices", indices, wanted);
    check_dtype("topk", "indices", indices, DType::i64);
    check_writable("topk", "indices", indices);
  }
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::topk(ctx, values, indices, x, k, d, largest);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::topk(ctx, values, indices, x, k, d, largest);
  }
  throw_not_built("topk", ctx.device);
}

}  // namespace apex::kernels
