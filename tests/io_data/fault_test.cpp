// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// Damaged pictures and files that fail while they are read (spec/operations.md 3.3, rows 22 and 23).
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <map>
#include <set>
#include <thread>

#include "apex/io/data/loader.hpp"
#include "apex/io/data/pack.hpp"
#include "apex/io/data/sources.hpp"
#include "io_data/common.hpp"

namespace apex::io {
namespace {

using test::Bytes;
using test::expect_error;
using namespace std::chrono_literals;

const test::fs::path kFixtures = APEX_FIXTURES;

Bytes fixture(const std::string& name) { return test::read_bytes(kFixtures / name); }

Bytes cut(Bytes file) {
  file.resize(file.size() / 2);
  return file;
}

/// Every kind of file of row 22, by the name it is given; true: it is a picture.
std::map<std::string, std::pair<Bytes, bool>> odd_files() {
  const Bytes jpeg = encode_jpeg(test::formula_image(40, 30, 3).view(), 90);
  const Bytes text = {'n', 'o', ' ', 'p', 'i', 'c', 't', 'u', 'r', 'e', ' ', 'h', 'e', 'r', 'e'};
  return {
      {"a_good.jpg", {jpeg, true}},
      {"b_cut.jpg", {cut(jpeg), false}},
      {"c_cmyk.jpg", {fixture("cmyk.jpg"), true}},
      {"d_png_inside.jpg", {fixture("rgb.png"), true}},
      {"e_jpeg_inside.png", {fixture("rgb444.jpg"), true}},
      {"f_empty.jpg", {Bytes(), false}},
      {"g_one_pixel.jpg", {fixture("one_pixel.jpg"), true}},
      {"h_wide.png", {encode_png(test::formula_image(20000, 2, 3).view()), true}},
      {"i_wide.jpg", {encode_jpeg(test::formula_image(20000, 3, 3).view(), 90), true}},
      {"j_16_bit.png", {fixture("rgb16.png"), true}},
      {"k_cut.png", {cut(fixture("rgb.png")), false}},
      {"l_text.jpg", {text, false}},
      {"m_webp.jpg", {Bytes{'R', 'I', 'F', 'F', 9, 0, 0, 0, 'W', 'E', 'B', 'P', 'V', 'P', '8', ' '}, false}},
      {"n_progressive.jpg", {fixture("progressive.jpg"), true}},
  };
}

/// The odd files, one class of them and one class of four good pictures: 18 samples, 5 of them bad.
constexpr std::int64_t kSamples = 18, kBad = 5;

void write_folder(const test::fs::path& root) {
  for (const auto& [name, file] : odd_files()) test::write_bytes(root / "odd" / name, file.first);
  for (int i = 0; i < 4; ++i)
    test::write_bytes(root / "plain" / concat(i, ".png"), encode_png(test::formula_image(20 + i, 15, 3).view()));
}

std::set<std::int64_t> bad_ids(const Dataset& data) {
  std::set<std::int64_t> bad;
  for (const auto& [name, file] : odd_files())
    if (!file.second)
      for (std::int64_t i = 0; i < data.size(); ++i)
        if (data.sample_key(i) == "odd/" + name) bad.insert(i);
  return bad;
}

/// The folder and the packs made of it, encoded bytes kept, damage included.
class OddFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    write_folder(folder_.path() / "data" / "train");
    const auto train = std::make_shared<ImageFolder>(folder_.path() / "data" / "train");
    DatasetPair pair;
    pair.train = train;
    pair.normalization = photo_normalization(3);
    pair.kind = "folder";
    write_pack(folder_.path() / "odd.h5", pair, {.check = false, .workers = 1});
    sources_ = {train, std::make_shared<PackedDataset>(folder_.path() / "odd.h5", "train")};
    ASSERT_EQ(bad_ids(*train).size(), static_cast<std::size_t>(kBad));
  }

