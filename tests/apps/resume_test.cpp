// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// What a run goes on from: every type to the last bit, other rank counts, damaged files, the best one.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>

#include "runs.hpp"
#include "support/tensors.hpp"

namespace apex::test {
namespace {

/// A bit of the last dataset of a file the other way round.
std::string damage(const fs::path& file) {
  std::string name;
  const io::CheckpointFile checkpoint(file);
  for (const auto& [path, info] : checkpoint.datasets())
    if (info.bytes > 0) name = path;
  std::fstream bytes(file, std::ios::binary | std::ios::in | std::ios::out);
  bytes.seekg(-1, std::ios::end);
  const char last = static_cast<char>(bytes.get() ^ 1);
  bytes.seekp(-1, std::ios::end);
  bytes.put(last);
  return '/' + name;
}

int count_of(const std::string& text, const std::string& words) {
  int n = 0;
  for (auto at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++n;
  return n;
}

std::vector<std::int64_t> steps_in(const fs::path& directory) {
  std::vector<std::int64_t> steps;
  for (const auto& file : io::list_checkpoints(directory)) steps.push_back(file.step);
  return steps;
}

struct TypeCase {
  const char* dtype;
  int ranks;
};
std::string name_of_case(const ::testing::TestParamInfo<TypeCase>& info) {
  return std::string(info.param.dtype) + "_np" + std::to_string(info.param.ranks);
}

class EveryType : public ::testing::TestWithParam<TypeCase> {
 protected:
  std::vector<std::string> arguments(const fs::path& directory, const char* workers = "1") const {
    const auto [dtype, ranks] = GetParam();
    return tiny(directory, {"--dtype", dtype, "--synthetic-size", "96", "-b", std::to_string(12 / ranks), "--epochs",
                            "2", "-j", workers, "--resume", "auto"});
  }
  /// The weights' type in the file is the one asked for, and 16-bit ones have masters.
  void expect_types(const fs::path& path) const {
    const std::string dtype = GetParam().dtype;
    const io::CheckpointFile file(path);
    EXPECT_EQ(file.datasets().at("model/conv1.weight").dtype, parse_dtype(dtype));
    EXPECT_EQ(file.datasets().at("model/bn1.weight").dtype, dtype == "f64" ? DType::f64 : DType::f32);
    EXPECT_EQ(file.has_dataset("optimizer/0/state/conv1.weight/master"), dtype == "f16" || dtype == "bf16");
  }
};

TEST_P(EveryType, InterruptedAndResumedEqualsUnbroken) {
  const auto [dtype, ranks] = GetParam();
  const TemporaryFolder folder;
  TrainRun whole(ranks, arguments(folder.path() / "whole"));
  ASSERT_EQ(whole.finish().code(), 0) << whole.output();
  const auto metrics = folder.path() / "parts" / "metrics.jsonl";
  TrainRun first(ranks, arguments(folder.path() / "parts", "3"), {"APEX_READ_DELAY_MS=60"});
  ASSERT_TRUE(first.reaches_step(metrics, 5)) << first.output();
  first.signal(SIGUSR1);
  ASSERT_EQ(first.finish().code(), 99) << first.output();
  const auto stopped = io::CheckpointFile(newest(folder.path() / "parts")).step();
  EXPECT_GE(stopped, 5);
  EXPECT_LT(stopped, 16) << "the run was over before the signal: nothing was interrupted";
  TrainRun second(ranks, arguments(folder.path() / "parts"));
  ASSERT_EQ(second.finish().code(), 0) << second.output();
  const auto a = newest(folder.path() / "whole"), b = newest(folder.path() / "parts");
  EXPECT_EQ(difference(a, b), "");
  EXPECT_EQ(io::CheckpointFile(b).step(), 16);
  EXPECT_EQ(losses(folder.path() / "whole" / "metrics.jsonl"), losses(metrics));
  expect_types(b);
}

TEST_P(EveryType, RepeatIsBitIdentical) {
  const TemporaryFolder folder;
  for (const char* name : {"a", "b"}) {
    TrainRun run(GetParam().ranks, arguments(folder.path() / name, name[0] == 'a' ? "1" : "3"));
    ASSERT_EQ(run.finish().code(), 0) << run.output();
  }
  EXPECT_EQ(difference(newest(folder.path() / "a"), newest(folder.path() / "b")), "");
}

INSTANTIATE_TEST_SUITE_P(OnCpu, EveryType,
                         ::testing::Values(TypeCase{"f64", 2}, TypeCase{"f32", 3}, TypeCase{"f16", 1},
                                           TypeCase{"f16", 3}, TypeCase{"bf16", 2}, TypeCase{"bf16", 4}),
                         name_of_case);

/// The first step's gradients, which after one step of SGD without decay are its momentum buffers, do not depend on the
/// number of ranks, but for the rounding of sums and of 16-bit gradients. (Later steps of two runs drift apart.)
class FirstGradients : public ::testing::TestWithParam<const char*> {};

TEST_P(FirstGradients, AreThoseOfOneRank) {
  const std::string dtype = GetParam();
  // As a part of the largest gradient of a tensor: sums in other orders; each rank's gradients rounded to 16 bits
  // before they are averaged, and activations next to a rounding boundary.
  const double tolerance = dtype == "f64" ? 1e-11 : dtype == "f32" ? 1e-4 : dtype == "f16" ? 0.01 : 0.05;
  const TemporaryFolder folder;
  std::map<int, fs::path> files;
  for (const int ranks : {1, 2, 3}) {
    const auto directory = folder.path() / std::to_string(ranks);
    TrainRun run(ranks, tiny(directory, {"--dtype", dtype, "--freeze-bn", "--synthetic-size", "24", "-b",
                                         std::to_string(12 / ranks), "--wd", "0", "--max-steps", "1", "--lr-schedule",
                                         "constant", "--checkpoint-every", "1steps"}));
    ASSERT_EQ(run.finish().code(), 0) << run.output();
    files[ranks] = newest(directory);
  }
  const io::CheckpointFile one(files[1]);
  int compared = 0;
  for (const int ranks : {2, 3}) {
    const io::CheckpointFile other(files[ranks]);
    for (const auto& [path, info] : one.datasets()) {
      if (!path.ends_with("/momentum_buffer")) continue;
      const auto a = to_f64(one.read(path)), b = to_f64(other.read(path));
      double largest = 0, off = 0;
      for (std::size_t i = 0; i < a.size(); ++i) {
        largest = std::max(largest, std::abs(a[i]));
        off = std::max(off, std::abs(a[i] - b[i]));
      }
      EXPECT_GT(largest, 0) << path;
      EXPECT_LE(off, tolerance * largest) << path << " on " << ranks << " ranks";
      ++compared;
    }
  }
  EXPECT_GT(compared, 100) << "all parameters of a network of 20 layers, twice";
}

INSTANTIATE_TEST_SUITE_P(OnCpu, FirstGradients, ::testing::Values("f64", "f32", "f16", "bf16"),
                         [](const auto& c) { return std::string(c.param); });

/// 4, then 2, then 3 ranks, in the middle of epochs: the samples of each step and the rates are those of one rank.
TEST(Resume, FourThenTwoThenThreeRanks) {
  const TemporaryFolder folder;
  const auto arguments = [&](const char* name, int batch, std::int64_t until, int part) {
    auto all = tiny(folder.path() / name, {"--synthetic-size", "120", "--epochs", "2", "--dtype", "f64", "--freeze-bn",
                                           "--lr-schedule", "cosine", "--resume", "auto"});
    const auto samples = (folder.path() / concat(name, part)).string();
    all.insert(all.end(), {"-b", std::to_string(batch), "--max-steps", std::to_string(until), "--checkpoint-every",
                           "100steps", "--log-samples", samples});
    return all;
  };
  TrainRun whole(1, arguments("whole", 12, 20, 0));
  ASSERT_EQ(whole.finish().code(), 0) << whole.output();
  std::map<std::int64_t, std::vector<std::int64_t>> seen;
  int part = 0;
  for (const auto& [ranks, until] : {std::pair{4, 6}, {2, 13}, {3, 20}}) {
    TrainRun run(ranks, arguments("parts", 3, until, ++part));
    ASSERT_EQ(run.finish().code(), 0) << run.output();
    for (const auto& [step, parts] : sample_ids((folder.path() / concat("parts", part)).string(), ranks)) {
      EXPECT_FALSE(seen.contains(step)) << "step " << step << " twice";
      // Rank r holds samples r, r + W, ... of the step, so taken in turns they are in the order of one rank.
      for (std::size_t i = 0; i < parts[0].size(); ++i)
        for (const auto& ids : parts) seen[step].push_back(ids.at(i));
    }
  }
  const auto expected = sample_ids((folder.path() / "whole0").string(), 1);
  ASSERT_EQ(expected.size(), 20u);
  for (const auto& [step, ids] : expected) EXPECT_EQ(seen[step], ids[0]) << "step " << step;
  const auto a = records(folder.path() / "whole" / "metrics.jsonl", "train"),
             b = records(folder.path() / "parts" / "metrics.jsonl", "train");
  ASSERT_EQ(a.size(), 20u);
  ASSERT_EQ(b.size(), 20u);
  for (std::size_t k = 0; k < a.size(); ++k) {
    EXPECT_EQ(a[k]["lr"], b[k]["lr"]) << "step " << k + 1;
    EXPECT_NEAR(a[k]["loss"].get<double>(), b[k]["loss"].get<double>(), 1e-9 * std::abs(a[k]["loss"].get<double>()));
  }
}

class Damaged : public ::testing::TestWithParam<int> {};

/// All ranks pass over the same damaged files, and end where an unbroken run ends.
TEST_P(Damaged, NewestIsPassedOverForTheOlderOne) {
  const int ranks = GetParam();
  const TemporaryFolder folder;
  const auto arguments = [&](const char* name, std::int64_t until) {
    return tiny(folder.path() / name,
                {"--synthetic-size", "96", "-b", std::to_string(12 / ranks), "--epochs", "2", "--checkpoint-every",
                 "3steps", "--max-steps", std::to_string(until), "--keep", "0", "--resume", "auto"});
  };
  TrainRun whole(ranks, arguments("whole", 14));
  ASSERT_EQ(whole.finish().code(), 0) << whole.output();
  const auto directory = folder.path() / "parts";
  TrainRun first(ranks, arguments("parts", 9));
  ASSERT_EQ(first.finish().code(), 0) << first.output();
  const auto files = io::list_checkpoints(directory);
  ASSERT_GE(files.size(), 3u);
  const auto &newest_file = files[files.size() - 1].path, &second = files[files.size() - 2].path,
             &third = files[files.size() - 3].path;
  const auto dataset = damage(newest_file);
  fs::resize_file(second, fs::file_size(second) / 2);
  TrainRun run(ranks, arguments("parts", 14));
  ASSERT_EQ(run.finish().code(), 0) << run.output();
  EXPECT_TRUE(run.says(concat(newest_file.string(), ": damaged: dataset '", dataset,
                              "' does not match its sum; taking ", "the older ", second.string(), " instead")))
      << run.output();
  EXPECT_TRUE(run.says("taking the older " + third.string() + " instead")) << run.output();
  EXPECT_EQ(difference(newest(folder.path() / "whole"), newest(directory)), "");
  EXPECT_EQ(losses(folder.path() / "whole" / "metrics.jsonl"), losses(directory / "metrics.jsonl"));
  for (const auto& file : io::list_checkpoints(directory)) EXPECT_NO_THROW(io::CheckpointFile(file.path).verify());

  for (const auto& file : io::list_checkpoints(directory)) fs::resize_file(file.path, 700);
  TrainRun last(ranks, arguments("parts", 16));
  EXPECT_EQ(last.finish().code(), 5) << last.output();
  EXPECT_TRUE(last.says("none of the")) << last.output();
  EXPECT_FALSE(last.says("Epoch: [")) << "nothing is trained from scratch over it";
}

/// Without the check before, what is read is still checked: code 5 on all ranks, and no older file.
TEST_P(Damaged, WithoutVerificationTheRunEndsWithFive) {
  const int ranks = GetParam();
  const TemporaryFolder folder;
  const auto arguments = [&](std::int64_t until, const char* verify) {
    return tiny(folder.path(),
                {"--synthetic-size", "96", "-b", std::to_string(12 / ranks), "--epochs", "2", "--checkpoint-every",
                 "2steps", "--max-steps", std::to_string(until), "--resume", "auto", "--verify-checkpoint", verify});
  };
  TrainRun first(ranks, arguments(4, "full"));
  ASSERT_EQ(first.finish().code(), 0) << first.output();
  const auto dataset = damage(newest(folder.path()));
  TrainRun run(ranks, arguments(6, "none"));
  EXPECT_EQ(run.finish(20).code(), 5) << run.output();
  EXPECT_TRUE(run.says("dataset '" + dataset + "'")) << run.output();
  TrainRun checked(ranks, arguments(6, "sample"));
  EXPECT_EQ(checked.finish().code(), 0) << checked.output();
}

INSTANTIATE_TEST_SUITE_P(OneToThree, Damaged, ::testing::Range(1, 4),
                         [](const auto& c) { return "np" + std::to_string(c.param); });

/// What the options say is in force, and said to be another than before.
TEST(Resume, FollowsTheOptionsOfTheRunForMomentumAndDecay) {
  const TemporaryFolder folder;
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"--synthetic-size", "48",  "-b", "6", "--epochs", "1", "-j", "1",
                                    "--resume",         "auto"};
    all.insert(all.end(), more.begin(), more.end());
    return tiny(folder.path() / "ck", all);
  };
  TrainRun first(2, run({"--max-steps", "2"}));
  ASSERT_EQ(first.finish().code(), 0) << first.output();
  TrainRun second(2, run({"--momentum", "0.5", "--wd", "0.25", "--nesterov"}));
  ASSERT_EQ(second.finish().code(), 0) << second.output();
  for (const char* words : {"momentum is 0.5 here, not 0.9", "weight_decay is 0.25 here, not 0.0001", "nesterov is ",
                            "step_00000002.h5' (step 2, epoch 0)"})
    EXPECT_EQ(count_of(second.output(), words), 1) << words << " in: " << second.output();
  const io::CheckpointFile file(newest(folder.path() / "ck"));
  const auto& group = file.attributes("optimizer/0/groups/0");
  EXPECT_EQ(std::get<double>(group.at("momentum")), 0.5);
  EXPECT_EQ(std::get<double>(group.at("weight_decay")), 0.25);
  EXPECT_EQ(std::get<bool>(group.at("nesterov")), true);
}

/// A run that is over already says so, in one line, and ends well.
TEST(Resume, WhatIsDoneIsSaidToBeDone) {
  const TemporaryFolder folder;
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--synthetic-size", "48", "-b", "6", "-j", "1", "--resume", "auto"});
    return tiny(folder.path() / "ck", more);
  };
  TrainRun first(2, run({"--epochs", "2", "--max-steps", "3"}));
  ASSERT_EQ(first.finish().code(), 0) << first.output();
  EXPECT_FALSE(first.says("nothing left")) << first.output();
  TrainRun steps(2, run({"--epochs", "2", "--max-steps", "3"}));
  EXPECT_EQ(steps.finish().code(), 0) << steps.output();
  EXPECT_EQ(count_of(steps.output(), "=> nothing left to train: step 3 of --max-steps 3 is done"), 1) << steps.output();
  TrainRun rest(2, run({"--epochs", "2"}));
  ASSERT_EQ(rest.finish().code(), 0) << rest.output();
  EXPECT_FALSE(rest.says("nothing left")) << rest.output();
  TrainRun epochs(2, run({"--epochs", "2"}));
  EXPECT_EQ(epochs.finish().code(), 0) << epochs.output();
  EXPECT_EQ(count_of(epochs.output(), "=> nothing left to train: 2 of --epochs 2 are done"), 1) << epochs.output();
}

