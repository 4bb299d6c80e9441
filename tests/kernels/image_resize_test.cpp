// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>

#include "apex/kernels/image.hpp"
#include "support/on_device.hpp"

namespace apex {
namespace {

using kernels::ImageWindow;
using test::throws;

double value_at(std::uint64_t seed, std::int64_t i) {
  return std::floor(256 * test::unit(seed, static_cast<std::uint64_t>(i)));
}

/// How the pixels of a picture lie: one after the other, in planes, every second pixel of a wider picture at an odd
/// address, or one plane for all channels.
enum class Lie { interleaved, planes, strided, gray };

/// A picture [C, h, w] of random bytes.
Tensor picture(Lie lie, std::int64_t channels, std::int64_t height, std::int64_t width, std::uint64_t seed) {
  const auto random = [seed](std::int64_t i) { return value_at(seed, i); };
  const auto make = [&](const Dims& sizes) { return test::from_function(sizes, DType::u8, test::device(), random); };
  switch (lie) {
    case Lie::interleaved: return views::permute(make({height, width, channels}), {2, 0, 1});
    case Lie::planes: return make({channels, height, width});
    case Lie::strided:
      return views::as_strided(make({height * (2 * width * channels + 1) + 1}), {channels, height, width},
                               {1, 2 * width * channels + 1, 2 * channels}, 1);
    case Lie::gray: return views::expand(make({1, height, width}), {channels, height, width});
  }
  return {};
}

/// The triangle filter by its definition, unrounded: output i of one axis as pairs of input and weight.
std::vector<std::pair<std::int64_t, double>> taps(std::int64_t in, std::int64_t out, std::int64_t i) {
  const double scale = static_cast<double>(in) / static_cast<double>(out), widen = std::max(scale, 1.0);
  std::vector<std::pair<std::int64_t, double>> found;
  double sum = 0;
  for (std::int64_t x = 0; x < in; ++x) {
    const double off = std::abs(static_cast<double>(x) + 0.5 - (static_cast<double>(i) + 0.5) * scale);
    const double weight = std::max(0.0, 1 - off / widen);
    if (weight > 0) found.emplace_back(x, weight);
    sum += weight;
  }
  for (auto& tap : found) tap.second /= sum;
  return found;
}

/// The window in f64, [C, H, W] in row-major order.
std::vector<double> reference(const Tensor& image, const ImageWindow& w, std::int64_t height, std::int64_t width) {
  const auto pixels = test::to_f64(image);
  const std::int64_t rows = image.size(1), columns = image.size(2);
  std::vector<double> out;
  for (std::int64_t c = 0; c < image.size(0); ++c)
    for (std::int64_t i = 0; i < height; ++i)
      for (std::int64_t j = 0; j < width; ++j) {
        const std::int64_t y = w.top + i, x = w.left + (w.flip ? width - 1 - j : j);
        double sum = 0;
        if (y >= 0 && y < w.resized_height && x >= 0 && x < w.resized_width)
          for (const auto& [r, a] : taps(w.box_height, w.resized_height, y))
            for (const auto& [k, b] : taps(w.box_width, w.resized_width, x))
              sum += a * b * pixels[static_cast<std::size_t>((c * rows + w.box_top + r) * columns + w.box_left + k)];
        out.push_back(sum);
      }
  return out;
}

struct Case {
  const char* name;
  std::int64_t image_height, image_width, height, width;
  ImageWindow window;
};

std::vector<Case> cases() {
  const auto window = [](int l, int t, int w, int h, int rw, int rh, int left, int top, bool flip) {
    return ImageWindow{.box_left = l,
                       .box_top = t,
                       .box_width = w,
                       .box_height = h,
                       .resized_width = rw,
                       .resized_height = rh,
                       .left = left,
                       .top = top,
                       .flip = flip};
  };
  return {
      {"as it is", 5, 7, 5, 7, window(0, 0, 7, 5, 7, 5, 0, 0, false)},
      {"mirrored", 5, 7, 5, 7, window(0, 0, 7, 5, 7, 5, 0, 0, true)},
      {"box smaller", 31, 33, 16, 16, window(3, 5, 27, 23, 16, 16, 0, 0, true)},
      {"box larger", 9, 8, 24, 24, window(1, 2, 5, 6, 24, 24, 0, 0, false)},
      {"one axis only", 12, 40, 12, 9, window(0, 0, 40, 12, 9, 12, 0, 0, false)},
      {"middle of the resized", 30, 50, 14, 14, window(0, 0, 50, 30, 26, 16, 6, 1, false)},
      {"window reaches outside", 6, 6, 10, 12, window(0, 0, 6, 6, 6, 6, -2, -3, true)},
      {"window beyond", 6, 6, 4, 5, window(0, 0, 6, 6, 6, 6, 4, 3, false)},
      {"window outside", 6, 6, 4, 4, window(0, 0, 6, 6, 6, 6, 6, 0, false)},
      {"one pixel", 1, 1, 3, 5, window(0, 0, 1, 1, 5, 3, 0, 0, true)},
      {"to one pixel", 19, 23, 1, 1, window(2, 1, 20, 17, 1, 1, 0, 0, false)},
      {"much smaller", 300, 257, 3, 4, window(0, 0, 257, 300, 4, 3, 0, 0, false)},
      {"more than a block", 20, 140, 9, 131, window(0, 0, 140, 20, 131, 9, 0, 0, true)},
  };
}

constexpr test::Tolerance kOneLevel{.atol = 1.001};  // two passes are rounded to bytes, by half a level each

TEST(ImageResize, MatchesTheFormula) {
  for (const auto& c : cases())
    for (const auto lie : {Lie::interleaved, Lie::planes, Lie::strided, Lie::gray})
      for (const std::int64_t channels : {1, 3, 5})
        for (const auto format : {MemoryFormat::channels_last, MemoryFormat::contiguous}) {
          const Tensor image = picture(lie, channels, c.image_height, c.image_width, 7);
          const Tensor y = test::from_function(
              {3, channels, c.height, c.width}, DType::u8, test::device(), [](std::int64_t) { return 113.0; }, format);
          ImageWindow window = c.window;
          window.image = image.view();
          window.row = 1;
          kernels::image_resize(test::context(), y.view(), {&window, 1});
          EXPECT_TRUE(test::close(views::select(y, 0, 1), reference(image, window, c.height, c.width), kOneLevel))
              << c.name << ", " << channels << " channels, lie " << static_cast<int>(lie);
          const std::vector<double> untouched(static_cast<std::size_t>(channels * c.height * c.width), 113.0);
          EXPECT_TRUE(test::equal(views::select(y, 0, 0), untouched)) << c.name;
          EXPECT_TRUE(test::equal(views::select(y, 0, 2), untouched)) << c.name;
        }
}

/// More pictures than one launch takes, each with its own size, in rows out of order; y with gaps.
TEST(ImageResize, ManyPicturesAtOnce) {
  constexpr std::int64_t kCount = 303;
  const Tensor block =
      test::from_function({kCount, 3, 8, 12}, DType::u8, test::device(), [](std::int64_t) { return 1.0; });
  const Tensor y = views::narrow(block, 3, 2, 7);
  std::vector<Tensor> images;
  std::vector<ImageWindow> windows;
  for (std::int64_t i = 0; i < kCount; ++i) {
    const std::int64_t height = 4 + i % 13, width = 5 + i % 17;
    images.push_back(
        picture(i % 2 == 0 ? Lie::interleaved : Lie::planes, 3, height, width, static_cast<std::uint64_t>(i)));
    windows.push_back({.image = images.back().view(),
                       .row = i * 7 % kCount,
                       .box_left = 1,
                       .box_top = 2,
                       .box_width = static_cast<int>(width - 2),
                       .box_height = static_cast<int>(height - 2),
                       .resized_width = 7,
                       .resized_height = 8,
                       .flip = i % 3 == 0});
  }
  kernels::image_resize(test::context(), y.view(), windows);
  for (std::size_t i = 0; i < images.size(); ++i)
    ASSERT_TRUE(test::close(views::select(y, 0, windows[i].row), reference(images[i], windows[i], 8, 7), kOneLevel))
        << i;
  EXPECT_TRUE(test::equal(views::narrow(block, 3, 9, 3), std::vector<double>(kCount * 3 * 8 * 3, 1.0)));
}

/// Pictures that share no round because of what they need in scratch, and a repeat that gives the same bytes.
TEST(ImageResize, LargePictures) {
  const Tensor a = picture(Lie::interleaved, 3, 700, 900, 1);
  const Tensor y = test::make({2, 3, 640, 1024}, DType::u8, test::device(), MemoryFormat::channels_last);
  std::vector<ImageWindow> windows(2);
  for (std::size_t i = 0; i < 2; ++i)
    windows[i] = {.image = a.view(),
                  .row = static_cast<std::int64_t>(i),
                  .box_width = 900,
                  .box_height = 700,
                  .resized_width = 1024,
                  .resized_height = 640};
  kernels::image_resize(test::context(), y.view(), windows);
  const auto first = test::to_f64(y);
  const auto half = first.size() / 2;
  EXPECT_TRUE(
      std::equal(first.begin(), first.begin() + static_cast<long>(half), first.begin() + static_cast<long>(half)));
  kernels::image_resize(test::context(), y.view(), windows);
  EXPECT_TRUE(test::equal(y, first));
}

TEST(ImageResize, NothingToDo) {
  const Tensor y = test::make({2, 3, 4, 4}, DType::u8), none = test::make({0, 3, 4, 4}, DType::u8),
               flat = test::make({1, 3, 0, 4}, DType::u8), image = picture(Lie::planes, 3, 2, 2, 1);
  kernels::image_resize(test::context(), y.view(), {});
  kernels::image_resize(test::context(), none.view(), {});
  const ImageWindow window{
      .image = image.view(), .box_width = 2, .box_height = 2, .resized_width = 1, .resized_height = 1};
  kernels::image_resize(test::context(), flat.view(), {&window, 1});
}

TEST(ImageResize, RefusesWhatDoesNotFit) {
  const Tensor y = test::make({2, 3, 4, 4}, DType::u8), floats = test::make({2, 3, 4, 4}),
               image = picture(Lie::planes, 3, 6, 5, 1), gray = picture(Lie::planes, 1, 6, 5, 1);
  const ImageWindow good{
      .image = image.view(), .box_width = 5, .box_height = 6, .resized_width = 4, .resized_height = 4};
  const auto run = [&](const Tensor& to, std::vector<ImageWindow> windows) {
    return [to, windows] { kernels::image_resize(test::context(), to.view(), windows); };
  };
  const auto with = [&](auto change) {
    ImageWindow w = good;
    change(w);
    return std::vector<ImageWindow>{w};
  };
  EXPECT_TRUE(throws(Kind::argument, "y is f32", run(floats, {good})));
  EXPECT_TRUE(throws(Kind::argument, "image is f32",
                     run(y, with([&](auto& w) { w.image = views::select(floats, 0, 0).view(); }))));
  EXPECT_TRUE(throws(Kind::argument, "y ", run(views::select(y, 0, 0), {})));
  EXPECT_TRUE(throws(Kind::argument, "image ", run(y, with([&](auto& w) { w.image = y.view(); }))));
  EXPECT_TRUE(throws(Kind::argument, "image", run(y, with([&](auto& w) { w.image = {}; }))));
  EXPECT_TRUE(throws(Kind::argument, "has 1 channels, y has 3", run(y, with([&](auto& w) { w.image = gray.view(); }))));
  EXPECT_TRUE(throws(Kind::argument, "row 2 of 2 is not there", run(y, with([](auto& w) { w.row = 2; }))));
  EXPECT_TRUE(throws(Kind::argument, "row -1 of 2 is not there", run(y, with([](auto& w) { w.row = -1; }))));
  EXPECT_TRUE(throws(Kind::argument, "picture 1: row 0 of 2 was named before", run(y, {good, good})));
  EXPECT_TRUE(throws(Kind::argument, "box 6x6 at (0, 0) is not inside an image of 5x6",
                     run(y, with([](auto& w) { w.box_width = 6; }))));
  EXPECT_TRUE(throws(Kind::argument, "is not inside", run(y, with([](auto& w) { w.box_left = 1; }))));
  EXPECT_TRUE(throws(Kind::argument, "is not inside", run(y, with([](auto& w) { w.box_top = -1; }))));
  EXPECT_TRUE(throws(Kind::argument, "is not inside", run(y, with([](auto& w) { w.box_height = 0; }))));
  EXPECT_TRUE(throws(Kind::argument, "resized to 0x4", run(y, with([](auto& w) { w.resized_width = 0; }))));
  EXPECT_TRUE(throws(Kind::argument, "is broadcast",
                     run(views::expand(test::make({2, 1, 4, 4}, DType::u8), {2, 3, 4, 4}), {})));
}

}  // namespace
}  // namespace apex