  test::TemporaryFolder folder_;
  std::vector<std::shared_ptr<const Dataset>> sources_;
};

Transform photo() { return Transform(train_transform(16, 3)); }

struct Seen {
  std::vector<std::int64_t> ids, labels;  // of valid rows
  std::vector<std::string> pictures;
  std::vector<std::int64_t> valid, bad;  // by step
};

Seen run(const std::shared_ptr<const Dataset>& data, const Transform& transform, const SamplerOptions& which,
         BadSample policy, int workers, std::int64_t epoch = 0, std::int64_t step = 0) {
  Loader loader(data, transform, Sampler(which), {.workers = workers, .bad_sample = policy});
  Seen seen;
  loader.start(epoch, step);
  while (const auto batch = loader.next()) {
    const std::size_t bytes = batch->images.bytes() / static_cast<std::size_t>(batch->images.size(0));
    for (std::int64_t row = 0; row < batch->images.size(0); ++row) {
      const auto* pixels = batch->images.data<std::uint8_t>() + static_cast<std::size_t>(row) * bytes;
      const std::int64_t id = batch->ids.data<std::int64_t>()[row], label = batch->labels.data<std::int64_t>()[row];
      if (row >= batch->valid) {
        EXPECT_EQ(id, -1);
        EXPECT_EQ(label, 0);
        EXPECT_TRUE(std::all_of(pixels, pixels + bytes, [](std::uint8_t v) { return v == 0; }));
        continue;
      }
      seen.ids.push_back(id);
      seen.labels.push_back(label);
      seen.pictures.emplace_back(pixels, pixels + bytes);
    }
    seen.valid.push_back(batch->valid);
    seen.bad.push_back(batch->bad);
  }
  return seen;
}

std::int64_t total(const std::vector<std::int64_t>& values) {
  std::int64_t sum = 0;
  for (const auto v : values) sum += v;
  return sum;
}

TEST_F(OddFiles, ErrorNamesTheFile) {
  for (const auto& data : sources_) {
    Loader loader(data, photo(), Sampler({.size = kSamples, .batch = kSamples, .shuffle = false}), {.workers = 2});
    loader.start(0);
    expect_error(Kind::data, {"odd/b_cut.jpg", "damaged JPEG"}, [&] { loader.next(); });
  }
}

TEST_F(OddFiles, EachIsAPictureOrSaysWhy) {
  const std::map<std::string, std::string> why = {{"b_cut.jpg", "damaged JPEG"},
                                                  {"f_empty.jpg", "an empty file"},
                                                  {"k_cut.png", "damaged PNG"},
                                                  {"l_text.jpg", "neither JPEG nor PNG"},
                                                  {"m_webp.jpg", "WebP is not supported"}};
  for (const auto& data : sources_)
    for (std::int64_t i = 0; i < data->size(); ++i) {
      const std::string key = data->sample_key(i);
      const auto known = why.find(key.substr(key.find('/') + 1));
      const auto load = [&] {
        data->load_part(i, [](int w, int h) { return CropBox{0, 0, (w + 1) / 2, (h + 1) / 2}; });
      };
      if (known == why.end())
        EXPECT_NO_THROW(load()) << key;
      else
        expect_error(Kind::data, {key, known->second}, load);
    }
}

