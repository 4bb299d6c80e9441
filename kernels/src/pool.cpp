// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/pool.hpp"

#include <algorithm>
#include <limits>

#include "apex/core/size_arithmetic.hpp"
#include "checks.hpp"
#include "pool_impl.hpp"

namespace apex::kernels {
namespace {

void check_options(const Pool2dOptions& o) {
  for (std::size_t i = 0; i < 2; ++i) {
    if (o.kernel[i] < 1) fail(Kind::argument, concat("pool2d: kernel ", o.kernel[i], " is less than 1"));
    if (o.stride[i] < 1) fail(Kind::argument, concat("pool2d: stride ", o.stride[i], " is less than 1"));
    if (o.padding[i] < 0 || o.padding[i] > o.kernel[i] / 2)
      fail(Kind::argument,
           concat("pool2d: padding ", o.padding[i], " is not between 0 and half the kernel ", o.kernel[i]));
  }
}

/// Both given, floating, rank 4, dense in one layout.
void check_pair(const char* op, const Context& ctx, const char* x_name, const ConstView& x, const char* y_name,
                const ConstView& y) {
  check_given(op, ctx, x_name, x);
  check_floating(op, x_name, x);
  check_given(op, ctx, y_name, y);
  check_dtype(op, y_name, y, x.dtype);
  check_rank(op, x_name, x, 4);
  check_rank(op, y_name, y, 4);
  const bool row_major = x.is_contiguous() && y.is_contiguous();
  const bool last = x.is_contiguous(MemoryFormat::channels_last) && y.is_contiguous(MemoryFormat::channels_last);
  if (!row_major && !last)
    fail(Kind::argument, concat(op, ": ", x_name, " (strides ", x.strides, ") and ", y_name, " (strides ", y.strides,
                                ") are neither both row-major nor both channels-last; copy one first"));
}

void check_indices(const char* op, const Context& ctx, const ConstView& indices, const ConstView& y,
                   const ConstView& x) {
  check_given(op, ctx, "indices", indices);
  check_dtype(op, "indices", indices, DType::i32);
  check_sizes(op, "indices", indices, y.sizes);
  if (!same_strides(indices, y))
    fail(Kind::argument, concat(op, ": indices have strides ", indices.strides, ", the output has ", y.strides));
  if (x.size(2) > std::numeric_limits<std::int32_t>::max() / std::max<std::int64_t>(x.size(3), 1))
    fail(Kind::unsupported,
         concat(op, ": a plane of ", x.size(2), " x ", x.size(3), " is too large for 32-bit indices"));
}

void check_adaptive(const char* op, const ConstView& x, const ConstView& y) {
  const bool fits = x.size(0) == y.size(0) && x.size(1) == y.size(1) && x.size(2) >= 1 && x.size(3) >= 1 &&
                    y.size(2) >= 1 && y.size(3) >= 1;
  if (!fits) fail(Kind::argument, concat(op, ": x of sizes ", x.sizes, " cannot be averaged to ", y.sizes));
}

}  // namespace

Dims pool2d_output_sizes(const Dims& x, const Pool2dOptions& options) {
  check_options(options);
  if (x.size() != 4) fail(Kind::argument, concat("pool2d: x has sizes ", x, ", wanted [N, C, H, W]"));
  Dims out{x[0], x[1], 0, 0};
  for (int i = 0; i < 2; ++i) {
    const auto d = static_cast<std::size_t>(i);
    const std::int64_t padded = size_of_sum("pool2d", 2, options.padding[d], x[2 + i]);
    const std::int64_t room = padded - options.kernel[d], stride = options.stride[d];
    if (room < 0)
      fail(Kind::argument, concat("pool2d: kernel ", options.kernel[d], " is larger than x of sizes ", x,
                                  " with padding ", options.padding[d]));
    out[2 + i] = room / stride + (options.ceil_mode && room % stride != 0 ? 1 : 0) + 1;
    // The last window starts at (out - 1) * stride, which ceil_mode may have put beyond int64.
    if (out[2 + i] - 1 > (x[2 + i] + options.padding[d] - 1) / stride) --out[2 + i];
  }
  return out;
}

void max_pool2d(const Context& ctx, View y, View indices, ConstView x, const Pool2dOptions& options) {
  check_pair("max_pool2d", ctx, "x", x, "y", y);
  check_sizes("max_pool2d", "y", y, pool2d_output_sizes(x.sizes, options));
  if (indices.defined()) check_indices("max_pool2d", ctx, indices, y, x);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::max_pool2d(ctx, y, indices, x, options);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::max_pool2d(ctx, y, indices, x, options);
  }
  throw_not_built("max_pool2d", ctx.device);
}

void max_pool2d_backward(const Context& ctx, View dx, ConstView dy, ConstView indices, const Pool2dOptions& options) {
  check_pair("max_pool2d_backward", ctx, "dx", dx, "dy", dy);
  check_sizes("max_pool2d_backward", "dy", dy, pool2d_output_sizes(dx.sizes, options));
  check_indices("max_pool2d_backward", ctx, indices, dy, dx);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::max_pool2d_backward(ctx, dx, dy, indices, options);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::max_pool2d_backward(ctx, dx, dy, indices, options);
  }
  throw_not_built("max_pool2d_backward", ctx.device);
}

void avg_pool2d(const Context& ctx, View y, ConstView x, const Pool2dOptions& options) {
  check_pair("avg_pool2d", ctx, "x", x, "y", y);
  check_sizes("avg_pool2d", "y", y, pool2d_output_sizes(x.sizes, options));
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::avg_pool2d(ctx, y, x, options);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::avg_pool2d(ctx, y, x, options);
  }
  throw_not_built("avg_pool2d", ctx.device);
}

void avg_pool2d_backward(const Context& ctx, View dx, ConstView dy, const Pool2dOptions& options) {
  check_pair("avg_pool2d_backward", ctx, "dx", dx, "dy", dy);
  check_sizes("avg_pool2d_backward", "dy", dy, pool2d_output_sizes(dx.sizes, options));
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::avg_pool2d_backward(ctx, dx, dy, options);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::avg_pool2d_backward(ctx, dx, dy, options);
  }
  throw_not_built("avg_pool2d_backward", ctx.device);
}

void adaptive_avg_pool2d(const Context& ctx, View y, ConstView x) {
  check_pair("adaptive_avg_pool2d", ctx, "x", x, "y", y);
  check_adaptive("adaptive_avg_pool2d", x, y);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::adaptive_avg_pool2d(ctx, y, x);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::adaptive_avg_pool2d(ctx, y, x);
  }
  throw_not_built("adaptive_avg_pool2d", ctx.device);
}

void adaptive_avg_pool2d_backward(const Context& ctx, View dx, ConstView dy) {
  check_pair("adaptive_avg_pool2d_backward", ctx, "dx", dx, "dy", dy);
  check_adaptive("adaptive_avg_pool2d_backward", dx, dy);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::adaptive_avg_pool2d_backward(ctx, dx, dy);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::adaptive_avg_pool2d_backward(ctx, dx, dy);
  }
  throw_not_built("adaptive_avg_pool2d_backward", ctx.device);
}

}  // namespace apex::kernels
