// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <cstring>

#include "apex/core/error.hpp"
#include "apex/io/image/transform.hpp"

namespace apex::io {
namespace {

constexpr int kFractionBits = 22;  // 8 bits of value and 22 of weight leave two for sums beyond one
constexpr int kHalf = 1 << (kFractionBits - 1);

/// Along one axis: output i is the sum of `taps` weights from input first[i] on (unused ones are zero).
struct Filter {
  int taps = 0;
  std::vector<int> first, count;
  std::vector<std::int32_t> weights;

  const std::int32_t* of(int i) const { return weights.data() + static_cast<std::size_t>(i) * taps; }
};

Filter triangle_filter(int in, int out) {
  const double scale = static_cast<double>(in) / out;
  const double widen = std::max(scale, 1.0);
  Filter filter;
  filter.taps = static_cast<int>(std::ceil(widen)) * 2 + 1;
  filter.first.resize(out);
  filter.count.resize(out);
  filter.weights.assign(static_cast<std::size_t>(out) * filter.taps, 0);
  std::vector<double> raw(filter.taps);
  for (int i = 0; i < out; ++i) {
    const double center = (i + 0.5) * scale;
    const int begin = std::max(static_cast<int>(center - widen + 0.5), 0);
    const int end = std::min(static_cast<int>(center + widen + 0.5), in);
    double sum = 0;
    for (int x = begin; x < end; ++x) {
      raw[x - begin] = std::max(0.0, 1.0 - std::abs((x - center + 0.5) * (1.0 / widen)));
      sum += raw[x - begin];
    }
    filter.first[i] = begin;
    filter.count[i] = end - begin;
    std::int32_t* to = filter.weights.data() + static_cast<std::size_t>(i) * filter.taps;
    for (int k = 0; k < end - begin; ++k) {
      const double weight = sum != 0 ? raw[k] / sum : raw[k];
      to[k] = static_cast<std::int32_t>(weight * (1 << kFractionBits) + 0.5);  // weights are never negative
    }
  }
  return filter;
}

std::uint8_t to_byte(std::int32_t sum) { return static_cast<std::uint8_t>(std::clamp(sum >> kFractionBits, 0, 255)); }

template <int C>
void resize_row(const std::uint8_t* in, std::uint8_t* out, int width, const Filter& filter) {
  for (int x = 0; x < width; ++x) {
    const std::int32_t* weights = filter.of(x);
    const std::uint8_t* from = in + static_cast<std::ptrdiff_t>(filter.first[x]) * C;
    std::int32_t sum[C];
    for (auto& s : sum) s = kHalf;
    for (int k = 0; k < filter.count[x]; ++k, from += C)
      for (int c = 0; c < C; ++c) sum[c] += from[c] * weights[k];
    for (int c = 0; c < C; ++c) out[x * C + c] = to_byte(sum[c]);
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
  const Filter across = triangle_filter(image.width, width), down = triangle_filter(image.height, height);
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
    std::fill(sums.begin(), sums.end(), kHalf);
    for (int k = 0; k < down.count[y]; ++k) {
      const std::uint8_t* from = narrow.row(down.first[y] + k);
      const std::int32_t weight = down.of(y)[k];
      for (int x = 0; x < bytes; ++x) sums[x] += from[x] * weight;
    }
    std::uint8_t* to = out.row(y);
    for (int x = 0; x < bytes; ++x) to[x] = to_byte(sums[x]);
  }
  return out;
}

Image resize_shorter_side(const ImageView& image, int size) {
  if (image.width < 1 || image.height < 1 || size < 1)
    fail(Kind::argument, concat("resize_shorter_side: from ", image.width, 'x', image.height, " to ", size,
                                ", sizes must be at least 1"));
  const auto longer = [size](int other, int shorter) {
    return static_cast<int>(static_cast<std::int64_t>(size) * other / shorter);
  };
  if (image.width <= image.height) return resize_bilinear(image, size, longer(image.height, image.width));
  return resize_bilinear(image, longer(image.width, image.height), size);
}

}  // namespace apex::io
