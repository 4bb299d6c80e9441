// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/io/data/pack.hpp"

#include <hdf5.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <random>

#include "apex/io/data/loader.hpp"
#include "apex/io/data/sources.hpp"
#include "io_data/common.hpp"

namespace apex::io {
namespace {

using test::Bytes;
using test::expect_error;
namespace fs = std::filesystem;

class Pack : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 14; ++i) {
      Image image = test::formula_image(40 + 3 * i, 50 - 2 * i, 3);
      const fs::path folder = source() / (i % 5 == 4 ? "val" : "train") / (i % 2 ? "b" : "a");
      test::write_bytes(folder / concat(i, i % 3 ? ".jpg" : ".png"),
                        i % 3 ? encode_jpeg(image.view(), 90) : encode_png(image.view()));
    }
  }
  fs::path source() const { return folder_.path() / "source"; }
  fs::path pack() const { return folder_.path() / "data.h5"; }
  /// Nothing but the named files is in the folder: no temporary one stayed behind.
  void expect_files(std::vector<std::string> names) {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_.path())) found.push_back(entry.path().filename());
    std::sort(found.begin(), found.end());
    EXPECT_EQ(found, names);
  }
  void corrupt(std::size_t at) {
    Bytes bytes = test::read_bytes(pack());
    bytes.at(at) ^= 0x40;
    test::write_bytes(pack(), bytes);
  }
  /// Leaves a plain HDF5 file, as another program would write it: the user block goes away.
  void unseal() {
    const Bytes bytes = test::read_bytes(pack());
    test::write_bytes(pack(), std::span(bytes).subspan(512));
  }
  /// Where in the file a stretch of bytes lies.
  std::size_t find(const Bytes& part) {
    const Bytes all = test::read_bytes(pack());
    return static_cast<std::size_t>(std::search(all.begin(), all.end(), part.begin(), part.end()) - all.begin());
  }
  test::TemporaryFolder folder_;
};

Bytes batches_of(const std::shared_ptr<const Dataset>& data) {
  Loader loader(data, Transform(train_transform(24, 5)), Sampler({.size = data->size(), .batch = 3, .seed = 2}),
                {.workers = 2});
  Bytes all;
  for (int epoch = 0; epoch < 2; ++epoch) {
    loader.start(epoch);
    while (const auto batch = loader.next()) {
      all.insert(all.end(), batch->images.data<std::uint8_t>(),
                 batch->images.data<std::uint8_t>() + batch->images.numel());
      for (int i = 0; i < 3; ++i) all.push_back(static_cast<std::uint8_t>(batch->labels.data<std::int64_t>()[i]));
    }
  }
  return all;
}

TEST_F(Pack, KeepsEveryByteSoTrainingSeesTheSame) {
  const DatasetPair folder = open_dataset(source());
  const PackResult result = write_pack(pack(), folder, {.workers = 3});
  EXPECT_EQ(result.train_samples, 12);
  EXPECT_EQ(result.validation_samples, 2);
  EXPECT_EQ(result.skipped, 0);
  EXPECT_EQ(result.bytes, static_cast<std::int64_t>(fs::file_size(pack())));
  expect_files({"data.h5", "source"});
  const DatasetPair packed = open_dataset(pack());
  EXPECT_EQ(packed.kind, "pack");
  for (const auto& [a, b] : {std::pair{folder.train, packed.train}, std::pair{folder.validation, packed.validation}}) {
    ASSERT_EQ(a->size(), b->size());
    EXPECT_EQ(a->class_names(), b->class_names());
    EXPECT_EQ(fingerprint(*a), fingerprint(*b));
    for (std::int64_t i = 0; i < a->size(); ++i) {
      EXPECT_EQ(a->encoded(i), b->encoded(i));
      EXPECT_EQ(a->label(i), b->label(i));
      EXPECT_EQ(a->sample_key(i), b->sample_key(i));
      EXPECT_EQ(a->load(i).pixels, b->load(i).pixels);
    }
  }
  EXPECT_EQ(batches_of(folder.train), batches_of(packed.train));
  EXPECT_EQ(packed.normalization.mean, folder.normalization.mean);
  EXPECT_EQ(open_dataset(pack(), {.channels = 1}).train->load(2).channels, 1);
  EXPECT_FALSE(packed.train->fixed_size());
}

