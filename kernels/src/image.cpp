// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/image.hpp"

#include "checks.hpp"
#include "image_impl.hpp"

namespace apex::kernels {

void image_normalize(const Context& ctx, View y, ConstView x, std::span<const float> mean, std::span<const float> std) {
  constexpr const char* op = "image_normalize";
  check_given(op, ctx, "y", y);
  check_given(op, ctx, "x", x);
  check_dtype(op, "x", x, DType::u8);
  check_floating(op, "y", y);
  check_rank(op, "x", x, 4);
  check_sizes(op, "y", y, x.sizes);
  check_writable(op, "y", y);
  const auto channels = static_cast<std::size_t>(x.size(1));
  if (mean.size() != channels || std.size() != channels)
    fail(Kind::argument,
         concat(op, ": ", mean.size(), " means and ", std.size(), " standard deviations for ", channels, " channels"));
  for (const float s : std)
    if (!(s > 0)) fail(Kind::argument, concat(op, ": standard deviation ", s, " is not positive"));
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::image_normalize(ctx, y, x, mean, std);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::image_normalize(ctx, y, x, mean, std);
  }
  throw_not_built(op, ctx.device);
}

}  // namespace apex::kernels
