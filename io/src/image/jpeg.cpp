// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include <jpeglib.h>  // wants size_t and FILE first

#include <jerror.h>  // wants jpeglib.h first

#include "apex/core/error.hpp"
#include "decoders.hpp"

// libjpeg reports an error by not returning. Every call into it sits in a function below that sets the jump, holds only
// plain values, and is left by `return`: the jump passes over no C++ object.

namespace apex::io {
namespace {

struct Errors {
  jpeg_error_mgr manager;
  std::jmp_buf jump;
  char text[JMSG_LENGTH_MAX];
  bool damaged;  // a warning after which pixels are made up
};

void on_error(j_common_ptr info) {
  auto* errors = reinterpret_cast<Errors*>(info->err);
  info->err->format_message(info, errors->text);
  std::longjmp(errors->jump, 1);
}

void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  auto* errors = reinterpret_cast<Errors*>(info->err);
  switch (info->err->msg_code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC:
      if (!errors->damaged) info->err->format_message(info, errors->text);
      errors->damaged = true;
      break;
    default: break;  // stray bytes between markers and the like: real data sets have them, and no pixel suffers
  }
}

jpeg_error_mgr* set_up(Errors& errors) {
  jpeg_std_error(&errors.manager);
  errors.manager.error_exit = on_error;
  errors.manager.emit_message = on_message;
  errors.text[0] = '\0';
  errors.damaged = false;
  return &errors.manager;
}

struct Decompress {
  jpeg_decompress_struct info{};
  Errors errors;
  Decompress() { info.err = set_up(errors); }
  Decompress(const Decompress&) = delete;
  Decompress& operator=(const Decompress&) = delete;
  ~Decompress() { jpeg_destroy_decompress(&info); }
};

bool read_header(Decompress& d, const std::uint8_t* bytes, unsigned long size) {
  if (setjmp(d.errors.jump)) return false;
  jpeg_create_decompress(&d.info);
  jpeg_mem_src(&d.info, bytes, size);
  jpeg_read_header(&d.info, TRUE);
  return true;
}

bool start(Decompress& d) {
  if (setjmp(d.errors.jump)) return false;
  jpeg_start_decompress(&d.info);
  return true;
}

bool read_rows(Decompress& d, std::uint8_t* to, std::size_t row_bytes) {
  if (setjmp(d.errors.jump)) return false;
  while (d.info.output_scanline < d.info.output_height) {
    JSAMPROW row = to + d.info.output_scanline * row_bytes;
    if (jpeg_read_scanlines(&d.info, &row, 1) == 0) return false;
  }
  jpeg_finish_decompress(&d.info);
  return true;
}

[[noreturn]] void fail_damaged(const Decompress& d, std::string_view name) {
  fail(Kind::data, concat(name, ": damaged JPEG: ", d.errors.text));
}

int rounded_product(int a, int b) {  // a * b / 255, to nearest
  const int t = a * b + 128;
  return ((t >> 8) + t) >> 8;
}

/// Four stored values, inverted as Adobe writes them, to RGB.
Image from_cmyk(const Image& stored) {
  Image out(stored.width, stored.height, 3);
  const std::uint8_t* from = stored.pixels.data();
  for (std::size_t p = 0; p < out.pixels.size(); p += 3, from += 4)
    for (int c = 0; c < 3; ++c)
      out.pixels[p + c] = static_cast<std::uint8_t>(from[3] - rounded_product(255 - from[c], from[3]));
  return out;
}

struct Compress {
  jpeg_compress_struct info{};
  Errors errors;
  std::uint8_t* buffer = nullptr;
  unsigned long size = 0;
  Compress() { info.err = set_up(errors); }
  Compress(const Compress&) = delete;
  Compress& operator=(const Compress&) = delete;
  ~Compress() {
    jpeg_destroy_compress(&info);
    std::free(buffer);
  }
};

bool write_rows(Compress& c, const ImageView& image, int quality) {
  if (setjmp(c.errors.jump)) return false;
  jpeg_create_compress(&c.info);
  jpeg_mem_dest(&c.info, &c.buffer, &c.size);
  c.info.image_width = static_cast<JDIMENSION>(image.width);
  c.info.image_height = static_cast<JDIMENSION>(image.height);
  c.info.input_components = image.channels;
  c.info.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&c.info);
  jpeg_set_quality(&c.info, quality, TRUE);
  jpeg_start_compress(&c.info, TRUE);
  while (c.info.next_scanline < c.info.image_height) {
    JSAMPROW row = const_cast<std::uint8_t*>(image.row(static_cast<int>(c.info.next_scanline)));
    jpeg_write_scanlines(&c.info, &row, 1);
  }
  jpeg_finish_compress(&c.info);
  return true;
}

