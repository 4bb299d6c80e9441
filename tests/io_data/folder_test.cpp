// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "apex/io/data/sources.hpp"
#include "io_data/common.hpp"

namespace apex::io {
namespace {

using test::expect_error;
namespace fs = std::filesystem;
using Names = std::vector<std::string>;

class Folder : public ::testing::Test {
 protected:
  fs::path root() const { return folder_.path(); }
  /// A picture of one value; JPEG or PNG by the name.
  void picture(const std::string& path, int value = 0, int width = 6, int height = 5) {
    Image image(width, height, 3);
    std::fill(image.pixels.begin(), image.pixels.end(), static_cast<std::uint8_t>(value));
    const bool png = path.ends_with(".png") || path.ends_with(".PNG");
    test::write_bytes(root() / path, png ? encode_png(image.view()) : encode_jpeg(image.view(), 95));
  }
  static Names keys(const Dataset& data) {
    Names out;
    for (std::int64_t i = 0; i < data.size(); ++i) out.push_back(data.sample_key(i));
    return out;
  }
  test::TemporaryFolder folder_;
};

TEST_F(Folder, SortsClassesAndFilesByName) {
  picture("b/2.jpg", 20);
  picture("b/10.JPG", 10);
  picture("a/x.png", 30);
  picture("a/deep/down/y.PNG", 40);
  picture("C/z.JpEg", 50);
  picture("b/.hidden.png");
  picture("a/.thumbs/t.png");
  picture(".git/g.png");
  test::write_text(root() / "b/notes.txt", "no picture");
  test::write_text(root() / "README", "no class");
  const ImageFolder data(root());
  EXPECT_EQ(data.class_names(), (Names{"C", "a", "b"}));
  EXPECT_EQ(keys(data), (Names{"C/z.JpEg", "a/deep/down/y.PNG", "a/x.png", "b/10.JPG", "b/2.jpg"}));
  const int labels[] = {0, 1, 1, 2, 2}, values[] = {50, 40, 30, 10, 20};
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(data.label(i), labels[i]);
    const Image image = data.load(i);
    EXPECT_EQ(image.width, 6);
    EXPECT_EQ(image.height, 5);
    EXPECT_EQ(image.channels, 3);
    EXPECT_NEAR(image.pixels[7], values[i], 1);
    EXPECT_EQ(data.encoded(i), test::read_bytes(root() / data.sample_key(i)));
  }
  EXPECT_NE(data.sample_name(3).find((root() / "b/10.JPG").string()), std::string::npos);
  EXPECT_EQ(ImageFolder(root(), 1).load(4).channels, 1);
  expect_error(Kind::argument, {"sample 5"}, [&] { data.load(5); });
}

/// Pictures of formats that are not read are counted and named, in both parts; other files are nobody's sample.
TEST_F(Folder, CountsThePicturesItLeavesOut) {
  for (const char* name : {"train/a/1.png", "train/b/2.jpg", "val/a/3.png", "val/b/4.png"}) picture(name);
  EXPECT_EQ(open_dataset(root()).warning, "");
  for (const char* name : {"train/a/x.webp", "train/a/deep/y.WEBP", "train/b/z.gif", "val/b/w.bmp", "val/b/v.tiff"})
    test::write_text(root() / name, "of another format");
  for (const char* name : {"train/a/notes.txt", "train/b/.hidden.webp", "train/b/list.json"})
    test::write_text(root() / name, "no picture");
  EXPECT_EQ(ImageFolder(root() / "train").left_out(), (std::map<std::string, std::int64_t>{{".gif", 1}, {".webp", 2}}));
  const DatasetPair pair = open_dataset(root());
  EXPECT_NE(pair.warning.find(root().string()), std::string::npos) << pair.warning;
  EXPECT_NE(pair.warning.find("left out: 1 .bmp, 1 .gif, 1 .tiff, 2 .webp;"), std::string::npos) << pair.warning;
  EXPECT_EQ(pair.train->size(), 2);
  test::write_text(root() / "train/c/only.webp", "of another format");
  expect_error(Kind::data, {"class folder", "train/c", "has no .jpg", "only 1 .webp", "convert"},
               [&] { open_dataset(root()); });
}

TEST_F(Folder, FollowsLinksButNotInCircles) {
  picture("elsewhere/real.png", 9);
  picture("data/a/1.png", 1);
  fs::create_directory_symlink(root() / "elsewhere", root() / "data/b");
  fs::create_symlink(root() / "elsewhere/real.png", root() / "data/a/2.png");
  EXPECT_EQ(keys(ImageFolder(root() / "data")), (Names{"a/1.png", "a/2.png", "b/real.png"}));
  // The same folder twice, beside each other, is no circle.
  fs::create_directory_symlink(root() / "elsewhere", root() / "data/a/more");
  EXPECT_EQ(ImageFolder(root() / "data").size(), 4);
  fs::create_directory_symlink(root() / "data", root() / "data/a/up");
  expect_error(Kind::data, {"link", "a/up"}, [&] { ImageFolder(root() / "data"); });
}

TEST_F(Folder, ADanglingLinkIsNamedWhenItIsRead) {
  picture("a/1.png", 1);
  fs::create_symlink(root() / "nowhere.png", root() / "a/2.png");
  const ImageFolder data(root());
  ASSERT_EQ(data.size(), 2);
  expect_error(Kind::data, {"a/2.png", "No such file"}, [&] { data.load(1); });
}

TEST_F(Folder, APipeIsRefusedAndNeverWaitedFor) {
  picture("a/1.png", 1);
  ASSERT_EQ(::mkfifo((root() / "a/2.png").c_str(), 0600), 0);
  const ImageFolder data(root());
  expect_error(Kind::data, {"a/2.png", "not a regular file"}, [&] { data.load(1); });
}

TEST_F(Folder, PathsWithSpacesAndUtf8) {
  picture("mit Leerzeichen/\xc3\xa4pfel \xf0\x9f\x8d\x8e.png", 77);
  const ImageFolder data(root());
  EXPECT_EQ(data.class_names(), (Names{"mit Leerzeichen"}));
  EXPECT_EQ(data.load(0).pixels[0], 77);
}

TEST_F(Folder, NamesWhatIsMissing) {
  expect_error(Kind::data, {"nowhere", "not there"}, [&] { ImageFolder(root() / "nowhere"); });
  expect_error(Kind::data, {"nowhere", "not there"}, [&] { open_dataset(root() / "nowhere"); });
  expect_error(Kind::data, {root().string(), "no class folders"}, [&] { ImageFolder{root()}; });
  expect_error(Kind::data, {root().string(), "no class folders"}, [&] { open_dataset(root()); });
  test::write_text(root() / "file", "x");
  expect_error(Kind::data, {"file", "not a folder"}, [&] { ImageFolder(root() / "file"); });
  picture("cats/1.png");
  fs::create_directories(root() / "dogs");
  expect_error(Kind::data, {"class folder", "dogs"}, [&] { ImageFolder{root()}; });
  test::write_text(root() / "dogs/readme.md", "x");
  expect_error(Kind::data, {"class folder", "dogs"}, [&] { open_dataset(root(), {.val_split = 0.5}); });
}

TEST_F(Folder, DamagedPicturesAreNamed) {
  picture("a/good.jpg", 1, 60, 60);
  auto bytes = test::read_bytes(root() / "a/good.jpg");
  bytes.resize(bytes.size() / 2);
  test::write_bytes(root() / "a/half.jpg", bytes);
  test::write_bytes(root() / "a/zero.jpg", {});
  test::write_text(root() / "a/text.png", "this is no picture");
  const ImageFolder data(root());
  expect_error(Kind::data, {"a/half.jpg", "damaged JPEG"}, [&] { data.load(1); });
  expect_error(Kind::data, {"a/text.png", "neither JPEG nor PNG"}, [&] { data.load(2); });
  expect_error(Kind::data, {"a/zero.jpg", "empty"}, [&] { data.load(3); });
}

TEST_F(Folder, OpensTrainAndVal) {
  for (const char* c : {"a", "b", "c"}) {
    picture(concat("train/", c, "/1.png"));
    picture(concat("train/", c, "/2.png"));
  }
  expect_error(Kind::data, {"no validation part", "val/"}, [&] { open_dataset(root()); });
  EXPECT_FALSE(open_dataset(root(), {.require_validation = false}).validation);
  picture("val/c/3.png");  // a class without validation pictures is fine, and numbers are training's
  const DatasetPair pair = open_dataset(root());
  EXPECT_EQ(pair.kind, "folder");
  EXPECT_EQ(pair.train->size(), 6);
  ASSERT_EQ(pair.validation->size(), 1);
  EXPECT_EQ(pair.validation->label(0), 2);
  EXPECT_EQ(pair.normalization.mean, photo_normalization(3).mean);
  EXPECT_EQ(open_dataset(root(), {.channels = 1}).normalization.mean.size(), 1u);
  expect_error(Kind::argument, {"val_split"}, [&] { open_dataset(root(), {.val_split = 0.1}); });
  picture("val/d/4.png");
  expect_error(Kind::data, {"val/d", "training"}, [&] { open_dataset(root()); });
  fs::remove_all(root() / "train");
  expect_error(Kind::data, {"no train/"}, [&] { open_dataset(root()); });
}

TEST_F(Folder, RefusesBadOptions) {
  picture("a/1.png");
  expect_error(Kind::argument, {"channels is 2"}, [&] { open_dataset(root(), {.channels = 2}); });
  expect_error(Kind::argument, {"val_split is -"}, [&] { open_dataset(root(), {.val_split = -0.1}); });
  expect_error(Kind::argument, {"val_split is 1"}, [&] { open_dataset(root(), {.val_split = 1}); });
  expect_error(Kind::data, {"no validation samples"}, [&] { open_dataset(root(), {.val_split = 0.5}); });
  expect_error(Kind::argument, {"2 channels"}, [] { photo_normalization(2); });
}

TEST_F(Folder, SplitIsStratifiedDisjointAndStable) {
  for (int i = 0; i < 40; ++i) picture(concat("a/", i, ".png"));
  for (int i = 0; i < 11; ++i) picture(concat("b/", i, ".png"));
  picture("c/only.png");
  const auto split = [&](std::uint64_t seed) { return open_dataset(root(), {.val_split = 0.25, .seed = seed}); };
  const DatasetPair pair = split(3);
  const Names train = keys(*pair.train), validation = keys(*pair.validation);
  int counts[3] = {};
  for (std::int64_t i = 0; i < pair.validation->size(); ++i) ++counts[pair.validation->label(i)];
  EXPECT_EQ(counts[0], 10);
  EXPECT_EQ(counts[1], 3);  // floor(2.75 + .5)
  EXPECT_EQ(counts[2], 0);  // the only one stays for training
  std::set<std::string> all(train.begin(), train.end());
  all.insert(validation.begin(), validation.end());
  EXPECT_EQ(all.size(), 52u);
  EXPECT_EQ(train.size() + validation.size(), 52u);
  EXPECT_TRUE(std::is_sorted(train.begin(), train.end()));
  EXPECT_EQ(keys(*split(3).validation), validation);
  EXPECT_NE(keys(*split(4).validation), validation);
  EXPECT_EQ(pair.train->class_names(), pair.validation->class_names());
  for (std::int64_t i = 0; i < pair.train->size(); ++i)
    EXPECT_EQ(pair.train->sample_key(i)[0], "abc"[pair.train->label(i)]);

  // It goes by names, so a copy elsewhere is split alike, and taking samples away moves few others.
  const test::TemporaryFolder copy;
  fs::copy(root(), copy.path() / "moved", fs::copy_options::recursive);
  EXPECT_EQ(keys(*open_dataset(copy.path() / "moved", {.val_split = 0.25, .seed = 3}).validation), validation);
  fs::remove(root() / "a/0.png");
  const Names fewer = keys(*split(3).validation);
  Names common;
  std::set_intersection(fewer.begin(), fewer.end(), validation.begin(), validation.end(), std::back_inserter(common));
  EXPECT_GE(common.size(), 12u);
}

TEST_F(Folder, SubsetKeepsOrder) {
  for (int i = 0; i < 4; ++i) picture(concat("a/", i, ".png"), 10 * i);
  const auto data = std::make_shared<ImageFolder>(root());
  const auto part = subset(data, {3, 1});
  EXPECT_EQ(part->size(), 2);
  EXPECT_EQ(part->load(0).pixels[0], 30);
  EXPECT_EQ(part->sample_key(1), "a/1.png");
  expect_error(Kind::argument, {"sample 4 of 4"}, [&] { subset(data, {0, 4}); });
}

}  // namespace
}  // namespace apex::io