/// Options that shape the training and are not as they were are named, each once; /config says what was in force.
TEST(Resume, NamesTheOptionsThatHaveChanged) {
  const TemporaryFolder folder;
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--synthetic-size", "48", "-j", "1", "--resume", "auto"});
    return tiny(folder.path() / "ck", more);
  };
  TrainRun first(2, run({"-b", "6", "--max-steps", "2"}));
  ASSERT_EQ(first.finish().code(), 0) << first.output();
  TrainRun same(2, run({"-b", "6", "--max-steps", "3"}));
  ASSERT_EQ(same.finish().code(), 0) << same.output();
  EXPECT_FALSE(same.says(" here, not ")) << same.output();
  TrainRun second(2, run({"-b", "6", "--max-steps", "4", "--dtype", "bf16", "--freeze-bn", "--label-smoothing", "0.1",
                          "--accumulate", "2", "--augment", "small"}));
  ASSERT_EQ(second.finish().code(), 0) << second.output();
  for (const char* words :
       {"dtype is bf16 here, not f32 as in", "freeze-bn is true here, not false", "label-smoothing is 0.1 here, not 0 ",
        "accumulate is 2 here, not 1", "batch-size is 3 here, not 6 as in", "augment is small here, not auto"})
    EXPECT_EQ(count_of(second.output(), words), 1) << words << " in: " << second.output();
  const io::CheckpointFile file(newest(folder.path() / "ck"));
  const auto& config = file.attributes("config");
  EXPECT_EQ(std::get<std::string>(config.at("batch-size")), "3  (kept from the checkpoint)");
  EXPECT_EQ(std::get<std::string>(config.at("accumulate")), "2  (command line)");
  // Groups of parameters that do not fit are refused; the option that made them is named.
  TrainRun third(2, run({"-b", "6", "--dtype", "bf16", "--no-norm-decay"}));
  EXPECT_EQ(third.finish(30).code(), 3) << third.output();
  EXPECT_EQ(count_of(third.output(), "no-norm-decay is true here, not false"), 1) << third.output();
  TrainRun fourth(1, {"synthetic",
                      "--arch",
                      "resnet20",
                      "--image-size",
                      "12",
                      "--channels",
                      "1",
                      "--synthetic-size",
                      "48",
                      "-b",
                      "12",
                      "--checkpoint-dir",
                      (folder.path() / "ck").string(),
                      "--lr-schedule",
                      "one-cycle",
                      "--resume",
                      "auto",
                      "--max-steps",
                      "5",
                      "--dtype",
                      "bf16"});
  fourth.finish(60);
  EXPECT_EQ(count_of(fourth.output(), "image-size is 12 here, not 8"), 1) << fourth.output();
}

