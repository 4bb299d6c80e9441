// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/indexing.hpp"

#include "checks.hpp"
#include "indexing_impl.hpp"

namespace apex::kernels {
namespace {

void check_index(const char* op, const Context& ctx, const char* name, const ConstView& index) {
  check_given(op, ctx, name, index);
  check_dtype(op, name, index, {DType::i64, DType::i32});
}

/// `index` points along `dim` of what has these sizes.
void check_reach(const char* op, const ConstView& index, const char* name, const Dims& sizes, int dim) {
  bool fits = index.rank() == sizes.size();
  for (int d = 0; fits && d < sizes.size(); ++d) fits = d == dim || index.sizes[d] <= sizes[d];
  if (!fits)
    fail(Kind::argument, concat(op, ": index of sizes ", index.sizes, " does not fit ", name, " of sizes ", sizes,
                                " along dimension ", dim));
}

}  // namespace

void gather(const Context& ctx, View out, ConstView x, ConstView index, int dim, const IndexSource& source) {
  const char* const op = source.op;
  check_given(op, ctx, "x", x);
  const int d = check_dim(op, dim, x.rank());
  check_index(op, ctx, "index", index);
  check_optional(op, ctx, "index", source.given);
  check_reach(op, index, "x", x.sizes, d);
  check_given(op, ctx, "out", out);
  check_dtype(op, "out", out, x.dtype);
  check_sizes(op, "out", out, index.sizes);
  check_writable(op, "out", out);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::gather(ctx, out, x, index, d, source);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::gather(ctx, out, x, index, d, source);
  }
  throw_not_built(op, ctx.device);
}

void scatter_add(const Context& ctx, View out, ConstView base, ConstView src, ConstView index, int dim,
                 const ScatterOptions& options) {
  check_given("scatter_add", ctx, "out", out);
  if (!is_floating(out.dtype) && out.dtype != DType::i64 && out.dtype != DType::i32)
    throw_unsupported("scatter_add", out.dtype);
  const int d = check_dim("scatter_add", dim, out.rank());
  check_writable("scatter_add", "out", out);
  check_optional("scatter_add", ctx, "base", base);
  if (base.defined()) {
    check_sizes("scatter_add", "base", base, out.sizes);
    check_dtype("scatter_add", "base", base, out.dtype);
  }
  check_index("scatter_add", ctx, "index", index);
  check_reach("scatter_add", index, "out", out.sizes, d);
  check_given("scatter_add", ctx, "src", src);
  check_dtype("scatter_add", "src", src, out.dtype);
  check_sizes("scatter_add", "src", src, index.sizes);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::scatter_add(ctx, out, base, src, index, d, options);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::scatter_add(ctx, out, base, src, index, d, options);
  }
  throw_not_built("scatter_add", ctx.device);
}

void one_hot(const Context& ctx, View out, ConstView labels) {
  check_index("one_hot", ctx, "labels", labels);
  check_given("one_hot", ctx, "out", out);
  check_rank("one_hot", "out", out, labels.rank() + 1);
  Dims wanted = labels.sizes;
  wanted.push_back(out.size(-1));
  check_sizes("one_hot", "out", out, wanted);
  check_writable("one_hot", "out", out);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::one_hot(ctx, out, labels);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::one_hot(ctx, out, labels);
  }
  throw_not_built("one_hot", ctx.device);
}

}  // namespace apex::kernels
