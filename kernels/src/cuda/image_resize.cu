// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <vector>

#include "../image_impl.hpp"
#include "apex/core/triangle_filter.hpp"
#include "launch.cuh"

// Three launches for up to kPictures pictures, whose geometry travels in the kernels' parameters: the filters of all
// visible columns and rows, the columns' pass into scratch, the rows' pass into y. blockIdx.y is the picture.

namespace apex::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPictures = 128;
constexpr std::int64_t kMostScratch = std::int64_t{64} << 20;  // of one round, unless a picture alone takes more
constexpr int kMostBlocks = 1024;                              // along blockIdx.x

/// One axis. A filter is kHead + taps integers: first input, number of inputs, weights.
constexpr int kHead = 2;
struct Axis {
  std::int32_t* filters;
  int in, resized;  // sizes before and after
  int taps;
  int offset;  // resized position of the first visible output
  int first;   // window position of it
  int count;   // visible outputs
};

struct Picture {
  const std::uint8_t* image;  // the corner of the box
  std::int64_t image_stride[3];
  std::uint8_t* y;
  std::uint8_t* narrow;  // [input_rows, columns.count, C]
  Axis columns, rows;
  int first_row, input_rows;  // of the box: what the visible rows read
  bool flip;
};

struct Table {
  Picture picture[kPictures];
};
static_assert(sizeof(Table) <= 30000, "parameters of a kernel");

struct Output {
  int channels, height, width;
  std::int64_t stride[3];  // of channels, rows, columns
};

__global__ void __launch_bounds__(kThreads) make_filters(const __grid_constant__ Table table) {
  const Picture& p = table.picture[blockIdx.y];
  const int all = p.columns.count + p.rows.count;
  for (int k = static_cast<int>(blockIdx.x * kThreads + threadIdx.x); k < all;
       k += static_cast<int>(gridDim.x * kThreads)) {
    const bool is_column = k < p.columns.count;
    const Axis& axis = is_column ? p.columns : p.rows;
    const int at = is_column ? k : k - p.columns.count;
    const TriangleFilter filter(axis.in, axis.resized);
    std::int32_t* to = axis.filters + std::int64_t{at} * (kHead + axis.taps);
    to[0] = filter.begin(axis.offset + at);
    to[1] = filter.end(axis.offset + at) - to[0];
    filter.weights(axis.offset + at, to + kHead);
  }
}

__global__ void __launch_bounds__(kThreads) pass_columns(const __grid_constant__ Table table, int channels) {
  const Picture& p = table.picture[blockIdx.y];
  const int line = p.columns.count * channels;
  for (int r = static_cast<int>(blockIdx.x); r < p.input_rows; r += static_cast<int>(gridDim.x)) {
    const std::uint8_t* row = p.image + (p.first_row + r) * p.image_stride[1];
    std::uint8_t* to = p.narrow + std::int64_t{r} * line;
    for (int e = static_cast<int>(threadIdx.x); e < line; e += kThreads) {
      const int k = e / channels, c = e - k * channels;
      const std::int32_t* filter = p.columns.filters + std::int64_t{k} * (kHead + p.columns.taps);
      const std::uint8_t* from = row + c * p.image_stride[0] + filter[0] * p.image_stride[2];
      std::int32_t sum = TriangleFilter::kHalf;
      for (int t = 0; t < filter[1]; ++t) sum += from[t * p.image_stride[2]] * filter[kHead + t];
      to[e] = TriangleFilter::to_byte(sum);
    }
  }
}

__global__ void __launch_bounds__(kThreads) pass_rows(const __grid_constant__ Table table, Output y) {
  const Picture& p = table.picture[blockIdx.y];
  const int line = p.columns.count * y.channels;
  for (int i = static_cast<int>(blockIdx.x); i < y.height; i += static_cast<int>(gridDim.x)) {
    const int k = i - p.rows.first;
    const bool row_shown = k >= 0 && k < p.rows.count;
    const std::int32_t* filter = p.rows.filters + (row_shown ? std::int64_t{k} * (kHead + p.rows.taps) : 0);
    std::uint8_t* to = p.y + i * y.stride[1];
    for (int e = static_cast<int>(threadIdx.x); e < y.width * y.channels; e += kThreads) {
      const int j = e / y.channels, c = e - j * y.channels;
      const int shown = (p.flip ? y.width - 1 - j : j) - p.columns.first;
      std::int32_t sum = 0;
      if (row_shown && shown >= 0 && shown < p.columns.count) {
        sum = TriangleFilter::kHalf;
        const std::uint8_t* from = p.narrow + std::int64_t{filter[0] - p.first_row} * line + shown * y.channels + c;
        for (int t = 0; t < filter[1]; ++t) sum += from[std::int64_t{t} * line] * filter[kHead + t];
      }
      to[c * y.stride[0] + j * y.stride[2]] = TriangleFilter::to_byte(sum);
    }
  }
}