/// A job that starts from a folder whose own run goes on there, and is requeued: it continues its own checkpoints,
/// also when the folder has newer ones by then, or is gone.
TEST(Resume, ARequeuedRunThatBeganFromAFolderGoesOn) {
  const TemporaryFolder folder;
  const auto source = folder.path() / "source", own = folder.path() / "job";
  const auto arguments = [&](const fs::path& directory, const std::string& from, const char* until) {
    return tiny(directory, {"--synthetic-size", "96", "-b", "6", "--epochs", "2", "-j", "1", "--resume", from,
                            "--max-steps", until});
  };
  TrainRun first(2, arguments(source, "auto", "2"));
  ASSERT_EQ(first.finish().code(), 0) << first.output();
  TrainRun job(2, arguments(own, source.string(), "5"));
  ASSERT_EQ(job.finish().code(), 0) << job.output();
  TrainRun more(2, arguments(source, "auto", "9"));  // goes on where the job began
  ASSERT_EQ(more.finish().code(), 0) << more.output();
  TrainRun again(2, arguments(own, source.string(), "6"));
  ASSERT_EQ(again.finish().code(), 0) << again.output();
  EXPECT_TRUE(again.says("it continues from '" + (own / "step_00000005.h5").string())) << again.output();
  EXPECT_EQ(io::CheckpointFile(newest(own)).step(), 6);
  fs::remove_all(source);
  TrainRun last(2, arguments(own, source.string(), "7"));
  ASSERT_EQ(last.finish().code(), 0) << last.output();
  EXPECT_EQ(io::CheckpointFile(newest(own)).step(), 7);
  TrainRun other(2, arguments(own, (folder.path() / "elsewhere").string(), "8"));  // not what it was started with
  EXPECT_EQ(other.finish(30).code(), 3) << other.output();
}

