// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/io/image/transform.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

#include "../data/random.hpp"
#include "apex/core/error.hpp"
#include "resize.hpp"

namespace apex::io {
namespace {

constexpr int kTries = 10;

/// Words of one sample: `block` 0 is for flips and shifts, 1 to 10 for the tries of a random crop.
std::array<std::uint32_t, 4> words_of(std::uint64_t seed, std::int64_t epoch, std::int64_t sample, int block) {
  return draw(seed, Draw::augmentation, static_cast<std::uint64_t>(epoch),
              static_cast<std::uint64_t>(sample) << 6 | static_cast<std::uint64_t>(block));
}

int half_even(double value) { return static_cast<int>(std::nearbyint(value)); }

void flip_row(std::uint8_t* row, int width, int channels) {
  for (int a = 0, b = width - 1; a < b; ++a, --b)
    std::swap_ranges(row + a * channels, row + (a + 1) * channels, row + b * channels);
}

/// The window of width x height whose corner lies at (left, top) of the image; zeros where it reaches outside.
void copy_window(const ImageView& image, int left, int top, int width, int height, std::uint8_t* out) {
  const std::size_t row_bytes = static_cast<std::size_t>(width) * image.channels;
  const int begin = std::clamp(-left, 0, width), end = std::clamp(image.width - left, begin, width);
  for (int y = 0; y < height; ++y, out += row_bytes) {
    const int from = top + y;
    if (from < 0 || from >= image.height || begin == end) {
      std::memset(out, 0, row_bytes);
      continue;
    }
    std::memset(out, 0, static_cast<std::size_t>(begin) * image.channels);
    std::memcpy(out + begin * image.channels,
                image.row(from) + static_cast<std::ptrdiff_t>(left + begin) * image.channels,
                static_cast<std::size_t>(end - begin) * image.channels);
    std::memset(out + end * image.channels, 0, static_cast<std::size_t>(width - end) * image.channels);
  }
}

/// Offset of the middle window; a picture that is smaller is padded by (wanted - size) / 2 before, so that the window
/// starts at a negative offset.
int middle(int size, int wanted) { return wanted > size ? -((wanted - size) / 2) : half_even((size - wanted) / 2.0); }

/// `box` of a picture of which `part` holds at least that much.
ImageView inside(const PartView& part, const CropBox& box) {
  const CropBox& have = part.box;
  if (box.left < have.left || box.top < have.top || box.left + box.width > have.left + have.width ||
      box.top + box.height > have.top + have.height)
    fail(Kind::argument,
         concat("Transform: wants ", box.width, 'x', box.height, " pixels at (", box.left, ", ", box.top,
                "), the part holds ", have.width, 'x', have.height, " at (", have.left, ", ", have.top, ')'));
  return crop(part.pixels, {box.left - have.left, box.top - have.top, box.width, box.height});
}

/// What CropMode::center makes of a picture of this size: it becomes width x height, and its part `window` lies at
/// (left, top) of the result.
struct Middle {
  ResizeWindow resize;
  int left = 0, top = 0;