/// Whether entropy-coded data reach the end marker, with restart markers in turn and no other between.
bool reaches_the_end(const std::uint8_t* at, const std::uint8_t* end, bool restarts) {
  int restart = 0;
  while (at < end) {
    at = static_cast<const std::uint8_t*>(std::memchr(at, 0xff, static_cast<std::size_t>(end - at)));
    if (at == nullptr) return false;
    while (at < end && *at == 0xff) ++at;  // a marker may be preceded by any number of them
    if (at == end) return false;
    const int marker = *at++;
    if (marker == 0) continue;  // a byte of data
    if (marker == JPEG_EOI) return true;
    if (!restarts || marker != JPEG_RST0 + restart) return false;
    restart = (restart + 1) % 8;
  }
  return false;
}

}  // namespace

std::optional<JpegInfo> plain_jpeg_info(std::span<const std::uint8_t> bytes) noexcept {
  if (sniff_image_format(bytes) != ImageFormat::jpeg) return std::nullopt;
  Decompress d;
  if (!read_header(d, bytes.data(), bytes.size()) || d.errors.damaged) return std::nullopt;
  const auto& info = d.info;
  JpegInfo out{.width = static_cast<int>(info.image_width), .height = static_cast<int>(info.image_height)};
  if (out.width < 1 || out.height < 1 || out.width > kMaxImagePixels / out.height) return std::nullopt;
  if (info.progressive_mode || info.arith_code || info.data_precision != 8 || info.comps_in_scan != info.num_components)
    return std::nullopt;
  out.gray = info.jpeg_color_space == JCS_GRAYSCALE;
  if (out.gray) {
    if (info.comp_info[0].h_samp_factor != 1 || info.comp_info[0].v_samp_factor != 1) return std::nullopt;
  } else {
    if (info.jpeg_color_space != JCS_YCbCr || info.num_components != 3) return std::nullopt;
    const auto *y = &info.comp_info[0], *cb = &info.comp_info[1], *cr = &info.comp_info[2];
    if (cb->h_samp_factor != cr->h_samp_factor || cb->v_samp_factor != cr->v_samp_factor ||
        y->h_samp_factor % cb->h_samp_factor != 0 || y->v_samp_factor % cb->v_samp_factor != 0)
      return std::nullopt;
    out.chroma_x = y->h_samp_factor / cb->h_samp_factor;
    out.chroma_y = y->v_samp_factor / cb->v_samp_factor;
  }
  const std::uint8_t* data = info.src->next_input_byte;  // behind the header of the scan
  if (!reaches_the_end(data, bytes.data() + bytes.size(), info.restart_interval != 0)) return std::nullopt;
  return out;
}

Image decode_jpeg(std::span<const std::uint8_t> bytes, int channels, std::string_view name, std::int64_t max_pixels) {
  Decompress d;
  if (!read_header(d, bytes.data(), bytes.size())) fail_damaged(d, name);
  check_pixels(d.info.image_width, d.info.image_height, max_pixels, name);
  switch (d.info.jpeg_color_space) {
    case JCS_GRAYSCALE: d.info.out_color_space = JCS_GRAYSCALE; break;
    case JCS_CMYK:
    case JCS_YCCK: d.info.out_color_space = JCS_CMYK; break;
    case JCS_RGB:
    case JCS_YCbCr: d.info.out_color_space = JCS_RGB; break;
    default: fail(Kind::data, concat(name, ": a JPEG of ", d.info.num_components, " components is not supported"));
  }
  if (!start(d)) fail_damaged(d, name);
  Image out(static_cast<int>(d.info.output_width), static_cast<int>(d.info.output_height), d.info.output_components);
  if (!read_rows(d, out.pixels.data(), out.row_bytes()) || d.errors.damaged) fail_damaged(d, name);
  if (out.channels == 4) out = from_cmyk(out);
  return out.channels == channels ? out : convert_channels(out.view(), channels);
}

std::vector<std::uint8_t> encode_jpeg(const ImageView& image, int quality) {
  if (image.channels != 1 && image.channels != 3)
    fail(Kind::argument, concat("encode_jpeg: ", image.channels, " channels, takes 1 or 3"));
  if (quality < 1 || quality > 100) fail(Kind::argument, concat("encode_jpeg: quality ", quality, ", takes 1 to 100"));
  if (image.width < 1 || image.height < 1 || image.width > JPEG_MAX_DIMENSION || image.height > JPEG_MAX_DIMENSION)
    fail(Kind::argument,
         concat("encode_jpeg: ", image.width, 'x', image.height, " pixels, takes 1 to ", JPEG_MAX_DIMENSION));
  Compress c;
  if (!write_rows(c, image, quality)) fail(Kind::exhausted, concat("encode_jpeg: ", c.errors.text));
  return {c.buffer, c.buffer + c.size};
}

}  // namespace apex::io
