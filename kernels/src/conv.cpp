// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/conv.hpp"

#include <algorithm>

#include "apex/core/size_arithmetic.hpp"
#include "apex/kernels/copy.hpp"
#include "checks.hpp"
#include "conv_impl.hpp"

namespace apex::kernels {
namespace {

void check_sizing(const ConvSizing& o) {
  for (std::size_t i = 0; i < o.stride.size(); ++i) {
    if (o.stride[i] < 1) fail(Kind::argument, concat(o.op, ": stride ", o.stride[i], " is less than 1"));
    if (o.padding[i] < 0) fail(Kind::argument, concat(o.op, ": padding ", o.padding[i], " is negative"));
    if (o.dilation[i] < 1) fail(Kind::argument, concat(o.op, ": dilation ", o.dilation[i], " is less than 1"));
  }
  if (o.groups < 1) fail(Kind::argument, concat(o.op, ": groups is ", o.groups, ", wanted at least 1"));
}

void check_ranks(const Dims& x, const Dims& w, const ConvSizing& o, const char* w_channels) {
  const int rank = 2 + static_cast<int>(o.stride.size());
  if (x.size() == rank && w.size() == rank) return;
  const bool one = rank == 3;
  fail(Kind::argument, concat(o.op, ": x has sizes ", x, " and w ", w, ", wanted [N, C, ", one ? "L" : "H, W",
                              "] and [", w_channels, one ? ", R]" : ", R, S]"));
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

/// [channels] of x's type, or not given.
void check_bias(const char* op, const Context& ctx, const char* name, const ConstView& bias, DType dtype,
                std::int64_t channels) {
  check_optional(op, ctx, name, bias);
  if (!bias.defined()) return;
  check_dtype(op, name, bias, dtype);
  check_vector(op, name, bias, channels);
}

/// A transposed convolution in any of its passes, as check_problem.
void check_transposed(const char* op, const Context& ctx, const char* x_name, const ConstView& x, const char* w_name,
                      const ConstView& w, const char* y_name, const ConstView& y,
                      const ConvTranspose2dOptions& options) {
  check_given(op, ctx, x_name, x);
  check_floating(op, x_name, x);
  check_operand(op, ctx, x_name, x, x.dtype);
  check_operand(op, ctx, w_name, w, x.dtype);
  check_operand(op, ctx, y_name, y, x.dtype);
  check_sizes(op, y_name, y, conv_transpose2d_output_sizes(x.sizes, w.sizes, options));
}

/// The convolution from y to x that a transposed one turns round.
Conv2dOptions turned(const ConvTranspose2dOptions& o) {
  return {.stride = o.stride, .padding = o.padding, .dilation = o.dilation, .groups = o.groups};
}

/// That convolution gives more rows than x has where output_padding holds whole strides. x is then worked with in a
/// copy that zeros continue; as terms of a sum they add nothing.
class Continued {
 public:
  Continued(const Context& ctx, const ConstView& x, const ConstView& y, const ConstView& w,
            const ConvTranspose2dOptions& options, bool read) {
    const Dims sizes = conv2d_output_sizes(y.sizes, w.sizes, turned(options));
    if (sizes == x.sizes) {
      view_ = x;
      return;
    }
    const bool last = !x.is_contiguous();
    memory_ = ctx.workspace(static_cast<std::size_t>(element_count(sizes)) * size_of(x.dtype));
    whole_.data = memory_.data();
    whole_.dtype = x.dtype;
    whole_.device = x.device;
    whole_.sizes = sizes;
    whole_.strides = strides_for(sizes, last ? MemoryFormat::channels_last : MemoryFormat::contiguous);
    whole_.present = true;
    view_ = whole_;
    if (!read) return;
    fill(ctx, whole_, 0.0);
    copy(ctx, part(x.sizes), x);
  }

  bool copied() const { return whole_.defined(); }
  const ConstView& view() const { return view_; }
  const View& whole() const { return whole_; }
  /// What of it is x.
  View part(const Dims& sizes) const {
    View v = whole_;
    v.sizes = sizes;
    return v;
  }

 private:
  Workspace memory_;
  View whole_;
  ConstView view_;
};

}  // namespace

Dims conv_output_sizes(const Dims& x, const Dims& w, const ConvSizing& o) {
  check_sizing(o);
  check_ranks(x, w, o, "K, C/groups");
  const std::int64_t g = o.groups;
  if (x[1] % g != 0 || w[0] % g != 0)
    fail(Kind::argument,
         concat(o.op, ": groups ", g, " does not divide ", x[1], " input and ", w[0], " output channels"));
  if (x[1] / g != w[1] || w[1] < 1)
    fail(Kind::argument, concat(o.op, ": x of sizes ", x, " in ", g, " groups does not fit w of sizes ", w));
  Dims out = Dims::filled(x.size(), 0);
  out[0] = x[0];
  out[1] = w[0];
  for (int i = 2; i < x.size(); ++i) {
    const auto d = static_cast<std::size_t>(i - 2);
    const std::int64_t reach = size_of_sum(o.op, o.dilation[d], w[i] - 1, 1),
                       padded = size_of_sum(o.op, 2, o.padding[d], x[i]);
    if (w[i] < 1 || reach > padded)
      fail(Kind::argument, concat(o.op, ": w of sizes ", w, " (dilation ", o.dilation[d],
                                  ") is larger than x of sizes ", x, " with padding ", o.padding[d]));
    out[i] = (padded - reach) / o.stride[d] + 1;
  }
  return out;
}

Dims conv2d_output_sizes(const Dims& x, const Dims& w, const Conv2dOptions& o) {
  return conv_output_sizes(
      x, w, {.op = "conv2d", .stride = o.stride, .padding = o.padding, .dilation = o.dilation, .groups = o.groups});
}

void conv2d_forward(const Context& ctx, View y, ConstView x, ConstView w, ConstView bias,
                    const Conv2dOptions& options) {
  check_problem("conv2d", ctx, "x", x, "w", w, "y", y, options);
  check_bias("conv2d", ctx, "bias", bias, x.dtype, w.size(0));
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
    case DeviceKind::cpu: return cpu::conv2d_backward_data(ctx, dx, dy, w, {}, options);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::conv2d_backward_data(ctx, dx, dy, w, {}, options);
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
  check_bias("conv2d_backward", ctx, "db", db, dy.dtype, dy.size(1));
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::conv2d_backward_weight(ctx, dw, db, dy, x, options);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::conv2d_backward_weight(ctx, dw, db, dy, x, options);
  }
  throw_not_built("conv2d_backward", ctx.device);
}

Dims conv_transpose_output_sizes(const Dims& x, const Dims& w, const ConvSizing& o) {
  check_sizing(o);
  check_ranks(x, w, o, "C, K/groups");
  const std::int64_t g = o.groups;
  if (x[1] != w[0]) fail(Kind::argument, concat(o.op, ": x of sizes ", x, " does not fit w of sizes ", w));
  if (w[0] % g != 0 || w[1] < 1)
    fail(Kind::argument,
         concat(o.op, ": groups ", g, " does not divide ", w[0], " input channels into w of sizes ", w));
  Dims out = Dims::filled(x.size(), 0);
  out[0] = x[0];
  out[1] = size_of_sum(o.op, w[1], g, 0);
  for (int i = 2; i < x.size(); ++i) {
    const auto d = static_cast<std::size_t>(i - 2);
    const std::int64_t more = o.output_padding[d];
    if (more < 0 || (more >= o.stride[d] && more >= o.dilation[d]))
      fail(Kind::argument, concat(o.op, ": output_padding ", more, " is not in [0, ",
                                  std::max(o.stride[d], o.dilation[d]), "), below stride or dilation"));
    if (x[i] < 1 || w[i] < 1)
      fail(Kind::argument, concat(o.op, ": x of sizes ", x, " or w of sizes ", w, " has no pixels"));
    // Before the padding is cut off: it too must be a size, since the convolution turned round has it as its input.
    std::int64_t whole = size_of_sum(o.op, x[i] - 1, o.stride[d], 1);
    whole = size_of_sum(o.op, o.dilation[d], w[i] - 1, whole);
    out[i] = size_of_sum(o.op, 1, more, whole);
    if (o.padding[d] > (out[i] - 1) / 2)
      fail(Kind::argument,
           concat(o.op, ": padding ", o.padding[d], " leaves nothing of x of sizes ", x, " under w of sizes ", w));
    out[i] -= 2 * o.padding[d];
  }
  return out;
}

Dims conv_transpose2d_output_sizes(const Dims& x, const Dims& w, const ConvTranspose2dOptions& o) {
  return conv_transpose_output_sizes(x, w,
                                     {.op = "conv_transpose2d",
                                      .stride = o.stride,
                                      .padding = o.padding,
                                      .dilation = o.dilation,
                                      .output_padding = o.output_padding,
                                      .groups = o.groups});
}

void conv_transpose2d_forward(const Context& ctx, View y, ConstView x, ConstView w, ConstView bias,
                              const ConvTranspose2dOptions& options) {
  check_transposed("conv_transpose2d", ctx, "x", x, "w", w, "y", y, options);
  check_bias("conv_transpose2d", ctx, "bias", bias, x.dtype, y.size(1));
  if (y.numel() == 0) return;
  const Continued input(ctx, x, y, w, options, true);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::conv2d_backward_data(ctx, y, input.view(), w, bias, turned(options));
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::conv2d_backward_data(ctx, y, input.view(), w, bias, turned(options));
  }
  throw_not_built("conv_transpose2d", ctx.device);
}

