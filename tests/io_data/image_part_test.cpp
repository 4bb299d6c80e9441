// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// Decoding a part of a picture: every pixel is that of the whole picture.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include <jpeglib.h>  // wants size_t and FILE first

#include "apex/io/image/transform.hpp"
#include "io_data/common.hpp"

namespace apex::io {
namespace {

using test::Bytes;
using test::expect_error;

/// How a JPEG is written; the sampling factors are the first component's, the others have 1 x 1.
struct Written {
  const char* name;
  int components = 3;
  int across = 1, down = 1;
  J_COLOR_SPACE stored = JCS_YCbCr;
};

constexpr Written kKinds[] = {
    {"4:4:4"},
    {"4:2:2", 3, 2, 1},
    {"4:2:0", 3, 2, 2},
    {"4:4:0", 3, 1, 2},
    {"4:1:1", 3, 4, 1},
    {"4:1:0", 3, 4, 2},
    {"RGB", 3, 1, 1, JCS_RGB},
    {"gray", 1, 1, 1, JCS_GRAYSCALE},
    {"gray of 2x2 blocks", 1, 2, 2, JCS_GRAYSCALE},
    {"CMYK", 4, 1, 1, JCS_CMYK},
    {"YCCK 4:2:0", 4, 2, 2, JCS_YCCK},
};

enum class Form { baseline, restarts, progressive, separate_scans };
constexpr Form kForms[] = {Form::baseline, Form::restarts, Form::progressive, Form::separate_scans};

/// Noise over slopes: neighbouring samples differ, so that a pixel made from a wrong one shows.
Bytes write_jpeg(int width, int height, const Written& kind, Form form) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* buffer = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &buffer, &size);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = kind.components;
  info.in_color_space = kind.components == 1 ? JCS_GRAYSCALE : kind.components == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_colorspace(&info, kind.stored);
  jpeg_set_quality(&info, 90, TRUE);
  info.comp_info[0].h_samp_factor = kind.across;
  info.comp_info[0].v_samp_factor = kind.down;
  if (kind.stored == JCS_YCCK) {
    info.comp_info[3].h_samp_factor = kind.across;
    info.comp_info[3].v_samp_factor = kind.down;
  }
  if (form == Form::restarts) info.restart_interval = 3;
  if (form == Form::progressive) jpeg_simple_progression(&info);
  std::vector<jpeg_scan_info> scans;
  if (form == Form::separate_scans) {
    for (int c = 0; c < kind.components; ++c)
      scans.push_back({.comps_in_scan = 1, .component_index = {c}, .Ss = 0, .Se = 63, .Ah = 0, .Al = 0});
    info.scan_info = scans.data();
    info.num_scans = static_cast<int>(scans.size());
  }
  jpeg_start_compress(&info, TRUE);
  std::mt19937 random(static_cast<unsigned>(width * 1000 + height));
  Bytes row(static_cast<std::size_t>(width) * kind.components);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < kind.components; ++c)
        row[static_cast<std::size_t>(x * kind.components + c)] =
            static_cast<std::uint8_t>((x * 3 + y * 5 + c * 60 + static_cast<int>(random() % 64)) % 256);
    JSAMPROW pointer = row.data();
    jpeg_write_scanlines(&info, &pointer, 1);
  }
  jpeg_finish_compress(&info);
  Bytes out(buffer, buffer + size);
  jpeg_destroy_compress(&info);
  std::free(buffer);
  return out;
}

ChooseBox always(const CropBox& box) {
  return [box](int, int) { return box; };
}

/// Whether the box out of a partial decoding is that of `all`.
bool same_box(const ImagePart& part, const CropBox& box, const Image& all) {
  if (part.width != all.width || part.height != all.height) return false;
  const ImageView got =
      crop(part.pixels.view(), {box.left - part.box.left, box.top - part.box.top, box.width, box.height});
  const ImageView expected = crop(all.view(), box);
  for (int y = 0; y < box.height; ++y)
    if (std::memcmp(got.row(y), expected.row(y), static_cast<std::size_t>(box.width) * all.channels) != 0) return false;
  return true;
}

