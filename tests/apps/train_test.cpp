// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// imagenet_train as users run it: equal runs, rank counts, interruption and resume, the account of time.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>

#include "apex/io/image/image.hpp"
#include "runs.hpp"

namespace apex::test {
namespace {

TEST(ImagenetTrain, RepeatIsBitIdentical) {
  const TemporaryFolder folder;
  std::vector<fs::path> found;
  for (const char* name : {"a", "b"}) {
    TrainRun run(2, tiny(folder.path() / name,
                         {"--synthetic-size", "64", "-b", "8", "--epochs", "2", "-j", name[0] == 'a' ? "1" : "3"}));
    ASSERT_EQ(run.finish().code(), 0) << run.output();
    found.push_back(newest(folder.path() / name));
  }
  EXPECT_EQ(difference(found[0], found[1]), "");
}

/// 2 and 3 ranks against 1 at the same global batch: the losses are the same function of the same samples.
TEST(ImagenetTrain, RankCountDoesNotChangeTheLosses) {
  const TemporaryFolder folder;
  std::map<int, std::vector<double>> curves;
  std::map<int, std::map<std::int64_t, std::vector<std::vector<std::int64_t>>>> ids;
  for (const int ranks : {1, 2, 3}) {
    const auto directory = folder.path() / std::to_string(ranks);
    const auto samples = (folder.path() / ("samples" + std::to_string(ranks))).string();
    TrainRun run(
        ranks, tiny(directory, {"--synthetic-size", "24", "--synthetic-classes", "3", "-b", std::to_string(12 / ranks),
                                "--epochs", "10", "--dtype", "f64", "--freeze-bn", "--lr-schedule", "constant", "--lr",
                                "0.3", "--checkpoint-every", "0", "--log-samples", samples}));
    ASSERT_EQ(run.finish().code(), 0) << run.output();
    curves[ranks] = losses(directory / "metrics.jsonl");
    ids[ranks] = sample_ids(samples, ranks);
    ASSERT_EQ(curves[ranks].size(), 20u);
    ASSERT_EQ(ids[ranks].size(), 20u);
  }
  const auto& one = curves[1];
  EXPECT_LT(one.back(), 0.8 * one[0]) << "the comparison means little unless the loss falls";
  for (const int ranks : {2, 3}) {
    for (std::size_t k = 0; k < one.size(); ++k)
      EXPECT_NEAR(curves[ranks][k], one[k], 1e-9 * std::abs(one[k])) << ranks << " ranks, step " << k;
    for (const auto& [step, parts] : ids[ranks]) {
      std::vector<std::int64_t> together;
      for (const auto& part : parts) {
        EXPECT_EQ(part.size(), static_cast<std::size_t>(12 / ranks));
        together.insert(together.end(), part.begin(), part.end());
      }
      std::sort(together.begin(), together.end());
      EXPECT_EQ(std::adjacent_find(together.begin(), together.end()), together.end())
          << "a sample twice in step " << step;
      auto whole = ids[1][step][0];
      std::sort(whole.begin(), whole.end());
      EXPECT_EQ(together, whole) << "step " << step;
    }
  }
}

struct Interruption {
  int ranks;
  std::int64_t at_step;  // USR1 is sent when this step has been reported
  int workers;
};

class Interrupted : public ::testing::TestWithParam<Interruption> {};

/// A run interrupted by USR1 and resumed ends with the same bits as one that was not.
TEST_P(Interrupted, ResumesBitIdentically) {
  const auto [ranks, at_step, workers] = GetParam();
  const TemporaryFolder folder;
  const int batch = 12 / ranks;
  const auto arguments = [&](const char* name) {
    return tiny(folder.path() / name, {"--synthetic-size", "120", "-b", std::to_string(batch), "--epochs", "3", "-j",
                                       std::to_string(workers), "--resume", "auto"});
  };
  TrainRun whole(ranks, arguments("whole"));
  ASSERT_EQ(whole.finish().code(), 0) << whole.output();

  const auto metrics = folder.path() / "parts" / "metrics.jsonl";
  TrainRun first(ranks, arguments("parts"), {"APEX_READ_DELAY_MS=40"});
  ASSERT_TRUE(first.reaches_step(metrics, at_step)) << first.output();
  first.signal(SIGUSR1);
  ASSERT_EQ(first.finish().code(), 99) << first.output();
  const auto stopped = io::CheckpointFile(newest(folder.path() / "parts")).step();
  EXPECT_GE(stopped, at_step);
  EXPECT_LT(stopped, 30) << "the run was over before the signal: nothing was interrupted";

  TrainRun second(ranks, arguments("parts"));
  ASSERT_EQ(second.finish().code(), 0) << second.output();
  const auto resumed = newest(folder.path() / "parts");
  EXPECT_EQ(difference(newest(folder.path() / "whole"), resumed), "");
  const io::CheckpointFile file(resumed);
  std::int64_t parameters = 0;
  for (const auto& [name, info] : file.datasets()) {
    const auto* kind =
        info.attributes.contains("kind") ? std::get_if<std::string>(&info.attributes.at("kind")) : nullptr;
    if (kind == nullptr || *kind != "parameter") continue;
    ++parameters;
    EXPECT_TRUE(file.has_dataset("optimizer/0/state/" + name.substr(6) + "/momentum_buffer")) << name;
  }
  EXPECT_EQ(dataset_count(resumed, "optimizer/0/state/"), parameters);
  const auto a = losses(folder.path() / "whole" / "metrics.jsonl"), b = losses(metrics);
  EXPECT_EQ(a, b) << "metrics.jsonl of the two parts together tells the same story, each step once";
}

INSTANTIATE_TEST_SUITE_P(AtAnyStep, Interrupted,
                         ::testing::Values(Interruption{1, 9, 1}, Interruption{2, 4, 3}, Interruption{3, 15, 1},
                                           Interruption{4, 18, 3}),
                         [](const auto& c) {
                           return "np" + std::to_string(c.param.ranks) + "_step" + std::to_string(c.param.at_step);
                         });

TEST(ImagenetTrain, ResumesAtAnotherRankCountWithTheSameGlobalBatch) {
  const TemporaryFolder folder;
  const auto directory = folder.path() / "ck";
  const std::vector<std::string> common = {"--synthetic-size", "120",      "--epochs", "2", "--dtype", "f64",
                                           "--freeze-bn",      "--resume", "auto"};
  auto with = [&](std::vector<std::string> more, const fs::path& where) {
    auto all = tiny(where, common);
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  TrainRun whole(1, with({"-b", "12"}, folder.path() / "whole"));
  ASSERT_EQ(whole.finish().code(), 0) << whole.output();
  TrainRun two(2, with({"-b", "6", "--max-steps", "7", "--checkpoint-every", "7steps"}, directory));
  ASSERT_EQ(two.finish().code(), 0) << two.output();
  TrainRun three(3, with({"-b", "5"}, directory));  // 5 is not taken: the checkpoint's global batch of 12 is kept
  ASSERT_EQ(three.finish().code(), 0) << three.output();
  const auto a = losses(folder.path() / "whole" / "metrics.jsonl"), b = losses(directory / "metrics.jsonl");
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t k = 0; k < a.size(); ++k) EXPECT_NEAR(a[k], b[k], 1e-9 * std::abs(a[k])) << "step " << k;
  TrainRun five(5, with({"-b", "2"}, directory));
  EXPECT_EQ(five.finish().code(), 3) << five.output();
  EXPECT_TRUE(five.says("12 samples a step")) << five.output();
}

TEST(ImagenetTrain, AccumulatedStepsEqualOneLargeStep) {
  const TemporaryFolder folder;
  std::vector<std::vector<double>> curves;
  for (const auto& [name, batch, accumulate] :
       std::vector<std::tuple<const char*, const char*, const char*>>{{"one", "12", "1"}, {"three", "4", "3"}}) {
    TrainRun run(
        1, tiny(folder.path() / name, {"--synthetic-size", "120", "-b", batch, "--accumulate", accumulate, "--epochs",
                                       "1", "--dtype", "f64", "--freeze-bn", "--checkpoint-every", "0"}));
    ASSERT_EQ(run.finish().code(), 0) << run.output();
    curves.push_back(losses(folder.path() / name / "metrics.jsonl"));
  }
  ASSERT_EQ(curves[0].size(), 10u);
  ASSERT_EQ(curves[1].size(), 10u);
  for (std::size_t k = 0; k < 10; ++k) EXPECT_NEAR(curves[0][k], curves[1][k], 1e-9 * std::abs(curves[0][k])) << k;
}

class AtRanks : public ::testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
  std::string batch() const { return std::to_string(12 / ranks()); }
  std::string workers() const { return ranks() % 2 == 0 ? "3" : "1"; }
};

/// Fashion-MNIST with padded crop and flip (./dev installs its package).
TEST_P(AtRanks, FashionMnistInterruptedResumesBitIdentically) {
  const fs::path data = "/usr/share/datasets/fashion-mnist";
  ASSERT_TRUE(fs::exists(data)) << "install the package dataset-fashion-mnist";
  const TemporaryFolder folder;
  const auto arguments = [&](const char* name, const std::string& threads) {
    return std::vector<std::string>{data.string(),
                                    "--arch",
                                    "resnet20",
                                    "--lr-schedule",
                                    "one-cycle",
                                    "-b",
                                    batch(),
                                    "--epochs",
                                    "1",
                                    "-j",
                                    threads,
                                    "--max-steps",
                                    "12",
                                    "--checkpoint-every",
                                    "100steps",
                                    "--resume",
                                    "auto",
                                    "--checkpoint-dir",
                                    (folder.path() / name).string()};
  };
  TrainRun whole(ranks(), arguments("whole", "1"));
  ASSERT_EQ(whole.finish().code(), 0) << whole.output();
  TrainRun first(ranks(), arguments("parts", workers()), {"APEX_READ_DELAY_MS=100"});
  ASSERT_TRUE(first.reaches_step(folder.path() / "parts" / "metrics.jsonl", 3 + ranks())) << first.output();
  first.signal(SIGUSR1);
  ASSERT_EQ(first.finish().code(), 99) << first.output();
  TrainRun second(ranks(), arguments("parts", workers()));
  ASSERT_EQ(second.finish().code(), 0) << second.output();
  EXPECT_EQ(difference(newest(folder.path() / "whole"), newest(folder.path() / "parts")), "");
}

INSTANTIATE_TEST_SUITE_P(OneToFour, AtRanks, ::testing::Range(1, 5),
                         [](const auto& c) { return "np" + std::to_string(c.param); });

/// Pictures of two classes with their own colour, sizes odd and unequal.
void write_pictures(const fs::path& root, int per_class) {
  for (const auto& [part, count] : {std::pair{"train", per_class}, std::pair{"val", 3}}) {
    for (int c = 0; c < 2; ++c) {
      const auto directory = root / part / (c == 0 ? "blue things" : "red things");
      fs::create_directories(directory);
      for (int i = 0; i < count; ++i) {
        io::Image image(11 + i % 5, 9 + i % 7, 3);
        for (std::size_t k = 0; k < image.pixels.size(); ++k)
          image.pixels[k] = static_cast<std::uint8_t>((k % 3 == (c == 0 ? 2u : 0u) ? 200 : 30) +
                                                      (k * 7 + static_cast<std::size_t>(i) * 13) % 40);
        const auto bytes = i % 2 == 0 ? io::encode_png(image.view()) : io::encode_jpeg(image.view(), 90);
        std::ofstream(directory / ("picture " + std::to_string(i) + (i % 2 == 0 ? ".png" : ".JPEG")), std::ios::binary)
            .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
      }
    }
  }
}

std::vector<std::string> on_pictures(const fs::path& data, const fs::path& directory, std::vector<std::string> more) {
  std::vector<std::string> out = {data.string(),
                                  "--arch",
                                  "resnet20",
                                  "--image-size",
                                  "8",
                                  "--lr-schedule",
                                  "cosine",
                                  "-b",
                                  "4",
                                  "--epochs",
                                  "2",
                                  "--augment",
                                  "photo",
                                  "--checkpoint-dir",
                                  directory.string(),
                                  "--resume",
                                  "auto"};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

TEST_P(AtRanks, FolderInterruptedWithCropAndFlipResumesBitIdentically) {
  const TemporaryFolder folder;
  write_pictures(folder.path() / "data", 60);  // ten steps an epoch
  const auto arguments = [&](const char* name, const std::string& threads) {
    auto out = on_pictures(folder.path() / "data", folder.path() / name, {"-j", threads});
    *(std::find(out.begin(), out.end(), "-b") + 1) = batch();
    return out;
  };
  TrainRun whole(ranks(), arguments("whole", "1"));
  ASSERT_EQ(whole.finish().code(), 0) << whole.output();
  TrainRun first(ranks(), arguments("parts", workers()), {"APEX_READ_DELAY_MS=80"});
  ASSERT_TRUE(first.reaches_step(folder.path() / "parts" / "metrics.jsonl", 9)) << first.output();  // 90% of an epoch
  first.signal(SIGUSR1);
  ASSERT_EQ(first.finish().code(), 99) << first.output();
  TrainRun second(ranks(), arguments("parts", workers()));
  ASSERT_EQ(second.finish().code(), 0) << second.output();
  const auto ended = newest(folder.path() / "parts");
  EXPECT_EQ(difference(newest(folder.path() / "whole"), ended), "");
  for (const char* group : {"/model", "/optimizer", "/scheduler", "/sampler", "/rng", "/ddp"}) {
    Subprocess diff({"h5diff", newest(folder.path() / "whole").string(), ended.string(), group});
    ASSERT_TRUE(diff.finish(30));
    EXPECT_EQ(diff.exit_code(), 0) << group << ": " << diff.output();
  }
  const io::CheckpointFile file(ended);
  const auto& names = io::attribute<std::vector<std::string>>(file.attributes(""), "class_names", "root");
  EXPECT_EQ(names, (std::vector<std::string>{"blue things", "red things"}));
}

TEST(ImagenetTrain, PackTrainsLikeTheFolderItWasMadeOf) {
  const TemporaryFolder folder;
  write_pictures(folder.path() / "data", 20);
  Subprocess pack({APEX_PACK_IMAGES, (folder.path() / "data").string(), (folder.path() / "data.h5").string()});
  ASSERT_TRUE(pack.finish(60));
  ASSERT_EQ(pack.exit_code(), 0) << pack.output();
  TrainRun a(2, on_pictures(folder.path() / "data", folder.path() / "a", {}));
  ASSERT_EQ(a.finish().code(), 0) << a.output();
  TrainRun b(2, on_pictures(folder.path() / "data.h5", folder.path() / "b", {}));
  ASSERT_EQ(b.finish().code(), 0) << b.output();
  const io::CheckpointFile x(newest(folder.path() / "a")), y(newest(folder.path() / "b"));
  for (const auto& [name, info] : x.datasets()) {
    if (name.starts_with("model/")) {
      EXPECT_EQ(info.xxh64, y.datasets().at(name).xxh64) << name;
    }
  }
}

/// A few real pictures of each class of openclipart-png (./dev installs it), as links.
TEST(ImagenetTrain, RealPicturesTrainAsFolderAndAsPack) {
  const fs::path source = "/usr/share/openclipart/png";
  ASSERT_TRUE(fs::exists(source)) << "install the package openclipart-png";
  const TemporaryFolder folder;
  int classes = 0, pictures = 0;
  for (const auto& category : fs::directory_iterator(source)) {
    if (!category.is_directory()) continue;
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(category.path()))
      if (entry.path().extension() == ".png" && fs::file_size(entry.path()) < 60'000) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    if (files.size() < 3) continue;
    files.resize(std::min<std::size_t>(files.size(), 6));
    const auto to = folder.path() / "data" / category.path().filename();
    fs::create_directories(to);
    for (const auto& file : files) fs::create_symlink(file, to / (std::to_string(pictures++) + ".png"));
    ++classes;
  }
  ASSERT_GE(classes, 20);
  Subprocess pack({APEX_PACK_IMAGES, (folder.path() / "data").string(), (folder.path() / "data.h5").string(),
                   "--val-split", "0.2"});
  ASSERT_TRUE(pack.finish(60));
  ASSERT_EQ(pack.exit_code(), 0) << pack.output();
  std::vector<fs::path> found;
  for (const std::string name : {"data", "data.h5"}) {
    std::vector<std::string> arguments = {(folder.path() / name).string(),
                                          "--arch",
                                          "resnet20",
                                          "-b",
                                          "10",
                                          "--epochs",
                                          "2",
                                          "--lr-schedule",
                                          "cosine",
                                          "--checkpoint-dir",
                                          (folder.path() / ("ck_" + name)).string()};
    if (name == "data") arguments.insert(arguments.end(), {"--val-split", "0.2"});
    TrainRun run(2, arguments);
    ASSERT_EQ(run.finish().code(), 0) << run.output();
    found.push_back(newest(folder.path() / ("ck_" + name)));
  }
  const io::CheckpointFile a(found[0]), b(found[1]);
  for (const auto& [name, info] : a.datasets()) {
    if (name.starts_with("model/") || name.starts_with("optimizer/")) {
      EXPECT_EQ(info.xxh64, b.datasets().at(name).xxh64) << name;
    }
  }
}

/// Rank 1 reads slowly: rank 0, which keeps the account, stands and waits for it in the reduction of gradients.
TEST(ImagenetTrain, DelayedPeerRaisesExposedCommunication) {
  const TemporaryFolder folder;
  // Mean seconds of a step, and how much of them rank 0 stood; the first steps are left out.
  const auto train = [&](int delay_ms) {
    const auto directory = folder.path() / std::to_string(delay_ms);
    std::vector<std::string> program = {APEX_IMAGENET_TRAIN};
    for (const auto& word :
         tiny(directory, {"--synthetic-size", "192", "-b", "8", "--epochs", "1", "-j", "1", "--checkpoint-every", "0"}))
      program.push_back(word);
    std::vector<std::string> command = {APEX_MPIEXEC, "-n", "1"};
    command.insert(command.end(), program.begin(), program.end());
    command.insert(command.end(), {":", "-n", "1", "-x", concat("APEX_READ_DELAY_MS=", delay_ms)});
    command.insert(command.end(), program.begin(), program.end());
    Subprocess run(command);
    EXPECT_TRUE(run.finish(100));
    EXPECT_EQ(run.exit_code(), 0) << run.output();
    const auto steps = records(directory / "metrics.jsonl", "train");
    EXPECT_EQ(steps.size(), 12u);
    std::pair<double, double> mean{0, 0};
    for (std::size_t k = 3; k < steps.size(); ++k) {
      mean.first += steps[k]["seconds"].get<double>() / 9;
      mean.second += steps[k]["exposed_communication"].get<double>() / 9;
    }
    return mean;
  };
  const auto [step, exposed] = train(0);
  // One reader, one batch ahead: a batch comes late by what its reading takes beyond a step, on a slow machine too.
  const double late_exposed = train(150 + static_cast<int>(1000 * step)).second;
  EXPECT_GE(late_exposed, exposed + 0.100);
}

/// A quiet single process: where the time of its steps goes, with batches read by `workers` threads, each batch taking
/// `delay_ms` longer.
struct Account {
  std::vector<nlohmann::json> steps;
  nlohmann::json summary;

  Account(const fs::path& directory, const char* workers, int delay_ms) {
    TrainRun run(1,
                 {"synthetic", "--arch", "resnet20", "--image-size", "32", "--synthetic-size", "256", "-b", "16",
                  "--epochs", "1", "-j", workers, "--checkpoint-dir", directory.string(), "--threads", "1"},
                 {"APEX_READ_DELAY_MS=" + std::to_string(delay_ms)});
    EXPECT_EQ(run.finish().code(), 0) << run.output();
    steps = records(directory / "metrics.jsonl", "train");
    summary = records(directory / "metrics.jsonl", "summary").at(0);
  }
  /// Mean of a step; the first two warm up.
  double mean(const char* key) const {
    double sum = 0;
    for (std::size_t k = 2; k < steps.size(); ++k) sum += steps[k][key].get<double>();
    return sum / static_cast<double>(steps.size() - 2);
  }
};

TEST(ImagenetTrain, MetricsAccountForWallTime) {
  const TemporaryFolder folder;
  const Account account(folder.path(), "1", 0);
  ASSERT_EQ(account.steps.size(), 16u);
  double parts = 0;
  for (const char* part : {"data_wait", "compute", "exposed_communication", "other", "validation", "checkpoints"})
    parts += account.summary[part].get<double>();
  const double wall = account.summary["wall"].get<double>();  // read from a clock of its own
  EXPECT_LE(parts, wall);
  EXPECT_GE(parts, 0.95 * wall);
  EXPECT_LE(account.summary["other"].get<double>(), 0.05 * wall);
  EXPECT_LE(account.mean("other"), 0.05 * account.mean("seconds"));
}

TEST(ImagenetTrain, SlowReaderRaisesDataWait) {
  const TemporaryFolder folder;
  // Read by the training thread itself, the whole delay is waited for.
  const Account plain(folder.path() / "plain", "0", 0), slow(folder.path() / "slow", "0", 50);
  EXPECT_NEAR(slow.mean("data_wait") - plain.mean("data_wait"), 0.050, 0.015);
  // Read ahead, only what compute does not cover.
  const Account ahead(folder.path() / "ahead", "1", 250);
  EXPECT_GE(ahead.mean("data_wait"), 0.9 * (0.250 - ahead.mean("compute")) - 0.02);
}

/// TERM asks for the same as USR1: what preemption sends under srun. (mpirun would turn it into its own end.)
TEST(ImagenetTrain, TermCheckpointsAndAsksForARequeue) {
  const TemporaryFolder folder;
  auto command = tiny(folder.path(), {"--synthetic-size", "120", "-b", "12", "--epochs", "3"});
  command.insert(command.begin(), APEX_IMAGENET_TRAIN);
  Subprocess run(command, {"APEX_READ_DELAY_MS=60"});
  ASSERT_TRUE(run.read_until(
      [&](const std::string&) { return TrainRun::last_step(folder.path() / "metrics.jsonl") >= 3; }, 60));
  ::kill(run.pid(), SIGTERM);
  ASSERT_TRUE(run.finish(60));
  EXPECT_EQ(run.exit_code(), 99) << run.output();
  EXPECT_NE(run.output().find("=> signal TERM: checkpoint at step"), std::string::npos) << run.output();
  EXPECT_GE(io::CheckpointFile(newest(folder.path())).step(), 3);
}

}  // namespace
}  // namespace apex::test