// One decision for all: the ranks together see what one rank sees, at any number of them, in folder and pack.
TEST_F(OddFiles, RanksAgreeAtAnyCount) {
  for (const auto& data : sources_) {
    const auto bad = bad_ids(*data);
    for (const BadSample policy : {BadSample::skip, BadSample::black}) {
      ::testing::internal::CaptureStderr();
      std::map<std::int64_t, std::pair<std::int64_t, std::string>> alone;
      for (const int world : {1, 2, 3}) {
        std::map<std::int64_t, std::pair<std::int64_t, std::string>> together;
        std::int64_t bad_rows = 0;
        std::set<std::size_t> steps;
        for (int rank = 0; rank < world; ++rank) {
          const Seen seen =
              run(data, photo(), {.size = kSamples, .batch = 6 / world, .world = world, .rank = rank, .seed = 7},
                  policy, rank);
          for (std::size_t k = 0; k < seen.ids.size(); ++k) together[seen.ids[k]] = {seen.labels[k], seen.pictures[k]};
          EXPECT_EQ(seen.valid, std::vector<std::int64_t>(3, 6 / world));
          bad_rows += total(seen.bad);
          steps.insert(seen.valid.size());
        }
        EXPECT_EQ(steps, std::set<std::size_t>{3});
        EXPECT_EQ(together.size(), static_cast<std::size_t>(kSamples));
        EXPECT_EQ(bad_rows, kBad);
        if (world == 1) alone = together;
        EXPECT_EQ(together, alone) << world;
      }
      ::testing::internal::GetCapturedStderr();
      for (const std::int64_t id : bad) {
        const bool black = alone[id].second.find_first_not_of('\0') == std::string::npos;
        EXPECT_EQ(black, policy == BadSample::black) << id;
      }
    }
  }
}

// Evaluation counts each good picture once, and no bad one.
TEST_F(OddFiles, EvaluationLeavesThemOut) {
  for (const auto& data : sources_) {
    const auto bad = bad_ids(*data);
    for (const int world : {1, 2, 3, 4})
      for (const int workers : {0, 2}) {
        std::multiset<std::int64_t> counted;
        std::set<std::size_t> steps;
        std::int64_t bad_rows = 0;
        ::testing::internal::CaptureStderr();
        for (int rank = 0; rank < world; ++rank) {
          const SamplerOptions which{
              .size = kSamples, .batch = 2, .world = world, .rank = rank, .shuffle = false, .drop_last = false};
          const Seen seen = run(data, Transform(eval_transform(16)), which, BadSample::skip, workers);
          counted.insert(seen.ids.begin(), seen.ids.end());
          for (std::size_t k = 0; k < seen.ids.size(); ++k) {
            EXPECT_EQ(seen.labels[k], data->label(seen.ids[k]));
            const Image expected = Transform(eval_transform(16)).apply(data->load(seen.ids[k]).view(), 0, seen.ids[k]);
            EXPECT_EQ(seen.pictures[k], std::string(expected.pixels.begin(), expected.pixels.end())) << seen.ids[k];
          }
          bad_rows += total(seen.bad);
          steps.insert(seen.valid.size());
        }
        ::testing::internal::GetCapturedStderr();
        std::multiset<std::int64_t> good;
        for (std::int64_t i = 0; i < kSamples; ++i)
          if (bad.count(i) == 0) good.insert(i);
        EXPECT_EQ(counted, good) << world;
        EXPECT_EQ(bad_rows, kBad);
        EXPECT_EQ(steps.size(), 1u) << "the ranks make different numbers of steps";
      }
  }
}

TEST_F(OddFiles, ResumeMeetsTheSame) {
  for (const BadSample policy : {BadSample::skip, BadSample::black}) {
    ::testing::internal::CaptureStderr();
    const SamplerOptions which{.size = kSamples, .batch = 3, .seed = 2};
    const Seen all = run(sources_[0], photo(), which, policy, 2, 4);
    for (std::int64_t step = 1; step < 6; ++step) {
      const Seen later = run(sources_[0], photo(), which, policy, 1, 4, step);
      EXPECT_EQ(later.pictures, std::vector<std::string>(all.pictures.begin() + 3 * step, all.pictures.end()));
      EXPECT_EQ(later.labels, std::vector<std::int64_t>(all.labels.begin() + 3 * step, all.labels.end()));
      EXPECT_EQ(later.bad, std::vector<std::int64_t>(all.bad.begin() + step, all.bad.end()));
    }
    ::testing::internal::GetCapturedStderr();
  }
}