std::vector<CropBox> boxes(int width, int height) {
  std::vector<CropBox> out = {{0, 0, width, height},
                              {0, 0, 1, 1},
                              {width - 1, height - 1, 1, 1},
                              {width - 1, 0, 1, height},
                              {0, height - 1, width, 1},
                              {0, 0, width, 1},
                              {0, 0, 1, height},
                              {1, 1, width - 2, height - 2},
                              {width / 2, 0, std::min(3, width - width / 2), height},
                              {0, height / 2, width, std::min(3, height - height / 2)}};
  // Every offset within a block of 32 x 16 pixels, which the largest sampling factors make.
  for (int k = 0; k < 34; ++k)
    if (140 + k + 37 <= width && 40 + k + 21 <= height) out.push_back({140 + k, 40 + k, 37, 21});
  std::mt19937 random(5);
  for (int k = 0; k < 12; ++k) {
    const int w = 1 + static_cast<int>(random() % static_cast<unsigned>(width)),
              h = 1 + static_cast<int>(random() % static_cast<unsigned>(height));
    out.push_back({static_cast<int>(random() % static_cast<unsigned>(width - w + 1)),
                   static_cast<int>(random() % static_cast<unsigned>(height - h + 1)), w, h});
  }
  return out;
}

TEST(DecodePart, EqualsTheWholePictureForEverySampling) {
  for (const auto& [width, height] : {std::pair{331, 117}, {256, 96}, {45, 33}, {3, 2}})
    for (const auto& kind : kKinds)
      for (const Form form : kForms) {
        const Bytes file = write_jpeg(width, height, kind, form);
        for (const int channels : {3, 1}) {
          if (channels == 1 && form != Form::baseline) continue;
          const Image all = decode_image(file, channels, kind.name);
          ASSERT_EQ(all.width, width);
          for (const CropBox& box : boxes(width, height)) {
            if (box.width < 1 || box.height < 1) continue;
            const ImagePart part = decode_image_part(file, channels, kind.name, always(box));
            ASSERT_TRUE(same_box(part, box, all))
                << kind.name << ", form " << static_cast<int>(form) << ", " << width << 'x' << height << ", box "
                << box.width << 'x' << box.height << " at (" << box.left << ", " << box.top << ')';
          }
        }
      }
}

TEST(DecodePart, KnowsTheSizeBeforeItChooses) {
  const Bytes jpeg = write_jpeg(60, 40, kKinds[2], Form::baseline);
  const Bytes png = encode_png(test::formula_image(60, 40, 3).view());
  for (const Bytes& file : {jpeg, png}) {
    int asked = 0;
    const ImagePart part = decode_image_part(file, 3, "a", [&](int width, int height) {
      ++asked;
      EXPECT_EQ(width, 60);
      EXPECT_EQ(height, 40);
      return CropBox{7, 9, 30, 20};
    });
    EXPECT_EQ(asked, 1);
    EXPECT_TRUE(same_box(part, {7, 9, 30, 20}, decode_image(file, 3, "a")));
    for (const CropBox box : {CropBox{31, 0, 30, 1}, {0, 21, 1, 20}, {-1, 0, 2, 2}, {0, 0, 0, 1}})
      expect_error(Kind::argument, {"p.jpg", "60x40"}, [&] { decode_image_part(file, 3, "p.jpg", always(box)); });
  }
}

/// Where the rows of a baseline file from `row` on begin, by its restart markers: one every `interval` blocks.
std::size_t find_marker(const Bytes& file, int number) {
  int seen = 0;
  for (std::size_t k = 0; k + 1 < file.size(); ++k)
    if (file[k] == 0xff && file[k + 1] >= 0xd0 && file[k + 1] <= 0xd7 && seen++ == number) return k;
  return 0;
}

// What lies below the box is not even looked at: it may be anything.
TEST(DecodePart, ReadsNoFurtherThanTheBox) {
  const Bytes file = write_jpeg(331, 200, kKinds[0], Form::restarts);
  const Image all = decode_image(file, 3, "a");
  Bytes changed = file;
  const std::size_t later = find_marker(file, 42 / 3 * 12);  // 12 of 25 rows of 42 blocks, 3 an interval
  ASSERT_GT(later, 0u);
  std::fill(changed.begin() + static_cast<long>(later) + 2, changed.end() - 2, std::uint8_t{0x55});
  const CropBox upper{40, 8, 200, 64};
  EXPECT_TRUE(same_box(decode_image_part(changed, 3, "a", always(upper)), upper, all));
  expect_error(Kind::data, {"damaged JPEG"}, [&] { decode_image(changed, 3, "a"); });
  expect_error(Kind::data, {"damaged JPEG"}, [&] { decode_image_part(changed, 3, "a", always({0, 150, 9, 9})); });
}