void conv_transpose2d_backward_data(const Context& ctx, View dx, ConstView dy, ConstView w,
                                    const ConvTranspose2dOptions& options) {
  check_transposed("conv_transpose2d_backward", ctx, "dx", dx, "w", w, "dy", dy, options);
  if (dx.numel() == 0) return;
  const Continued result(ctx, dx, dy, w, options, false);
  if (!result.copied()) return conv2d_forward(ctx, dx, dy, w, {}, turned(options));
  conv2d_forward(ctx, result.whole(), dy, w, {}, turned(options));
  copy(ctx, dx, result.part(dx.sizes));
}

void conv_transpose2d_backward_weight(const Context& ctx, View dw, View db, ConstView dy, ConstView x,
                                      const ConvTranspose2dOptions& options) {
  constexpr const char* op = "conv_transpose2d_backward";
  if (dw.defined()) {
    check_transposed(op, ctx, "x", x, "dw", dw, "dy", dy, options);
  } else {
    check_given(op, ctx, "dy", dy);
    check_floating(op, "dy", dy);
    check_rank(op, "dy", dy, 4);
  }
  check_bias(op, ctx, "db", db, dy.dtype, dy.size(1));
  if (db.defined()) conv2d_backward_weight(ctx, {}, db, dy, {}, {});  // of either kind: a sum of dy
  if (!dw.defined()) return;
  if (x.numel() == 0) return fill(ctx, dw, 0.0);
  const Continued input(ctx, x, dy, dw, options, true);
  conv2d_backward_weight(ctx, dw, {}, input.view(), dy, turned(options));
}

}  // namespace apex::kernels
