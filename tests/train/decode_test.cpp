// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// JPEG files that are decoded where the batch goes, beside the same files decoded by the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include "apex/io/data/sources.hpp"
#include "apex/kernels/image.hpp"
#include "apex/tensor_ops.hpp"
#include "apex/train/prefetch.hpp"
#include "support/jpeg.hpp"
#include "support/subprocess.hpp"
#include "support/tensors.hpp"

namespace apex::train {
namespace {

using test::throws;

/// The op on this device gives the bytes of io's transform, for everything that a transform can draw.
TEST(ImageResize, EqualsTheTransformOfTheCpu) {
  const auto eval_of = [](int resize) {
    io::TransformOptions o = io::eval_transform(24);
    o.resize = resize;
    return o;
  };
  for (const auto& options : {io::train_transform(24, 3), io::train_transform(57, 4), io::eval_transform(24),
                              eval_of(0), io::small_train_transform(24, 20, 4, 5), io::small_eval_transform(24, 20)})
    for (const int channels : {1, 3})
      for (const auto& [width, height] : {std::pair{24, 20}, {20, 24}, {64, 47}, {9, 7}, {1, 1}, {301, 200}}) {
        const io::Transform transform(options);
        const io::Image image = test::photo_like(width, height, channels, width);
        const Tensor pixels = test::on_device(from_values<std::uint8_t>({height, width, channels}, image.pixels));
        const Tensor y =
            empty({4, channels, options.height, options.width}, DType::u8, test::device(), MemoryFormat::channels_last);
        std::vector<kernels::ImageWindow> windows;
        std::vector<double> want;
        for (std::int64_t sample = 0; sample < 4; ++sample) {
          const auto p = transform.place(width, height, 2, sample);
          windows.push_back({.image = views::permute(pixels, {2, 0, 1}).view(),
                             .row = sample,
                             .box_left = p.box.left,
                             .box_top = p.box.top,
                             .box_width = p.box.width,
                             .box_height = p.box.height,
                             .resized_width = p.resized_width,
                             .resized_height = p.resized_height,
                             .left = p.left,
                             .top = p.top,
                             .flip = p.flip});
          const io::Image out = transform.apply(image.view(), 2, sample);
          want.insert(want.end(), out.pixels.begin(), out.pixels.end());
        }
        kernels::image_resize(test::context(), y.view(), windows);
        EXPECT_TRUE(test::equal(views::permute(y, {0, 2, 3, 1}), want))
            << static_cast<int>(options.crop) << ' ' << width << 'x' << height << 'x' << channels;
      }
}

/// A folder of pictures: every subsampling and gray in odd sizes, with and without restart markers; and what nvJPEG is
/// not given, which are progressive files, PNG and stored RGB.
class Files : public ::testing::Test {
 protected:
  static constexpr int kSide = 40;