  Middle(const TransformOptions& o, int width, int height) {
    resize.width = width;
    resize.height = height;
    if (o.resize > 0) std::tie(resize.width, resize.height) = shorter_side_size(width, height, o.resize);
    const int x = middle(resize.width, o.width), y = middle(resize.height, o.height);
    left = std::max(-x, 0);
    top = std::max(-y, 0);
    resize.window = {std::max(x, 0), std::max(y, 0), std::min(o.width, resize.width),
                     std::min(o.height, resize.height)};
  }
};

}  // namespace

Image center_crop(const ImageView& image, int width, int height) {
  if (width < 1 || height < 1) fail(Kind::argument, concat("center_crop: to ", width, 'x', height));
  Image out(width, height, image.channels);
  copy_window(image, middle(image.width, width), middle(image.height, height), width, height, out.pixels.data());
  return out;
}

Image flip_horizontal(const ImageView& image) {
  Image out(image.width, image.height, image.channels);
  for (int y = 0; y < image.height; ++y) {
    std::memcpy(out.row(y), image.row(y), out.row_bytes());
    flip_row(out.row(y), out.width, out.channels);
  }
  return out;
}

TransformOptions train_transform(int size, std::uint64_t seed) {
  return {.crop = CropMode::random_resized, .width = size, .height = size, .seed = seed};
}

TransformOptions eval_transform(int size) {
  return {
      .crop = CropMode::center, .width = size, .height = size, .resize = half_even(size * 256.0 / 224.0), .flip = 0};
}

TransformOptions small_train_transform(int height, int width, int pad, std::uint64_t seed) {
  return {.crop = CropMode::pad_random, .width = width, .height = height, .pad = pad, .seed = seed};
}

TransformOptions small_eval_transform(int height, int width) {
  return {.crop = CropMode::fit, .width = width, .height = height, .flip = 0};
}

CropBox draw_resized_crop(const TransformOptions& o, int width, int height, std::int64_t epoch, std::int64_t sample) {
  const double area = static_cast<double>(width) * height;
  const double low = std::log(o.min_ratio), high = std::log(o.max_ratio);
  for (int attempt = 1; attempt <= kTries; ++attempt) {
    const auto words = words_of(o.seed, epoch, sample, attempt);
    const double target = area * (o.min_scale + unit(words[0]) * (o.max_scale - o.min_scale));
    const double ratio = std::exp(low + unit(words[1]) * (high - low));
    const int w = half_even(std::sqrt(target * ratio)), h = half_even(std::sqrt(target / ratio));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    return {below(words[3], width - w + 1), below(words[2], height - h + 1), w, h};
  }
  int w = width, h = height;
  const double ratio = static_cast<double>(width) / height;
  if (ratio < o.min_ratio) h = std::clamp(half_even(w / o.min_ratio), 1, height);
  if (ratio > o.max_ratio) w = std::clamp(half_even(h * o.max_ratio), 1, width);
  return {(width - w) / 2, (height - h) / 2, w, h};
}

Transform::Transform(const TransformOptions& options) : options_(options) {
  const auto& o = options_;
  if (o.width < 1 || o.height < 1)
    fail(Kind::argument, concat("Transform: size ", o.width, 'x', o.height, ", must be at least 1"));
  if (o.resize < 0 || o.pad < 0)
    fail(Kind::argument, concat("Transform: resize ", o.resize, " and pad ", o.pad, " must not be negative"));
  if (!(o.min_scale > 0 && o.min_scale <= o.max_scale && o.max_scale <= 1))
    fail(Kind::argument, concat("Transform: scale ", o.min_scale, " to ", o.max_scale, " is no part of 0 to 1"));
  if (!(o.min_ratio > 0 && o.min_ratio <= o.max_ratio && std::isfinite(o.max_ratio)))
    fail(Kind::argument, concat("Transform: ratio ", o.min_ratio, " to ", o.max_ratio, " is no range above 0"));
  if (!(o.flip >= 0 && o.flip <= 1)) fail(Kind::argument, concat("Transform: flip ", o.flip, " is no chance"));
}

CropBox Transform::needed(int width, int height, std::int64_t epoch, std::int64_t sample) const {
  if (width < 1 || height < 1) fail(Kind::argument, "Transform: empty picture");
  switch (options_.crop) {
    case CropMode::random_resized: return draw_resized_crop(options_, width, height, epoch, sample);
    case CropMode::center: {
      const ResizeWindow resize = Middle(options_, width, height).resize;
      return options_.resize == 0 ? resize.window : resize_reach(width, height, resize);
    }
    case CropMode::pad_random:
    case CropMode::fit: break;
  }
  return {0, 0, width, height};
}

void Transform::apply(const PartView& image, std::int64_t epoch, std::int64_t sample, std::uint8_t* out) const {
  const auto& o = options_;
  const CropBox box = needed(image.width, image.height, epoch, sample);
  const ImageView seen = inside(image, box);
  const auto words = words_of(o.seed, epoch, sample, 0);
  const bool mirrored = unit(words[0]) < o.flip;
  const auto row_bytes = static_cast<std::ptrdiff_t>(o.width) * seen.channels;
  const bool same_size = image.width == o.width && image.height == o.height;
  const ResizeWindow everything{o.width, o.height, {0, 0, o.width, o.height}, mirrored};
  switch (o.crop) {
    case CropMode::random_resized: resize_window(whole(seen), everything, out, row_bytes); return;
    case CropMode::fit:
      if (!same_size) {
        resize_window(whole(seen), everything, out, row_bytes);
        return;
      }
      copy_window(seen, 0, 0, o.width, o.height, out);
      break;
    case CropMode::pad_random: {
      const Image resized = same_size ? Image() : resize_bilinear(seen, o.width, o.height);
      copy_window(same_size ? seen : resized.view(), below(words[1], 2 * o.pad + 1) - o.pad,
                  below(words[2], 2 * o.pad + 1) - o.pad, o.width, o.height, out);
      break;
    }
    case CropMode::center: {
      const Middle middle(o, image.width, image.height);
      if (o.resize == 0) {
        copy_window(seen, -middle.left, -middle.top, o.width, o.height, out);
        break;
      }
      const CropBox& window = middle.resize.window;
      if (window.width < o.width || window.height < o.height)
        std::memset(out, 0, static_cast<std::size_t>(row_bytes) * o.height);
      resize_window({seen, box, image.width, image.height}, middle.resize,
                    out + middle.top * row_bytes + static_cast<std::ptrdiff_t>(middle.left) * seen.channels, row_bytes);
      break;
    }
  }
  if (!mirrored) return;
  for (int y = 0; y < o.height; ++y) flip_row(out + y * row_bytes, o.width, seen.channels);
}

void Transform::apply(const ImageView& image, std::int64_t epoch, std::int64_t sample, std::uint8_t* out) const {
  apply(whole(image), epoch, sample, out);
}

Image Transform::apply(const ImageView& image, std::int64_t epoch, std::int64_t sample) const {
  Image out(options_.width, options_.height, image.channels);
  apply(image, epoch, sample, out.pixels.data());
  return out;
}

}  // namespace apex::io
