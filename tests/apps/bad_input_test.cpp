// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// Bad input at two ranks: one clear line, the right exit code, within ten seconds, nothing lost.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>

#include "apex/io/image/image.hpp"
#include "runs.hpp"

namespace apex::test {
namespace {

constexpr double kLimit = 10;

/// Lines of ours on stderr: those that name the program or the library.
int error_lines(const std::string& output) {
  int n = 0;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);)
    n += line.starts_with("apex: ") || line.starts_with("imagenet_train: ");
  return n;
}

void expect_end(const std::vector<std::string>& arguments, int code, const std::vector<std::string>& words,
                int ranks = 2, const std::vector<std::string>& environment = {}) {
  TrainRun run(ranks, arguments, environment);
  run.finish(kLimit);
  EXPECT_EQ(run.code(), code) << run.output();
  for (const auto& word : words)
    EXPECT_TRUE(run.says(word)) << "should say: " << word << "\nbut said:\n" << run.output();
  EXPECT_EQ(error_lines(run.output()), 1) << run.output();
}

std::vector<std::string> on(const fs::path& data, const fs::path& directory, std::vector<std::string> more = {}) {
  std::vector<std::string> out = {data.string(), "--arch", "resnet20",         "--image-size",    "8", "-b", "2",
                                  "--epochs",    "1",      "--checkpoint-dir", directory.string()};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

void put(const fs::path& path, const std::vector<std::uint8_t>& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

std::vector<std::uint8_t> picture() {
  io::Image image(12, 10, 3);
  for (std::size_t k = 0; k < image.pixels.size(); ++k) image.pixels[k] = static_cast<std::uint8_t>(k * 5);
  return io::encode_jpeg(image.view(), 90);
}

void good_folder(const fs::path& root) {
  for (const char* part : {"train", "val"})
    for (const char* name : {"cat", "dog"})
      for (int i = 0; i < 4; ++i) put(root / part / name / (std::to_string(i) + ".jpg"), picture());
}

TEST(BadInput, DataSets) {
  const TemporaryFolder folder;
  const auto ck = folder.path() / "ck";
  expect_end(on(folder.path() / "nowhere", ck), 3, {"nowhere"});

  good_folder(folder.path() / "empty_class");
  fs::create_directories(folder.path() / "empty_class" / "train" / "emu");
  expect_end(on(folder.path() / "empty_class", ck), 3, {"emu"});

  good_folder(folder.path() / "damaged");
  auto cut = picture();
  cut.resize(cut.size() / 2);
  put(folder.path() / "damaged" / "train" / "cat" / "0.jpg", cut);
  expect_end(on(folder.path() / "damaged", ck), 3, {"cat/0.jpg"});

  good_folder(folder.path() / "zero");
  put(folder.path() / "zero" / "train" / "dog" / "3.jpg", {});
  expect_end(on(folder.path() / "zero", ck), 3, {"dog/3.jpg"});

  put(folder.path() / "no_pack.h5", std::vector<std::uint8_t>(100, 'x'));
  expect_end(on(folder.path() / "no_pack.h5", ck), 3, {"no_pack.h5"});
  put(folder.path() / "nothing.h5", {});
  TrainRun trained(1, tiny(ck, {"--synthetic-size", "16", "-b", "4", "--epochs", "1"}));
  ASSERT_EQ(trained.finish().code(), 0) << trained.output();
  expect_end(on(newest(ck), folder.path() / "ck2"), 3, {"not a pack"});
  expect_end(on(folder.path() / "nothing.h5", ck), 3, {"nothing.h5"});
}

/// What a folder has and nobody reads is named once, and trained without; a class of nothing else is an empty one.
TEST(BadInput, PicturesOfOtherFormats) {
  const TemporaryFolder folder;
  good_folder(folder.path() / "mixed");
  put(folder.path() / "mixed" / "train" / "cat" / "a.webp", picture());
  put(folder.path() / "mixed" / "val" / "dog" / "b.GIF", picture());
  TrainRun run(2, on(folder.path() / "mixed", folder.path() / "ck"));
  EXPECT_EQ(run.finish(30).code(), 0) << run.output();
  EXPECT_TRUE(run.says("rank 0: ") && run.says("are left out: 1 .gif, 1 .webp;")) << run.output();
  EXPECT_EQ(error_lines(run.output()), 1) << run.output();
  put(folder.path() / "mixed" / "train" / "emu" / "c.webp", picture());
  expect_end(on(folder.path() / "mixed", folder.path() / "ck2"), 3, {"emu", "only 1 .webp"});
}

/// A start that fails makes no folder, or takes back the one it has made; it says why once, whoever found out.
TEST(BadInput, FailedStartsLeaveNothingBehind) {
  const TemporaryFolder folder;
  const auto ck = folder.path() / "runs" / "new";
  const std::vector<std::string> sizes = {"--synthetic-size", "16", "-b", "4", "--epochs", "1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), sizes.begin(), sizes.end());
    return tiny(ck, more);
  };
  for (const int ranks : {1, 3}) {
    expect_end(on(folder.path() / "nowhere", ck), 3, {"nowhere"}, ranks);
    expect_end(with({"--accumulate", "50"}), 3, {"fewer than --accumulate 50"}, ranks);
    expect_end(with({"--pretrained", (folder.path() / "none.h5").string()}), 3, {"none.h5"}, ranks);
    expect_end(with({"--val-split", "0.5"}), 2, {"val_split"}, ranks);
    EXPECT_FALSE(fs::exists(folder.path() / "runs")) << ranks << " ranks";
  }
  // A folder that was there before, or that has something in it, stays.
  fs::create_directories(ck);
  expect_end(with({"--accumulate", "50"}), 3, {"--accumulate"});
  EXPECT_TRUE(fs::is_empty(ck));
  good_folder(folder.path() / "no_val");
  fs::remove_all(folder.path() / "no_val" / "val");
  expect_end(on(folder.path() / "no_val", folder.path() / "other", {"-e"}), 3, {"validation part"}, 3);
}

TEST(BadInput, BadSamplesCanBePassedOver) {
  const TemporaryFolder folder;
  good_folder(folder.path() / "zero");
  put(folder.path() / "zero" / "train" / "dog" / "3.jpg", {});
  for (const char* policy : {"skip", "black"}) {
    TrainRun run(2, on(folder.path() / "zero", folder.path() / policy, {"--bad-sample", policy}));
    EXPECT_EQ(run.finish(30).code(), 0) << run.output();
  }
}

TEST(BadInput, Checkpoints) {
  const TemporaryFolder folder;
  const auto ck = folder.path() / "ck";
  TrainRun good(2, tiny(ck, {"--synthetic-size", "16", "-b", "4", "--epochs", "1"}));
  ASSERT_EQ(good.finish().code(), 0) << good.output();
  const auto file = newest(ck);
  const auto again = [&](const fs::path& from, std::vector<std::string> more = {}) {
    auto out = tiny(folder.path() / "other",
                    {"--synthetic-size", "16", "-b", "4", "--epochs", "2", "--resume", from.string()});
    out.insert(out.end(), more.begin(), more.end());
    return out;
  };
  expect_end(again(folder.path() / "missing.h5"), 3, {"missing.h5"});

  const auto cut = folder.path() / "step_00000002.h5";
  fs::copy_file(file, cut);
  fs::resize_file(cut, fs::file_size(cut) - 1000);
  expect_end(again(cut), 5, {cut.filename().string()});

  put(folder.path() / "text.h5", {'h', 'e', 'l', 'l', 'o'});
  expect_end(again(folder.path() / "text.h5"), 5, {"text.h5"});

  TrainRun other(
      2, {"synthetic", "--arch", "resnet18", "--image-size", "32", "--channels", "1", "--synthetic-size", "16", "-b",
          "4", "--checkpoint-dir", (folder.path() / "other").string(), "--resume", file.string()});
  other.finish(kLimit);
  EXPECT_EQ(other.code(), 3) << other.output();
  EXPECT_TRUE(other.says("resnet20") && other.says("resnet18")) << other.output();

  expect_end(tiny(ck, {"--synthetic-size", "16", "-b", "4"}), 3, {"--resume auto"});
  EXPECT_EQ(newest(ck), file) << "what was there is still there";
}

TEST(BadInput, CommandLine) {
  const TemporaryFolder folder;
  const auto ck = folder.path() / "ck";
  expect_end({"synthetic", "--no-such-flag"}, 2, {"--no-such-flag"});
  expect_end({"synthetic", "--batch-size", "many"}, 2, {"--batch-size", "many"});
  expect_end({"synthetic", "--batch-size", "0"}, 2, {"--batch-size"});
  expect_end({"synthetic", "--arch", "resnet1"}, 2, {"resnet1"});
  expect_end({"synthetic", "--arch", "inception_v3"}, 2, {"inception_v3"});
  expect_end({"synthetic", "--opt-level", "O2"}, 2, {"O2"});
  expect_end({"synthetic", "--sync_bn"}, 2, {"--sync_bn"});
  expect_end({}, 2, {"DIR"});
  expect_end({"synthetic", "--device", "cpu", "--plan-cache", "plans.bin"}, 2, {"--plan-cache", "GPU"});
  expect_end({"synthetic", "--decode", "disk"}, 2, {"--decode", "disk"});
  expect_end({"synthetic", "--device", "cpu", "--decode", "gpu"}, 2, {"--decode gpu"});
  const std::vector<std::string> no_gpu = {"CUDA_VISIBLE_DEVICES="};
  expect_end(tiny(ck, {"--device", "auto", "--decode", "gpu"}), 2, {"--decode gpu"}, 2, no_gpu);
  expect_end(tiny(ck, {"--device", "cuda"}), 2, {"CUDA"}, 2, no_gpu);
  expect_end(tiny(ck, {"--synthetic-size", "4", "-b", "64"}), 3, {"batch"});
  expect_end({"synthetic", "--config", "/"}, 2, {"--config"});
  expect_end({"synthetic", "--start-epoch", "5", "--epochs", "5"}, 2, {"--start-epoch"});
  expect_end({"synthetic", "--checkpoint-dir", ""}, 2, {"--checkpoint-dir"});
  expect_end(tiny(ck, {"--expect-ranks", "3"}), 3, {"3"});
  expect_end(tiny("/proc/nowhere", {"--synthetic-size", "16", "-b", "4", "--epochs", "1"}), 3, {"/proc/nowhere"});
}

TEST(CommandLine, HelpAndArchsNeedNoMpi) {
  Subprocess help({APEX_IMAGENET_TRAIN, "--help"});
  ASSERT_TRUE(help.finish(kLimit));
  EXPECT_EQ(help.exit_code(), 0);
  for (const char* word : {"--arch", "--batch-size", "--resume", "--val-split", "DIR"})
    EXPECT_NE(help.output().find(word), std::string::npos) << word;
  Subprocess archs({APEX_IMAGENET_TRAIN, "--list-archs"});
  ASSERT_TRUE(archs.finish(kLimit));
  EXPECT_EQ(archs.exit_code(), 0);
  for (const char* word : {"resnet18\n", "resnet20\n", "resnet50\n"})
    EXPECT_NE(archs.output().find(word), std::string::npos) << word;
}

TEST(CommandLine, TheVersionAndAFullDevice) {
  Subprocess version({APEX_IMAGENET_TRAIN, "--version"});
  ASSERT_TRUE(version.finish(kLimit));
  EXPECT_EQ(version.exit_code(), 0);
  EXPECT_TRUE(version.output().starts_with("imagenet_train ")) << version.output();
  for (const char* option : {"--version", "--help", "--list-archs"}) {
    Subprocess full({"sh", "-c", concat(APEX_IMAGENET_TRAIN, ' ', option, " >/dev/full")});
    ASSERT_TRUE(full.finish(kLimit));
    EXPECT_EQ(full.exit_code(), exit_code::kMemory) << full.output();
    EXPECT_EQ(error_lines(full.output()), 1) << full.output();
  }
}

/// One rank of a job is asked for its help: all end well, and it is printed once. So it is when all are asked.
TEST(CommandLine, HelpOfOneRankEndsTheJobInOrder) {
  const TemporaryFolder folder;
  const auto ck = folder.path() / "ck";
  auto training = tiny(ck, {"--synthetic-size", "16", "-b", "4", "--epochs", "1", "--device", "cpu"});
  training.insert(training.begin(), APEX_IMAGENET_TRAIN);
  const std::vector<std::string> asked = {APEX_IMAGENET_TRAIN, "--help"};
  for (const auto& parts : std::vector<std::vector<std::vector<std::string>>>{
           {asked, training}, {training, asked}, {asked, asked}, {training, {APEX_IMAGENET_TRAIN, "--version"}}}) {
    std::vector<std::string> command = {APEX_MPIEXEC};
    for (const auto& part : parts) {
      if (command.size() > 1) command.emplace_back(":");
      command.insert(command.end(), {"-n", "1"});
      command.insert(command.end(), part.begin(), part.end());
    }
    Subprocess run(command);
    ASSERT_TRUE(run.finish(kLimit)) << run.output();
    EXPECT_EQ(run.exit_code(), 0) << run.output();
    const std::string words = parts[1].back() == "--version" ? "imagenet_train " : "Usage: imagenet_train";
    const auto first = run.output().find(words);
    EXPECT_NE(first, std::string::npos) << run.output();
    EXPECT_EQ(first, run.output().rfind(words)) << "printed twice";
    EXPECT_EQ(run.output().find("rank(s) on"), std::string::npos) << "nobody trained: " << run.output();
    EXPECT_FALSE(fs::exists(ck));
  }
}

/// An evaluation leaves the directory of a training run alone, and needs none that it can write to.
TEST(CommandLine, EvaluationWritesOnlyWhereNobodyElseDoes) {
  const TemporaryFolder folder;
  const auto ck = folder.path() / "ck", model = folder.path() / "model";
  const std::vector<std::string> sizes = {"--synthetic-size", "64", "-b", "4", "--epochs", "100"};
  const auto with = [&](const fs::path& directory, std::vector<std::string> more) {
    more.insert(more.end(), sizes.begin(), sizes.end());
    return tiny(directory, more);
  };
  TrainRun good(1, with(model, {"--max-steps", "1"}));
  ASSERT_EQ(good.finish().code(), 0) << good.output();
  const auto evaluation = [&](const fs::path& directory, std::vector<std::string> more = {}) {
    // -e takes no --max-steps, so the model comes from a file
    more.insert(more.end(), {"-e", "--pretrained", newest(model).string()});
    return with(directory, more);
  };
  TrainRun training(2, with(ck, {"--resume", "auto"}), {"APEX_READ_DELAY_MS=100"});
  ASSERT_TRUE(training.reaches_step(ck / "metrics.jsonl", 1)) << training.output();
  TrainRun beside(2, evaluation(ck));
  EXPECT_EQ(beside.finish().code(), 0) << beside.output();
  EXPECT_TRUE(beside.says(" * Prec@1") && beside.says("no record of this evaluation") &&
              beside.says("in use by another"))
      << beside.output();
  EXPECT_EQ(error_lines(beside.output()), 1) << beside.output();
  training.signal(SIGUSR1);
  EXPECT_EQ(training.finish().code(), 99) << training.output();
  const auto evaluations = [&] {  // those of the training come after a step
    const auto all = records(ck / "metrics.jsonl", "validate");
    return std::count_if(all.begin(), all.end(), [](const auto& r) { return r["step"] == 0; });
  };
  EXPECT_EQ(evaluations(), 0);
  TrainRun after(2, evaluation(ck));
  EXPECT_EQ(after.finish().code(), 0) << after.output();
  EXPECT_EQ(evaluations(), 1);
  EXPECT_FALSE(fs::exists(ck / "LOCK"));
  TrainRun nowhere(2, evaluation("/proc/nowhere"));
  EXPECT_EQ(nowhere.finish().code(), 0) << nowhere.output();
  EXPECT_TRUE(nowhere.says(" * Prec@1") && nowhere.says("no record of this evaluation")) << nowhere.output();
  const auto own = folder.path() / "own" / "metrics.jsonl";
  TrainRun elsewhere(1, evaluation("/proc/nowhere", {"--metrics", own.string()}));
  EXPECT_EQ(elsewhere.finish().code(), 0) << elsewhere.output();
  EXPECT_EQ(records(own, "validate").size(), 1u);
}

TEST(CommandLine, EvaluateAndPretrained) {
  const TemporaryFolder folder;
  const auto ck = folder.path() / "ck";
  TrainRun good(2, tiny(ck, {"--synthetic-size", "128", "-b", "4", "--epochs", "2", "--lr", "2"}));
  ASSERT_EQ(good.finish().code(), 0) << good.output();
  const auto validated = records(ck / "metrics.jsonl", "validate").back();
  const auto lines = records(ck / "metrics.jsonl", "train").size();
  for (const char* how : {"--resume", "--pretrained"}) {
    for (const int ranks : {1, 2}) {
      TrainRun run(ranks, tiny(ck, {"--synthetic-size", "128", "-b", "4", "-e", how, newest(ck).string()}));
      ASSERT_EQ(run.finish().code(), 0) << run.output();
      const auto again = records(ck / "metrics.jsonl", "validate").back();
      EXPECT_NEAR(again["loss"].get<double>(), validated["loss"].get<double>(), 1e-5)
          << "what was validated during training is the model that was saved";
      EXPECT_EQ(again["prec1"], validated["prec1"]);
      EXPECT_EQ(records(ck / "metrics.jsonl", "train").size(), lines) << "evaluation only adds to the log";
    }
  }
}

TEST(CommandLine, GoingBackNeverMixesTwoRuns) {
  const TemporaryFolder folder;
  const auto ck = folder.path() / "ck", other = folder.path() / "other";
  const auto run_on = [&](const fs::path& directory, std::vector<std::string> more) {
    std::vector<std::string> all = {"--synthetic-size", "64", "-b", "8", "--epochs", "3", "--keep", "2"};
    all.insert(all.end(), more.begin(), more.end());
    return tiny(directory, all);
  };
  TrainRun first(1, run_on(ck, {}));
  ASSERT_EQ(first.finish().code(), 0) << first.output();
  const auto files = io::list_checkpoints(ck);
  ASSERT_GE(files.size(), 2u);
  const auto earlier = files[files.size() - 2].path.string();
  expect_end(run_on(ck, {"--resume", earlier}), 3, {"--checkpoint-dir"}, 1);
  EXPECT_EQ(io::list_checkpoints(ck).size(), files.size());

  TrainRun branch(1, run_on(other, {"--resume", earlier, "--lr", "0.01"}));
  ASSERT_EQ(branch.finish().code(), 0) << branch.output();
  expect_end(run_on(other, {"--resume", files.back().path.string()}), 3, {"another run"}, 1);
}

TEST(CommandLine, ASecondRunStaysOutOfADirectoryInUse) {
  const TemporaryFolder folder;
  const auto ck = folder.path() / "ck";
  const auto arguments = tiny(ck, {"--synthetic-size", "64", "-b", "4", "--epochs", "100", "--resume", "auto"});
  TrainRun first(2, arguments, {"APEX_READ_DELAY_MS=50"});
  ASSERT_TRUE(first.reaches_step(ck / "metrics.jsonl", 1)) << first.output();
  expect_end(arguments, 3, {"in use by another run", "process "});
  first.signal(SIGUSR1);
  EXPECT_EQ(first.finish().code(), 99) << first.output();
  EXPECT_FALSE(fs::exists(ck / "LOCK"));
  auto shorter = arguments;
  shorter.insert(shorter.end(), {"--max-steps", "1"});
  TrainRun next(1, shorter);
  EXPECT_EQ(next.finish().code(), 0) << "the directory is free again\n" << next.output();
}

/// The last update of the run overflows: there is no later training loss to show it.
TEST(CommandLine, NothingIsSavedWhenTheLastUpdateOverflows) {
  const TemporaryFolder folder;
  expect_end(tiny(folder.path(),
                  {"--synthetic-size", "16", "-b", "8", "--epochs", "1", "--lr", "1e30", "--lr-schedule", "constant"}),
             4, {"not finite"});
  EXPECT_TRUE(io::list_checkpoints(folder.path()).empty());
}

TEST(CommandLine, NoCheckpointOfAModelThatIsNotFinite) {
  const TemporaryFolder folder;
  const auto ck = folder.path() / "ck";
  TrainRun run(2, tiny(ck, {"--synthetic-size", "64", "-b", "8", "--epochs", "1", "--lr", "1e30", "--lr-schedule",
                            "constant", "--checkpoint-every", "1steps"}));
  EXPECT_EQ(run.finish(kLimit).code(), 4) << run.output();
  EXPECT_EQ(error_lines(run.output()), 1) << run.output();
  for (const auto& file : io::list_checkpoints(ck)) {
    const io::CheckpointFile checkpoint(file.path);
    const Tensor weight = checkpoint.read("model/fc.weight");
    for (std::int64_t i = 0; i < weight.numel(); ++i) ASSERT_TRUE(std::isfinite(weight.data<float>()[i])) << file.path;
  }
}

TEST(CommandLine, ThreeStartsWithoutProgressAreEnough) {
  const TemporaryFolder folder;
  const auto ck = folder.path() / "ck";
  const auto arguments = tiny(ck, {"--synthetic-size", "16", "-b", "4", "--epochs", "1", "--resume", "auto",
                                   "--max-steps", "1", "--checkpoint-every", "0"});
  for (int start = 1; start <= 2; ++start) {
    TrainRun run(1, arguments);
    ASSERT_EQ(run.finish().code(), 0) << run.output();
  }
  TrainRun third(1, arguments);
  EXPECT_EQ(third.finish().code(), 4) << third.output();
}

}  // namespace
}  // namespace apex::test
