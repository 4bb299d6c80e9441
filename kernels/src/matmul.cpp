// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/matmul.hpp"

#include "checks.hpp"
#include "matmul_impl.hpp"

namespace apex::kernels {
namespace {

void check_matrix(const char* op, const Context& ctx, const char* name, const ConstView& v, DType dtype) {
  check_given(op, ctx, name, v);
  check_dtype(op, name, v, dtype);
}

}  // namespace

void matmul(const Context& ctx, View c, ConstView a, ConstView b, const MatmulOptions& options) {
  check_given("matmul", ctx, "c", c);
  check_floating("matmul", "c", c);
  check_writable("matmul", "c", c);
  check_matrix("matmul", ctx, "a", a, c.dtype);
  check_matrix("matmul", ctx, "b", b, c.dtype);
  if (c.rank() != 2 && c.rank() != 3)
    fail(Kind::argument, concat("matmul: c has sizes ", c.sizes, ", wanted rank 2 or 3"));
  check_rank("matmul", "a", a, c.rank());
  check_rank("matmul", "b", b, c.rank());
  const bool fits = a.size(-1) == b.size(-2) && c.size(-2) == a.size(-2) && c.size(-1) == b.size(-1);
  bool batches = true;
  if (c.rank() == 3)
    for (const auto* v : {&a, &b}) batches &= v->size(0) == c.size(0) || v->size(0) == 1;
  if (!fits || !batches)
    fail(Kind::argument, concat("matmul: sizes ", a.sizes, " times ", b.sizes, " do not give ", c.sizes));
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::matmul(ctx, c, a, b, options);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::matmul(ctx, c, a, b, options);
  }
  throw_not_built("matmul", ctx.device);
}

void linear_forward(const Context& ctx, View y, ConstView x, ConstView w, ConstView bias) {
  check_given("linear", ctx, "y", y);
  check_floating("linear", "y", y);
  check_writable("linear", "y", y);
  check_matrix("linear", ctx, "x", x, y.dtype);
  check_matrix("linear", ctx, "w", w, y.dtype);
  check_rank("linear", "x", x, 2);
  check_rank("linear", "w", w, 2);
  if (x.size(1) != w.size(1))
    fail(Kind::argument, concat("linear: x has sizes ", x.sizes, ", w takes ", w.size(1), " features"));
  check_sizes("linear", "y", y, {x.size(0), w.size(0)});
  check_optional("linear", ctx, "bias", bias);
  if (bias.defined()) {
    check_dtype("linear", "bias", bias, y.dtype);
    check_sizes("linear", "bias", bias, {w.size(0)});
  }
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::linear_forward(ctx, y, x, w, bias);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::linear_forward(ctx, y, x, w, bias);
  }
  throw_not_built("linear", ctx.device);
}

void linear_backward_data(const Context& ctx, View dx, ConstView dy, ConstView w) {
  check_given("linear_backward", ctx, "dx", dx);
  check_floating("linear_backward", "dx", dx);
  check_writable("linear_backward", "dx", dx);
  check_matrix("linear_backward", ctx, "dy", dy, dx.dtype);
  check_matrix("linear_backward", ctx, "w", w, dx.dtype);
  check_rank("linear_backward", "dy", dy, 2);
  check_rank("linear_backward", "w", w, 2);
  if (dy.size(1) != w.size(0))
    fail(Kind::argument, concat("linear_backward: dy has sizes ", dy.sizes, ", w gives ", w.size(0), " features"));
  check_sizes("linear_backward", "dx", dx, {dy.size(0), w.size(1)});
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::linear_backward_data(ctx, dx, dy, w);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::linear_backward_data(ctx, dx, dy, w);
  }
  throw_not_built("linear_backward", ctx.device);
}

void linear_backward_weight(const Context& ctx, View dw, View db, ConstView dy, ConstView x) {
  check_given("linear_backward", ctx, "dy", dy);
  check_floating("linear_backward", "dy", dy);
  check_matrix("linear_backward", ctx, "x", x, dy.dtype);
  check_rank("linear_backward", "dy", dy, 2);
  check_rank("linear_backward", "x", x, 2);
  if (dy.size(0) != x.size(0))
    fail(Kind::argument, concat("linear_backward: dy has ", dy.size(0), " rows, x has ", x.size(0)));
  check_optional("linear_backward", ctx, "dw", dw);
  check_optional("linear_backward", ctx, "db", db);
  if (dw.defined()) {
    check_dtype("linear_backward", "dw", dw, dy.dtype);
    check_sizes("linear_backward", "dw", dw, {dy.size(1), x.size(1)});
    check_writable("linear_backward", "dw", dw);
  }
  if (db.defined()) {
    check_dtype("linear_backward", "db", db, dy.dtype);
    check_sizes("linear_backward", "db", db, {dy.size(1)});
    check_writable("linear_backward", "db", db);
  }
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::linear_backward_weight(ctx, dw, db, dy, x);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::linear_backward_weight(ctx, dw, db, dy, x);
  }
  throw_not_built("linear_backward", ctx.device);
}

}  // namespace apex::kernels
