// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/io/image/image.hpp"

namespace apex::io {

/// The two decoders behind decode_image_part and decode_image; `channels` and the limit are as there. The first gives
/// exactly the box.
ImagePart decode_jpeg(std::span<const std::uint8_t> bytes, int channels, std::string_view name, const ChooseBox& choose,
                      std::int64_t max_pixels);
Image decode_png(std::span<const std::uint8_t> bytes, int channels, std::string_view name, std::int64_t max_pixels);

/// Throws Kind::data: more pixels than the limit.
void check_pixels(std::int64_t width, std::int64_t height, std::int64_t max_pixels, std::string_view name);

/// Throws Kind::argument: the box is empty or not inside a picture of this size.
void check_box(const CropBox& box, int width, int height, std::string_view who);

/// Pixels of one row, gray to RGB, RGB to gray, or as they are.
void convert_row(const std::uint8_t* from, int from_channels, std::uint8_t* to, int channels, int width);

/// Pillow's luma.
inline std::uint8_t luma(int r, int g, int b) {
  return static_cast<std::uint8_t>((r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16);
}

}  // namespace apex::io
