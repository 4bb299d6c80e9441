// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/io/image/image.hpp"

#include <algorithm>
#include <cstring>

#include "apex/core/error.hpp"
#include "decoders.hpp"

namespace apex::io {
namespace {
constexpr std::uint8_t kPngSignature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

/// The name of a picture format that is known, but not read; empty for anything else.
std::string_view foreign_format(std::span<const std::uint8_t> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), std::min<std::size_t>(bytes.size(), 16));
  const auto has = [&](std::size_t at, std::string_view mark) {
    return text.size() >= at + mark.size() && text.substr(at, mark.size()) == mark;
  };
  using namespace std::string_view_literals;
  if (has(0, "RIFF") && has(8, "WEBP")) return "WebP";
  if (has(0, "GIF87a") || has(0, "GIF89a")) return "GIF";
  if (has(0, "II*\0"sv) || has(0, "MM\0*"sv)) return "TIFF";
  if (has(0, "\0\0\0\x0cjP  "sv) || has(0, "\xff\x4f\xff\x51"sv)) return "JPEG 2000";
  if (has(0, "\xff\x0a"sv) || has(0, "\0\0\0\x0cJXL "sv)) return "JPEG XL";
  if (has(4, "ftypavif")) return "AVIF";
  if (has(4, "ftypheic") || has(4, "ftypmif1")) return "HEIF";
  if (has(0, "BM") && text.size() >= 14 && has(6, "\0\0\0\0"sv)) return "BMP";
  return {};
}

}  // namespace

ImageFormat sniff_image_format(std::span<const std::uint8_t> bytes) noexcept {
  if (bytes.size() >= 3 && bytes[0] == 0xff && bytes[1] == 0xd8 && bytes[2] == 0xff) return ImageFormat::jpeg;
  if (bytes.size() >= 8 && std::equal(std::begin(kPngSignature), std::end(kPngSignature), bytes.begin()))
    return ImageFormat::png;
  return ImageFormat::unknown;
}

void check_pixels(std::int64_t width, std::int64_t height, std::int64_t max_pixels, std::string_view name) {
  if (width < 1 || height < 1) fail(Kind::data, concat(name, ": a picture of ", width, 'x', height));
  if (width > max_pixels / height)
    fail(Kind::data, concat(name, ": ", width, 'x', height, " pixels are more than the limit of ", max_pixels));
}

void check_box(const CropBox& box, int width, int height, std::string_view who) {
  if (box.left < 0 || box.top < 0 || box.width < 1 || box.height < 1 || box.width > width - box.left ||
      box.height > height - box.top)
    fail(Kind::argument, concat(who, ": box ", box.width, 'x', box.height, " at (", box.left, ", ", box.top,
                                ") is not inside a picture of ", width, 'x', height));
}

ImageView crop(const ImageView& image, const CropBox& box) {
  check_box(box, image.width, image.height, "crop");
  return {image.row(box.top) + static_cast<std::ptrdiff_t>(box.left) * image.channels, box.width, box.height,
          image.channels, image.stride};
}

ImagePart whole(Image image) {
  const int width = image.width, height = image.height;
  return {std::move(image), {0, 0, width, height}, width, height};
}

PartView whole(const ImageView& image) noexcept {
  return {image, {0, 0, image.width, image.height}, image.width, image.height};
}

ImagePart decode_image_part(std::span<const std::uint8_t> bytes, int channels, std::string_view name,
                            const ChooseBox& choose, std::int64_t max_pixels) {
  if (channels != 1 && channels != 3)
    fail(Kind::argument, concat("decode_image: channels is ", channels, ", takes 1 or 3"));
  if (bytes.empty()) fail(Kind::data, concat(name, ": an empty file, not a picture"));
  switch (sniff_image_format(bytes)) {
    case ImageFormat::jpeg: return decode_jpeg(bytes, channels, name, choose, max_pixels);
    case ImageFormat::png: {
      ImagePart out = whole(decode_png(bytes, channels, name, max_pixels));
      check_box(choose(out.width, out.height), out.width, out.height, name);
      return out;
    }
    case ImageFormat::unknown: break;
  }
  const std::string_view format = foreign_format(bytes);
  if (!format.empty()) fail(Kind::data, concat(name, ": ", format, " is not supported; convert it to JPEG or PNG"));
  fail(Kind::data, concat(name, ": neither JPEG nor PNG by its first bytes"));
}

Image decode_image(std::span<const std::uint8_t> bytes, int channels, std::string_view name, std::int64_t max_pixels) {
  const auto everything = [](int width, int height) { return CropBox{0, 0, width, height}; };
  return decode_image_part(bytes, channels, name, everything, max_pixels).pixels;
}

void convert_row(const std::uint8_t* from, int from_channels, std::uint8_t* to, int channels, int width) {
  if (channels == from_channels)
    std::memcpy(to, from, static_cast<std::size_t>(width) * channels);
  else if (channels == 3)
    for (int x = 0; x < width; ++x) std::memset(to + 3 * x, from[x], 3);
  else
    for (int x = 0; x < width; ++x) to[x] = luma(from[3 * x], from[3 * x + 1], from[3 * x + 2]);
}

Image convert_channels(const ImageView& image, int channels) {
  const bool known = (image.channels == 1 || image.channels == 3) && (channels == 1 || channels == 3);
  if (!known)
    fail(Kind::argument, concat("convert_channels: from ", image.channels, " to ", channels, ", takes 1 and 3"));
  Image out(image.width, image.height, channels);
  for (int y = 0; y < image.height; ++y) convert_row(image.row(y), image.channels, out.row(y), channels, image.width);
  return out;
}

}  // namespace apex::io
