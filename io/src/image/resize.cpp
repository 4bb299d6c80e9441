// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstring>

#include "apex/core/error.hpp"
#include "apex/core/triangle_filter.hpp"
#include "apex/io/image/transform.hpp"

namespace apex::io {
namespace {

/// Along one axis: output i is the sum of `taps` weights from input first[i] on (unused ones are zero).
struct Filter {
  int taps = 0;
  std::vector<int> first, count;
  std::vector<std::int32_t> weights;

  Filter(int in, int out) : first(out), count(out) {
    const TriangleFilter filter(in, out);
    taps = filter.most_taps();
    weights.assign(static_cast<std::size_t>(out) * taps, 0);
    for (int i = 0; i < out; ++i) {
      first[i] = filter.begin(i);
      count[i] = filter.end(i) - first[i];
      filter.weights(i, weights.data() + static_cast<std::size_t>(i) * taps);
    }
  }
  const std::int32_t* of(int i) const { return weights.data() + static_cast<std::size_t>(i) * taps; }
};

template <int C>
void resize_row(const std::uint8_t* in, std::uint8_t* out, int width, const Filter& filter) {
  for (int x = 0; x < width; ++x) {
    const std::int32_t* weights = filter.of(x);
    const std::uint8_t* from = in + static_cast<std::ptrdiff_t>(filter.first[x]) * C;
    std::int32_t sum[C];
    for (auto& s : sum) s = TriangleFilter::kHalf;
    for (int k = 0; k < filter.count[x]; ++k, from += C)
      for (int c = 0; c < C; ++c) sum[c] += from[c] * weights[k];
    for (int c = 0; c < C; ++c) out[x * C + c] = TriangleFilter::to_byte(sum[c]);
  }
}

void resize_row(const std::uint8_t* in, std::uint8_t* out, int width, int channels, const Filter& filter) {
  switch (channels) {
    case 1: return resize_row<1>(in, out, width, filter);
    case 2: return resize_row<2>(in, out, width, filter);
    case 3: return resize_row<3>(in, out, width, filter);
    case 4: return resize_row<4>(in, out, width, filter);
    default: fail(Kind::argument, concat("resize_bilinear: ", channels, " channels, takes 1 to 4"));
  }
}

}  // namespace

Image resize_bilinear(const ImageView& image, int width, int height) {
  if (image.width < 1 || image.height < 1 || width < 1 || height < 1)
    fail(Kind::argument, concat("resize_bilinear: from ", image.width, 'x', image.height, " to ", width, 'x', height,
                                ", sizes must be at least 1"));
  const Filter across(image.width, width), down(image.height, height);
  Image narrow(width, image.height, image.channels);
  for (int y = 0; y < image.height; ++y) {
    if (width == image.width)
      std::memcpy(narrow.row(y), image.row(y), narrow.row_bytes());
    else
      resize_row(image.row(y), narrow.row(y), width, image.channels, across);
  }
  if (height == image.height) return narrow;

  Image out(width, height, image.channels);
  const auto bytes = static_cast<int>(out.row_bytes());
  std::vector<std::int32_t> sums(bytes);
  for (int y = 0; y < height; ++y) {
    std::fill(sums.begin(), sums.end(), TriangleFilter::kHalf);
    for (int k = 0; k < down.count[y]; ++k) {
      const std::uint8_t* from = narrow.row(down.first[y] + k);
      const std::int32_t weight = down.of(y)[k];
      for (int x = 0; x < bytes; ++x) sums[x] += from[x] * weight;
    }
    std::uint8_t* to = out.row(y);
    for (int x = 0; x < bytes; ++x) to[x] = TriangleFilter::to_byte(sums[x]);
  }
  return out;
}

ImageSize shorter_side_size(int width, int height, int size) {
  if (width < 1 || height < 1 || size < 1)
    fail(Kind::argument,
         concat("resize_shorter_side: from ", width, 'x', height, " to ", size, ", sizes must be at least 1"));
  const auto longer = [size](int other, int shorter) {
    return static_cast<int>(static_cast<std::int64_t>(size) * other / shorter);
  };
  if (width <= height) return {size, longer(height, width)};
  return {longer(width, height), size};
}

Image resize_shorter_side(const ImageView& image, int size) {
  const auto to = shorter_side_size(image.width, image.height, size);
  return resize_bilinear(image, to.width, to.height);
}

}  // namespace apex::io
