// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

/// Leaves out columns on both sides, as far as the blocks allow.
bool narrow(Decompress& d, JDIMENSION& left, JDIMENSION& width) {
  if (setjmp(d.errors.jump)) return false;
  jpeg_crop_scanline(&d.info, &left, &width);
  return true;
}

bool skip_rows(Decompress& d, JDIMENSION count) {
  if (setjmp(d.errors.jump)) return false;
  return jpeg_skip_scanlines(&d.info, count) == count;
}

bool read_row(Decompress& d, JSAMPROW to) {
  if (setjmp(d.errors.jump)) return false;
  return jpeg_read_scanlines(&d.info, &to, 1) == 1;
}

bool finish(Decompress& d) {
  if (setjmp(d.errors.jump)) return false;
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
void cmyk_to_rgb(const std::uint8_t* from, std::uint8_t* to, int width) {
  for (int x = 0; x < width; ++x, from += 4, to += 3)
    for (int c = 0; c < 3; ++c) to[c] = static_cast<std::uint8_t>(from[3] - rounded_product(255 - from[c], from[3]));
}

/// Whether libjpeg will smooth over coefficients that a progressive file never sent: then blocks depend on those
/// around.
bool smooths(const jpeg_decompress_struct& info) {
  if (!info.progressive_mode || !info.coef_bits) return false;
  for (int c = 0; c < info.num_components; ++c)
    for (int k = 1; k < DCTSIZE2; ++k)
      if (info.coef_bits[c][k] != 0) return true;
  return false;
}

/// Leaves out the columns that `box` does not need; @returns where the first one decoded lies in the picture. Smooth
/// chroma reaches one sample to each side, at most two pixels: what lies so close to a new edge is decoded, but not
/// used. A strip that is too narrow would be upsampled in another way, so some blocks are kept.
int narrow_to(Decompress& d, const CropBox& box, std::string_view name) {
  constexpr int kReach = 2, kNarrowest = DCTSIZE * MAX_SAMP_FACTOR;
  const int all = static_cast<int>(d.info.output_width);
  const int begin = std::max(box.left - kReach, 0);
  const int end = std::min(std::max(box.left + box.width + kReach, begin + kNarrowest), all);
  auto left = static_cast<JDIMENSION>(std::max(std::min(begin, end - kNarrowest), 0));
  JDIMENSION width = static_cast<JDIMENSION>(end) - left;
  if (width == d.info.output_width) return 0;
  if (!narrow(d, left, width)) fail_damaged(d, name);
  return static_cast<int>(left);
}

/// Whether the mark that ends a file is still to come.
bool end_is_ahead(const jpeg_source_mgr& source) {
  constexpr JOCTET kEnd[] = {0xff, JPEG_EOI};
  return memmem(source.next_input_byte, source.bytes_in_buffer, kEnd, sizeof kEnd) != nullptr;
}

/// Ends the decoding below the box. Rows further down are read only if the file seems cut short: then they say so.
void end_early(Decompress& d, std::uint8_t* row, std::string_view name) {
  if (d.info.output_scanline < d.info.output_height && (jpeg_input_complete(&d.info) || end_is_ahead(*d.info.src)))
    return;
  while (d.info.output_scanline < d.info.output_height)
    if (!read_row(d, row)) fail_damaged(d, name);
  if (!finish(d)) fail_damaged(d, name);
}

/// The box, of a picture whose decoding has started.
Image read_box(Decompress& d, const CropBox& box, int channels, std::string_view name) {
  const bool is_whole =
      box.width == static_cast<int>(d.info.output_width) && box.height == static_cast<int>(d.info.output_height);
  const bool by_part = !is_whole && !smooths(d.info);
  const int left = by_part ? narrow_to(d, box, name) : 0;
  const int stored = d.info.output_components;
  std::vector<std::uint8_t> row(static_cast<std::size_t>(d.info.output_width) * static_cast<std::size_t>(stored)), rgb;
  if (stored == 4) rgb.resize(static_cast<std::size_t>(box.width) * 3);
  const std::uint8_t* wanted = row.data() + static_cast<std::ptrdiff_t>(box.left - left) * stored;

  if (by_part && box.top > 0 && !skip_rows(d, static_cast<JDIMENSION>(box.top))) fail_damaged(d, name);
  while (static_cast<int>(d.info.output_scanline) < box.top)
    if (!read_row(d, row.data())) fail_damaged(d, name);
  Image out(box.width, box.height, channels);
  const bool in_place = stored == channels && box.width == static_cast<int>(d.info.output_width);
  for (int y = 0; y < box.height; ++y) {
    if (!read_row(d, in_place ? out.row(y) : row.data())) fail_damaged(d, name);
    if (in_place) continue;
    if (stored == 4) cmyk_to_rgb(wanted, rgb.data(), box.width);
    convert_row(stored == 4 ? rgb.data() : wanted, stored == 4 ? 3 : stored, out.row(y), channels, box.width);
  }
  end_early(d, row.data(), name);
  if (d.errors.damaged) fail_damaged(d, name);
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

ImagePart decode_jpeg(std::span<const std::uint8_t> bytes, int channels, std::string_view name, const ChooseBox& choose,
                      std::int64_t max_pixels) {
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
  const int width = static_cast<int>(d.info.image_width), height = static_cast<int>(d.info.image_height);
  const CropBox box = choose(width, height);
  check_box(box, width, height, name);
  if (!start(d)) fail_damaged(d, name);
  return {read_box(d, box, channels, name), box, width, height};
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