/// A job that starts from a file and is requeued goes on from its own newest checkpoint, with the same command.
TEST(Resume, ARequeuedRunThatBeganFromAFileGoesOn) {
  const TemporaryFolder folder;
  const std::vector<std::string> sizes = {"--synthetic-size", "96", "-b", "6", "--epochs", "1", "-j", "1"};
  auto all = sizes;
  all.insert(all.end(), {"--max-steps", "2"});
  TrainRun source(2, tiny(folder.path() / "source", all));
  ASSERT_EQ(source.finish().code(), 0) << source.output();
  all = sizes;
  all.insert(all.end(), {"--resume", newest(folder.path() / "source").string()});
  const auto job = tiny(folder.path() / "job", all);
  TrainRun first(2, job, {"APEX_READ_DELAY_MS=60"});
  ASSERT_TRUE(first.reaches_step(folder.path() / "job" / "metrics.jsonl", 4)) << first.output();
  first.signal(SIGUSR1);
  ASSERT_EQ(first.finish().code(), 99) << first.output();
  TrainRun second(2, job);
  ASSERT_EQ(second.finish().code(), 0) << second.output();
  EXPECT_NE(second.output().find("it continues from"), std::string::npos) << second.output();
  EXPECT_EQ(io::CheckpointFile(newest(folder.path() / "job")).step(), 8);
  all = sizes;
  all.insert(all.end(), {"--resume", newest(folder.path() / "job").string()});
  TrainRun other(2, tiny(folder.path() / "source", all));  // no run of its own
  EXPECT_EQ(other.finish().code(), 3) << other.output();
}

