// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// imagenet_train --optimizer: interrupted and resumed runs, what a checkpoint of another optimizer gives, options that
// an optimizer has not.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "runs.hpp"
#include "support/tensors.hpp"

namespace apex::test {
namespace {

struct OptimizerCase {
  const char *optimizer, *type, *dtype;
  int ranks;
  std::vector<std::string> options;
  std::vector<const char*> keys;  ///< state of a parameter
};

std::string name_of_case(const ::testing::TestParamInfo<OptimizerCase>& info) {
  std::string name = info.param.optimizer;
  std::erase(name, '-');
  return name + "_" + info.param.dtype + "_np" + std::to_string(info.param.ranks);
}

class EveryOptimizer : public ::testing::TestWithParam<OptimizerCase> {
 protected:
  std::vector<std::string> arguments(const fs::path& directory) const {
    const auto& c = GetParam();
    auto out =
        tiny(directory, {"--dtype", c.dtype, "--synthetic-size", "96", "-b", std::to_string(12 / c.ranks), "--epochs",
                         "2", "-j", "1", "--resume", "auto", "--optimizer", c.optimizer, "--no-norm-decay"});
    out.insert(out.end(), c.options.begin(), c.options.end());
    return out;
  }
};

TEST_P(EveryOptimizer, InterruptedAndResumedEqualsUnbroken) {
  const auto& c = GetParam();
  const TemporaryFolder folder;
  TrainRun whole(c.ranks, arguments(folder.path() / "whole"));
  ASSERT_EQ(whole.finish().code(), 0) << whole.output();
  const auto metrics = folder.path() / "parts" / "metrics.jsonl";
  TrainRun first(c.ranks, arguments(folder.path() / "parts"), {"APEX_READ_DELAY_MS=60"});
  ASSERT_TRUE(first.reaches_step(metrics, 5)) << first.output();
  first.signal(SIGUSR1);
  ASSERT_EQ(first.finish().code(), 99) << first.output();
  EXPECT_LT(io::CheckpointFile(newest(folder.path() / "parts")).step(), 16) << "nothing was interrupted";
  TrainRun second(c.ranks, arguments(folder.path() / "parts"));
  ASSERT_EQ(second.finish().code(), 0) << second.output();
  const auto a = newest(folder.path() / "whole"), b = newest(folder.path() / "parts");
  EXPECT_EQ(difference(a, b), "");
  EXPECT_EQ(losses(folder.path() / "whole" / "metrics.jsonl"), losses(metrics));

  const io::CheckpointFile file(b);
  EXPECT_EQ(std::get<std::string>(file.attributes("optimizer/0").at("type")), c.type);
  const std::string state = "optimizer/0/state/conv1.weight/";
  for (const char* key : c.keys) EXPECT_TRUE(file.has_dataset(state + key)) << key;
  EXPECT_EQ(dataset_count(b, state), static_cast<std::int64_t>(c.keys.size()));
  if (file.has_dataset(state + "step")) {
    EXPECT_EQ(to_f64(file.read(state + "step")), std::vector<double>{16});
  }
  const auto all = losses(metrics);
  EXPECT_LT(*std::min_element(all.begin(), all.end()), all.front()) << "nothing was learnt";
}

INSTANTIATE_TEST_SUITE_P(
    OnCpu, EveryOptimizer,
    ::testing::Values(
        OptimizerCase{"adam", "FusedAdam", "f32", 2, {"--lr", "0.05"}, {"exp_avg", "exp_avg_sq", "step"}},
        OptimizerCase{"adamw",
                      "FusedAdam",
                      "bf16",
                      2,
                      {"--lr", "0.05", "--wd", "0.1", "--beta2", "0.99"},
                      {"exp_avg", "exp_avg_sq", "master", "step"}},
        OptimizerCase{
            "lamb", "FusedLAMB", "f32", 2, {"--lr", "0.2", "--wd", "0.01"}, {"exp_avg", "exp_avg_sq", "step"}},
        OptimizerCase{"lamb", "FusedLAMB", "f16", 1, {"--lr", "0.2"}, {"exp_avg", "exp_avg_sq", "master", "step"}},
        OptimizerCase{"novograd",
                      "FusedNovoGrad",
                      "f32",
                      3,
                      {"--lr", "0.2", "--no-bias-correction"},
                      {"exp_avg", "norm", "step"}},
        OptimizerCase{"adagrad", "FusedAdagrad", "f32", 1, {"--lr", "0.2", "--clip-grad", "0.5"}, {"sum"}},
        OptimizerCase{"zero-adam",
                      "FusedAdam",
                      "f32",
                      2,
                      {"--lr", "0.05", "--clip-grad", "5", "--bucket-cap-mb", "0.01"},
                      {"exp_avg", "exp_avg_sq", "step"}},
        OptimizerCase{"zero-adamw",
                      "FusedAdam",
                      "bf16",
                      3,
                      {"--lr", "0.05", "--wd", "0.1"},
                      {"exp_avg", "exp_avg_sq", "master", "step"}},
        OptimizerCase{
            "zero-lamb", "FusedLAMB", "f32", 2, {"--lr", "0.2", "--wd", "0.01"}, {"exp_avg", "exp_avg_sq", "step"}},
        OptimizerCase{"larc-sgd",
                      "FusedSGD",
                      "f16",
                      2,
                      {"--lr", "1", "--trust-coefficient", "0.01"},
                      {"master", "momentum_buffer"}}),
    name_of_case);

TEST(Optimizers, StepsThatAreAllSkippedEndTheRun) {
  const TemporaryFolder folder;
  for (const char* optimizer : {"lamb", "zero-adam"}) {
    const auto directory = folder.path() / optimizer;
    TrainRun run(2, tiny(directory, {"--dtype", "f16", "--loss-scale", "1e9", "--synthetic-size", "960", "-b", "6",
                                     "--epochs", "1", "-j", "1", "--optimizer", optimizer}));
    EXPECT_EQ(run.finish().code(), 4) << run.output();
    EXPECT_NE(run.output().find("50 steps in a row were skipped, the last of them step 50"), std::string::npos)
        << run.output();
    std::ifstream metrics(directory / "metrics.jsonl");
    const std::string records{std::istreambuf_iterator<char>(metrics), {}};
    EXPECT_NE(records.find("\"loss_scale\":1000000000.0,\"skipped_steps\":49"), std::string::npos) << records;
  }
}

TEST(Optimizers, ACheckpointOfAnotherOneIsRefusedInOneLine) {
  const TemporaryFolder folder;
  const auto run = [&](const char* optimizer, std::vector<std::string> more) {
    more.insert(more.end(), {"--optimizer", optimizer, "--synthetic-size", "48", "-b", "6", "--epochs", "1", "-j", "1",
                             "--resume", "auto"});
    return tiny(folder.path() / "ck", more);
  };
  TrainRun first(2, run("adam", {"--max-steps", "2", "--lr", "0.01"}));
  ASSERT_EQ(first.finish().code(), 0) << first.output();
  TrainRun other(2, run("lamb", {}));
  EXPECT_EQ(other.finish().code(), 3) << other.output();
  EXPECT_TRUE(other.says("state of FusedAdam, but this optimizer is FusedLAMB; choose the one it was saved from"))
      << other.output();
  int lines = 0;
  std::istringstream text(other.output());
  for (std::string line; std::getline(text, line);) lines += line.starts_with("apex: ");
  EXPECT_EQ(lines, 1) << other.output();
  TrainRun mode(2, run("adamw", {"--beta1", "0.8"}));
  ASSERT_EQ(mode.finish().code(), 0) << mode.output();
  EXPECT_TRUE(mode.says("adam_w_mode is ")) << mode.output();
  EXPECT_TRUE(mode.says("beta1 is 0.8 here, not 0.9")) << mode.output();
}

TEST(Optimizers, SgdAndLarcSgdAreToldApart) {
  const TemporaryFolder folder;
  const auto run = [&](const char* name, const char* optimizer, const char* steps) {
    return tiny(folder.path() / name, {"--synthetic-size", "48", "-b", "6", "--epochs", "2", "-j", "1", "--lr", "0.1",
                                       "--resume", "auto", "--optimizer", optimizer, "--max-steps", steps});
  };
  const std::pair<const char*, const char*> kinds[] = {{"sgd", "FusedSGD"}, {"larc-sgd", "FusedSGD within LARC"}};
  for (int i = 0; i < 2; ++i) {
    const auto& [saved, its_name] = kinds[i];
    const auto& [other, other_name] = kinds[1 - i];
    TrainRun first(2, run(saved, saved, "2"));
    ASSERT_EQ(first.finish().code(), 0) << first.output();
    const auto attributes = io::CheckpointFile(newest(folder.path() / saved)).attributes("optimizer/0");
    EXPECT_EQ(attributes.contains("wrapper"), i == 1);
    TrainRun wrong(2, run(saved, other, "4"));
    EXPECT_EQ(wrong.finish().code(), 3) << wrong.output();
    EXPECT_TRUE(wrong.says(concat("state of ", its_name, ", but this optimizer is ", other_name, "; choose")))
        << wrong.output();
    int lines = 0;
    std::istringstream text(wrong.output());
    for (std::string line; std::getline(text, line);) lines += line.starts_with("apex: ");
    EXPECT_EQ(lines, 1) << wrong.output();
    TrainRun right(2, run(saved, saved, "4"));
    EXPECT_EQ(right.finish().code(), 0) << right.output();
  }
}

TEST(Optimizers, AdamAndZeroAdamGoOnFromEachOther) {
  const TemporaryFolder folder;
  const auto run = [&](const char* name, const char* optimizer, const char* steps) {
    return tiny(folder.path() / name, {"--synthetic-size", "96", "-b", "6", "--epochs", "2", "-j", "1", "--lr", "0.05",
                                       "--resume", "auto", "--optimizer", optimizer, "--max-steps", steps});
  };
  TrainRun whole(2, run("whole", "adam", "12"));
  ASSERT_EQ(whole.finish().code(), 0) << whole.output();
  const char* steps[] = {"4", "8", "12"};
  const char* optimizers[] = {"adam", "zero-adam", "adam"};
  for (int i = 0; i < 3; ++i) {
    TrainRun part(2, run("parts", optimizers[i], steps[i]));
    ASSERT_EQ(part.finish().code(), 0) << part.output();
  }
  // Two numbers have one sum, and one half of it: not a bit differs.
  EXPECT_EQ(losses(folder.path() / "whole" / "metrics.jsonl"), losses(folder.path() / "parts" / "metrics.jsonl"));
  const io::CheckpointFile a(newest(folder.path() / "whole")), b(newest(folder.path() / "parts"));
  for (const auto& [name, info] : a.datasets())
    if (name.starts_with("model/") || name.starts_with("optimizer/")) {
      ASSERT_TRUE(b.has_dataset(name)) << name;
      EXPECT_EQ(info.xxh64, b.datasets().at(name).xxh64) << name;
    }
}

TEST(Optimizers, OptionsThatTheOptimizerHasNot) {
  const TemporaryFolder folder;
  struct Bad {
    std::vector<std::string> options;
    const char* words;
  };
  for (const auto& [options, words] :
       {Bad{{"--optimizer", "adam", "--momentum", "0.5"}, "--momentum is for --optimizer sgd, larc-sgd; adam has none"},
        Bad{{"--beta1", "0.5"}, "--beta1 is for"}, Bad{{"--eps", "1e-3"}, "--eps is for"},
        Bad{{"--optimizer", "lamb", "--nesterov"}, "--nesterov is for"},
        Bad{{"--optimizer", "sgd", "--trust-coefficient", "1"}, "--trust-coefficient is for --optimizer larc-sgd"},
        Bad{{"--optimizer", "adamw", "--beta2", "1"}, "--beta2: 1 is not below 1"},
        Bad{{"--optimizer", "adamw", "--eps", "-0.5"}, "--eps: -0.5 is below 0"},
        Bad{{"--clip-grad", "-0.5"}, "--clip-grad: -0.5 is below 0"}, Bad{{"--optimizer", "adm"}, "adm"}}) {
    TrainRun run(1, tiny(folder.path() / "ck", options));
    EXPECT_EQ(run.finish().code(), 2) << run.output();
    EXPECT_TRUE(run.says(words)) << run.output();
  }
}

struct Rate {
  const char* optimizer;
  std::vector<std::string> options;
};

/// A short form of the README's table: 60 steps at its rates, on smaller pictures.
class OnFashionMnist : public ::testing::TestWithParam<Rate> {};

TEST_P(OnFashionMnist, LearnsAtItsRate) {
  const fs::path data = "/usr/share/datasets/fashion-mnist";
  ASSERT_TRUE(fs::exists(data)) << "install the package dataset-fashion-mnist";
  const TemporaryFolder folder;
  std::vector<std::string> arguments = {data.string(),
                                        "--arch",
                                        "resnet20",
                                        "--image-size",
                                        "14",
                                        "--epochs",
                                        "1",
                                        "--batch-size",
                                        "64",
                                        "--max-steps",
                                        "60",
                                        "--lr-schedule",
                                        "constant",
                                        "--checkpoint-dir",
                                        folder.path().string(),
                                        "--checkpoint-every",
                                        "0",
                                        "--optimizer",
                                        GetParam().optimizer};
  arguments.insert(arguments.end(), GetParam().options.begin(), GetParam().options.end());
  TrainRun run(2, arguments);
  ASSERT_EQ(run.finish().code(), 0) << run.output();
  const auto loss = losses(folder.path() / "metrics.jsonl");
  ASSERT_EQ(loss.size(), 60u);
  double end = 0;
  for (std::size_t i = 50; i < 60; ++i) end += loss[i] / 10;
  EXPECT_LT(end, 1.7) << "from " << loss[0] << "; guessing gives 2.3";
  EXPECT_GT(loss[0], 2.0);
}

INSTANTIATE_TEST_SUITE_P(
    OnCpu, OnFashionMnist,
    ::testing::Values(Rate{"sgd", {"--lr", "0.4"}}, Rate{"adam", {"--lr", "0.01"}},
                      Rate{"adamw", {"--lr", "0.01", "--wd", "0.01"}}, Rate{"lamb", {"--lr", "0.02", "--wd", "0.01"}},
                      Rate{"novograd", {"--lr", "1", "--no-bias-correction", "--beta1", "0.9", "--beta2", "0.98"}},
                      Rate{"adagrad", {"--lr", "0.04"}}, Rate{"larc-sgd", {"--lr", "0.8"}}),
    [](const auto& c) {
      std::string name = c.param.optimizer;
      std::erase(name, '-');
      return name;
    });

TEST(Optimizers, ClippingBoundsTheFirstStep) {
  // After one step of SGD without decay the momentum buffers are the clipped gradients.
  const TemporaryFolder folder;
  const auto norm = [&](const char* dtype, const char* clip) {
    const auto directory = folder.path() / (std::string(dtype) + clip);
    TrainRun run(
        2, tiny(directory, {"--dtype", dtype, "--synthetic-size", "24", "-b", "6", "--wd", "0", "--max-steps", "1",
                            "--lr-schedule", "constant", "--checkpoint-every", "1steps", "--clip-grad", clip}));
    EXPECT_EQ(run.finish().code(), 0) << run.output();
    const io::CheckpointFile file(newest(directory));
    double sum = 0;
    for (const auto& [path, info] : file.datasets())
      if (path.ends_with("/momentum_buffer"))
        for (const double v : to_f64(file.read(path))) sum += v * v;
    return std::sqrt(sum);
  };
  for (const char* dtype : {"f32", "f16"}) {
    const double whole = norm(dtype, "0");
    EXPECT_GT(whole, 0.2);
    EXPECT_NEAR(norm(dtype, "0.125"), 0.125, dtype[1] == '3' ? 1e-5 : 2e-3) << dtype;
    EXPECT_NEAR(norm(dtype, "1000"), whole, 1e-6 * whole) << dtype;
  }
}

}  // namespace
}  // namespace apex::test
