// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/image.hpp"

#include <limits>
#include <vector>

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

namespace {

void check_window(const char* op, const Context& ctx, const View& y, const ImageWindow& p, std::size_t number) {
  check_given(op, ctx, "image", p.image);
  check_dtype(op, "image", p.image, DType::u8);
  check_rank(op, "image", p.image, 3);
  const auto at = [&] { return concat(op, ": picture ", number, ": "); };
  if (p.image.size(0) != y.size(1))
    fail(Kind::argument, concat(at(), "has ", p.image.size(0), " channels, y has ", y.size(1)));
  const std::int64_t right = std::int64_t{p.box_left} + p.box_width, bottom = std::int64_t{p.box_top} + p.box_height;
  if (p.box_left < 0 || p.box_top < 0 || p.box_width < 1 || p.box_height < 1 || right > p.image.size(2) ||
      bottom > p.image.size(1))
    fail(Kind::argument, concat(at(), "box ", p.box_width, 'x', p.box_height, " at (", p.box_left, ", ", p.box_top,
                                ") is not inside an image of ", p.image.size(2), 'x', p.image.size(1)));
  if (p.resized_width < 1 || p.resized_height < 1)
    fail(Kind::argument, concat(at(), "resized to ", p.resized_width, 'x', p.resized_height, ", must be at least 1"));
}

}  // namespace

void image_resize(const Context& ctx, View y, std::span<const ImageWindow> pictures) {
  constexpr const char* op = "image_resize";
  check_given(op, ctx, "y", y);
  check_dtype(op, "y", y, DType::u8);
  check_rank(op, "y", y, 4);
  check_writable(op, "y", y);
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  if (y.size(2) > kMost || (y.size(3) > 0 && y.size(1) > kMost / y.size(3)))
    fail(Kind::argument, concat(op, ": y of ", y.sizes, " is larger than a picture can be"));
  std::vector<bool> seen(static_cast<std::size_t>(y.size(0)));
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    check_window(op, ctx, y, pictures[i], i);
    const std::int64_t row = pictures[i].row;
    if (row < 0 || row >= y.size(0) || seen[static_cast<std::size_t>(row)])
      fail(Kind::argument, concat(op, ": picture ", i, ": row ", row, " of ", y.size(0),
                                  row < 0 || row >= y.size(0) ? " is not there" : " was named before"));
    seen[static_cast<std::size_t>(row)] = true;
  }
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::image_resize(ctx, y, pictures);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::image_resize(ctx, y, pictures);
  }
  throw_not_built(op, ctx.device);
}

}  // namespace apex::kernels
