// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include "apex/core/error.hpp"
#include "apex/io/data/sources.hpp"
#include "random.hpp"

namespace apex::io {
namespace {
constexpr int kGrid = 4;  // a class's pattern: kGrid x kGrid patches of one value a channel

/// Value of a patch, 64 .. 191, so that noise of +-64 stays inside a byte.
int patch_value(std::uint64_t seed, std::int64_t label, int patch, int channel) {
  const auto words = draw(seed, Draw::pattern, static_cast<std::uint64_t>(label), static_cast<std::uint64_t>(patch));
  return 64 + below(words[channel], 128);
}
}  // namespace

SyntheticDataset::SyntheticDataset(std::int64_t size, int classes, int channels, int height, int width,
                                   std::uint64_t seed, std::int64_t first)
    : size_(size), first_(first), channels_(channels), height_(height), width_(width), seed_(seed) {
  if (size < 1 || classes < 1 || height < 1 || width < 1 || first < 0)
    fail(Kind::argument, concat("synthetic data: size ", size, ", classes ", classes, ", pictures ", height, 'x', width,
                                ": each must be at least 1"));
  if (channels != 1 && channels != 3)
    fail(Kind::argument, concat("synthetic data: channels is ", channels, ", takes 1 or 3"));
  for (int c = 0; c < classes; ++c) class_names_.push_back(concat("class", c));
}

std::int64_t SyntheticDataset::label(std::int64_t i) const {
  return (first_ + i) % static_cast<std::int64_t>(class_names_.size());
}

std::string SyntheticDataset::sample_name(std::int64_t i) const { return concat("synthetic ", first_ + i); }

Image SyntheticDataset::load(std::int64_t i) const {
  if (i < 0 || i >= size_) fail(Kind::argument, concat("synthetic data: no sample ", i, " of ", size_));
  Image out(width_, height_, channels_);
  std::uint8_t* noise = out.pixels.data();
  const std::size_t bytes = out.pixels.size();
  for (std::size_t at = 0; at < bytes; at += 16) {
    const auto words = draw(seed_, Draw::noise, static_cast<std::uint64_t>(first_ + i), at / 16);
    for (std::size_t k = 0; k < std::min<std::size_t>(16, bytes - at); ++k)
      noise[at + k] = static_cast<std::uint8_t>((words[k / 4] >> (8 * (k % 4)) & 0xff) / 2);
  }
  int pattern[kGrid * kGrid][3];
  for (int p = 0; p < kGrid * kGrid; ++p)
    for (int c = 0; c < channels_; ++c) pattern[p][c] = patch_value(seed_, label(i), p, c);
  for (int y = 0; y < height_; ++y) {
    std::uint8_t* row = out.row(y);
    for (int x = 0; x < width_; ++x) {
      const int* patch = pattern[y * kGrid / height_ * kGrid + x * kGrid / width_];
      for (int c = 0; c < channels_; ++c, ++row) *row = static_cast<std::uint8_t>(*row + patch[c] - 64);
    }
  }
  return out;
}

}  // namespace apex::io
