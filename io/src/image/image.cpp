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
}

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

Image decode_image(std::span<const std::uint8_t> bytes, int channels, std::string_view name, std::int64_t max_pixels) {
  if (channels != 1 && channels != 3)
    fail(Kind::argument, concat("decode_image: channels is ", channels, ", takes 1 or 3"));
  if (bytes.empty()) fail(Kind::data, concat(name, ": an empty file, not a picture"));
  switch (sniff_image_format(bytes)) {
    case ImageFormat::jpeg: return decode_jpeg(bytes, channels, name, max_pixels);
    case ImageFormat::png: return decode_png(bytes, channels, name, max_pixels);
    case ImageFormat::unknown: break;
  }
  fail(Kind::data, concat(name, ": neither JPEG nor PNG by its first bytes"));
}

Image convert_channels(const ImageView& image, int channels) {
  const bool known = (image.channels == 1 || image.channels == 3) && (channels == 1 || channels == 3);
  if (!known)
    fail(Kind::argument, concat("convert_channels: from ", image.channels, " to ", channels, ", takes 1 and 3"));
  Image out(image.width, image.height, channels);
  for (int y = 0; y < image.height; ++y) {
    const std::uint8_t* from = image.row(y);
    std::uint8_t* to = out.row(y);
    if (channels == image.channels)
      std::memcpy(to, from, out.row_bytes());
    else if (channels == 3)
      for (int x = 0; x < image.width; ++x) std::memset(to + 3 * x, from[x], 3);
    else
      for (int x = 0; x < image.width; ++x) to[x] = luma(from[3 * x], from[3 * x + 1], from[3 * x + 2]);
  }
  return out;
}

}  // namespace apex::io
