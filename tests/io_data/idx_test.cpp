// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <zlib.h>

#include <cmath>
#include <set>

#include "apex/io/data/sources.hpp"
#include "io_data/common.hpp"

namespace apex::io {
namespace {

using test::Bytes;
using test::expect_error;
namespace fs = std::filesystem;

void put_be32(Bytes& out, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<std::uint8_t>(value >> shift));
}

/// n pictures of 3 rows and 5 columns; pixel k of picture i is (31 i + k) mod 256.
Bytes idx_images(std::uint32_t n) {
  Bytes out;
  for (const std::uint32_t word : {0x803u, n, 3u, 5u}) put_be32(out, word);
  for (std::uint32_t i = 0; i < n; ++i)
    for (std::uint32_t k = 0; k < 15; ++k) out.push_back(static_cast<std::uint8_t>(31 * i + k));
  return out;
}
Bytes idx_labels(std::uint32_t n, std::uint32_t classes = 4) {
  Bytes out;
  put_be32(out, 0x801);
  put_be32(out, n);
  for (std::uint32_t i = 0; i < n; ++i) out.push_back(static_cast<std::uint8_t>(i % classes));
  return out;
}
Bytes gzip(const Bytes& bytes) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  Bytes out(deflateBound(&stream, bytes.size()));
  stream.next_in = const_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

class Idx : public ::testing::Test {
 protected:
  void write(const Bytes& images, const Bytes& labels, const std::string& end = "") {
    images_ = folder_.path() / ("train-images-idx3-ubyte" + end);
    labels_ = folder_.path() / ("train-labels-idx1-ubyte" + end);
    test::write_bytes(images_, images);
    test::write_bytes(labels_, labels);
  }
  void expect_data_error(const std::vector<std::string>& words) {
    expect_error(Kind::data, words, [&] { IdxDataset(images_, labels_); });
  }
  test::TemporaryFolder folder_;
  fs::path images_, labels_;
};

TEST_F(Idx, ReadsPlainAndGzipAlike) {
  for (const bool zipped : {false, true}) {
    write(zipped ? gzip(idx_images(7)) : idx_images(7), zipped ? gzip(idx_labels(7)) : idx_labels(7),
          zipped ? ".gz" : "");
    const IdxDataset data(images_, labels_);
    ASSERT_EQ(data.size(), 7);
    EXPECT_EQ(data.channels(), 1);
    EXPECT_EQ(data.class_names(), (std::vector<std::string>{"0", "1", "2", "3"}));
    EXPECT_EQ(data.fixed_size(), (Dataset::Size{3, 5}));
    for (int i = 0; i < 7; ++i) {
      EXPECT_EQ(data.label(i), i % 4);
      const Image image = data.load(i);
      ASSERT_EQ(image.width, 5);
      ASSERT_EQ(image.height, 3);
      for (int k = 0; k < 15; ++k) EXPECT_EQ(image.pixels[k], (31 * i + k) % 256);
    }
    EXPECT_FALSE(data.encoded(0));
  }
}

TEST_F(Idx, ThreeChannelsRepeatTheValue) {
  write(idx_images(2), idx_labels(2));
  const Image image = IdxDataset(images_, labels_, 3).load(1);
  EXPECT_EQ(image.channels, 3);
  for (int k = 0; k < 45; ++k) EXPECT_EQ(image.pixels[k], 31 + k / 3);
  expect_error(Kind::argument, {"channels is 2"}, [&] { IdxDataset(images_, labels_, 2); });
}

TEST_F(Idx, MeasuresItsPixels) {
  write(idx_images(20), idx_labels(20));
  double sum = 0, squares = 0;
  for (int i = 0; i < 20; ++i)
    for (int k = 0; k < 15; ++k) {
      const double v = (31 * i + k) % 256 / 255.0;
      sum += v / 300;
      squares += v * v / 300;
    }
  const Normalization measured = IdxDataset(images_, labels_, 3).measure();
  ASSERT_EQ(measured.mean.size(), 3u);
  EXPECT_NEAR(measured.mean[2], sum, 1e-12);
  EXPECT_NEAR(measured.stddev[0], std::sqrt(squares - sum * sum), 1e-12);
}

TEST_F(Idx, NamesTheFileAndTheFault) {
  const Bytes images = idx_images(5), labels = idx_labels(5);
  write({}, labels);
  expect_data_error({"train-images", "empty"});
  write(labels, labels);
  expect_data_error({"train-images", "00000801", "00000803"});
  write(images, images);
  expect_data_error({"train-labels", "00000803", "00000801"});
  write(images, idx_labels(6));
  expect_data_error({"5 pictures", "6 labels"});
  write(idx_images(0), idx_labels(0));
  expect_data_error({"train-images", "0 pictures"});
  for (std::size_t size = 1; size < images.size(); size += 5) {
    write(Bytes(images.begin(), images.begin() + static_cast<long>(size)), labels);
    expect_data_error({"train-images", "cut short"});
  }
  Bytes longer = images;
  longer.push_back(0);
  write(longer, labels);
  expect_data_error({"train-images", "longer"});
  Bytes huge = images;
  std::fill(huge.begin() + 4, huge.begin() + 8, std::uint8_t{0xff});
  Bytes huge_labels = labels;
  std::fill(huge_labels.begin() + 4, huge_labels.begin() + 8, std::uint8_t{0xff});
  write(huge, huge_labels);  // 4 billion pictures in a file of 91 bytes: no memory is asked for
  expect_data_error({"train-images", "cut short"});
  fs::remove(images_);
  expect_error(Kind::data, {"train-images", "No such file"}, [&] { IdxDataset(images_, labels_); });
  expect_error(Kind::data, {"directory"}, [&] { IdxDataset(folder_.path(), labels_); });
}

TEST_F(Idx, DamagedGzip) {
  const Bytes zipped = gzip(idx_images(50)), labels = idx_labels(50);
  for (std::size_t size = 12; size < zipped.size(); size += 9) {
    write(Bytes(zipped.begin(), zipped.begin() + static_cast<long>(size)), labels, ".gz");
    expect_data_error({"train-images", "cut short"});
  }
  Bytes damaged = zipped;
  damaged[damaged.size() - 6] ^= 0x10;  // in the checksum at the end
  write(damaged, labels, ".gz");
  expect_data_error({"train-images", "damaged"});
}

TEST_F(Idx, ClassNamesMustCoverTheLabels) {
  write(idx_images(5), idx_labels(5));
  EXPECT_EQ(IdxDataset(images_, labels_, 1, {"a", "b", "c", "d"}).class_names()[3], "d");
  expect_error(Kind::data, {"label 3", "3 class names"}, [&] { IdxDataset(images_, labels_, 1, {"a", "b", "c"}); });
}

TEST_F(Idx, OpensAsADataSet) {
  write(gzip(idx_images(30)), idx_labels(30));
  fs::rename(images_, images_.string() + ".gz");
  expect_error(Kind::data, {"no validation part", "t10k"}, [&] { open_dataset(folder_.path()); });
  EXPECT_EQ(open_dataset(folder_.path(), {.require_validation = false}).validation, nullptr);

  const DatasetPair split = open_dataset(folder_.path(), {.val_split = 0.2});
  EXPECT_EQ(split.kind, "idx");
  // Classes of 8, 8, 7, 7: floor(1.6 + .5), twice, and floor(1.4 + .5), twice.
  EXPECT_EQ(split.validation->size(), 6);
  EXPECT_EQ(split.train->size(), 24);

  test::write_bytes(folder_.path() / "t10k-images.idx3-ubyte", idx_images(6));
  expect_error(Kind::data, {"t10k-images", "t10k-labels-idx1"}, [&] { open_dataset(folder_.path()); });
  test::write_bytes(folder_.path() / "t10k-labels.idx1-ubyte", idx_labels(6));
  const DatasetPair pair = open_dataset(folder_.path(), {.channels = 3});
  EXPECT_EQ(pair.train->size(), 30);
  EXPECT_EQ(pair.validation->size(), 6);
  EXPECT_EQ(pair.train->channels(), 3);
  EXPECT_EQ(pair.normalization.mean.size(), 3u);
  EXPECT_EQ(pair.validation->class_names(), pair.train->class_names());
  expect_error(Kind::argument, {"val_split"}, [&] { open_dataset(folder_.path(), {.val_split = 0.5}); });

  test::write_text(folder_.path() / "names", "shirt\r\nbag\n\nboot\ncoat\n");
  const auto named = open_dataset(folder_.path(), {.class_names_file = folder_.path() / "names"});
  EXPECT_EQ(named.train->class_names(), (std::vector<std::string>{"shirt", "bag", "boot", "coat"}));
  expect_error(Kind::data, {"nowhere"},
               [&] { open_dataset(folder_.path(), {.class_names_file = folder_.path() / "nowhere"}); });
}

TEST(FashionMnist, IsReadWhereItIsInstalled) {
  const fs::path folder = "/usr/share/datasets/fashion-mnist";
  if (!fs::exists(folder)) GTEST_SKIP() << "package dataset-fashion-mnist is not installed";
  const DatasetPair pair = open_dataset(folder);
  EXPECT_EQ(pair.train->size(), 60000);
  EXPECT_EQ(pair.validation->size(), 10000);
  EXPECT_EQ(pair.train->class_names().size(), 10u);
  EXPECT_NEAR(pair.normalization.mean[0], 0.2860, 5e-5);  // the figures everybody uses
  EXPECT_NEAR(pair.normalization.stddev[0], 0.3530, 5e-5);
  std::int64_t nines = 0;
  for (int i = 0; i < 60000; ++i) nines += pair.train->label(i) == 9;
  EXPECT_EQ(nines, 6000);
}

TEST(Synthetic, DependsOnSeedAndIndexAndCanBeLearned) {
  const SyntheticDataset data(40, 4, 3, 20, 24, 1), same(40, 4, 3, 20, 24, 1), other(40, 4, 3, 20, 24, 2);
  EXPECT_EQ(data.load(7).pixels, same.load(7).pixels);
  EXPECT_NE(data.load(7).pixels, other.load(7).pixels);
  EXPECT_NE(data.load(3).pixels, data.load(7).pixels);
  // A part that starts further on is the same row of samples.
  const SyntheticDataset later(5, 4, 3, 20, 24, 1, 6);
  EXPECT_EQ(later.load(1).pixels, data.load(7).pixels);
  EXPECT_EQ(later.label(1), data.label(7));
  // The nearest class mean of other samples finds every label.
  const auto distance = [](const Image& a, const Image& b) {
    double sum = 0;
    for (std::size_t k = 0; k < a.pixels.size(); ++k) sum += std::pow(double(a.pixels[k]) - b.pixels[k], 2);
    return sum;
  };
  for (int i = 4; i < 40; ++i) {
    int best = 0;
    for (int c = 1; c < 4; ++c)
      if (distance(data.load(i), data.load(c)) < distance(data.load(i), data.load(best))) best = c;
    EXPECT_EQ(best, data.label(i));
  }
  expect_error(Kind::argument, {"size 0"}, [] { SyntheticDataset(0, 1, 1, 2, 2, 0); });
  expect_error(Kind::argument, {"channels is 2"}, [] { SyntheticDataset(1, 1, 2, 2, 2, 0); });
}

TEST(Synthetic, OpensByItsName) {
  DatasetOptions options;
  options.synthetic = {.train_size = 12, .validation_size = 5, .classes = 3, .height = 6, .width = 7};
  options.channels = 1;
  const DatasetPair pair = open_dataset("synthetic", options);
  EXPECT_EQ(pair.kind, "synthetic");
  EXPECT_EQ(pair.train->size(), 12);
  EXPECT_EQ(pair.validation->size(), 5);
  EXPECT_EQ(pair.validation->channels(), 1);
  EXPECT_NE(pair.train->load(0).pixels, pair.validation->load(0).pixels);
  EXPECT_EQ(pair.train->fixed_size(), (Dataset::Size{6, 7}));
}

TEST(Fingerprint, ChangesWithTheData) {
  const SyntheticDataset a(10, 4, 3, 8, 8, 1), b(11, 4, 3, 8, 8, 1), c(10, 5, 3, 8, 8, 1), d(10, 4, 1, 8, 8, 1);
  EXPECT_EQ(fingerprint(a), fingerprint(SyntheticDataset(10, 4, 3, 8, 8, 1)));
  EXPECT_EQ((std::set<std::uint64_t>{fingerprint(a), fingerprint(b), fingerprint(c), fingerprint(d)}.size()), 4u);
}

}  // namespace
}  // namespace apex::io