// A byte of a sample changed in the pack: its checksum says so, and it alone is passed over.
TEST_F(OddFiles, AChangedByteInAPackIsABadSample) {
  const auto path = folder_.path() / "odd.h5";
  const Bytes good = encode_png(test::formula_image(22, 15, 3).view());  // plain/2.png
  Bytes pack = test::read_bytes(path);
  const auto at = std::search(pack.begin(), pack.end(), good.begin(), good.end());
  ASSERT_NE(at, pack.end());
  *(at + static_cast<long>(good.size()) - 20) ^= 1;
  test::write_bytes(path, pack);
  const auto data = std::make_shared<PackedDataset>(path, "train");
  const std::int64_t changed = 16;  // 14 odd ones, then the third plain one
  ASSERT_EQ(data->sample_key(changed), "plain/2.png");
  expect_error(Kind::damaged, {"plain/2.png", "checksum"}, [&] { data->load(changed); });
  const SamplerOptions which{.size = kSamples, .batch = 3, .shuffle = false, .drop_last = false};
  ::testing::internal::CaptureStderr();
  const Seen seen = run(data, Transform(eval_transform(16)), which, BadSample::skip, 1);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(seen.ids.size(), static_cast<std::size_t>(kSamples - kBad - 1));
  EXPECT_EQ(std::count(seen.ids.begin(), seen.ids.end(), changed), 0);
  EXPECT_NE(log.find("plain/2.png"), std::string::npos) << log;
}

// Each bad file has one line, and a data set that is damaged all over does not fill the log.
TEST(BadSamples, OnlyTheFirstAreNamed) {
  const test::TemporaryFolder folder;
  constexpr int kFiles = 60;
  for (int i = 0; i < kFiles; ++i)
    test::write_bytes(folder.path() / "c" / concat(i, ".jpg"), i % 2 ? Bytes{1, 2, 3} : fixture("gray.jpg"));
  const auto data = std::make_shared<ImageFolder>(folder.path());
  Loader loader(data, photo(), Sampler({.size = kFiles, .batch = 10, .shuffle = false}),
                {.workers = 2, .bad_sample = BadSample::black});
  ::testing::internal::CaptureStderr();
  for (int epoch = 0; epoch < 2; ++epoch) {
    loader.start(epoch);
    while (loader.next()) {}
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 20) << log;
  EXPECT_NE(log.find("further ones are counted"), std::string::npos) << log;
  EXPECT_EQ(loader.stats().bad_samples, kFiles);
}

TEST(BadSamples, AnEvaluationWithoutAGoodOneHasNoValidRow) {
  const test::TemporaryFolder folder;
  for (int i = 0; i < 5; ++i) test::write_bytes(folder.path() / "c" / concat(i, ".jpg"), Bytes{1, 2, 3});
  const auto data = std::make_shared<ImageFolder>(folder.path());
  ::testing::internal::CaptureStderr();
  const Seen seen = run(data, Transform(eval_transform(8)),
                        {.size = 5, .batch = 2, .shuffle = false, .drop_last = false}, BadSample::skip, 1);
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(seen.valid, std::vector<std::int64_t>(3, 0));
  EXPECT_EQ(seen.bad, (std::vector<std::int64_t>{2, 2, 1}));
}

/// Twelve good pictures and a loader of the last eight, so that something may happen to them meanwhile.
class Failing : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 12; ++i) test::write_bytes(file(i), encode_png(test::formula_image(9, 9, 3).view()));
    data_ = std::make_shared<ImageFolder>(root());
  }
  test::fs::path root() const { return folder_.path() / "data"; }
  test::fs::path file(int i) const { return root() / "c" / concat(static_cast<char>('a' + i), ".png"); }
  std::unique_ptr<Loader> loader(int retries, std::chrono::milliseconds delay) const {
    return std::make_unique<Loader>(
        data_, Transform(small_eval_transform(9, 9)), Sampler({.size = 12, .batch = 4, .shuffle = false}),
        LoaderOptions{
            .workers = 1, .prefetch = 1, .bad_sample = BadSample::skip, .retries = retries, .retry_delay = delay});
  }

  test::TemporaryFolder folder_;
  std::shared_ptr<const ImageFolder> data_;
};

