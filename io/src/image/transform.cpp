// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/io/image/transform.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

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

/// What shows of a placement: a window of its resized part, and where that lies in the result, with zeros around.
struct Shown {
  ResizeWindow resize;
  int left = 0, top = 0;

  Shown(const Placement& p, int width, int height) {
    const int x = std::max(p.left, 0), y = std::max(p.top, 0);
    const CropBox window{x, y, std::min(p.left + width, p.resized_width) - x,
                         std::min(p.top + height, p.resized_height) - y};
    resize = {p.resized_width, p.resized_height, window, p.flip};
    left = p.flip ? width - (x - p.left) - window.width : x - p.left;
    top = y - p.top;
  }
  bool nothing() const { return resize.window.width < 1 || resize.window.height < 1; }
};

bool keeps_size(const Placement& p) { return p.box.width == p.resized_width && p.box.height == p.resized_height; }

/// The part of the picture that is looked at. Where nothing shows that is the box, so that damage is noticed.
CropBox reach_of(const Placement& p, const Shown& shown) {
  if (shown.nothing()) return p.box;
  const CropBox reach = keeps_size(p) ? shown.resize.window : resize_reach(p.box.width, p.box.height, shown.resize);
  return {p.box.left + reach.left, p.box.top + reach.top, reach.width, reach.height};
}

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

Placement Transform::place(int image_width, int image_height, std::int64_t epoch, std::int64_t sample) const {
  const auto& o = options_;
  if (image_width < 1 || image_height < 1) fail(Kind::argument, "Transform: empty picture");
  const auto words = words_of(o.seed, epoch, sample, 0);
  Placement out{.box = {0, 0, image_width, image_height},
                .resized_width = o.width,
                .resized_height = o.height,
                .flip = unit(words[0]) < o.flip};
  switch (o.crop) {
    case CropMode::random_resized: out.box = draw_resized_crop(o, image_width, image_height, epoch, sample); break;
    case CropMode::pad_random:
      out.left = below(words[1], 2 * o.pad + 1) - o.pad;
      out.top = below(words[2], 2 * o.pad + 1) - o.pad;
      break;
    case CropMode::center: {
      const auto size =
          o.resize == 0 ? ImageSize{image_width, image_height} : shorter_side_size(image_width, image_height, o.resize);
      out.resized_width = size.width;
      out.resized_height = size.height;
      out.left = middle(size.width, o.width);
      out.top = middle(size.height, o.height);
      break;
    }
    case CropMode::fit: break;
  }
  return out;
}

CropBox Transform::needed(int image_width, int image_height, std::int64_t epoch, std::int64_t sample) const {
  const Placement p = place(image_width, image_height, epoch, sample);
  return reach_of(p, Shown(p, options_.width, options_.height));
}

void Transform::apply(const PartView& image, const Placement& p, std::uint8_t* out) const {
  if (p.box.width < 1 || p.box.height < 1 || p.resized_width < 1 || p.resized_height < 1)
    fail(Kind::argument, concat("Transform: a box of ", p.box.width, 'x', p.box.height, " cannot become ",
                                p.resized_width, 'x', p.resized_height, ", sizes must be at least 1"));
  const Shown shown(p, options_.width, options_.height);
  const CropBox box = reach_of(p, shown);
  const ImageView seen = inside(image, box);
  const CropBox& window = shown.resize.window;
  const auto row_bytes = static_cast<std::ptrdiff_t>(options_.width) * seen.channels;
  if (window.width < options_.width || window.height < options_.height)
    std::memset(out, 0, static_cast<std::size_t>(row_bytes) * options_.height);
  if (shown.nothing()) return;
  std::uint8_t* to = out + shown.top * row_bytes + static_cast<std::ptrdiff_t>(shown.left) * seen.channels;
  if (!keeps_size(p)) {
    const CropBox place_in_box{box.left - p.box.left, box.top - p.box.top, box.width, box.height};
    resize_window({seen, place_in_box, p.box.width, p.box.height}, shown.resize, to, row_bytes);
    return;
  }
  for (int y = 0; y < window.height; ++y, to += row_bytes) {
    std::memcpy(to, seen.row(y), static_cast<std::size_t>(window.width) * seen.channels);
    if (p.flip) flip_row(to, window.width, seen.channels);
  }
}

void Transform::apply(const PartView& image, std::int64_t epoch, std::int64_t sample, std::uint8_t* out) const {
  apply(image, place(image.width, image.height, epoch, sample), out);
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
