// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/io/image/transform.hpp"

#include <zlib.h>

#include <cmath>
#include <set>

#include "io_data/common.hpp"

namespace apex::io {
namespace {

using test::Bytes;
using test::expect_error;
using test::formula_image;

std::uint32_t crc_of(const Bytes& bytes) { return static_cast<std::uint32_t>(crc32_z(0, bytes.data(), bytes.size())); }

std::string text_of(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }  // GCC 12 misjudges sets of vectors

struct ResizeCase {
  int width, height, channels, to_width, to_height;
  std::uint32_t crc;  // of Pillow 9.4's result
};

TEST(Resize, EqualsPillowBitForBit) {
  const ResizeCase cases[] = {
      {64, 48, 3, 32, 24, 0x267defd0u},     {64, 48, 3, 33, 17, 0x636cd85cu}, {17, 31, 3, 224, 224, 0x3abb3e51u},
      {500, 375, 3, 224, 224, 0x9ee608d9u}, {1, 1, 3, 5, 4, 0xf23b8fabu},     {7, 5, 1, 3, 2, 0xd73f001du},
      {28, 28, 1, 32, 32, 0x2b312af5u},     {100, 3, 3, 1, 1, 0x83840320u},   {3, 100, 1, 10, 7, 0xee05e189u},
      {50, 40, 3, 50, 20, 0x1de7a90fu},     {50, 40, 3, 25, 40, 0xec51e627u}, {1000, 1000, 1, 7, 9, 0xd56b4065u},
      {5, 5, 3, 5, 5, 0x478b4af6u},
  };
  for (const auto& c : cases) {
    const Image out = resize_bilinear(formula_image(c.width, c.height, c.channels).view(), c.to_width, c.to_height);
    EXPECT_EQ(out.width, c.to_width);
    EXPECT_EQ(out.height, c.to_height);
    EXPECT_EQ(crc_of(out.pixels), c.crc) << c.width << 'x' << c.height << " to " << c.to_width << 'x' << c.to_height;
  }
}

// The formula in double, without Pillow's roundings: each pass is off by half a unit at most, so the result by 1.5.
TEST(Resize, IsTheTriangleFilter) {
  const Image in = formula_image(37, 23, 2);
  const Image out = resize_bilinear(in.view(), 11, 40);
  const auto weight = [](int from, double scale, int to) {
    const double wide = std::max(scale, 1.0);
    return std::max(0.0, 1 - std::abs(from + 0.5 - (to + 0.5) * scale) / wide);
  };
  for (int y = 0; y < 40; ++y)
    for (int x = 0; x < 11; ++x)
      for (int c = 0; c < 2; ++c) {
        double sum = 0, total = 0;
        for (int j = 0; j < 23; ++j)
          for (int i = 0; i < 37; ++i) {
            const double w = weight(i, 37 / 11.0, x) * weight(j, 23 / 40.0, y);
            sum += w * in.row(j)[2 * i + c];
            total += w;
          }
        ASSERT_NEAR(out.row(y)[2 * x + c], sum / total, 1.5) << x << ',' << y;
      }
}

TEST(Resize, ShorterSideAndMiddleEqualTorchvision) {
  const ResizeCase cases[] = {{500, 375, 3, 256, 224, 0x5c0f643au},
                              {375, 500, 1, 64, 56, 0xc7b93666u},
                              {61, 40, 3, 37, 32, 0x37c14186u},
                              {40, 40, 3, 33, 32, 0xcfaaf4b5u}};
  for (const auto& c : cases) {
    const Image in = formula_image(c.width, c.height, c.channels);
    TransformOptions options = eval_transform(c.to_height);
    options.resize = c.to_width;
    EXPECT_EQ(crc_of(Transform(options).apply(in.view(), 3, 5).pixels), c.crc) << c.width << 'x' << c.height;
  }
  EXPECT_EQ(eval_transform(224).resize, 256);
  EXPECT_EQ(resize_shorter_side(formula_image(61, 40, 1).view(), 37).width, 56);  // floor(37 * 61 / 40) of 56.425
}

TEST(Crop, SeesTheSamePixels) {
  const Image in = formula_image(10, 8, 3);
  const ImageView part = crop(in.view(), {3, 2, 4, 5});
  for (int y = 0; y < 5; ++y)
    for (int k = 0; k < 12; ++k) EXPECT_EQ(part.row(y)[k], in.row(y + 2)[k + 9]);
  for (const CropBox box : {CropBox{7, 0, 4, 1}, {0, 4, 1, 5}, {-1, 0, 2, 2}, {0, 0, 0, 1}, {0, -1, 1, 1}})
    expect_error(Kind::argument, {"10x8"}, [&] { crop(in.view(), box); });
}

TEST(Crop, MiddlePadsWhatIsTooSmall) {
  Image in(2, 1, 1);
  in.pixels = {7, 9};
  EXPECT_EQ(center_crop(in.view(), 5, 3).pixels, (Bytes{0, 0, 0, 0, 0, 0, 7, 9, 0, 0, 0, 0, 0, 0, 0}));
  const Image wide = formula_image(9, 4, 1);
  const Image middle = center_crop(wide.view(), 4, 4);  // (9 - 4) / 2 = 2.5, to even: 2
  for (int y = 0; y < 4; ++y)
    for (int x = 0; x < 4; ++x) EXPECT_EQ(middle.row(y)[x], wide.row(y)[x + 2]);
}

TEST(Flip, MirrorsPixelsNotChannels) {
  Image in(3, 1, 3);
  in.pixels = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_EQ(flip_horizontal(in.view()).pixels, (Bytes{7, 8, 9, 4, 5, 6, 1, 2, 3}));
}

TEST(RandomResizedCrop, StaysInBoundsAndCoversTheRanges) {
  const TransformOptions options = train_transform(224, 11);
  double smallest = 1, largest = 0, lowest = 9, highest = 0, left = 0;
  const int n = 4000;
  for (int i = 0; i < n; ++i) {
    const CropBox box = draw_resized_crop(options, 500, 375, 0, i);
    ASSERT_GE(box.left, 0);
    ASSERT_GE(box.top, 0);
    ASSERT_LE(box.left + box.width, 500);
    ASSERT_LE(box.top + box.height, 375);
    const double area = box.width * box.height / (500.0 * 375), ratio = double(box.width) / box.height;
    smallest = std::min(smallest, area);
    largest = std::max(largest, area);
    lowest = std::min(lowest, ratio);
    highest = std::max(highest, ratio);
    if (box.width < 500) left += double(box.left) / (500 - box.width) / n;
  }
  EXPECT_NEAR(smallest, 0.08, 0.01);
  EXPECT_GT(largest, 0.95);
  EXPECT_LE(largest, 1.0);
  EXPECT_NEAR(lowest, 0.75, 0.02);
  EXPECT_NEAR(highest, 4.0 / 3, 0.02);
  EXPECT_NEAR(left, 0.5, 0.03);
}

TEST(RandomResizedCrop, FallsBackToTheMiddle) {
  TransformOptions options = train_transform(8, 0);
  options.min_scale = options.max_scale = 1;  // never fits unless the picture's own ratio is drawn
  EXPECT_EQ(draw_resized_crop(options, 1000, 10, 0, 0), (CropBox{493, 0, 13, 10}));  // ratio cut to 4/3
  EXPECT_EQ(draw_resized_crop(options, 12, 1000, 0, 0), (CropBox{0, 492, 12, 16}));  // ratio raised to 3/4
  EXPECT_EQ(draw_resized_crop(options, 1, 1, 0, 0), (CropBox{0, 0, 1, 1}));
  options.min_ratio = 0.5;
  options.max_ratio = 0.6;
  EXPECT_EQ(draw_resized_crop(options, 2, 1000000, 0, 0), (CropBox{0, 499998, 2, 4}));
}

TEST(Transform, DependsOnSeedEpochAndSampleAlone) {
  const Image in = formula_image(60, 50, 3);
  const Transform transform(train_transform(32, 5)), again(train_transform(32, 5)), other(train_transform(32, 6));
  std::set<std::string> seen;
  for (int epoch = 0; epoch < 3; ++epoch)
    for (int sample = 0; sample < 5; ++sample) {
      const Image out = transform.apply(in.view(), epoch, sample);
      EXPECT_EQ(out.pixels, again.apply(in.view(), epoch, sample).pixels);
      seen.insert(text_of(out.pixels));
    }
  EXPECT_EQ(seen.size(), 15u);
  EXPECT_NE(transform.apply(in.view(), 0, 0).pixels, other.apply(in.view(), 0, 0).pixels);
}

TEST(Transform, RandomResizedIsCropThenResizeThenFlip) {
  const Image in = formula_image(90, 70, 3);
  TransformOptions options = train_transform(24, 3);
  for (const double flip : {0.0, 1.0}) {
    options.flip = flip;
    for (int sample = 0; sample < 8; ++sample) {
      const CropBox box = draw_resized_crop(options, 90, 70, 2, sample);
      Image expected = resize_bilinear(crop(in.view(), box), 24, 24);
      if (flip == 1) expected = flip_horizontal(expected.view());
      EXPECT_EQ(Transform(options).apply(in.view(), 2, sample).pixels, expected.pixels);
    }
  }
}

TEST(Transform, PadRandomGivesEveryShiftAndFlip) {
  Image in(4, 3, 1);
  for (int i = 0; i < 12; ++i) in.pixels[i] = static_cast<std::uint8_t>(i + 1);
  const int pad = 1;
  std::set<std::string> expected;
  for (int flip = 0; flip < 2; ++flip)
    for (int dy = -pad; dy <= pad; ++dy)
      for (int dx = -pad; dx <= pad; ++dx) {
        Bytes window(12);
        for (int y = 0; y < 3; ++y)
          for (int x = 0; x < 4; ++x) {
            const int fx = x + dx, fy = y + dy;
            const bool inside = fx >= 0 && fx < 4 && fy >= 0 && fy < 3;
            window[y * 4 + (flip ? 3 - x : x)] = inside ? in.pixels[fy * 4 + fx] : 0;
          }
        expected.insert(text_of(window));
      }
  ASSERT_EQ(expected.size(), 18u);
  const Transform transform(small_train_transform(3, 4, pad, 9));
  std::set<std::string> seen;
  for (int sample = 0; sample < 600; ++sample) seen.insert(text_of(transform.apply(in.view(), 0, sample).pixels));
  EXPECT_EQ(seen, expected);
}

TEST(Transform, FlipsAsOftenAsAsked) {
  Image in(2, 1, 1);
  in.pixels = {1, 2};
  TransformOptions options = small_eval_transform(1, 2);
  for (const double chance : {0.0, 0.25, 1.0}) {
    options.flip = chance;
    const Transform transform(options);
    int flipped = 0;
    for (int sample = 0; sample < 4000; ++sample) flipped += transform.apply(in.view(), 1, sample).pixels[0] == 2;
    EXPECT_NEAR(flipped / 4000.0, chance, chance == 0.25 ? 0.03 : 0.0);
  }
}

TEST(Transform, FitLeavesThePictureOrResizesIt) {
  const Image in = formula_image(28, 28, 1);
  EXPECT_EQ(Transform(small_eval_transform(28, 28)).apply(in.view(), 4, 4).pixels, in.pixels);
  EXPECT_EQ(Transform(small_eval_transform(32, 30)).apply(in.view(), 4, 4).pixels,
            resize_bilinear(in.view(), 30, 32).pixels);
  const Image train = Transform(small_train_transform(20, 20, 0, 1)).apply(in.view(), 0, 0);  // resized first, no shift
  const Image resized = resize_bilinear(in.view(), 20, 20);
  EXPECT_TRUE(train.pixels == resized.pixels || train.pixels == flip_horizontal(resized.view()).pixels);
}

TEST(Transform, RefusesBadOptions) {
  const auto refuse = [](const char* word, auto change) {
    TransformOptions options;
    change(options);
    expect_error(Kind::argument, {word}, [&] { Transform{options}; });
  };
  refuse("size", [](auto& o) { o.width = 0; });
  refuse("resize", [](auto& o) { o.resize = -1; });
  refuse("pad", [](auto& o) { o.pad = -1; });
  refuse("scale", [](auto& o) { o.min_scale = 0; });
  refuse("scale", [](auto& o) { o.max_scale = 1.5; });
  refuse("scale", [](auto& o) { o.min_scale = 0.5, o.max_scale = 0.4; });
  refuse("ratio", [](auto& o) { o.min_ratio = 2, o.max_ratio = 1; });
  refuse("ratio", [](auto& o) { o.max_ratio = INFINITY; });
  refuse("flip", [](auto& o) { o.flip = NAN; });
  expect_error(Kind::argument, {"empty"}, [] { Transform({}).apply(ImageView{}, 0, 0); });
  expect_error(Kind::argument, {"0x5"}, [] { resize_bilinear(formula_image(4, 4, 1).view(), 0, 5); });
  expect_error(Kind::argument, {"5 channels"}, [] { resize_bilinear(Image(4, 4, 5).view(), 2, 2); });
  expect_error(Kind::argument, {"to 0"}, [] { resize_shorter_side(formula_image(4, 4, 1).view(), 0); });
  expect_error(Kind::argument, {"center_crop"}, [] { center_crop(formula_image(4, 4, 1).view(), 0, 2); });
}

}  // namespace
}  // namespace apex::io