TEST_F(Pack, SameBytesForAnyNumberOfThreads) {
  write_pack(pack(), open_dataset(source()), {.resize = 16, .workers = 0});
  const Bytes one = test::read_bytes(pack());
  write_pack(pack(), open_dataset(source()), {.resize = 16, .overwrite = true, .workers = 5});
  EXPECT_EQ(test::read_bytes(pack()), one);
}

TEST_F(Pack, SplitsAsTheFolderWouldBe) {
  const DatasetOptions options{.val_split = 0.4, .seed = 6};
  const DatasetPair folder = open_dataset(source() / "train", options);
  write_pack(pack(), open_dataset(source() / "train", {.require_validation = false}));
  EXPECT_FALSE(pack_has_part(pack(), "val"));
  expect_error(Kind::data, {"no part 'val'"}, [&] { PackedDataset(pack(), "val"); });
  expect_error(Kind::data, {"no validation part"}, [&] { open_dataset(pack()); });
  const DatasetPair packed = open_dataset(pack(), options);
  EXPECT_EQ(fingerprint(*packed.validation), fingerprint(*folder.validation));
  EXPECT_EQ(fingerprint(*packed.train), fingerprint(*folder.train));
  write_pack(pack(), folder, {.overwrite = true});
  EXPECT_EQ(fingerprint(*open_dataset(pack()).validation), fingerprint(*folder.validation));
  expect_error(Kind::argument, {"val_split"}, [&] { open_dataset(pack(), options); });
}

TEST_F(Pack, ResizesWhatIsLarger) {
  const DatasetPair folder = open_dataset(source());
  write_pack(pack(), folder, {.resize = 32, .quality = 100});
  const DatasetPair packed = open_dataset(pack());
  for (std::int64_t i = 0; i < folder.train->size(); ++i) {
    const Image before = folder.train->load(i), after = packed.train->load(i);
    if (std::min(before.width, before.height) <= 32) {
      EXPECT_EQ(packed.train->encoded(i), folder.train->encoded(i));
      continue;
    }
    const Image expected = resize_shorter_side(before.view(), 32);
    EXPECT_EQ(sniff_image_format(*packed.train->encoded(i)), ImageFormat::jpeg);
    ASSERT_EQ(after.width, expected.width);
    ASSERT_EQ(after.height, expected.height);
  }
}

TEST_F(Pack, DecodedFormHoldsPixels) {
  const DatasetPair folder = open_dataset(source());
  expect_error(Kind::argument, {"mixed sizes", "--resize"}, [&] { write_pack(pack(), folder, {.decoded = true}); });
  write_pack(pack(), folder, {.resize = 20, .decoded = true, .workers = 2});
  const DatasetPair packed = open_dataset(pack());
  EXPECT_EQ(packed.train->fixed_size(), (Dataset::Size{20, 20}));
  EXPECT_FALSE(packed.train->encoded(0));
  for (std::int64_t i = 0; i < folder.validation->size(); ++i) {
    const Image resized = resize_shorter_side(folder.validation->load(i).view(), 20);
    EXPECT_EQ(packed.validation->load(i).pixels, center_crop(resized.view(), 20, 20).pixels);
  }
  const PackedDataset gray(pack(), "val", 1);
  EXPECT_EQ(gray.load(0).pixels, convert_channels(packed.validation->load(0).view(), 1).pixels);
  EXPECT_EQ(gray.normalization().mean.size(), 1u);
}

TEST_F(Pack, TakesSourcesWithoutFiles) {
  DatasetOptions options{.channels = 1};
  options.synthetic = {.train_size = 9, .validation_size = 4, .classes = 3, .height = 7, .width = 11};
  const DatasetPair pair = open_dataset("synthetic", options);
  for (const bool decoded : {false, true}) {
    write_pack(pack(), pair, {.decoded = decoded, .overwrite = true});
    const DatasetPair packed = open_dataset(pack());
    EXPECT_EQ(packed.train->channels(), 1);
    EXPECT_EQ(packed.normalization.mean, pair.normalization.mean);
    for (int i = 0; i < 9; ++i) EXPECT_EQ(packed.train->load(i).pixels, pair.train->load(i).pixels);
  }
  write_pack(folder_.path() / "again.h5", open_dataset(pack()));  // a pack of a pack
  EXPECT_EQ(PackedDataset(folder_.path() / "again.h5", "val").load(3).pixels, pair.validation->load(3).pixels);
}