Axis axis_of(int in, int resized, int offset, std::int64_t window) {
  const Visible shown = visible(offset, window, resized);
  return {.filters = nullptr,
          .in = in,
          .resized = resized,
          .taps = TriangleFilter(in, resized).most_taps(),
          .offset = static_cast<int>(std::int64_t{offset} + shown.first),
          .first = shown.first,
          .count = shown.count};
}

std::int64_t filter_bytes(const Axis& axis) {
  return std::int64_t{axis.count} * (kHead + axis.taps) * static_cast<std::int64_t>(sizeof(std::int32_t));
}

/// Everything but the places in scratch.
Picture picture_of(const View& y, const ImageWindow& w) {
  const auto& strides = w.image.strides;
  Picture p{.image = w.image.as<std::uint8_t>() + w.box_top * strides[1] + w.box_left * strides[2],
            .image_stride = {strides[0], strides[1], strides[2]},
            .y = y.as<std::uint8_t>() + w.row * y.stride(0),
            .narrow = nullptr,
            .columns = axis_of(w.box_width, w.resized_width, w.left, y.size(3)),
            .rows = axis_of(w.box_height, w.resized_height, w.top, y.size(2)),
            .first_row = 0,
            .input_rows = 0,
            .flip = w.flip};
  if (p.rows.count > 0) {
    const TriangleFilter filter(p.rows.in, p.rows.resized);
    p.first_row = filter.begin(p.rows.offset);
    p.input_rows = filter.end(p.rows.offset + p.rows.count - 1) - p.first_row;
  }
  return p;
}

std::int64_t narrow_bytes(const Picture& p, std::int64_t channels) { return p.input_rows * channels * p.columns.count; }

void run(const Context& ctx, const View& y, std::span<Picture> pictures) {
  const std::int64_t channels = y.size(1);
  std::int64_t integers = 0, bytes = 0;
  for (const auto& p : pictures) {
    integers += filter_bytes(p.columns) + filter_bytes(p.rows);
    bytes += narrow_bytes(p, channels);
  }
  const Workspace memory = ctx.workspace(static_cast<std::size_t>(integers + bytes));
  char* filters = memory.as<char>();
  auto* narrow = memory.as<std::uint8_t>() + integers;
  Table table{};
  int outputs = 1, rows = 1;
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    Picture& p = pictures[i];
    for (Axis* axis : {&p.columns, &p.rows}) {
      axis->filters = reinterpret_cast<std::int32_t*>(filters);
      filters += filter_bytes(*axis);
    }
    p.narrow = narrow;
    narrow += narrow_bytes(p, channels);
    outputs = std::max(outputs, p.columns.count + p.rows.count);
    rows = std::max(rows, p.input_rows);
    table.picture[i] = p;
  }
  const Output to{.channels = static_cast<int>(channels),
                  .height = static_cast<int>(y.size(2)),
                  .width = static_cast<int>(y.size(3)),
                  .stride = {y.stride(1), y.stride(2), y.stride(3)}};
  const auto count = static_cast<unsigned>(pictures.size());
  const auto blocks = [](std::int64_t wanted) {
    return static_cast<unsigned>(std::clamp<std::int64_t>(wanted, 1, kMostBlocks));
  };
  make_filters<<<dim3(blocks(ceil_div(outputs, kThreads)), count), kThreads, 0, stream_of(ctx)>>>(table);
  check_launch("image_resize");
  pass_columns<<<dim3(blocks(rows), count), kThreads, 0, stream_of(ctx)>>>(table, to.channels);
  check_launch("image_resize");
  pass_rows<<<dim3(blocks(to.height), count), kThreads, 0, stream_of(ctx)>>>(table, to);
  check_launch("image_resize");
}

}  // namespace

void image_resize(const Context& ctx, View y, std::span<const ImageWindow> pictures) {
  if (y.numel() == 0) return;
  std::vector<Picture> round;
  round.reserve(kPictures);
  std::int64_t scratch = 0;
  const auto flush = [&] {
    if (!round.empty()) run(ctx, y, round);
    round.clear();
    scratch = 0;
  };
  for (const auto& window : pictures) {
    const Picture p = picture_of(y, window);
    const std::int64_t bytes = filter_bytes(p.columns) + filter_bytes(p.rows) + narrow_bytes(p, y.size(1));
    if (round.size() == kPictures || scratch + bytes > kMostScratch) flush();
    round.push_back(p);
    scratch += bytes;
  }
  flush();
}

}  // namespace apex::kernels::cuda