// A file cut short is refused whichever part is wanted, so that an upload that broke off is found at once.
TEST(DecodePart, EveryCutIsNoticed) {
  for (const auto& kind : {kKinds[2], kKinds[7]})
    for (const Form form : kForms) {
      const Bytes file = write_jpeg(150, 90, kind, form);
      for (std::size_t size = 0; size + 2 < file.size(); size += size < 800 ? 13 : 271) {
        const std::span<const std::uint8_t> part(file.data(), size);
        for (const CropBox box : {CropBox{0, 0, 20, 4}, {100, 80, 10, 10}})
          expect_error(Kind::data, {"cut"}, [&] { decode_image_part(part, 3, "cut", always(box)); });
      }
    }
}

// Bytes behind the end of a picture, such as a second, smaller picture, are passed over as by the whole decoding.
TEST(DecodePart, TrailingBytesDoNotMatter) {
  Bytes file = write_jpeg(150, 90, kKinds[2], Form::baseline);
  const Image all = decode_image(file, 3, "a");
  file.insert(file.end(), 100, std::uint8_t{7});
  EXPECT_EQ(decode_image(file, 3, "a").pixels, all.pixels);
  EXPECT_TRUE(same_box(decode_image_part(file, 3, "a", always({3, 3, 50, 20})), {3, 3, 50, 20}, all));
}

TEST(DecodePart, DamagedBytesNeverCrash) {
  std::mt19937 random(11);
  int refused = 0, taken = 0;
  for (const auto& kind : kKinds)
    for (const Form form : kForms) {
      const Bytes file = write_jpeg(170, 60, kind, form);
      for (int round = 0; round < 40; ++round) {
        Bytes damaged = file;
        for (int k = 0; k <= round % 4; ++k)
          damaged[random() % damaged.size()] ^= static_cast<std::uint8_t>(1u << random() % 8);
        const auto choose = [&](int width, int height) {
          const int w = 1 + static_cast<int>(random() % static_cast<unsigned>(width)),
                    h = 1 + static_cast<int>(random() % static_cast<unsigned>(height));
          return CropBox{(width - w) / 2, (height - h) / 2, w, h};
        };
        try {
          const ImagePart part = decode_image_part(damaged, 3, kind.name, choose, 1 << 20);
          EXPECT_EQ(part.pixels.pixels.size(), std::size_t(part.box.width) * part.box.height * 3);
          ++taken;
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), Kind::data) << error.what();
          ++refused;
        }
      }
    }
  EXPECT_GT(refused, 100);
  EXPECT_GT(taken, 100);
}

// The first coefficients only, validly: libjpeg smooths such a picture over its blocks.
TEST(DecodePart, SmoothedProgressivePicturesAreReadInFull) {
  const Bytes file = write_jpeg(331, 117, kKinds[2], Form::progressive);
  std::size_t end = 0, scans = 0;  // cut before the fourth scan, and closed there
  for (std::size_t k = 0; k + 1 < file.size(); ++k)
    if (file[k] == 0xff && (file[k + 1] == 0xda || file[k + 1] == 0xc4) && scans >= 2 && end == 0) {
      end = k;
    } else if (file[k] == 0xff && file[k + 1] == 0xda) {
      ++scans;
    }
  ASSERT_GT(end, 0u);
  Bytes coarse(file.begin(), file.begin() + static_cast<long>(end));
  coarse.insert(coarse.end(), {0xff, 0xd9});
  const Image all = decode_image(coarse, 3, "a");
  for (const CropBox& box : boxes(331, 117))
    ASSERT_TRUE(same_box(decode_image_part(coarse, 3, "a", always(box)), box, all)) << box.left << ' ' << box.top;
}

TransformOptions with(CropMode mode, int resize = 0) {
  TransformOptions options;
  options.crop = mode;
  options.width = 40;
  options.height = 36;
  options.resize = resize;
  options.seed = 4;
  return options;
}

// What a transform asks for is enough: decoding only that gives the sample that the whole picture gives.
TEST(TransformPart, EqualsTheWholePicture) {
  const std::vector<TransformOptions> all_options = {with(CropMode::random_resized),
                                                     with(CropMode::center),
                                                     with(CropMode::center, 41),
                                                     with(CropMode::center, 30),
                                                     with(CropMode::center, 400),
                                                     with(CropMode::pad_random),
                                                     with(CropMode::fit)};
  for (const auto& [width, height] : {std::pair{331, 117}, {90, 200}, {40, 36}, {12, 50}, {1, 1}}) {
    const Bytes file = write_jpeg(width, height, kKinds[2], Form::baseline);
    const Image all = decode_image(file, 3, "a");
    for (std::size_t o = 0; o < all_options.size(); ++o) {
      const Transform transform(all_options[o]);
      for (int sample = 0; sample < 12; ++sample) {
        const ImagePart part =
            decode_image_part(file, 3, "a", [&](int w, int h) { return transform.needed(w, h, 1, sample); });
        Bytes got(40 * 36 * 3);
        transform.apply(part.view(), 1, sample, got.data());
        ASSERT_EQ(got, transform.apply(all.view(), 1, sample).pixels)
            << width << 'x' << height << ", options " << o << ", sample " << sample;
      }
    }
  }
}

