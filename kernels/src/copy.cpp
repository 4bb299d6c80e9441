// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/copy.hpp"

#include "checks.hpp"
#include "copy_impl.hpp"

namespace apex::kernels {

void copy(const Context& ctx, View dst, ConstView src) {
  check_given("copy", ctx, "dst", dst);
  check_given("copy", ctx, "src", src);
  check_broadcasts("copy", "src", src, dst.sizes);
  check_writable("copy", "dst", dst);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::copy(ctx, dst, src);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::copy(ctx, dst, src);
  }
  throw_not_built("copy", ctx.device);
}

void transfer(const Context& ctx, View dst, ConstView src) {
  if (!dst.defined()) fail(Kind::argument, "transfer: dst is not given");
  if (!src.defined()) fail(Kind::argument, "transfer: src is not given");
  check_sizes("transfer", "src", src, dst.sizes);
  check_dtype("transfer", "src", src, dst.dtype);
  check_writable("transfer", "dst", dst);
  if (ctx.device != dst.device && ctx.device != src.device)
    fail(Kind::argument,
         concat("transfer: from ", src.device, " to ", dst.device, ", the operation runs on ", ctx.device));
  if (dst.device == src.device) return copy(ctx, dst, src);
  if constexpr (has_cuda) return cuda::transfer(ctx, dst, src);
  throw_not_built("transfer", dst.device.is_cuda() ? dst.device : src.device);
}

void fill(const Context& ctx, View dst, double value) {
  check_given("fill", ctx, "dst", dst);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::fill(ctx, dst, value);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::fill(ctx, dst, value);
  }
  throw_not_built("fill", ctx.device);
}

void arange(const Context& ctx, View dst, double start, double step) {
  check_given("arange", ctx, "dst", dst);
  check_rank("arange", "dst", dst, 1);
  check_writable("arange", "dst", dst);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::arange(ctx, dst, start, step);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::arange(ctx, dst, start, step);
  }
  throw_not_built("arange", ctx.device);
}

}  // namespace apex::kernels