TEST(Resume, AnEmptyNameIsNoWayToStartAnew) {
  const TemporaryFolder folder;
  for (const char* option : {"--resume", "--pretrained"}) {
    TrainRun run(2, tiny(folder.path() / "ck", {"--max-steps", "1", option, ""}));
    EXPECT_EQ(run.finish().code(), 2) << run.output();
    EXPECT_NE(run.output().find("the value is empty"), std::string::npos) << run.output();
  }
}

TEST(Resume, TheBestOneAndWhatKeepLeaves) {
  const TemporaryFolder folder;
  const auto directory = folder.path() / "ck";
  const auto with = [&](const fs::path& where, std::vector<std::string> more) {
    std::vector<std::string> all = {"--synthetic-size", "48", "-b", "6", "--keep", "1"};
    if (std::find(more.begin(), more.end(), "--epochs") == more.end()) all.insert(all.end(), {"--epochs", "4"});
    all.insert(all.end(), more.begin(), more.end());
    return tiny(where, all);
  };
  TrainRun none(2, with(directory, {"--resume", "best"}));
  EXPECT_EQ(none.finish(20).code(), 3) << none.output();
  EXPECT_TRUE(none.says("has no BEST")) << none.output();

  TrainRun first(2, with(directory, {}));
  ASSERT_EQ(first.finish().code(), 0) << first.output();
  // BEST is the step of the best first accuracy, the earliest of equals.
  double best = -1;
  std::int64_t best_step = 0, last_step = 0;
  for (const auto& r : records(directory / "metrics.jsonl", "validate")) {
    last_step = r["step"].get<std::int64_t>();
    if (r["prec1"].get<double>() <= best) continue;
    best = r["prec1"].get<double>();
    best_step = last_step;
  }
  const auto named = io::best_checkpoint(directory);
  ASSERT_TRUE(named);
  EXPECT_EQ(io::CheckpointFile(*named).step(), best_step);
  const std::set<std::int64_t> expected = {best_step, last_step};
  const auto left = steps_in(directory);
  EXPECT_EQ(std::set<std::int64_t>(left.begin(), left.end()), expected) << "--keep 1: the newest, and the best";

  for (const auto& from : {std::string("best"), (directory / "BEST").string()}) {
    TrainRun evaluate(1, with(directory, {"-e", "--resume", from}));
    ASSERT_EQ(evaluate.finish().code(), 0) << evaluate.output();
    EXPECT_NEAR(records(directory / "metrics.jsonl", "validate").back()["prec1"].get<double>(), best, 1e-9) << from;
  }
  // Training goes on from it elsewhere; here newer files would be mixed with its own.
  if (best_step != last_step) {
    TrainRun here(2, with(directory, {"--resume", "best"}));
    EXPECT_EQ(here.finish(20).code(), 3) << here.output();
    EXPECT_TRUE(here.says("beyond step")) << here.output();
  }
  TrainRun elsewhere(2, with(folder.path() / "other", {"--resume", (directory / "BEST").string(), "--epochs", "5"}));
  ASSERT_EQ(elsewhere.finish().code(), 0) << elsewhere.output();
  fs::remove(directory / "BEST");
  TrainRun gone(1, with(folder.path() / "third", {"--resume", (directory / "BEST").string()}));
  EXPECT_EQ(gone.finish(20).code(), 3) << gone.output();
  EXPECT_EQ(steps_in(directory), left) << "what a run goes on from is never deleted";
}

/// --keep 1 leaves alone what the run was started from.
TEST(Resume, KeepNeverDeletesWhatWasLoaded) {
  const TemporaryFolder folder;
  const auto arguments = [&](std::int64_t until) {
    return tiny(folder.path(), {"--synthetic-size", "48", "-b", "6", "--epochs", "1", "--checkpoint-every", "1steps",
                                "--keep", "1", "--max-steps", std::to_string(until), "--resume", "auto"});
  };
  TrainRun first(2, arguments(2));
  ASSERT_EQ(first.finish().code(), 0) << first.output();
  EXPECT_EQ(steps_in(folder.path()), (std::vector<std::int64_t>{2}));
  TrainRun second(2, arguments(3));
  ASSERT_EQ(second.finish().code(), 0) << second.output();
  EXPECT_EQ(steps_in(folder.path()), (std::vector<std::int64_t>{2, 3}));
}

}  // namespace
}  // namespace apex::test