TEST_F(Failing, AFileThatComesBackIsRead) {
  const auto reader = loader(8, 5ms);
  test::fs::rename(file(6), file(6).string() + ".away");
  reader->start(0);
  EXPECT_TRUE(reader->next());
  std::jthread later([&] {
    std::this_thread::sleep_for(40ms);
    test::fs::rename(file(6).string() + ".away", file(6));
  });
  EXPECT_TRUE(reader->next());
  EXPECT_TRUE(reader->next());
  EXPECT_GE(reader->stats().retries, 1);
  EXPECT_EQ(reader->stats().bad_samples, 0);
}

TEST_F(Failing, WhatStaysAwayEndsTheRunWithItsPath) {
  struct Case {
    const char* what;
    std::function<void(const test::fs::path&)> spoil;
    std::string text;
  };
  const Case cases[] = {
      {"gone", [](const auto& p) { test::fs::remove(p); }, "No such file or directory"},
      {"a folder", [](const auto& p) { test::fs::remove(p), test::fs::create_directory(p); }, "Is a directory"},
      {"a link to itself", [](const auto& p) { test::fs::remove(p), test::fs::create_symlink(p.filename(), p); },
       "Too many levels of symbolic links"},
  };
  for (const auto& c : cases) {
    test::fs::remove_all(file(6));
    test::write_bytes(file(6), encode_png(test::formula_image(9, 9, 3).view()));
    const auto reader = loader(2, 1ms);
    c.spoil(file(6));
    reader->start(0);
    EXPECT_TRUE(reader->next()) << c.what;
    try {
      reader->next();
      ADD_FAILURE() << c.what << " was read";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(exit_code_of(error.kind()), 3) << text;
      for (const std::string& word : {file(6).string(), c.text, std::string("tried 3 times")})
        EXPECT_NE(text.find(word), std::string::npos) << "no '" << word << "' in: " << text;
    }
    EXPECT_EQ(reader->stats().retries, 2) << c.what;
    EXPECT_EQ(reader->stats().bad_samples, 0) << c.what << " is no bad sample";
  }
}

// A file that may not be read any more. Root may read everything, so the process steps down for it.
TEST_F(Failing, NoPermissionEndsTheRunWithItsPath) {
  const bool root_user = ::geteuid() == 0;
  test::fs::permissions(folder_.path(), test::fs::perms::all);
  test::fs::permissions(file(6), test::fs::perms::none);
  if (root_user) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  const auto reader = loader(1, 1ms);
  reader->start(0);
  const bool first = reader->next().has_value();
  std::string text;
  Kind kind = Kind::state;
  try {
    reader->next();
  } catch (const Error& error) {
    text = error.what();
    kind = error.kind();
  }
  if (root_user) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  EXPECT_TRUE(first);
  EXPECT_EQ(kind, Kind::data) << text;
  for (const std::string& word : {file(6).string(), std::string("Permission denied"), std::string("tried 2 times")})
    EXPECT_NE(text.find(word), std::string::npos) << "no '" << word << "' in: " << text;
}

// Cut while it is read: what is there is no picture, which is a bad sample, not a failing file system.
TEST_F(Failing, AFileCutMeanwhileIsABadSample) {
  const auto reader = loader(2, 1ms);
  test::fs::resize_file(file(6), 40);
  ::testing::internal::CaptureStderr();
  reader->start(0);
  EXPECT_EQ(reader->next()->bad, 0);
  EXPECT_EQ(reader->next()->bad, 1);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("g.png"), std::string::npos) << log;
  EXPECT_EQ(reader->stats().retries, 0);
}

}  // namespace
}  // namespace apex::io
