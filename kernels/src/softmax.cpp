// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/softmax.hpp"

#include "checks.hpp"
#include "softmax_impl.hpp"

namespace apex::kernels {
namespace {

void check_output(const char* op, const Context& ctx, const char* name, const View& v) {
  check_given(op, ctx, name, v);
  check_floating(op, name, v);
  check_writable(op, name, v);
}

void check_input(const char* op, const Context& ctx, const char* name, const ConstView& v, const View& out) {
  check_given(op, ctx, name, v);
  check_sizes(op, name, v, out.sizes);
  check_dtype(op, name, v, out.dtype);
}

}  // namespace

void softmax(const Context& ctx, View y, ConstView x, int dim) {
  check_output("softmax", ctx, "y", y);
  check_input("softmax", ctx, "x", x, y);
  const int d = check_dim("softmax", dim, y.rank());
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::softmax(ctx, y, x, d);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::softmax(ctx, y, x, d);
  }
  throw_not_built("softmax", ctx.device);
}

void softmax_backward(const Context& ctx, View dx, ConstView dy, ConstView y, int dim) {
  check_output("softmax_backward", ctx, "dx", dx);
  check_input("softmax_backward", ctx, "dy", dy, dx);
  check_input("softmax_backward", ctx, "y", y, dx);
  const int d = check_dim("softmax_backward", dim, dx.rank());
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::softmax_backward(ctx, dx, dy, y, d);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::softmax_backward(ctx, dx, dy, y, d);
  }
  throw_not_built("softmax_backward", ctx.device);
}

void log_softmax(const Context& ctx, View y, ConstView x, int dim) {
  check_output("log_softmax", ctx, "y", y);
  check_input("log_softmax", ctx, "x", x, y);
  const int d = check_dim("log_softmax", dim, y.rank());
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::log_softmax(ctx, y, x, d);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::log_softmax(ctx, y, x, d);
  }
  throw_not_built("log_softmax", ctx.device);
}

void log_softmax_backward(const Context& ctx, View dx, ConstView dy, ConstView y, int dim) {
  check_output("log_softmax_backward", ctx, "dx", dx);
  check_input("log_softmax_backward", ctx, "dy", dy, dx);
  check_input("log_softmax_backward", ctx, "y", y, dx);
  const int d = check_dim("log_softmax_backward", dim, dx.rank());
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::log_softmax_backward(ctx, dx, dy, y, d);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::log_softmax_backward(ctx, dx, dy, y, d);
  }
  throw_not_built("log_softmax_backward", ctx.device);
}

}  // namespace apex::kernels
