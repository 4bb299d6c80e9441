// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// imagenet_train --tensorboard: what is in the event files, over an interruption, is what metrics.jsonl says.
#include <gtest/gtest.h>

#include "runs.hpp"
#include "support/event_file.hpp"

namespace apex::test {
namespace {

TEST(TensorBoardRun, HasEveryStepOnceOverAResume) {
  const TemporaryFolder folder;
  const fs::path run = folder.path() / "run", board = folder.path() / "board";
  const auto start = [&](const std::string& steps) {
    TrainRun train(2, tiny(run, {"--synthetic-size", "64", "-b", "4", "--epochs", "3", "--max-steps", steps,
                                 "--checkpoint-every", "10", "--tensorboard", board.string(), "--resume", "auto"}));
    EXPECT_EQ(train.finish().code(), 0) << train.output();
  };
  start("14");
  const Events before = events_of(board);
  EXPECT_EQ(before.files, 1);
  EXPECT_EQ(before.purges, (std::vector<std::int64_t>{0}));
  EXPECT_EQ(before.scalars.at("train/loss").size(), 14u);
  for (const auto& entry : fs::directory_iterator(run))  // as if it had been killed: from step 10 on it comes again
    if (entry.path().filename() == "step_00000014.h5" || entry.path().filename() == "LATEST") fs::remove(entry.path());
  start("20");

  const Events events = events_of(board);
  EXPECT_EQ(events.files, 2);
  EXPECT_EQ(events.purges, (std::vector<std::int64_t>{0, 11}));
  const auto same = [&](const std::string& tag, const std::string& kind, const std::string& field) {
    std::map<std::int64_t, float> wanted;
    for (const auto& r : records(run / "metrics.jsonl", kind))
      wanted[r["step"].get<std::int64_t>()] = r[field].get<float>();
    EXPECT_EQ(events.scalars.at(tag), wanted) << tag;
    return wanted.size();
  };
  EXPECT_EQ(same("train/loss", "train", "loss"), 20u);
  EXPECT_EQ(same("train/lr", "train", "lr"), 20u);
  EXPECT_GE(same("validate/loss", "validate", "loss"), 2u);
  same("validate/prec1", "validate", "prec1");

  EXPECT_EQ(events.texts.at("configuration").size(), 2u) << "at steps 0 and 10";
  EXPECT_NE(events.texts.at("configuration").at(10).find("| max-steps | 20 | command line |"), std::string::npos)
      << events.texts.at("configuration").at(10);
  std::map<std::string, Message> options;
  ASSERT_EQ(events.hparams.size(), 4u) << "start and end of two runs";
  const Message begin = events.hparams[2].message(3);
  for (const auto& entry : begin.bytes.at(1)) options.emplace(Message(entry).text(1), Message(entry).message(2));
  EXPECT_EQ(options.at("max-steps").real(2), 20.0);
  EXPECT_EQ(options.at("arch").text(3), "resnet20");
  EXPECT_EQ(events.hparams[3].message(4).number(1), 1u) << "ended well";
}

}  // namespace
}  // namespace apex::test
