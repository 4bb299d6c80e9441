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

void fill(const Context& ctx, View dst, double value) {
  check_given("fill", ctx, "dst", dst);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::fill(ctx, dst, value);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::fill(ctx, dst, value);
  }
  throw_not_built("fill", ctx.device);
}

}  // namespace apex::kernels