  void SetUp() override {
    const std::pair<int, int> sizes[] = {{64, 64}, {33, 17}, {7, 9}, {1, 1}, {97, 130}, {256, 255}};
    int n = 0;
    for (const auto& [width, height] : sizes) {
      const auto photo = [&](int channels) { return test::photo_like(width, height, channels, n); };
      for (const auto& [x, y] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}})
        add(n++, test::encode_jpeg_as(photo(3), {.chroma_x = x, .chroma_y = y, .restart_interval = n % 2 * 3}));
      add(n++, test::encode_jpeg_as(photo(1)));
      add(n++, test::encode_jpeg_as(photo(3), {.progressive = true}));
      add(n++, test::encode_jpeg_as(photo(3), {.stores_rgb = true}));
      add(n++, test::encode_jpeg_as(photo(3), {.chroma_x = 4, .chroma_y = 1}));
      add(n++, io::encode_png(photo(3).view()));
    }
    count_ = n;
  }
  void add(int n, const std::vector<std::uint8_t>& bytes) const {
    const auto place = folder_.path() / concat('c', n % 4);
    std::filesystem::create_directories(place);
    std::ofstream(place / concat(100 + n, ".jpg"), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  std::unique_ptr<io::Loader> loader(const io::TransformOptions& transform, bool encoded, int channels = 3,
                                     io::BadSample policy = io::BadSample::error) const {
    const auto data = std::make_shared<io::ImageFolder>(folder_.path(), channels);
    io::LoaderOptions options{.workers = 2, .bad_sample = policy};
    if (encoded) {
      options.memory = batch_memory(test::device());
      options.leaves_encoded = gpu_decodes(test::device());
    }
    return std::make_unique<io::Loader>(data, io::Transform(transform),
                                        io::Sampler({.size = data->size(), .batch = 16, .seed = 3, .drop_last = false}),
                                        options);
  }

  test::TemporaryFolder folder_;
  int count_ = 0;
};

class GpuDecode : public Files {
 protected:
  void SetUp() override {
    if (!test::on_cuda()) GTEST_SKIP() << "a GPU's case";
    if (gpu_decoder().empty()) GTEST_SKIP() << "this build has no nvJPEG";
    Files::SetUp();
  }
};

TEST_F(Files, StayEncodedOnlyWhereSomethingDecodesThem) {
  if (test::on_cuda() && !gpu_decoder().empty()) {
    EXPECT_NO_THROW(gpu_decodes(test::device()));
    return;
  }
  EXPECT_TRUE(throws(Kind::unsupported, "JPEG", [] { gpu_decodes(test::device()); }));
  const auto data = std::make_shared<io::ImageFolder>(folder_.path());
  io::Loader loader(data, io::Transform(io::small_eval_transform(8, 8)), io::Sampler({.size = count_, .batch = 4}),
                    {.workers = 0, .leaves_encoded = [](const io::JpegInfo&) { return true; }});
  EXPECT_TRUE(throws(Kind::unsupported, "JPEG", [&] { Prefetch feed(loader, test::device()); }));
}

/// Mean difference of a picture: another inverse transform and, for coarse chroma, another upsampling.
constexpr double kMeanLevels = 2.5;

void expect_like_the_cpu(io::Loader& plain, io::Loader& sent, std::int64_t epochs, double levels = kMeanLevels) {
  Prefetch feed(sent, test::device());
  std::size_t decoded = 0, equal = 0;
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    plain.start(epoch);
    feed.start(epoch);
    std::vector<io::Batch> wanted;
    std::vector<Tensor> copies;
    while (auto want = plain.next()) {
      const auto got = feed.next();
      ASSERT_TRUE(got);
      EXPECT_EQ(got->images.device(), test::device());
      EXPECT_EQ(got->images.strides(), want->images.strides());
      EXPECT_EQ(test::to_f64(got->labels), test::to_f64(want->labels));
      EXPECT_EQ(test::to_f64(got->ids), test::to_f64(want->ids));
      EXPECT_EQ(got->valid, want->valid);
      copies.push_back(clone(got->images));  // queued: the buffers turn while this is not done
      wanted.push_back(std::move(*want));
    }
    EXPECT_FALSE(feed.next());
    for (std::size_t b = 0; b < copies.size(); ++b)
      for (std::int64_t row = 0; row < copies[b].size(0); ++row) {
        const auto got = test::to_f64(views::select(copies[b], 0, row)),
                   want = test::to_f64(views::select(wanted[b].images, 0, row));
        double sum = 0;
        for (std::size_t i = 0; i < got.size(); ++i) sum += std::abs(got[i] - want[i]);
        const double mean = sum / static_cast<double>(got.size());
        EXPECT_LE(mean, levels) << "sample " << wanted[b].ids.data<std::int64_t>()[row] << " of epoch " << epoch;
        ++decoded;
        equal += mean == 0 ? 1 : 0;
      }
  }
  EXPECT_GT(equal, decoded / 5) << "files that are no plain JPEG are decoded by the CPU and equal";
  if (plain.dataset().channels() == 3) {  // luma alone is exact on some decoders
    EXPECT_LT(equal, decoded) << "nothing was decoded by the GPU";
  }
}

TEST_F(GpuDecode, PicturesAreTheCpusWithinAFewLevels) {
  for (const char* backend : {"", "hardware", "gpu", "host"}) {
    SCOPED_TRACE(backend);
    if (*backend != '\0') ::setenv("APEX_NVJPEG_BACKEND", backend, 1);
    for (const int channels : {3, 1}) {
      SCOPED_TRACE(channels);
      const auto fit = io::small_eval_transform(kSide, kSide);
      expect_like_the_cpu(*loader(fit, false, channels), *loader(fit, true, channels), 1);
      const auto train = io::train_transform(kSide, 11);
      expect_like_the_cpu(*loader(train, false, channels), *loader(train, true, channels), 2);
    }
    ::unsetenv("APEX_NVJPEG_BACKEND");
  }
}

TEST_F(GpuDecode, UnknownBackendsAreRefused) {
  ::setenv("APEX_NVJPEG_BACKEND", "fpga", 1);
  const auto sent = loader(io::small_eval_transform(kSide, kSide), true);
  EXPECT_TRUE(throws(Kind::argument, "fpga", [&] { Prefetch feed(*sent, test::device()); }));
  ::unsetenv("APEX_NVJPEG_BACKEND");
}

TEST_F(GpuDecode, ADamagedFileMeetsThePolicyOfTheCpu) {
  auto bytes = test::encode_jpeg_as(test::photo_like(90, 70, 3, 1));
  bytes.resize(bytes.size() * 2 / 3);
  add(50, bytes);
  const auto fit = io::small_eval_transform(kSide, kSide);
  const auto words_of = [](auto&& next) {
    try {
      while (next()) {}
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Kind::data);
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  const auto plain = loader(fit, false), sent = loader(fit, true);
  plain->start(0);
  const std::string want = words_of([&] { return plain->next().has_value(); });
  EXPECT_NE(want.find("150.jpg"), std::string::npos) << want;
  Prefetch feed(*sent, test::device());
  feed.start(0);
  EXPECT_EQ(words_of([&] { return feed.next().has_value(); }), want);
  for (const auto policy : {io::BadSample::skip, io::BadSample::black})
    expect_like_the_cpu(*loader(fit, false, 3, policy), *loader(fit, true, 3, policy), 1);
}

#ifdef APEX_HAS_CUDA
TEST_F(GpuDecode, KeepsItsMemoryFromBatchToBatch) {
  const auto sent = loader(io::train_transform(kSide, 2), true);
  Prefetch feed(*sent, test::device());
  const auto epoch = [&](std::int64_t number) {
    feed.start(number);
    while (feed.next()) {}
    cuda::synchronize(test::context());
    return cuda::memory_stats(test::device()).live;
  };
  for (std::int64_t e = 0; e < 4; ++e) epoch(e);  // groups of files grow to their largest
  const std::size_t before = epoch(4);
  for (std::int64_t e = 5; e < 12; ++e) epoch(e);
  EXPECT_LE(epoch(12), before + before / 4);
}
#endif

}  // namespace
}  // namespace apex::train
