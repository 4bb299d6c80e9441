// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../image_impl.hpp"
#include "apex/core/triangle_filter.hpp"
#include "parallel.hpp"

namespace apex::kernels::cpu {
namespace {

/// The filters of the visible outputs along one axis.
class Axis {
 public:
  Axis(const Context& ctx, int in, int resized, std::int64_t offset, Visible shown)
      : filter_(in, resized),
        taps_(filter_.most_taps()),
        offset_(static_cast<int>(offset + shown.first)),
        count_(shown.count),
        memory_(ctx.workspace(static_cast<std::size_t>(count_) * static_cast<std::size_t>(taps_) * 4)) {
    for (int k = 0; k < count_; ++k) filter_.weights(offset_ + k, memory_.as<std::int32_t>() + std::int64_t{k} * taps_);
  }
  int count() const { return count_; }
  int begin(int k) const { return filter_.begin(offset_ + k); }
  int end(int k) const { return filter_.end(offset_ + k); }
  const std::int32_t* weights(int k) const { return memory_.as<std::int32_t>() + std::int64_t{k} * taps_; }

 private:
  TriangleFilter filter_;
  int taps_, offset_, count_;
  Workspace memory_;
};

void resize_one(const Context& ctx, const View& y, const ImageWindow& p) {
  const auto channels = static_cast<int>(y.size(1)), height = static_cast<int>(y.size(2)),
             width = static_cast<int>(y.size(3));
  const Visible columns = visible(p.left, width, p.resized_width), rows = visible(p.top, height, p.resized_height);
  const Axis across(ctx, p.box_width, p.resized_width, p.left, columns),
      down(ctx, p.box_height, p.resized_height, p.top, rows);
  const int first = rows.count > 0 ? down.begin(0) : 0, last = rows.count > 0 ? down.end(rows.count - 1) : 0;
  const std::int64_t line = std::int64_t{columns.count} * channels;
  const Workspace memory = ctx.workspace(static_cast<std::size_t>(line * (last - first)));
  auto* narrow = memory.as<std::uint8_t>();

  const std::uint8_t* image =
      p.image.as<std::uint8_t>() + p.box_top * p.image.stride(1) + p.box_left * p.image.stride(2);
  parallel_for(last - first, line, [&](std::int64_t r) {
    for (int k = 0; k < columns.count; ++k)
      for (int c = 0; c < channels; ++c) {
        const std::uint8_t* from = image + c * p.image.stride(0) + (first + r) * p.image.stride(1);
        std::int32_t sum = TriangleFilter::kHalf;
        const std::int32_t* weights = across.weights(k);
        for (int x = across.begin(k); x < across.end(k); ++x) sum += from[x * p.image.stride(2)] * *weights++;
        narrow[r * line + k * channels + c] = TriangleFilter::to_byte(sum);
      }
  });

  std::uint8_t* out = y.as<std::uint8_t>() + p.row * y.stride(0);
  parallel_for(height, std::int64_t{width} * channels, [&](std::int64_t i) {
    const auto k = static_cast<int>(i) - rows.first;
    for (int j = 0; j < width; ++j) {
      const int shown = (p.flip ? width - 1 - j : j) - columns.first;
      const bool inside = k >= 0 && k < rows.count && shown >= 0 && shown < columns.count;
      for (int c = 0; c < channels; ++c) {
        std::int32_t sum = 0;
        if (inside) {
          sum = TriangleFilter::kHalf;
          const std::int32_t* weights = down.weights(k);
          for (int r = down.begin(k); r < down.end(k); ++r)
            sum += narrow[(r - first) * line + shown * channels + c] * *weights++;
        }
        out[c * y.stride(1) + i * y.stride(2) + j * y.stride(3)] = TriangleFilter::to_byte(sum);
      }
    }
  });
}

}  // namespace

void image_resize(const Context& ctx, View y, std::span<const ImageWindow> pictures) {
  if (y.numel() == 0) return;
  for (const auto& picture : pictures) resize_one(ctx, y, picture);
}

}  // namespace apex::kernels::cpu
