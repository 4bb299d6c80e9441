// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/io/data/loader.hpp"

#include <sched.h>
#include <signal.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "apex/io/data/sources.hpp"
#include "io_data/common.hpp"
#include "support/jpeg.hpp"

namespace apex::io {
namespace {

using test::Bytes;
using test::expect_error;
using namespace std::chrono_literals;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Pictures of one colour, 4 x 3, the value being the index; what goes wrong and when is up to the test.
class Scripted : public Dataset {
 public:
  explicit Scripted(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  int channels() const override { return 1; }
  const std::vector<std::string>& class_names() const override { return names_; }
  std::int64_t label(std::int64_t i) const override { return i % 10; }
  std::string sample_name(std::int64_t i) const override { return concat("sample ", i); }
  std::string sample_key(std::int64_t i) const override { return sample_name(i); }
  Image load(std::int64_t i) const override {
    {
      const std::lock_guard lock(mutex_);
      loaded_.push_back(i);
    }
    if (on_load) on_load(i);
    Image image(4, 3, 1);
    std::fill(image.pixels.begin(), image.pixels.end(), static_cast<std::uint8_t>(i));
    return image;
  }
  std::vector<std::int64_t> loaded() const {
    const std::lock_guard lock(mutex_);
    return loaded_;
  }
  std::function<void(std::int64_t)> on_load;

 private:
  std::int64_t size_;
  std::vector<std::string> names_ = std::vector<std::string>(10, "c");
  mutable std::mutex mutex_;
  mutable std::vector<std::int64_t> loaded_;
};

Transform plain() { return Transform(small_eval_transform(3, 4)); }
Sampler in_order(std::int64_t size, std::int64_t batch, bool drop_last = true) {
  return Sampler({.size = size, .batch = batch, .shuffle = false, .drop_last = drop_last});
}
std::int64_t id_of(const Batch& batch, int row) { return batch.ids.data<std::int64_t>()[row]; }
std::int64_t label_of(const Batch& batch, int row) { return batch.labels.data<std::int64_t>()[row]; }
int pixel_of(const Batch& batch, int row) { return batch.images.data<std::uint8_t>()[row * 12]; }

TEST(Loader, BatchHasTheDeclaredForm) {
  const auto data = std::make_shared<SyntheticDataset>(20, 4, 3, 10, 12, 1);
  const Transform transform(small_eval_transform(10, 12));
  Loader loader(data, transform, Sampler({.size = 20, .batch = 4, .world = 2, .rank = 1, .seed = 3}), {.workers = 1});
  EXPECT_EQ(loader.steps_per_epoch(), 2);
  loader.start(5);
  for (int step = 0; step < 2; ++step) {
    const auto batch = loader.next();
    ASSERT_TRUE(batch);
    EXPECT_EQ(batch->images.dtype(), DType::u8);
    EXPECT_EQ(batch->images.sizes(), (Dims{4, 3, 10, 12}));
    EXPECT_TRUE(batch->images.is_contiguous(MemoryFormat::channels_last));
    EXPECT_EQ(batch->labels.dtype(), DType::i64);
    EXPECT_EQ(batch->labels.sizes(), (Dims{4}));
    EXPECT_EQ(batch->ids.sizes(), (Dims{4}));
    EXPECT_EQ(batch->valid, 4);
    EXPECT_EQ(batch->epoch, 5);
    EXPECT_EQ(batch->step, step);
    EXPECT_EQ(batch->first, 1);
    EXPECT_EQ(batch->stride, 2);
    const auto expected = loader.sampler().slice(5, step);
    for (int row = 0; row < 4; ++row) {
      const std::int64_t id = id_of(*batch, row);
      EXPECT_EQ(id, expected.ids[row]);
      EXPECT_EQ(label_of(*batch, row), data->label(id));
      const Image image = data->load(id);  // HWC is what channels-last strides mean
      EXPECT_EQ(
          Bytes(batch->images.data<std::uint8_t>() + row * 360, batch->images.data<std::uint8_t>() + (row + 1) * 360),
          image.pixels);
    }
  }
  EXPECT_FALSE(loader.next());
  EXPECT_FALSE(loader.next());
  EXPECT_EQ(loader.stats().batches, 2);
}

Bytes everything(int workers, int prefetch, bool look_ahead, std::int64_t from_step, int world, int rank,
                 std::int64_t batch_size) {
  const auto data = std::make_shared<SyntheticDataset>(50, 5, 3, 16, 16, 1);
  Loader loader(data, Transform(train_transform(12, 7)),
                Sampler({.size = 50, .batch = batch_size, .world = world, .rank = rank, .seed = 3}),
                {.workers = workers, .prefetch = prefetch, .look_ahead = look_ahead});
  Bytes all;
  for (int epoch = 0; epoch < 3; ++epoch) {
    loader.start(epoch, epoch == 0 ? from_step : 0);
    while (const auto batch = loader.next()) {
      const auto* pixels = batch->images.data<std::uint8_t>();
      all.insert(all.end(), pixels, pixels + batch->images.numel());
      const auto* ids = reinterpret_cast<const std::uint8_t*>(batch->ids.data<std::int64_t>());
      all.insert(all.end(), ids, ids + batch->ids.bytes());
    }
  }
  return all;
}

TEST(Loader, SameBytesForAnyNumberOfWorkers) {
  const Bytes expected = everything(0, 1, false, 0, 1, 0, 6);
  ASSERT_EQ(expected.size(), 3u * 8 * (6 * 3 * 144 + 6 * 8));
  for (const int workers : {0, 1, 2, 3, 8})
    for (const int prefetch : {1, 2, 5})
      for (const bool look_ahead : {false, true})
        EXPECT_EQ(everything(workers, prefetch, look_ahead, 0, 1, 0, 6), expected) << workers << ' ' << prefetch;
}

TEST(Loader, ResumesAtAnyStepWithTheSameBytes) {
  const Bytes expected = everything(2, 3, true, 0, 1, 0, 6);
  const std::size_t step_bytes = 6 * 3 * 144 + 6 * 8;
  for (std::int64_t step = 0; step <= 8; ++step)
    for (const int workers : {0, 3})
      EXPECT_EQ(everything(workers, 3, true, step, 1, 0, 6),
                Bytes(expected.begin() + static_cast<long>(step_bytes * step), expected.end()));
}

TEST(Loader, ASampleLooksTheSameOnAnyRankCount) {
  const auto pictures = [](int world) {
    std::map<std::pair<int, std::int64_t>, std::string> seen;  // by epoch and id
    const auto data = std::make_shared<SyntheticDataset>(48, 5, 3, 16, 16, 1);
    for (int rank = 0; rank < world; ++rank) {
      Loader loader(data, Transform(train_transform(12, 7)),
                    Sampler({.size = 48, .batch = 12 / world, .world = world, .rank = rank, .seed = 3}),
                    {.workers = 1 + rank});
      for (int epoch = 0; epoch < 2; ++epoch) {
        loader.start(epoch);
        while (const auto batch = loader.next())
          for (int row = 0; row < 12 / world; ++row) {
            const auto* p = batch->images.data<std::uint8_t>() + row * 432;
            seen[{epoch, id_of(*batch, row)}] = std::string(p, p + 432);
          }
      }
    }
    return seen;
  };
  const auto one = pictures(1);
  EXPECT_EQ(one.size(), 96u);
  EXPECT_EQ(pictures(2), one);
  EXPECT_EQ(pictures(3), one);
}

TEST(Loader, ResumeReadsNoEarlierSample) {
  const auto data = std::make_shared<Scripted>(40);
  Loader loader(data, plain(), in_order(40, 4), {.workers = 2});
  loader.start(0, 7);
  while (loader.next()) {}
  std::vector<std::int64_t> loaded = data->loaded();
  std::sort(loaded.begin(), loaded.end());
  std::vector<std::int64_t> expected;
  for (std::int64_t i = 28; i < 40; ++i) expected.push_back(i);
  EXPECT_EQ(loaded, expected);
  loader.start(0, 10);
  EXPECT_FALSE(loader.next());
  EXPECT_EQ(data->loaded().size(), 12u);
}

TEST(Loader, LookAheadPreparesTheNextEpoch) {
  const auto data = std::make_shared<Scripted>(8);
  Loader loader(data, plain(), in_order(8, 4), {.workers = 1, .prefetch = 2, .look_ahead = true});
  loader.start(0);
  while (loader.next()) {}
  const auto begin = std::chrono::steady_clock::now();
  while (data->loaded().size() < 16 && seconds_since(begin) < 5) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(data->loaded().size(), 16u);  // bounded: two batches ahead and no more
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(data->loaded().size(), 16u);
  loader.start(1);
  const auto batch = loader.next();
  ASSERT_TRUE(batch);
  EXPECT_EQ(batch->epoch, 1);
  EXPECT_EQ(batch->step, 0);
  loader.start(4, 1);  // elsewhere than expected: what was prepared is dropped
  EXPECT_EQ(loader.next()->epoch, 4);
}

TEST(Loader, QueueIsBounded) {
  const auto data = std::make_shared<Scripted>(400);
  Loader loader(data, plain(), in_order(400, 4), {.workers = 3, .prefetch = 2});
  loader.start(0);
  const auto begin = std::chrono::steady_clock::now();
  while (data->loaded().size() < 8 && seconds_since(begin) < 5) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(data->loaded().size(), 8u);
}

TEST(Loader, EvaluationPadsTheLastBatch) {
  const auto data = std::make_shared<Scripted>(10);
  for (int rank = 0; rank < 2; ++rank) {
    Loader loader(data, plain(),
                  Sampler({.size = 10, .batch = 3, .world = 2, .rank = rank, .shuffle = false, .drop_last = false}),
                  {.workers = 2});
    loader.start(0);
    ASSERT_EQ(loader.next()->valid, 3);
    const auto last = loader.next();
    EXPECT_EQ(last->images.size(0), 3);
    ASSERT_EQ(last->valid, 2);
    EXPECT_EQ(id_of(*last, 1), 8 + rank);
    EXPECT_EQ(id_of(*last, 2), -1);
    EXPECT_EQ(label_of(*last, 2), 0);
    for (int k = 0; k < 12; ++k) EXPECT_EQ(last->images.data<std::uint8_t>()[24 + k], 0);
    EXPECT_FALSE(loader.next());
  }
}

TEST(Loader, ErrorSurfacesInOrderAndNamesTheFirstBadSample) {
  for (const int workers : {0, 1, 4}) {
    const auto data = std::make_shared<Scripted>(40);
    data->on_load = [](std::int64_t i) {
      if (i == 9 || i == 11 || i == 12) fail(Kind::data, concat("sample ", i, " is no picture"));
      if (i == 8) std::this_thread::sleep_for(5ms);  // the others are tried while an earlier one is still read
    };
    Loader loader(data, plain(), in_order(40, 4), {.workers = workers});
    loader.start(0);
    EXPECT_EQ(loader.next()->step, 0);
    EXPECT_EQ(loader.next()->step, 1);
    for (int again = 0; again < 2; ++again) expect_error(Kind::data, {"sample 9 is"}, [&] { loader.next(); });
    loader.start(0, 4);
    EXPECT_EQ(loader.next()->step, 4);
  }
}

TEST(Loader, ForeignExceptionsComeThrough) {
  const auto data = std::make_shared<Scripted>(8);
  data->on_load = [](std::int64_t) { throw std::bad_alloc(); };
  Loader loader(data, plain(), in_order(8, 4), {.workers = 2, .bad_sample = BadSample::skip});
  loader.start(0);
  EXPECT_THROW(loader.next(), std::bad_alloc);
}

// Operations 3.3, row 22: the policy looks at the sample alone, so every rank and every worker count decides alike.
TEST(Loader, BadSamplePolicies) {
  const auto bad = [](std::int64_t i) {
    if (i == 5 || i == 6) fail(Kind::data, concat("sample ", i, ": damaged"));
    if (i == 39) fail(Kind::damaged, "sample 39 fails its checksum");
  };
  for (const int workers : {0, 3}) {
    const auto data = std::make_shared<Scripted>(40);
    data->on_load = bad;
    ::testing::internal::CaptureStderr();
    {
      Loader skip(data, plain(), in_order(40, 4), {.workers = workers, .bad_sample = BadSample::skip});
      for (int epoch = 0; epoch < 2; ++epoch) {
        skip.start(epoch);
        while (const auto batch = skip.next())
          for (int row = 0; row < 4; ++row) {
            const std::int64_t id = batch->step * 4 + row;
            const std::int64_t used = id == 5 || id == 6 ? 7 : id == 39 ? 0 : id;
            EXPECT_EQ(id_of(*batch, row), id);
            EXPECT_EQ(pixel_of(*batch, row), used);
            EXPECT_EQ(label_of(*batch, row), used % 10);
          }
      }
      EXPECT_EQ(skip.stats().bad_samples, 2 * 4);  // 5 (meeting 6 on the way), 6, 39
    }
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 3) << log;  // each named once
    EXPECT_NE(log.find("sample 6: damaged"), std::string::npos) << log;

    ::testing::internal::CaptureStderr();
    Loader black(data, plain(), in_order(40, 4), {.workers = workers, .bad_sample = BadSample::black});
    black.start(0, 1);
    const auto batch = black.next();
    ::testing::internal::GetCapturedStderr();
    const int expected[] = {4, 0, 0, 7};
    for (int row = 0; row < 4; ++row) {
      EXPECT_EQ(pixel_of(*batch, row), expected[row]);
      EXPECT_EQ(label_of(*batch, row), 4 + row);
    }
  }
}

TEST(Loader, SkipGivesUpWhenNothingIsGood) {
  const auto data = std::make_shared<Scripted>(12);
  data->on_load = [](std::int64_t i) { fail(Kind::data, concat("sample ", i, ": damaged")); };
  ::testing::internal::CaptureStderr();
  Loader loader(data, plain(), in_order(12, 4), {.workers = 1, .bad_sample = BadSample::skip});
  loader.start(0);
  expect_error(Kind::data, {"no good sample"}, [&] { loader.next(); });
  ::testing::internal::GetCapturedStderr();
}

// Operations 3.3, row 23: retried, then the path is named; never mistaken for a bad sample.
TEST(Loader, FileSystemErrorsAreRetried) {
  const auto data = std::make_shared<Scripted>(8);
  std::atomic<int> failures{2};
  data->on_load = [&](std::int64_t i) {
    if (i == 2 && failures-- > 0) throw Error(Kind::data, Domain::system, ESTALE, "cannot read 'x': Stale file handle");
  };
  Loader loader(data, plain(), in_order(8, 4),
                {.workers = 2, .bad_sample = BadSample::skip, .retries = 2, .retry_delay = 1ms});
  loader.start(0);
  const auto batch = loader.next();
  EXPECT_EQ(pixel_of(*batch, 2), 2);
  EXPECT_EQ(loader.stats().retries, 2);
  EXPECT_EQ(loader.stats().bad_samples, 0);
  failures = 100;
  loader.start(0);
  expect_error(Kind::data, {"Stale file handle", "tried 3 times"}, [&] { loader.next(); });
}

TEST(Loader, AFileThatVanishesEndsTheRunWithItsPath) {
  const test::TemporaryFolder folder;
  for (int i = 0; i < 6; ++i)
    test::write_bytes(folder.path() / "train" / "a" / concat(i, ".png"),
                      encode_png(test::formula_image(5, 5, 3).view()));
  const auto data = std::make_shared<ImageFolder>(folder.path() / "train");
  test::fs::remove(folder.path() / "train" / "a" / "4.png");
  Loader loader(data, Transform(small_eval_transform(5, 5)), in_order(6, 3),
                {.workers = 1, .bad_sample = BadSample::skip, .retries = 1, .retry_delay = 1ms});
  loader.start(0);
  EXPECT_TRUE(loader.next());
  expect_error(Kind::data, {"4.png", "No such file", "tried 2 times"}, [&] { loader.next(); });
}

/// A folder of JPEG files that a GPU could take and of others that it could not: 4:2:0, gray, progressive, PNG, one
/// that is cut, and one whose data are damaged where only the decoder sees it.
class EncodedFiles : public ::testing::Test {
 protected:
  static constexpr std::int64_t kCount = 12;
  void SetUp() override {
    for (int i = 0; i < kCount; ++i) {
      const Image picture = test::photo_like(30 + i, 24 + i % 5, i % 4 == 1 ? 1 : 3, i);
      Bytes file = test::encode_jpeg_as(picture, {.progressive = i % 4 == 2});
      if (i % 4 == 3) file = encode_png(picture.view());
      if (i == 4) file.resize(file.size() / 2);
      test::write_bytes(folder_.path() / concat('c', i % 3) / concat(10 + i, ".jpg"), file);
    }
    data_ = std::make_shared<ImageFolder>(folder_.path());
  }
  std::unique_ptr<Loader> loader(BadSample policy, std::function<bool(const JpegInfo&)> leaves, int workers = 2,
                                 bool training = false) const {
    return std::make_unique<Loader>(
        data_, Transform(transform_), Sampler({.size = kCount, .batch = 5, .seed = 3, .drop_last = training}),
        LoaderOptions{.workers = workers, .bad_sample = policy, .leaves_encoded = std::move(leaves)});
  }
  /// The index of the file `name`.jpg.
  std::int64_t index_of(const std::string& name) const {
    for (std::int64_t i = 0; i < kCount; ++i)
      if (data_->sample_key(i).find(name) != std::string::npos) return i;
    return -1;
  }
  static void expect_equal(const Batch& got, const Batch& want) {
    const auto pixels = [](const Batch& b) {
      const auto* p = b.images.data<std::uint8_t>();
      return Bytes(p, p + b.images.numel());
    };
    EXPECT_EQ(pixels(got), pixels(want));
    EXPECT_EQ(got.valid, want.valid);
    EXPECT_EQ(got.bad, want.bad);
    for (int r = 0; r < 5; ++r) {
      EXPECT_EQ(label_of(got, r), label_of(want, r));
      EXPECT_EQ(id_of(got, r), id_of(want, r));
    }
  }
  TransformOptions transform_ = train_transform(16, 5);
  test::TemporaryFolder folder_;
  std::shared_ptr<ImageFolder> data_;
};

TEST_F(EncodedFiles, LeaveWithTheirPlacementAndCanBeDecodedAfterAll) {
  for (const auto policy : {BadSample::skip, BadSample::black})
    for (const int workers : {0, 3}) {
      const auto whole = loader(policy, {}), left = loader(
                                                 policy, [](const JpegInfo&i) { return !i.gray; }, workers);
      EXPECT_FALSE(whole->leaves_encoded());
      EXPECT_TRUE(left->leaves_encoded());
      std::size_t rows = 0;
      for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
        whole->start(epoch);
        left->start(epoch);
        while (const auto want = whole->next()) {
          auto got = left->next();
          ASSERT_TRUE(got);
          EXPECT_TRUE(want->encoded.empty());
          std::int64_t last = -1;
          for (std::size_t k = 0; k < got->encoded.size(); ++k) {
            const auto& row = got->encoded[k];
            EXPECT_GT(row.row, last) << "by row";
            last = row.row;
            EXPECT_EQ(row.bytes, data_->encoded(row.id));
            EXPECT_EQ(row.info, plain_jpeg_info(row.bytes));
            EXPECT_FALSE(row.info.gray);
            EXPECT_EQ(row.placement,
                      Transform(train_transform(16, 5)).place(row.info.width, row.info.height, epoch, row.id));
            EXPECT_EQ(label_of(*got, static_cast<int>(row.row)), data_->label(row.id));
            ++rows;
            left->decode(*got, k);
            EXPECT_TRUE(got->encoded[k].bytes.empty());
          }
          expect_equal(*got, *want);
        }
        EXPECT_FALSE(left->next());
      }
      EXPECT_GE(rows, 3 * 2u);
    }
}

/// What is cut never leaves; what only the decoder finds leaves, and is met with the same words when it comes back.
TEST_F(EncodedFiles, DamageIsNamedAsEver) {
  transform_ = small_eval_transform(16, 16);  // looks at the whole picture: a crop might lie above the damage
  const auto all = [](const JpegInfo&) { return true; };
  const auto words_of = [](Loader& loader, bool decodes) {
    loader.start(0);
    try {
      while (auto batch = loader.next())
        for (std::size_t k = 0; decodes && k < batch->encoded.size(); ++k) loader.decode(*batch, k);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Kind::data);
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  const auto cut = words_of(*loader(BadSample::error, {}), false);
  EXPECT_NE(cut.find("14.jpg"), std::string::npos) << cut;
  EXPECT_EQ(words_of(*loader(BadSample::error, all), false), cut);

  const auto file = [&](int i) { return folder_.path() / concat('c', i % 3) / concat(10 + i, ".jpg"); };
  test::write_bytes(file(4), test::encode_jpeg_as(test::photo_like(30, 24, 3, 4)));
  Bytes bytes = test::encode_jpeg_as(test::photo_like(64, 64, 3, 8));
  std::fill(bytes.end() - 200, bytes.end() - 2, std::uint8_t{0xfe});  // no code of the tables' is as long as these ones
  ASSERT_TRUE(plain_jpeg_info(bytes));
  test::write_bytes(file(8), bytes);
  const auto damaged = words_of(*loader(BadSample::error, {}), false);
  EXPECT_NE(damaged.find("18.jpg"), std::string::npos) << damaged;
  EXPECT_EQ(words_of(*loader(BadSample::error, all), true), damaged);

  // When it comes back in training, the next good sample stands in its place, label included; in evaluation the row is
  // left out, and those behind it move up, still encoded or not.
  const std::int64_t bad = index_of("18.jpg");
  for (const bool training : {true, false}) {
    const auto skips = loader(BadSample::skip, all, 2, training), whole = loader(BadSample::skip, {}, 2, training);
    std::int64_t met = 0, moved = 0;
    for (std::int64_t epoch = 0; epoch < 6; ++epoch) {
      skips->start(epoch);
      whole->start(epoch);
      while (auto got = skips->next()) {
        const auto want = whole->next();
        ASSERT_TRUE(want);
        const std::int64_t valid = got->valid;
        for (std::size_t k = 0; k < got->encoded.size(); ++k) {
          const auto [row, id] = std::pair(got->encoded[k].row, got->encoded[k].id);
          skips->decode(*got, k);
          if (id != bad) continue;
          ++met;
          EXPECT_EQ(got->bad, 1);
          EXPECT_EQ(got->valid, training ? valid : valid - 1);
          if (training) {
            EXPECT_EQ(label_of(*got, static_cast<int>(row)), data_->label((bad + 1) % kCount));
            continue;
          }
          EXPECT_EQ(got->encoded[k].row, -1);
          for (std::size_t j = k + 1; j < got->encoded.size(); ++j, ++moved)
            EXPECT_EQ(got->encoded[j].id, id_of(*got, static_cast<int>(got->encoded[j].row)));
        }
        expect_equal(*got, *want);
      }
      EXPECT_FALSE(whole->next());
    }
    EXPECT_GT(met, 0);
    EXPECT_EQ(moved > 0, !training);
    EXPECT_EQ(skips->stats().bad_samples, met);
    EXPECT_EQ(skips->stats().bad_samples, whole->stats().bad_samples);
  }
}

/// Data without files of their own have nothing to leave.
TEST(Loader, PixelsNeverLeaveEncoded) {
  const auto data = std::make_shared<SyntheticDataset>(8, 2, 3, 6, 6, 1);
  Loader loader(data, Transform(small_eval_transform(6, 6)), in_order(8, 4),
                {.workers = 1, .leaves_encoded = [](const JpegInfo&) { return true; }});
  loader.start(0);
  while (const auto batch = loader.next()) EXPECT_TRUE(batch->encoded.empty());
}

TEST(Loader, StopsPromptly) {
  const auto data = std::make_shared<Scripted>(100000);
  data->on_load = [](std::int64_t) { std::this_thread::sleep_for(10ms); };
  for (const bool waiting_to_retry : {false, true}) {
    if (waiting_to_retry) data->on_load = [](std::int64_t) { throw Error(Kind::data, Domain::system, EIO, "EIO"); };
    auto loader = std::make_unique<Loader>(data, plain(), in_order(100000, 1000),
                                           LoaderOptions{.workers = 2, .retry_delay = 60s});
    loader->start(0);
    std::this_thread::sleep_for(30ms);
    const auto begin = std::chrono::steady_clock::now();
    loader.reset();
    EXPECT_LT(seconds_since(begin), 5);
  }
}

// "A reader slowed by 50 ms a batch raises data wait by 50 ms."
TEST(Loader, MeasuresHowLongTheCallerWaits) {
  const auto wait = [](std::chrono::milliseconds delay, int workers) {
    Loader loader(std::make_shared<Scripted>(20), plain(), in_order(20, 4), {.workers = workers, .read_delay = delay});
    loader.start(0);
    double sum = 0;
    while (const auto batch = loader.next()) sum += batch->wait_seconds;
    EXPECT_DOUBLE_EQ(loader.stats().wait_seconds, sum);
    return sum;
  };
  for (const int workers : {0, 1}) {
    EXPECT_LT(wait(0ms, workers), 0.2);
    const double slowed = wait(50ms, workers);  // five batches; a loaded machine adds to it
    EXPECT_GE(slowed, 0.25);
    EXPECT_LT(slowed, 0.45);
  }
  ::setenv("APEX_READ_DELAY_MS", "20", 1);
  EXPECT_GE(wait(0ms, 0), 0.1);
  ::setenv("APEX_READ_DELAY_MS", "soon", 1);
  expect_error(Kind::argument, {"APEX_READ_DELAY_MS", "soon"}, [&] { wait(0ms, 0); });
  ::unsetenv("APEX_READ_DELAY_MS");
}

TEST(Loader, HidesReadingBehindTheCallersWork) {
  const auto data = std::make_shared<Scripted>(40);
  data->on_load = [](std::int64_t) { std::this_thread::sleep_for(20ms); };
  Loader loader(data, plain(), in_order(40, 4), {.workers = 2, .prefetch = 2});
  loader.start(0);
  loader.next();
  const auto begin = std::chrono::steady_clock::now();  // the caller works; meanwhile two more batches are read
  while (data->loaded().size() < 12 && seconds_since(begin) < 10) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(40ms);
  EXPECT_LT(loader.next()->wait_seconds, 0.04);  // reading it takes this long
}

TEST(Loader, WorkersTakeNoSignals) {
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  const auto data = std::make_shared<Scripted>(8);
  std::atomic<int> blocked{0};
  data->on_load = [&](std::int64_t) {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    blocked += sigismember(&mask, SIGUSR1) && sigismember(&mask, SIGTERM) && sigismember(&mask, SIGINT);
  };
  Loader loader(data, plain(), in_order(8, 4), {.workers = 2});
  loader.start(0);
  while (loader.next()) {}
  EXPECT_EQ(blocked, 8);
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_EQ(sigismember(&before, SIGUSR1), sigismember(&after, SIGUSR1));
}

TEST(Loader, DefaultWorkersFollowTheAffinityMask) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(default_workers(), std::max(CPU_COUNT(&before) - 1, 1));
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &before)) {
      CPU_SET(cpu, &one);
      break;
    }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(default_workers(), 1);
  EXPECT_EQ(Loader(std::make_shared<Scripted>(8), plain(), in_order(8, 4)).workers(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(Loader, RefusesWhatCannotWork) {
  const auto data = std::make_shared<Scripted>(8);
  const auto refuse = [&](Kind kind, const std::vector<std::string>& words, const LoaderOptions& options) {
    expect_error(kind, words, [&] { Loader(data, plain(), in_order(8, 4), options); });
  };
  refuse(Kind::argument, {"workers is -2"}, {.workers = -2});
  refuse(Kind::argument, {"prefetch is 0"}, {.prefetch = 0});
  refuse(Kind::argument, {"retries is -1"}, {.retries = -1});
  expect_error(Kind::argument, {"9 samples", "has 8"}, [&] { Loader(data, plain(), in_order(9, 4)); });
  expect_error(Kind::argument, {"no data set"}, [&] { Loader(nullptr, plain(), in_order(9, 4)); });
  Loader loader(data, plain(), in_order(8, 4), {.workers = 1});
  expect_error(Kind::state, {"before start"}, [&] { loader.next(); });
  expect_error(Kind::argument, {"step 3"}, [&] { loader.start(0, 3); });
  expect_error(Kind::argument, {"epoch -1"}, [&] { loader.start(-1); });
  EXPECT_EQ(parse_bad_sample("skip"), BadSample::skip);
  EXPECT_EQ(parse_bad_sample("black"), BadSample::black);
  EXPECT_EQ(parse_bad_sample("error"), BadSample::error);
  EXPECT_EQ(parse_bad_sample("ignore"), std::nullopt);
}

}  // namespace
}  // namespace apex::io
