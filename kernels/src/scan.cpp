// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/scan.hpp"

#include "checks.hpp"
#include "scan_impl.hpp"

namespace apex::kernels {

void cumsum(const Context& ctx, View out, ConstView x, int dim, bool reverse) {
  check_given("cumsum", ctx, "x", x);
  const int d = check_dim("cumsum", dim, x.rank());
  check_given("cumsum", ctx, "out", out);
  check_sizes("cumsum", "out", out, x.sizes);
  check_dtype("cumsum", "out", out, is_floating(x.dtype) ? x.dtype : DType::i64);
  check_writable("cumsum", "out", out);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::cumsum(ctx, out, x, d, reverse);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::cumsum(ctx, out, x, d, reverse);
  }
  throw_not_built("cumsum", ctx.device);
}

}  // namespace apex::kernels
