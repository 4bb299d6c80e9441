// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/conv.hpp"

#include "checks.hpp"
#include "conv_impl.hpp"

namespace apex::kernels {
namespace {

void check_options(const Conv2dOptions& o) {
  for (std::size_t i = 0; i < 2; ++i) {
    if (o.stride[i] < 1) fail(Kind::argument, concat("conv2d: stride ", o.stride[i], " is less than 1"));
    if (o.padding[i] < 0) fail(Kind::argument, concat("conv2d: padding ", o.padding[i], " is negative"));
    if (o.dilation[i] < 1) fail(Kind::argument, concat("conv2d: dilation ", o.dilation[i], " is less than 1"));
  }
  if (o.groups < 1) fail(Kind::argument, concat("conv2d: groups is ", o.groups, ", wanted at least 1"));
}

void check_operand(const char* op, const Context& ctx, const char* name, const ConstView& v, DType dtype) {
  check_given(op, ctx, name, v);
  check_dtype(op, name, v, dtype);
  check_rank(op, name, v, 4);
  check_dense(op, name, v);
}

/// x, w, y by their names in the three passes.
void check_problem(const char* op, const Context& ctx, const char* x_name, const ConstView& x, const char* w_name,
                   const ConstView& w, const char* y_name, const ConstView& y, const Conv2dOptions& options) {
  check_given(op, ctx, x_name, x);
  check_floating(op, x_name, x);
  check_operand(op, ctx, x_name, x, x.dtype);
  check_operand(op, ctx, w_name, w, x.dtype);
  check_operand(op, ctx, y_name, y, x.dtype);
  check_sizes(op, y_name, y, conv2d_output_sizes(x.sizes, w.sizes, options));
}

}  // namespace

Dims conv2d_output_sizes(const Dims& x, const Dims& w, const Conv2dOptions& options) {
  check_options(options);
  if (x.size() != 4 || w.size() != 4)
    fail(Kind::argument,
         concat("conv2d: x has sizes ", x, " and w ", w, ", wanted [N, C, H, W] and [K, C/groups, R, S]"));
  const std::int64_t g = options.groups;
  if (x[1] % g != 0 || w[0] % g != 0)
    fail(Kind::argument,
         concat("conv2d: groups ", g, " does not divide ", x[1], " input and ", w[0], " output channels"));
  if (x[1] / g != w[1] || w[1] < 1)
    fail(Kind::argument, concat("conv2d: x of sizes ", x, " in ", g, " groups does not fit w of sizes ", w));
  Dims out{x[0], w[0], 0, 0};
  for (int i = 0; i < 2; ++i) {
    const auto d = static_cast<std::size_t>(i);
    const std::int64_t reach = options.dilation[d] * (w[2 + i] - 1) + 1, padded = x[2 + i] + 2 * options.padding[d];
    if (w[2 + i] < 1 || reach > padded)
      fail(Kind::argument, concat("conv2d: w of sizes ", w, " (dilation ", options.dilation[d],
                                  ") is larger than x of sizes ", x, " with padding ", options.padding[d]));
    out[2 + i] = (padded - reach) / options.stride[d] + 1;
  }
  return out;
}

void conv2d_forward(const Context& ctx, View y, ConstView x, ConstView w, ConstView bias,
                    const Conv2dOptions& options) {
  check_problem("conv2d", ctx, "x", x, "w", w, "y", y, options);
  check_optional("conv2d", ctx, "bias", bias);
  if (bias.defined()) {
    check_dtype("conv2d", "bias", bias, x.dtype);
    check_vector("conv2d", "bias", bias, w.size(0));
  }
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::conv2d_forward(ctx, y, x, w, bias, options);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::conv2d_forward(ctx, y, x, w, bias, options);
  }
  throw_not_built("conv2d", ctx.device);
}

void conv2d_backward_data(const Context& ctx, View dx, ConstView dy, ConstView w, const Conv2dOptions& options) {
  check_problem("conv2d_backward", ctx, "dx", dx, "w", w, "dy", dy, options);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::conv2d_backward_data(ctx, dx, dy, w, options);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::conv2d_backward_data(ctx, dx, dy, w, options);
  }
  throw_not_built("conv2d_backward", ctx.device);
}

void conv2d_backward_weight(const Context& ctx, View dw, View db, ConstView dy, ConstView x,
                            const Conv2dOptions& options) {
  if (dw.defined()) {
    check_problem("conv2d_backward", ctx, "x", x, "dw", dw, "dy", dy, options);
  } else {
    check_given("conv2d_backward", ctx, "dy", dy);
    check_floating("conv2d_backward", "dy", dy);
    check_rank("conv2d_backward", "dy", dy, 4);
  }
  check_optional("conv2d_backward", ctx, "db", db);
  if (db.defined()) {
    check_dtype("conv2d_backward", "db", db, dy.dtype);
    check_vector("conv2d_backward", "db", db, dy.size(1));
  }
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::conv2d_backward_weight(ctx, dw, db, dy, x, options);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::conv2d_backward_weight(ctx, dw, db, dy, x, options);
  }
  throw_not_built("conv2d_backward", ctx.device);
}

}  // namespace apex::kernels
