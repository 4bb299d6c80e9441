// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// The program pack_images as its users start it.
#include "apex/io/data/pack.hpp"
#include "apex/io/data/sources.hpp"
#include "io_data/common.hpp"

namespace apex::io {
namespace {

namespace fs = std::filesystem;

struct Ended {
  int code;
  std::string output;
};

Ended pack_images(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), APEX_PACK_IMAGES);
  test::Subprocess program(arguments);
  EXPECT_TRUE(program.finish(60)) << "it hangs";
  return {program.exit_code(), program.output()};
}

class PackImages : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 20; ++i)
      test::write_bytes(folder_.path() / "in" / (i % 2 ? "odd" : "even") / concat(i, ".jpg"),
                        encode_jpeg(test::formula_image(30 + i, 40, 3).view(), 90));
  }
  std::string in() const { return (folder_.path() / "in").string(); }
  std::string out() const { return (folder_.path() / "out.h5").string(); }
  void expect_refusal(const std::vector<std::string>& arguments, int code, const std::vector<std::string>& words) {
    const Ended ended = pack_images(arguments);
    EXPECT_EQ(ended.code, code) << ended.output;
    EXPECT_EQ(std::count(ended.output.begin(), ended.output.end(), '\n'), 1) << ended.output;
    EXPECT_TRUE(ended.output.starts_with("pack_images: ")) << ended.output;
    for (const auto& word : words) EXPECT_NE(ended.output.find(word), std::string::npos) << ended.output;
  }
  test::TemporaryFolder folder_;
};

TEST_F(PackImages, PacksAsTheTrainerWouldSplit) {
  const Ended ended = pack_images({in(), out(), "--val_split=0.2", "--seed", "4", "-j", "2"});
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_NE(ended.output.find("16 pictures for training, 4 for validation, of 2 classes; 0 left out"),
            std::string::npos)
      << ended.output;
  EXPECT_EQ(ended.output.find('\r'), std::string::npos);
  const DatasetPair folder = open_dataset(in(), {.val_split = 0.2, .seed = 4}), packed = open_dataset(out());
  EXPECT_EQ(fingerprint(*folder.train), fingerprint(*packed.train));
  EXPECT_EQ(fingerprint(*folder.validation), fingerprint(*packed.validation));
  EXPECT_EQ(packed.train->encoded(7), folder.train->encoded(7));
}

TEST_F(PackImages, OptionsReachThePack) {
  EXPECT_EQ(pack_images({in(), out(), "--decoded", "--resize", "12", "--channels", "1", "--progress", "none"}).code, 0);
  const PackedDataset pack(out(), "train");
  EXPECT_EQ(pack.channels(), 1);
  EXPECT_EQ(pack.fixed_size(), (Dataset::Size{12, 12}));
  EXPECT_EQ(pack.size(), 20);
  const Ended again = pack_images({in(), out(), "--force", "--resize", "16", "--quality", "20"});
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_FALSE(PackedDataset(out(), "train").fixed_size());
}

TEST_F(PackImages, NamesWhatItLeavesOut) {
  test::write_text(fs::path(in()) / "odd" / "a.webp", "of another format");
  test::write_text(fs::path(in()) / "even" / "b.gif", "of another format");
  const Ended ended = pack_images({in(), out()});
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_NE(ended.output.find("1 .gif, 1 .webp"), std::string::npos) << ended.output;
}

TEST_F(PackImages, SaysItsVersionUnlessNobodyCanReadIt) {
  const Ended ended = pack_images({"--version"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_TRUE(ended.output.starts_with("pack_images ")) << ended.output;
  for (const char* option : {"--version", "--help"}) {
    test::Subprocess full({"sh", "-c", concat(APEX_PACK_IMAGES, ' ', option, " >/dev/full")});
    ASSERT_TRUE(full.finish(60));
    EXPECT_EQ(full.exit_code(), exit_code::kMemory) << full.output();
  }
}

TEST_F(PackImages, HelpNeedsNothingElse) {
  const Ended ended = pack_images({"--help"});
  EXPECT_EQ(ended.code, 0);
  for (const char* word : {"SOURCE PACK.h5", "--resize", "--decoded", "--val-split", "--force"})
    EXPECT_NE(ended.output.find(word), std::string::npos) << word;
}

TEST_F(PackImages, UsageErrorsEndWithTwo) {
  expect_refusal({}, 2, {"SOURCE and PACK.h5"});
  expect_refusal({in()}, 2, {"SOURCE and PACK.h5"});
  expect_refusal({in(), out(), "third"}, 2, {"3 arguments"});
  expect_refusal({in(), out(), "--reszie", "3"}, 2, {"reszie", "--help"});
  expect_refusal({in(), out(), "--res", "3"}, 2, {"--res"});  // no guessing
  expect_refusal({in(), out(), "--resize", "many"}, 2, {"many"});
  expect_refusal({in(), out(), "--resize", "0"}, 2, {"--resize"});
  expect_refusal({in(), out(), "--channels", "2"}, 2, {"--channels"});
  expect_refusal({in(), out(), "--val-split", "1"}, 2, {"--val-split"});
  expect_refusal({in(), out(), "--bad-sample", "black"}, 2, {"black"});
  expect_refusal({in(), out(), "--progress", "dots"}, 2, {"dots"});
  expect_refusal({in(), out(), "--workers", "-3"}, 2, {"--workers"});
  expect_refusal({in(), out(), "--quality", "0"}, 2, {"quality"});
  expect_refusal({in(), out(), "--decoded", "--progress", "none"}, 2, {"mixed sizes"});
  EXPECT_FALSE(fs::exists(out()));
}

TEST_F(PackImages, DataErrorsEndWithThree) {
  expect_refusal({in() + "x", out()}, 3, {"inx", "not there"});
  test::write_text(out(), "mine");
  expect_refusal({in(), out(), "--progress", "none"}, 3, {"out.h5", "exists", "--force"});
  EXPECT_EQ(test::read_text(out()), "mine");
  fs::remove(out());
  test::write_text(fs::path(in()) / "odd" / "zero.jpg", "");
  expect_refusal({in(), out(), "--progress", "none"}, 3, {"odd/zero.jpg", "empty", "--bad-sample skip"});
  EXPECT_FALSE(fs::exists(out()));
  const Ended skipped = pack_images({in(), out(), "--bad-sample", "skip", "--progress", "none"});
  EXPECT_EQ(skipped.code, 0) << skipped.output;
  EXPECT_NE(skipped.output.find("left out: '" + in() + "/odd/zero.jpg'"), std::string::npos) << skipped.output;
  fs::create_directories(fs::path(in()) / "none");
  expect_refusal({in(), out(), "--force", "--progress", "none"}, 3, {"class folder", "none"});
}

}  // namespace
}  // namespace apex::io
