// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// imagenet_train on GPUs: against the CPU, as a graph against eagerly, interrupted and resumed, in 16 bits.
#include <gtest/gtest.h>

#include <cmath>

#include "apex/core/cuda.hpp"
#include "apex/train/prefetch.hpp"
#include "runs.hpp"
#include "support/jpeg.hpp"

namespace apex::test {
namespace {

using Arguments = std::vector<std::string>;

Arguments with(Arguments a, const Arguments& more) {
  a.insert(a.end(), more.begin(), more.end());
  return a;
}

/// 20 steps of 8 samples, or of `micro_steps` times 8, in 4 epochs; equal runs must have equal bits.
Arguments on_gpu(const fs::path& directory, const Arguments& more, int micro_steps = 1) {
  return with(tiny(directory,
                   {"--device", "cuda", "--deterministic", "--synthetic-size", std::to_string(40 * micro_steps),
                    "--accumulate", std::to_string(micro_steps), "-b", "8", "--epochs", "4", "--plan-cache", "none"}),
              more);
}

std::string run_to_the_end(int ranks, const Arguments& arguments) {
  TrainRun run(ranks, arguments);
  EXPECT_EQ(run.finish(300).code(), 0) << run.output();
  return run.output();
}

TEST(CudaTrain, GraphAndEagerStepsEndWithTheSameBits) {
  const TemporaryFolder folder;
  const std::vector<Arguments> cases = {
      {},
      {"--nesterov"},
      {"--dtype", "f64"},
      {"--dtype", "f16"},
      {"--optimizer", "adam", "--lr", "0.02", "--dtype", "f16"},
      {"--optimizer", "adamw", "--lr", "0.02", "--clip-grad", "1"},
      {"--optimizer", "lamb", "--lr", "0.05", "--dtype", "bf16"},
      {"--optimizer", "novograd", "--lr", "0.05"},
      {"--optimizer", "adagrad", "--lr", "0.05"},
      {"--optimizer", "larc-sgd", "--lr", "1", "--trust-coefficient", "0.01", "--clip-grad", "2"},
  };
  for (std::size_t c = 0; c < cases.size(); ++c) {
    const auto eager = folder.path() / ("eager" + std::to_string(c)),
               graph = folder.path() / ("graph" + std::to_string(c));
    const int micro_steps = c == 1 ? 2 : 1;
    run_to_the_end(1, on_gpu(eager, cases[c], micro_steps));
    const auto said = run_to_the_end(1, on_gpu(graph, with(cases[c], {"--cuda-graph"}), micro_steps));
    EXPECT_NE(said.find("18 steps launched as graphs"), std::string::npos) << said;
    EXPECT_EQ(losses(eager / "metrics.jsonl"), losses(graph / "metrics.jsonl")) << "case " << c;
    EXPECT_EQ(difference(newest(eager), newest(graph)), "") << "case " << c;
  }
}

TEST(CudaTrain, ResumesUnderTheGraph) {
  const TemporaryFolder folder;
  for (const Arguments& options :
       {Arguments{}, {"--optimizer", "adam", "--lr", "0.02"}, {"--optimizer", "lamb", "--lr", "0.05"}}) {
    const std::string name = options.empty() ? "sgd" : options[1];
    const auto whole = folder.path() / (name + "-whole"), parts = folder.path() / (name + "-parts");
    run_to_the_end(1, on_gpu(whole, with(options, {"--cuda-graph"})));
    run_to_the_end(1, on_gpu(parts, with(options, {"--cuda-graph", "--max-steps", "8"})));
    run_to_the_end(1, on_gpu(parts, with(options, {"--cuda-graph", "--resume", "auto"})));
    EXPECT_EQ(losses(whole / "metrics.jsonl"), losses(parts / "metrics.jsonl")) << name;
    // /config differs by what was asked for; the state may not.
    EXPECT_EQ(difference(newest(whole), newest(parts)), "") << name;
  }
}

/// What the process that trained sees after 50 steps is what its checkpoint holds.
TEST(CudaTrain, EvaluatesAfterGraphStepsAsAFreshProcessDoes) {
  const TemporaryFolder folder;
  for (const char* dtype : {"f32", "bf16"}) {
    const auto trained = folder.path() / dtype, fresh = folder.path() / (std::string(dtype) + "-fresh");
    const auto arguments = [&](const fs::path& directory, const Arguments& more) {
      return with(tiny(directory, {"--device", "cuda", "--deterministic", "--synthetic-size", "80", "-b", "8",
                                   "--epochs", "5", "--plan-cache", "none", "--dtype", dtype}),
                  more);
    };
    const auto said = run_to_the_end(1, arguments(trained, {"--cuda-graph"}));
    EXPECT_NE(said.find("48 steps launched as graphs"), std::string::npos) << said;
    run_to_the_end(1, arguments(fresh, {"--evaluate", "--resume", newest(trained).string()}));
    const auto here = records(trained / "metrics.jsonl", "validate"),
               there = records(fresh / "metrics.jsonl", "validate");
    ASSERT_EQ(here.size(), 5u);
    ASSERT_EQ(there.size(), 1u);
    EXPECT_EQ(here.back()["step"].get<std::int64_t>(), 50);
    for (const char* what : {"step", "loss", "prec1", "prec5"})
      EXPECT_EQ(here.back()[what].get<double>(), there[0][what].get<double>()) << dtype << ' ' << what;
  }
}

/// f64: the same function of the same samples, up to the order of sums.
TEST(CudaTrain, FollowsTheCpuAndTakesUpItsCheckpoints) {
  const TemporaryFolder folder;
  const auto arguments = [&](const char* name, const Arguments& more) {
    return with(tiny(folder.path() / name, {"--synthetic-size", "200", "-b", "8", "--epochs", "4", "--dtype", "f64",
                                            "--lr-schedule", "constant", "--lr", "0.3", "--plan-cache", "none"}),
                more);
  };
  run_to_the_end(1, arguments("cpu", {"--device", "cpu"}));
  run_to_the_end(1, arguments("gpu", {"--device", "cuda"}));
  run_to_the_end(1, arguments("there", {"--device", "cpu", "--max-steps", "30"}));
  run_to_the_end(1, arguments("there", {"--device", "cuda", "--max-steps", "60", "--resume", "auto"}));
  run_to_the_end(1, arguments("there", {"--device", "cpu", "--resume", "auto"}));
  const auto cpu = losses(folder.path() / "cpu" / "metrics.jsonl");
  ASSERT_EQ(cpu.size(), 100u);
  double first = 0, last = 0;
  for (int i = 0; i < 10; ++i) {
    first += cpu[static_cast<std::size_t>(i)];
    last += cpu[cpu.size() - 1 - static_cast<std::size_t>(i)];
  }
  EXPECT_LT(last, 0.8 * first) << "the comparison means little unless the loss falls";
  for (const char* name : {"gpu", "there"}) {
    const auto other = losses(folder.path() / name / "metrics.jsonl");
    ASSERT_EQ(other.size(), cpu.size()) << name;
    for (std::size_t i = 0; i < cpu.size(); ++i) EXPECT_NEAR(other[i], cpu[i], 1e-7 * std::abs(cpu[i])) << name << i;
  }
}

TEST(CudaTrain, LearnsInSixteenBits) {
  const TemporaryFolder folder;
  for (const char* dtype : {"f16", "bf16"}) {
    const auto directory = folder.path() / dtype;
    run_to_the_end(1, tiny(directory, {"--device", "cuda", "--cuda-graph", "--dtype", dtype, "--synthetic-size", "320",
                                       "-b", "32", "--epochs", "8", "--lr", "0.8", "--plan-cache", "none"}));
    const auto curve = losses(directory / "metrics.jsonl");
    ASSERT_EQ(curve.size(), 80u);
    EXPECT_LT(curve.back(), 0.8 * curve.front()) << dtype;
  }
}

TEST(CudaTrain, KeepsPlansAndTellsOfMemory) {
  const TemporaryFolder folder;
  const auto plans = folder.path() / "plans.bin";
  for (const char* name : {"a", "b"}) {
    const auto said =
        run_to_the_end(1, tiny(folder.path() / name, {"--device", "cuda", "--synthetic-size", "64", "-b", "8",
                                                      "--epochs", "1", "--plan-cache", plans.string()}));
    EXPECT_NE(said.find("of device memory in use"), std::string::npos) << said;
    EXPECT_EQ(said.find("--plan-cache"), said.rfind("--plan-cache")) << said;
    EXPECT_GT(fs::file_size(plans), 0u);
    const auto summary = records(folder.path() / name / "metrics.jsonl", "summary");
    ASSERT_EQ(summary.size(), 1u);
    EXPECT_GT(summary[0]["peak_device_memory"].get<std::int64_t>(), 0);
    EXPECT_GT(summary[0]["images_per_s"].get<double>(), 0);
  }
}

TEST(CudaTrain, RefusesDevicesThatAreNotThere) {
  const TemporaryFolder folder;
  TrainRun run(1, tiny(folder.path() / "a", {"--device", "cuda:" + std::to_string(cuda::device_count())}));
  EXPECT_NE(run.finish().code(), 0);
  EXPECT_NE(run.output().find("cuda:"), std::string::npos) << run.output();
}

/// Two GPUs against one at the same global batch, eagerly and as graphs.
TEST(CudaTrain, TwoGpusFollowOne) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "needs two GPUs";
  const TemporaryFolder folder;
  const auto arguments = [&](const std::string& name, const char* batch, const Arguments& more) {
    return with(tiny(folder.path() / name, {"--device", "cuda", "--synthetic-size", "96", "-b", batch, "--epochs", "5",
                                            "--dtype", "f64", "--freeze-bn", "--lr-schedule", "constant", "--lr", "0.3",
                                            "--plan-cache", "none", "--deterministic"}),
                more);
  };
  run_to_the_end(1, arguments("one", "24", {}));
  run_to_the_end(2, arguments("two", "12", {}));
  const auto said = run_to_the_end(2, arguments("graph", "12", {"--cuda-graph"}));
  EXPECT_NE(said.find("18 steps launched as graphs"), std::string::npos) << said;
  const auto one = losses(folder.path() / "one" / "metrics.jsonl");
  ASSERT_EQ(one.size(), 20u);
  for (const char* name : {"two", "graph"}) {
    const auto other = losses(folder.path() / name / "metrics.jsonl");
    ASSERT_EQ(other.size(), one.size());
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(other[i], one[i], 1e-9 * std::abs(one[i])) << name << i;
  }
  EXPECT_EQ(difference(newest(folder.path() / "two"), newest(folder.path() / "graph")), "");
}

/// The same samples in the same order with the same crops, whoever decodes; what differs are a few levels of pixels.
TEST(CudaTrain, DecodesOnTheGpuWhatTheCpuWouldDecode) {
  if (train::gpu_decoder().empty()) GTEST_SKIP() << "this build has no nvJPEG";
  const TemporaryFolder folder;
  for (int i = 0; i < 96; ++i) {
    const auto bytes = encode_jpeg_as(photo_like(70 + i % 9, 60 + i % 7, 3, i * i), {.chroma_x = 1 + i % 2});
    const auto place = folder.path() / "data" / ("c" + std::to_string(i % 4));
    fs::create_directories(place);
    std::ofstream(place / (std::to_string(i) + ".jpg"), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  const auto run = [&](const std::string& name, const Arguments& more) {
    const auto to = folder.path() / name;
    run_to_the_end(1, with({(folder.path() / "data").string(),
                            "--arch",
                            "resnet20",
                            "--image-size",
                            "48",
                            "--val-split",
                            "0.1",
                            "--device",
                            "cuda",
                            "-b",
                            "8",
                            "--epochs",
                            "3",
                            "--lr",
                            "0.5",
                            "--lr-schedule",
                            "constant",
                            "--deterministic",
                            "--plan-cache",
                            "none",
                            "--checkpoint-dir",
                            to.string(),
                            "--log-samples",
                            (folder.path() / (name + "-ids")).string()},
                           more));
    return losses(to / "metrics.jsonl");
  };
  const auto cpu = run("cpu", {}), gpu = run("gpu", {"--decode", "gpu"}),
             graph = run("graph", {"--decode", "gpu", "--cuda-graph"});
  EXPECT_EQ(sample_ids((folder.path() / "gpu-ids").string(), 1), sample_ids((folder.path() / "cpu-ids").string(), 1));
  ASSERT_EQ(gpu.size(), cpu.size());
  EXPECT_EQ(gpu, graph);
  EXPECT_NE(gpu, cpu) << "the GPU decoded nothing";
  EXPECT_NEAR(gpu[0], cpu[0], 0.05 * cpu[0]);
}

TEST(CudaTrain, TwoRanksOnOneGpuAreRefused) {
  const TemporaryFolder folder;
  TrainRun run(2, tiny(folder.path() / "a", {"--device", "cuda:0"}));
  EXPECT_EQ(run.finish().code(), 3) << run.output();
}

}  // namespace
}  // namespace apex::test
