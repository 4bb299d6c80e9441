// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// Damaged and vanishing pictures under a whole run of three ranks (spec/operations.md 3.3, rows 22 and 23).
#include <gtest/gtest.h>

#include "apex/io/image/image.hpp"
#include "runs.hpp"

namespace apex::test {
namespace {

constexpr int kRanks = 3, kTrain = 24, kVal = 10;

void put(const fs::path& path, const std::vector<std::uint8_t>& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

std::vector<std::uint8_t> picture(int seed) {
  io::Image image(14, 12, 3);
  for (std::size_t k = 0; k < image.pixels.size(); ++k)
    image.pixels[k] = static_cast<std::uint8_t>(k * 7 + static_cast<std::size_t>(seed) * 40);
  return io::encode_jpeg(image.view(), 90);
}

/// Two classes; with `damaged`, one picture of each part is cut short.
void write_folder(const fs::path& root, bool damaged) {
  for (const auto& [part, count] : {std::pair<std::string, int>{"train", kTrain}, {"val", kVal}})
    for (int i = 0; i < count; ++i) {
      auto bytes = picture(i);
      if (damaged && i == 5) bytes.resize(bytes.size() / 2);
      put(root / part / (i % 2 ? "dog" : "cat") / (std::to_string(i) + ".jpg"), bytes);
    }
}

std::vector<std::string> on(const fs::path& data, const fs::path& directory, std::vector<std::string> more = {}) {
  std::vector<std::string> out = {
      data.string(),   "--arch",    "resnet20",         "--image-size",    "8", "-b", "2", "-j", "1",
      "--lr-schedule", "one-cycle", "--checkpoint-dir", directory.string()};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

std::int64_t number(const nlohmann::json& record, const char* name) { return record.at(name).get<std::int64_t>(); }

TEST(DataFaults, OneDamagedFileInOneShareOfThree) {
  const TemporaryFolder folder;
  const auto data = folder.path() / "data";
  write_folder(data, true);
  constexpr int kEpochs = 2, kSteps = kTrain / (2 * kRanks);
  for (const std::string policy : {"skip", "black"}) {
    const auto ck = folder.path() / policy;
    const auto ids = (folder.path() / (policy + "_ids")).string();
    TrainRun run(kRanks,
                 on(data, ck, {"--epochs", std::to_string(kEpochs), "--bad-sample", policy, "--log-samples", ids}));
    ASSERT_EQ(run.finish().code(), 0) << run.output();
    EXPECT_TRUE(run.says(policy == "skip" ? "bad sample skipped" : "bad sample made black")) << run.output();
    EXPECT_TRUE(run.says("train/dog/5.jpg") && run.says("val/dog/5.jpg")) << run.output();
    EXPECT_TRUE(run.says("(--bad-sample " + policy + "): 2 in training, 2 in validation")) << run.output();

    const auto steps = records(ck / "metrics.jsonl", "train");
    ASSERT_EQ(steps.size(), static_cast<std::size_t>(kEpochs * kSteps));
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      std::int64_t bad = 0;
      for (int s = 0; s < kSteps; ++s) {
        const auto& record = steps[static_cast<std::size_t>(epoch * kSteps + s)];
        EXPECT_EQ(number(record, "samples"), 2 * kRanks);
        bad += number(record, "bad_samples");
      }
      EXPECT_EQ(bad, 1) << "in epoch " << epoch;
    }
    const auto validations = records(ck / "metrics.jsonl", "validate");
    ASSERT_EQ(validations.size(), static_cast<std::size_t>(kEpochs));
    for (const auto& record : validations) {
      EXPECT_EQ(number(record, "samples"), policy == "skip" ? kVal - 1 : kVal);
      EXPECT_EQ(number(record, "bad_samples"), 1);
    }
    const auto summary = records(ck / "metrics.jsonl", "summary").back();
    EXPECT_EQ(number(summary, "bad_samples"), 2);
    EXPECT_EQ(number(summary, "bad_validation_samples"), 2);

    const auto by_step = sample_ids(ids, kRanks);
    ASSERT_EQ(by_step.size(), static_cast<std::size_t>(kEpochs * kSteps));
    for (const auto& [step, ranks] : by_step)
      for (const auto& rank : ranks) EXPECT_EQ(rank.size(), 2u) << "at step " << step;
  }
}

TEST(DataFaults, APackMeetsThemAsTheFolderDoes) {
  const TemporaryFolder folder;
  const auto data = folder.path() / "data", pack = folder.path() / "data.h5";
  write_folder(data, true);
  Subprocess packing({APEX_PACK_IMAGES, data.string(), pack.string(), "--no-check", "--progress", "none"});
  ASSERT_TRUE(packing.finish(30));
  ASSERT_EQ(packing.exit_code(), 0) << packing.output();
  const std::vector<std::string> options = {"--epochs", "1", "--bad-sample", "skip"};
  TrainRun from_folder(kRanks, on(data, folder.path() / "a", options)),
      from_pack(kRanks, on(pack, folder.path() / "b", options));
  ASSERT_EQ(from_folder.finish().code(), 0) << from_folder.output();
  ASSERT_EQ(from_pack.finish().code(), 0) << from_pack.output();
  EXPECT_EQ(difference(newest(folder.path() / "a"), newest(folder.path() / "b")), "");
  const auto validated = [&](const char* run) {
    return records(folder.path() / run / "metrics.jsonl", "validate").back();
  };
  EXPECT_EQ(validated("a")["loss"], validated("b")["loss"]);
  EXPECT_EQ(number(validated("b"), "samples"), kVal - 1);
}

TEST(DataFaults, AResumedRunEndsAsTheUnbrokenOne) {
  const TemporaryFolder folder;
  const auto data = folder.path() / "data", whole = folder.path() / "whole", broken = folder.path() / "broken";
  write_folder(data, true);
  const auto arguments = [&](const fs::path& directory, std::vector<std::string> more) {
    more.insert(more.end(), {"--epochs", "2", "--bad-sample", "skip", "--resume", "auto"});
    return on(data, directory, more);
  };
  TrainRun unbroken(kRanks, arguments(whole, {}));
  ASSERT_EQ(unbroken.finish().code(), 0) << unbroken.output();
  for (const char* steps : {"1", "3", "6"}) {
    TrainRun part(kRanks, arguments(broken, {"--max-steps", steps}));
    ASSERT_EQ(part.finish().code(), 0) << part.output();
  }
  TrainRun last(kRanks, arguments(broken, {}));
  ASSERT_EQ(last.finish().code(), 0) << last.output();
  EXPECT_EQ(difference(newest(whole), newest(broken)), "");
}

TEST(DataFaults, AValidationPartWithoutAGoodPictureIsAnError) {
  const TemporaryFolder folder;
  const auto data = folder.path() / "data";
  write_folder(data, false);
  for (int i = 0; i < kVal; ++i) put(data / "val" / (i % 2 ? "dog" : "cat") / (std::to_string(i) + ".jpg"), {1, 2, 3});
  TrainRun run(kRanks, on(data, folder.path() / "ck", {"--epochs", "1", "--bad-sample", "skip"}));
  EXPECT_EQ(run.finish().code(), 3) << run.output();
  EXPECT_TRUE(run.says("every picture of the validation part is damaged")) << run.output();
}

/// Unlinked while the run reads: three retries, then code 3 and the path, though bad samples are passed over.
TEST(DataFaults, AFileThatVanishesInTheMiddle) {
  const TemporaryFolder folder;
  const auto data = folder.path() / "data", ck = folder.path() / "ck";
  write_folder(data, false);
  TrainRun run(kRanks, on(data, ck, {"--epochs", "200", "--bad-sample", "skip"}), {"APEX_READ_DELAY_MS=30"});
  ASSERT_TRUE(run.reaches_step(ck / "metrics.jsonl", 2)) << run.output();
  fs::remove(data / "train" / "cat" / "6.jpg");
  EXPECT_EQ(run.finish(60).code(), 3) << run.output();
  for (const char* words : {"train/cat/6.jpg", "No such file or directory", "tried 4 times"})
    EXPECT_TRUE(run.says(words)) << "should say: " << words << "\nbut said:\n" << run.output();
}

}  // namespace
}  // namespace apex::test
