// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "apex/core/error.hpp"
#include "decoders.hpp"

// libpng reports an error by not returning; see jpeg.cpp for how its calls are kept apart from C++ objects.

namespace apex::io {
namespace {

/// Shared by reading and writing; libpng's pointers to it are its io and error pointers.
struct Messages {
  char text[128] = "";
};

void on_error(png_structp png, png_const_charp message) {
  auto* messages = static_cast<Messages*>(png_get_error_ptr(png));
  std::snprintf(messages->text, sizeof messages->text, "%s", message);
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}  // of ancillary chunks: no pixel suffers

struct Reader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  Messages messages;
  const std::uint8_t* bytes = nullptr;
  std::size_t left = 0;

  Reader() = default;
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() { png_destroy_read_struct(&png, &info, nullptr); }
};

void give_bytes(png_structp png, png_bytep to, std::size_t wanted) {
  auto* reader = static_cast<Reader*>(png_get_io_ptr(png));
  if (wanted > reader->left) png_error(png, "the file is cut short");
  std::memcpy(to, reader->bytes, wanted);
  reader->bytes += wanted;
  reader->left -= wanted;
}

bool read_header(Reader& r) {
  if (setjmp(png_jmpbuf(r.png))) return false;
  png_set_read_fn(r.png, &r, give_bytes);
  png_read_info(r.png, r.info);
  return true;
}

/// Asks for 8-bit gray or RGB. tRNS and alpha are left out, not blended.
bool set_up_pixels(Reader& r) {
  if (setjmp(png_jmpbuf(r.png))) return false;
  const int type = png_get_color_type(r.png, r.info);
  if (png_get_bit_depth(r.png, r.info) == 16) png_set_strip_16(r.png);
  if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(r.png);
  if (type == PNG_COLOR_TYPE_GRAY && png_get_bit_depth(r.png, r.info) < 8) png_set_expand_gray_1_2_4_to_8(r.png);
  png_set_strip_alpha(r.png);
  png_set_interlace_handling(r.png);
  png_read_update_info(r.png, r.info);
  return true;
}

bool read_pixels(Reader& r, png_bytepp rows) {
  if (setjmp(png_jmpbuf(r.png))) return false;
  png_read_image(r.png, rows);
  png_read_end(r.png, nullptr);
  return true;
}

struct Writer {
  png_structp png = nullptr;
  png_infop info = nullptr;
  Messages messages;
  std::vector<std::uint8_t> bytes;

  Writer() = default;
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer() { png_destroy_write_struct(&png, &info); }

  bool append(const std::uint8_t* from, std::size_t count) noexcept {
    try {
      bytes.insert(bytes.end(), from, from + count);
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }
};

void take_bytes(png_structp png, png_bytep from, std::size_t count) {
  if (!static_cast<Writer*>(png_get_io_ptr(png))->append(from, count)) png_error(png, "out of memory");
}

bool write_image(Writer& w, const ImageView& image, int color_type) {
  if (setjmp(png_jmpbuf(w.png))) return false;
  png_set_write_fn(w.png, &w, take_bytes, nullptr);
  png_set_IHDR(w.png, w.info, static_cast<png_uint_32>(image.width), static_cast<png_uint_32>(image.height), 8,
               color_type, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(w.png, w.info);
  for (int y = 0; y < image.height; ++y) png_write_row(w.png, image.row(y));
  png_write_end(w.png, nullptr);
  return true;
}

}  // namespace

Image decode_png(std::span<const std::uint8_t> bytes, int channels, std::string_view name, std::int64_t max_pixels) {
  Reader r;
  r.bytes = bytes.data();
  r.left = bytes.size();
  r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r.messages, on_error, on_warning);
  if (r.png) r.info = png_create_info_struct(r.png);
  if (!r.info) fail(Kind::exhausted, concat(name, ": no memory to decode it"));
  const auto fail_damaged = [&] { fail(Kind::data, concat(name, ": damaged PNG: ", r.messages.text)); };
  if (!read_header(r)) fail_damaged();
  check_pixels(png_get_image_width(r.png, r.info), png_get_image_height(r.png, r.info), max_pixels, name);
  if (!set_up_pixels(r)) fail_damaged();

  Image out(static_cast<int>(png_get_image_width(r.png, r.info)), static_cast<int>(png_get_image_height(r.png, r.info)),
            png_get_channels(r.png, r.info));
  if (png_get_rowbytes(r.png, r.info) != out.row_bytes())
    fail(Kind::unsupported, concat(name, ": a PNG of a type that was not reduced to 8 bits"));
  std::vector<png_bytep> rows(static_cast<std::size_t>(out.height));
  for (int y = 0; y < out.height; ++y) rows[static_cast<std::size_t>(y)] = out.row(y);
  if (!read_pixels(r, rows.data())) fail_damaged();
  return out.channels == channels ? out : convert_channels(out.view(), channels);
}

std::vector<std::uint8_t> encode_png(const ImageView& image) {
  constexpr int kTypes[] = {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB,
                            PNG_COLOR_TYPE_RGB_ALPHA};
  if (image.channels < 1 || image.channels > 4)
    fail(Kind::argument, concat("encode_png: ", image.channels, " channels, takes 1 to 4"));
  if (image.width < 1 || image.height < 1)
    fail(Kind::argument, concat("encode_png: ", image.width, 'x', image.height, " pixels"));
  Writer w;
  w.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &w.messages, on_error, on_warning);
  if (w.png) w.info = png_create_info_struct(w.png);
  if (!w.info) fail(Kind::exhausted, "encode_png: no memory");
  if (!write_image(w, image, kTypes[image.channels - 1]))
    fail(Kind::exhausted, concat("encode_png: ", w.messages.text));
  return std::move(w.bytes);
}

}  // namespace apex::io
