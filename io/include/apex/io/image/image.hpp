// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace apex::io {

/// A picture of 8-bit samples that somebody else owns: row y starts at data + y * stride, pixels are interleaved (HWC).
struct ImageView {
  const std::uint8_t* data = nullptr;
  int width = 0;
  int height = 0;
  int channels = 0;
  std::ptrdiff_t stride = 0;  ///< bytes from one row to the next

  const std::uint8_t* row(int y) const noexcept { return data + y * stride; }
};

/// A picture of 8-bit samples, rows without gaps, pixels interleaved (HWC).
struct Image {
  int width = 0;
  int height = 0;
  int channels = 0;
  std::vector<std::uint8_t> pixels;

  Image() = default;
  Image(int width_in, int height_in, int channels_in)
      : width(width_in),
        height(height_in),
        channels(channels_in),
        pixels(static_cast<std::size_t>(width_in) * static_cast<std::size_t>(height_in) *
               static_cast<std::size_t>(channels_in)) {}

  std::uint8_t* row(int y) noexcept { return pixels.data() + static_cast<std::size_t>(y) * row_bytes(); }
  const std::uint8_t* row(int y) const noexcept { return pixels.data() + static_cast<std::size_t>(y) * row_bytes(); }
  std::size_t row_bytes() const noexcept {
    return static_cast<std::size_t>(width) * static_cast<std::size_t>(channels);
  }
  ImageView view() const noexcept {
    return {pixels.data(), width, height, channels, static_cast<std::ptrdiff_t>(row_bytes())};
  }
};

/// A rectangle of pixels: rows top .. top+height, columns left .. left+width.
struct CropBox {
  int left = 0;
  int top = 0;
  int width = 0;
  int height = 0;
  friend bool operator==(const CropBox&, const CropBox&) = default;
};

/// The part of `image` inside the box, without a copy. @throws Kind::argument when the box reaches outside
ImageView crop(const ImageView& image, const CropBox& box);

/// The pixels inside `box` of a picture of width x height.
struct PartView {
  ImageView pixels;
  CropBox box;
  int width = 0;
  int height = 0;
};

/// The same, held.
struct ImagePart {
  Image pixels;
  CropBox box;
  int width = 0;
  int height = 0;

  PartView view() const noexcept { return {pixels.view(), box, width, height}; }
};

/// A picture that is there in full.
ImagePart whole(Image image);
PartView whole(const ImageView& image) noexcept;

enum class ImageFormat { unknown, jpeg, png };

/// What the first bytes say; a file's name says nothing (ImageNet has a PNG that is called .JPEG).
ImageFormat sniff_image_format(std::span<const std::uint8_t> bytes) noexcept;

/// Pictures with more pixels than this are refused before memory is taken for them (a decompression bomb is a few
/// kilobytes that unpack to gigabytes).
inline constexpr std::int64_t kMaxImagePixels = std::int64_t{1} << 28;

/// What a JPEG file's header says, and whether its data look whole.
struct JpegInfo {
  int width = 0;
  int height = 0;
  bool gray = false;  ///< one component; else YCbCr
  /// Chroma samples are this many times coarser than luma's: 1 1 is 4:4:4, 2 1 4:2:2, 2 2 4:2:0.
  int chroma_x = 1;
  int chroma_y = 1;
  friend bool operator==(const JpegInfo&, const JpegInfo&) = default;
};

/// The header of a plain JPEG: 8-bit baseline or extended sequential, Huffman, one scan with all components, gray or
/// YCbCr (as libjpeg decides it), one sampling for both chroma components (1 1 for gray), within kMaxImagePixels, and
/// with data that reach the end marker without another one between. Nothing for all other files, progressive, CMYK and
/// cut ones included: those are for decode_image, which also says what is wrong with them. Reads the bytes once,
/// decodes none; damage that only the Huffman codes show goes unseen.
std::optional<JpegInfo> plain_jpeg_info(std::span<const std::uint8_t> bytes) noexcept;

/// Decodes JPEG (baseline, progressive; gray, YCbCr, RGB, CMYK, YCCK) or PNG (every type and depth, interlaced too).
/// `channels` is 1 or 3. The result equals Pillow's `Image.open(f).convert("RGB")` or `.convert("L")`, that is:
///   - alpha and transparent colours are dropped, not blended: the stored colour stays;
///   - gray to RGB repeats the value; RGB to gray is (19595 R + 38470 G + 7471 B + 32768) >> 16;
///   - four-component JPEG follows Adobe's convention (inverted values): R = K' - (255 - C')K'/255, rounded;
///   - 16 bits keep the high byte (Pillow does so for colour; 16-bit gray, which Pillow clips at 255, keeps it too);
///   - the orientation tag, gamma and colour profiles are not applied.
/// JPEG decoding uses libjpeg's accurate integer transform and smooth chroma upsampling, never a transform of reduced
/// size.
/// `name` (a path) is what messages call the picture.
/// @throws Kind::data: empty, of another format (named where it is a common one: WebP, GIF, ...), damaged, cut short
///         (libjpeg's "premature end" too), or more pixels than `max_pixels`; Kind::argument: channels is neither 1 nor
///         3
Image decode_image(std::span<const std::uint8_t> bytes, int channels, std::string_view name,
                   std::int64_t max_pixels = kMaxImagePixels);

/// Told a picture's width and height, gives the box of pixels that is wanted.
using ChooseBox = std::function<CropBox(int width, int height)>;

/// The part of a picture that `choose` asks for, or a larger one that holds it; every pixel is that of decode_image().
/// Of a JPEG with one scan, what lies below the box is not read, and what lies above and beside it only as far as the
/// format demands; the other kinds are read in full. So damage below the box may go unnoticed, but not a file that
/// is cut short.
/// @throws as decode_image; Kind::argument when the box is empty or reaches outside the picture
ImagePart decode_image_part(std::span<const std::uint8_t> bytes, int channels, std::string_view name,
                            const ChooseBox& choose, std::int64_t max_pixels = kMaxImagePixels);

/// Baseline JPEG, 4:2:0 chroma for colour, quality 1 to 100. @throws Kind::argument
std::vector<std::uint8_t> encode_jpeg(const ImageView& image, int quality);

/// 8-bit gray (1 channel), gray with alpha (2), RGB (3) or RGBA (4). @throws Kind::argument
std::vector<std::uint8_t> encode_png(const ImageView& image);

/// Gray from RGB or RGB from gray by the formulas above; the same count gives a copy.
/// @throws Kind::argument unless both counts are 1 or 3
Image convert_channels(const ImageView& image, int channels);

}  // namespace apex::io