// An attribute holds 64 KiB at most; ImageNet-21k's names need more.
TEST_F(Pack, ManyClassNames) {
  class ManyClasses final : public Dataset {
   public:
    ManyClasses() {
      for (int c = 0; c < 22000; ++c) names_.push_back(concat("n", 10000000 + c));
    }
    std::int64_t size() const override { return 3; }
    int channels() const override { return 1; }
    const std::vector<std::string>& class_names() const override { return names_; }
    std::int64_t label(std::int64_t i) const override { return 10999 * i; }
    std::string sample_name(std::int64_t i) const override { return concat(i); }
    std::string sample_key(std::int64_t i) const override { return i == 1 ? "" : concat(i); }
    Image load(std::int64_t) const override { return test::formula_image(3, 3, 1); }

   private:
    std::vector<std::string> names_;
  };
  DatasetPair pair;
  pair.train = std::make_shared<ManyClasses>();
  pair.normalization = photo_normalization(1);
  write_pack(pack(), pair);
  const PackedDataset packed(pack(), "train");
  EXPECT_EQ(packed.class_names(), pair.train->class_names());
  EXPECT_EQ(packed.label(2), 21998);
  EXPECT_EQ(packed.sample_key(1), "");
}

TEST_F(Pack, BadSourcePictures) {
  test::write_text(source() / "train/a/bad.jpg", "no picture");
  const DatasetPair folder = open_dataset(source());
  expect_error(Kind::data, {"a/bad.jpg"}, [&] { write_pack(pack(), folder); });
  expect_error(Kind::data, {"a/bad.jpg"}, [&] { write_pack(pack(), folder, {.resize = 20}); });
  expect_files({"source"});
  ::testing::internal::CaptureStderr();
  const PackResult result = write_pack(pack(), folder, {.skip_bad = true});
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("a/bad.jpg"), std::string::npos);
  EXPECT_EQ(result.train_samples, 12);
  EXPECT_EQ(result.skipped, 1);
  EXPECT_EQ(open_dataset(pack()).train->size(), folder.train->size() - 1);
  write_pack(pack(), folder, {.check = false, .overwrite = true});  // copied unseen; named when it is loaded
  const auto packed = open_dataset(pack()).train;
  expect_error(Kind::data, {"a/bad.jpg", "data.h5"}, [&] {
    for (int i = 0; i < packed->size(); ++i) packed->load(i);
  });
}

TEST_F(Pack, RefusesToOverwriteAndBadOptions) {
  const DatasetPair folder = open_dataset(source());
  test::write_text(pack(), "mine");
  expect_error(Kind::data, {"data.h5", "exists", "--force"}, [&] { write_pack(pack(), folder); });
  EXPECT_EQ(test::read_text(pack()), "mine");
  write_pack(pack(), folder, {.overwrite = true});
  EXPECT_EQ(open_dataset(pack()).train->size(), folder.train->size());
  expect_error(Kind::data, {"not a file"}, [&] { write_pack(source(), folder, {.overwrite = true}); });
  expect_error(Kind::data, {"nowhere", "No such file"}, [&] { write_pack(folder_.path() / "nowhere/x.h5", folder); });
  const fs::path other = folder_.path() / "other.h5";
  expect_error(Kind::argument, {"resize is -1"}, [&] { write_pack(other, folder, {.resize = -1}); });
  expect_error(Kind::argument, {"quality is 0"}, [&] { write_pack(other, folder, {.quality = 0}); });
  expect_error(Kind::argument, {"workers"}, [&] { write_pack(other, folder, {.workers = -2}); });
  expect_error(Kind::argument, {"no training part"}, [&] { write_pack(other, {}); });
  expect_files({"data.h5", "source"});
}

