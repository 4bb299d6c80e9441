// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <jpeglib.h>  // wants size_t and FILE first

#include "apex/io/image/image.hpp"

// JPEG files of every kind, made by libjpeg itself.

namespace apex::test {

struct JpegOptions {
  int chroma_x = 2, chroma_y = 2;  ///< chroma samples are this many times coarser
  int quality = 92;
  int restart_interval = 0;
  bool progressive = false;
  bool stores_rgb = false;  ///< no YCbCr, and an Adobe marker that says so
};

/// `image` of 1 or 3 channels as a file. An error of libjpeg's ends the program.
inline std::vector<std::uint8_t> encode_jpeg_as(const io::Image& image, const JpegOptions& options = {}) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* buffer = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &buffer, &size);
  info.image_width = static_cast<JDIMENSION>(image.width);
  info.image_height = static_cast<JDIMENSION>(image.height);
  info.input_components = image.channels;
  info.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&info);
  if (options.stores_rgb) jpeg_set_colorspace(&info, JCS_RGB);
  jpeg_set_quality(&info, options.quality, TRUE);
  if (image.channels == 3 && !options.stores_rgb) {
    info.comp_info[0].h_samp_factor = options.chroma_x;
    info.comp_info[0].v_samp_factor = options.chroma_y;
  }
  info.restart_interval = static_cast<unsigned>(options.restart_interval);
  if (options.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = const_cast<std::uint8_t*>(image.row(static_cast<int>(info.next_scanline)));
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  std::vector<std::uint8_t> file(buffer, buffer + size);
  jpeg_destroy_compress(&info);
  std::free(buffer);
  return file;
}

/// A smooth picture with some edges, as photographs have them.
inline io::Image photo_like(int width, int height, int channels, int seed) {
  io::Image image(width, height, channels);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c) {
        const int slope = (x * (3 + c) + y * (2 + seed % 5)) * 2 % 510;
        const bool inside =
            (x - width / 3) * (x - width / 3) + (y - height / 2) * (y - height / 2) < height * height / 9;
        const int value = (slope < 255 ? slope : 510 - slope) / 2 + (inside ? 60 + 20 * c : 30 + seed % 40);
        image.row(y)[x * channels + c] = static_cast<std::uint8_t>(value > 255 ? 255 : value);
      }
  return image;
}

}  // namespace apex::test
