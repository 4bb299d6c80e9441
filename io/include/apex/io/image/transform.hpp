// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "apex/io/image/image.hpp"

namespace apex::io {

/// Bilinear with antialiasing, bit for bit what Pillow's `resize(size, BILINEAR)` gives: columns first, then rows, the
/// triangle's support widened by the scale when shrinking, weights rounded to 22 fractional bits (half away from zero),
/// every pass rounded to 8 bits by adding half a unit. @throws Kind::argument on an empty picture or size
Image resize_bilinear(const ImageView& image, int width, int height);

struct ImageSize {
  int width = 0;
  int height = 0;
};

/// Shorter side to `size`, the other to floor(size * longer / shorter). @throws Kind::argument
ImageSize shorter_side_size(int width, int height, int size);
Image resize_shorter_side(const ImageView& image, int size);

/// The middle width x height; offsets are (image - wanted) / 2, halves to even. A picture that is smaller is padded
/// with zeros on both sides first. @throws Kind::argument
Image center_crop(const ImageView& image, int width, int height);

Image flip_horizontal(const ImageView& image);

/// How a sample becomes a network's input.
enum class CropMode {
  random_resized,  ///< a random part of random area and shape, resized (training on photographs)
  pad_random,      ///< zeros around, then a random window of the original size (training on small pictures)
  center,          ///< shorter side to `resize`, then the middle (evaluation)
  fit,             ///< the whole picture resized to the wanted size where it differs (evaluation of small pictures)
};

struct TransformOptions {
  CropMode crop = CropMode::random_resized;
  int width = 224;
  int height = 224;
  int resize = 256;         ///< center: the shorter side first becomes this; 0 leaves the size
  double min_scale = 0.08;  ///< random_resized: part of the area
  double max_scale = 1.0;
  double min_ratio = 3.0 / 4.0;  ///< random_resized: width over height
  double max_ratio = 4.0 / 3.0;
  int pad = 4;        ///< pad_random: on each side
  double flip = 0.5;  ///< chance of a left-right mirror; 0 for evaluation
  std::uint64_t seed = 0;
};

/// random_resized with a mirror, as ImageNet training does.
TransformOptions train_transform(int size, std::uint64_t seed);
/// Shorter side to round(size * 256 / 224), then the middle.
TransformOptions eval_transform(int size);
/// Small pictures such as Fashion-MNIST: pad, random window, mirror.
TransformOptions small_train_transform(int height, int width, int pad, std::uint64_t seed);
/// Small pictures: as they are (resized where the size differs).
TransformOptions small_eval_transform(int height, int width);

/// The box that random_resized draws for a picture of this size. Up to ten times: area = uniform(min_scale, max_scale)
/// of the picture's, log(ratio) uniform; width = round(sqrt(area * ratio)), height = round(sqrt(area / ratio)), halves
/// to even; the first that fits is placed uniformly. If none fits: the largest middle box with a ratio in bounds.
CropBox draw_resized_crop(const TransformOptions& options, int width, int height, std::int64_t epoch,
                          std::int64_t sample);

/// What a transform does to one picture: the part inside `box` becomes resized_width x resized_height (resize_bilinear;
/// nothing where the box has that size), the result is the window of the transform's size whose corner lies at
/// (left, top) of it, with zeros where the window reaches outside, mirrored left to right if `flip`.
struct Placement {
  CropBox box;
  int resized_width = 0;
  int resized_height = 0;
  int left = 0;
  int top = 0;
  bool flip = false;
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// Applies TransformOptions. What is drawn depends on (seed, epoch, sample) alone, so a sample looks the same whatever
/// the number of ranks or workers and wherever a run was resumed. Safe to call from many threads.
class Transform {
 public:
  /// @throws Kind::argument on sizes below 1, an empty range of scale or ratio, or a chance outside 0 to 1
  explicit Transform(const TransformOptions& options);

  const TransformOptions& options() const noexcept { return options_; }
  int width() const noexcept { return options_.width; }
  int height() const noexcept { return options_.height; }

  /// What is drawn for a picture of this size: the one place where that happens. @throws Kind::argument on an empty one
  Placement place(int image_width, int image_height, std::int64_t epoch, std::int64_t sample) const;

  /// The part of a picture of this size that apply() looks at for this sample: all that needs to be decoded.
  /// @throws Kind::argument on an empty picture
  CropBox needed(int image_width, int image_height, std::int64_t epoch, std::int64_t sample) const;

  /// Writes width * height * channels bytes (HWC, channels as in `image`) to `out`. The result for a part that holds
  /// what is needed is that for the whole picture. @throws Kind::argument: an empty picture; a part that lacks some of
  /// it
  void apply(const PartView& image, std::int64_t epoch, std::int64_t sample, std::uint8_t* out) const;
  void apply(const ImageView& image, std::int64_t epoch, std::int64_t sample, std::uint8_t* out) const;
  /// The same with the placement given. @throws Kind::argument also when its box or resized size is empty
  void apply(const PartView& image, const Placement& placement, std::uint8_t* out) const;
  Image apply(const ImageView& image, std::int64_t epoch, std::int64_t sample) const;

 private:
  TransformOptions options_;
};

}  // namespace apex::io