TEST(TransformPart, CentreNeedsTheMiddleOnly) {
  const Transform transform(with(CropMode::center, 50));  // 400 x 200 becomes 100 x 50, of which 40 x 36 stay
  const CropBox box = transform.needed(400, 200, 0, 0);
  EXPECT_GE(box.left, 30 * 4 - 8);
  EXPECT_LE(box.left + box.width, 70 * 4 + 8);
  EXPECT_GE(box.top, 7 * 4 - 8);
  EXPECT_LE(box.top + box.height, 43 * 4 + 8);
  const Image image = test::formula_image(400, 200, 3);
  PartView part{crop(image.view(), box), box, 400, 200};
  Bytes out(40 * 36 * 3);
  transform.apply(part, 0, 0, out.data());
  EXPECT_EQ(out, transform.apply(image.view(), 0, 0).pixels);
  part.box.left += 1;
  expect_error(Kind::argument, {"wants", "holds"}, [&] { transform.apply(part, 0, 0, out.data()); });
  expect_error(Kind::argument, {"empty"}, [&] { transform.needed(0, 5, 0, 0); });
}

// Windows that reach over an edge of the resized part, or lie beside it: zeros there, then the mirror.
TEST(TransformPart, APlacementMayReachOutside) {
  const Transform transform(with(CropMode::fit));
  const Image image = test::formula_image(40, 36, 3);
  for (const CropBox& box : {CropBox{0, 0, 40, 36}, {3, 2, 30, 20}})
    for (const auto& [width, height] : {std::pair{40, 36}, {30, 20}, {55, 44}}) {
      const Image resized = resize_bilinear(crop(image.view(), box), width, height);
      for (const auto& [left, top] : {std::pair{0, 0}, {7, -5}, {-12, 9}, {-3, -3}, {60, 0}, {0, -36}, {100, -100}})
        for (const bool flip : {false, true}) {
          Image expected(40, 36, 3);
          for (int y = std::max(0, -top); y < std::min(36, height - top); ++y)
            for (int x = std::max(0, -left); x < std::min(40, width - left); ++x)
              for (int c = 0; c < 3; ++c) expected.row(y)[3 * x + c] = resized.row(y + top)[3 * (x + left) + c];
          if (flip) expected = flip_horizontal(expected.view());
          Bytes got(40 * 36 * 3, 9);
          transform.apply(whole(image.view()), Placement{box, width, height, left, top, flip}, got.data());
          EXPECT_EQ(got, expected.pixels) << width << 'x' << height << " at " << left << ", " << top << ", " << flip;
        }
    }
  Bytes out(40 * 36 * 3);
  const auto refuse = [&](const std::vector<std::string>& words, const Placement& placement) {
    expect_error(Kind::argument, words, [&] { transform.apply(whole(image.view()), placement, out.data()); });
  };
  refuse({"cannot become 0x36"}, {{0, 0, 40, 36}, 0, 36});
  refuse({"box of 0x36"}, {{0, 0, 0, 36}, 40, 36});
  refuse({"wants", "holds"}, {{1, 0, 40, 36}, 40, 36});
}

// A mirrored sample is resized from right to left; the picture's last columns take another path there.
TEST(TransformPart, MirroredIsTheMirrorImage) {
  for (const int channels : {1, 3})
    for (const auto& [width, height] : {std::pair{331, 117}, {64, 64}, {7, 5}, {2, 1}, {2000, 3}}) {
      const Image image = test::formula_image(width, height, channels);
      TransformOptions options = with(CropMode::random_resized);
      for (int sample = 0; sample < 10; ++sample) {
        options.flip = 0;
        const Image straight = Transform(options).apply(image.view(), 0, sample);
        options.flip = 1;
        EXPECT_EQ(Transform(options).apply(image.view(), 0, sample).pixels, flip_horizontal(straight.view()).pixels)
            << channels << ", " << width << 'x' << height;
      }
    }
}

}  // namespace
}  // namespace apex::io