TEST_F(Pack, ReportsProgress) {
  std::vector<std::int64_t> seen;
  write_pack(pack(), open_dataset(source()), {.progress = [&](std::int64_t done, std::int64_t total) {
               EXPECT_EQ(total, 14);
               seen.push_back(done);
             }});
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.back(), 14);
}

// Operations 3.3, row 4: the error names the path, nothing half-written stays.
TEST_F(Pack, FullDiskLeavesNothing) {
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{8192, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  try {
    write_pack(pack(), open_dataset(source()));
    ADD_FAILURE() << "it fitted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("data.h5"), std::string::npos) << error.what();
    EXPECT_TRUE(error.kind() == Kind::exhausted || error.kind() == Kind::data);
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_DFL);
  expect_files({"source"});
}

TEST_F(Pack, FilesThatAreNoPack) {
  test::write_bytes(pack(), {});
  expect_error(Kind::data, {"data.h5", "empty"}, [&] { open_dataset(pack()); });
  test::write_text(pack(), "hello, this is text");
  expect_error(Kind::data, {"data.h5", "not an HDF5 file"}, [&] { open_dataset(pack()); });
  test::write_text(pack(), "hi");
  expect_error(Kind::data, {"data.h5", "not an HDF5 file"}, [&] { open_dataset(pack()); });
  fs::remove(pack());
  H5Fclose(H5Fcreate(pack().c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
  expect_error(Kind::data, {"data.h5", "not a pack"}, [&] { open_dataset(pack()); });
  expect_error(Kind::argument, {"channels is 2"}, [&] { PackedDataset(pack(), "train", 2); });
}

TEST_F(Pack, NewerVersionIsRefused) {
  write_pack(pack(), open_dataset(source()));
  unseal();
  const hid_t file = H5Fopen(pack().c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  const hid_t version = H5Aopen(file, "version", H5P_DEFAULT);
  const std::int64_t two = 2;
  H5Awrite(version, H5T_NATIVE_INT64, &two);
  H5Aclose(version);
  H5Fclose(file);
  expect_error(Kind::data, {"version 2", "newer"}, [&] { open_dataset(pack()); });
}

TEST_F(Pack, ChecksumsNameTheSample) {
  for (const bool decoded : {false, true}) {
    write_pack(pack(), open_dataset(source()), {.resize = decoded ? 20 : 0, .decoded = decoded, .overwrite = true});
    const DatasetPair packed = open_dataset(pack());
    const Bytes record = decoded ? packed.train->load(3).pixels : *packed.train->encoded(3);
    const std::string key = packed.train->sample_key(3);
    corrupt(find(record) + record.size() / 2);
    const DatasetPair again = open_dataset(pack());
    EXPECT_NO_THROW(again.train->load(2));
    expect_error(Kind::damaged, {"sample 3", key, "checksum"}, [&] { again.train->load(3); });
    EXPECT_NO_THROW(again.train->load(4));
  }
}

TEST_F(Pack, ACutFileIsDamaged) {
  write_pack(pack(), open_dataset(source()));
  const Bytes whole = test::read_bytes(pack());
  for (std::size_t size = 8; size < whole.size(); size += whole.size() / 23) {
    test::write_bytes(pack(), std::span(whole.data(), size));
    expect_error(Kind::damaged, {"data.h5"}, [&] { open_dataset(pack()); });
  }
}

TEST_F(Pack, ASealIsNotNeeded) {
  write_pack(pack(), open_dataset(source()));
  const DatasetPair sealed = open_dataset(pack());
  const Bytes sample = *sealed.train->encoded(5);
  unseal();
  EXPECT_EQ(open_dataset(pack()).train->encoded(5), sample);
}

TEST_F(Pack, TheSealFindsAnyChangeOutsideTheSamples) {
  write_pack(pack(), open_dataset(source()));
  const Bytes whole = test::read_bytes(pack());
  for (std::size_t at = 0; at < whole.size(); at += at < 56 ? 1 : 97) {
    if (at >= 56 && at < 512) continue;  // the rest of the user block says nothing
    Bytes bytes = whole;
    bytes[at] ^= 1;
    test::write_bytes(pack(), bytes);
    try {
      const DatasetPair pair = open_dataset(pack());
      int refused = 0;  // then the change is inside one sample, and its own checksum finds it
      for (const auto& part : {pair.train, pair.validation})
        for (int i = 0; i < part->size(); ++i) try {
            part->encoded(i);
          } catch (const Error& error) {
            EXPECT_EQ(error.kind(), Kind::damaged);
            ++refused;
          }
      EXPECT_EQ(refused, 1) << "byte " << at;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), at < 8 ? Kind::data : Kind::damaged) << at << ": " << error.what();
    }
  }
  Bytes longer = whole;
  longer.push_back(0);
  test::write_bytes(pack(), longer);
  expect_error(Kind::damaged, {"longer"}, [&] { open_dataset(pack()); });
}

TEST_F(Pack, TablesThatCannotBeAreDamaged) {
  write_pack(pack(), open_dataset(source()));
  unseal();
  const Bytes whole = test::read_bytes(pack());
  const auto change = [&](const char* name, std::int64_t index, std::int64_t value) {
    test::write_bytes(pack(), whole);
    const hid_t file = H5Fopen(pack().c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    const hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT);
    std::vector<std::int64_t> table(64);
    H5Dread(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, table.data());
    table[static_cast<std::size_t>(index)] = value;
    H5Dwrite(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, table.data());
    H5Dclose(dataset);
    H5Fclose(file);
  };
  change("/train/labels", 2, 2);
  expect_error(Kind::damaged, {"/train/labels"}, [&] { open_dataset(pack()); });
  change("/train/labels", 2, -1);
  expect_error(Kind::damaged, {"/train/labels"}, [&] { open_dataset(pack()); });
  for (const char* name : {"/train/images/offsets", "/val/names/offsets"})
    for (const std::int64_t value : {-5ll, 1ll << 60}) {
      change(name, 1, value);
      expect_error(Kind::damaged, {name}, [&] { open_dataset(pack()); });
    }
  test::write_bytes(pack(), whole);
  const hid_t file = H5Fopen(pack().c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  H5Ldelete(file, "/val/crc", H5P_DEFAULT);
  H5Fclose(file);
  expect_error(Kind::damaged, {"/val/crc"}, [&] { open_dataset(pack()); });
}

// Whatever happened to the bytes: all samples load, or one Error says what is wrong.
TEST_F(Pack, RandomDamageNeverCrashes) {
  write_pack(pack(), open_dataset(source()), {.resize = 8, .decoded = true});
  const Bytes whole = test::read_bytes(pack());
  std::mt19937 random(5);
  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    Bytes bytes = whole;
    for (int k = 0; k < 3; ++k) bytes[random() % bytes.size()] = static_cast<std::uint8_t>(random());
    test::write_bytes(pack(), bytes);
    try {
      const DatasetPair pair = open_dataset(pack());
      for (int i = 0; i < pair.train->size(); ++i) pair.train->load(i);
    } catch (const Error& error) {
      EXPECT_TRUE(error.kind() == Kind::damaged || error.kind() == Kind::data) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 50);
}

// The layout is a promise to other programs: read by HDF5 alone, sample 0 is where the tables say.
TEST_F(Pack, IsPlainHdf5) {
  write_pack(pack(), open_dataset(source()));
  const auto first = open_dataset(source()).train->encoded(0).value();
  const hid_t file = H5Fopen(pack().c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t bytes = H5Dopen2(file, "/train/images/bytes", H5P_DEFAULT);
  const hid_t space = H5Dget_space(bytes);
  Bytes all(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
  EXPECT_GE(H5Dread(bytes, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, all.data()), 0);
  EXPECT_EQ(Bytes(all.begin(), all.begin() + static_cast<long>(first.size())), first);
  char encoding[16] = {};
  const hid_t attribute = H5Aopen(file, "encoding", H5P_DEFAULT);
  const hid_t type = H5Aget_type(attribute);
  ASSERT_LE(H5Tget_size(type), sizeof encoding);
  H5Aread(attribute, type, encoding);
  EXPECT_STREQ(encoding, "encoded");
  H5Tclose(type);
  H5Aclose(attribute);
  H5Sclose(space);
  H5Dclose(bytes);
  H5Fclose(file);
}

}  // namespace
}  // namespace apex::io
