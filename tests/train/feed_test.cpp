// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// What comes to the device and goes back from it without anybody waiting: batches, figures of a step, plans.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "apex/io/data/dataset.hpp"
#include "apex/nn/functional.hpp"
#include "apex/nn/module.hpp"
#include "apex/tensor_ops.hpp"
#include "apex/train/classifier.hpp"
#include "apex/train/plan_cache.hpp"
#include "apex/train/prefetch.hpp"
#include "support/subprocess.hpp"
#include "support/tensors.hpp"

namespace apex::train {
namespace {

io::DatasetPair pictures() {
  return io::open_dataset("synthetic",
                          {.channels = 3,
                           .require_validation = false,
                           .synthetic = {.train_size = 37, .validation_size = 10, .height = 9, .width = 7}});
}

std::unique_ptr<io::Loader> loader(const io::DatasetPair& data, bool page_locked, bool drop_last) {
  const io::Sampler sampler({.size = data.train->size(), .batch = 5, .seed = 3, .drop_last = drop_last});
  io::LoaderOptions options{.workers = 2};
  if (page_locked) options.memory = batch_memory(test::device());
  return std::make_unique<io::Loader>(data.train, io::Transform(io::small_eval_transform(9, 7)), sampler, options);
}

TEST(Prefetch, BatchesArriveAsTheLoaderMadeThem) {
  const auto data = pictures();
  for (const bool page_locked : {true, false}) {
    const auto plain = loader(data, false, false), sent = loader(data, page_locked, false);
    Prefetch feed(*sent, test::device());
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      plain->start(epoch, epoch);
      feed.start(epoch, epoch);
      std::int64_t batches = 0;
      while (const auto expected = plain->next()) {
        const auto got = feed.next();
        ASSERT_TRUE(got);
        EXPECT_EQ(got->images.device(), test::device());
        EXPECT_EQ(got->images.strides(), expected->images.strides());
        EXPECT_EQ(test::to_f64(got->images), test::to_f64(expected->images));
        EXPECT_EQ(test::to_f64(got->labels), test::to_f64(expected->labels));
        EXPECT_EQ(test::to_f64(got->ids), test::to_f64(expected->ids));
        EXPECT_TRUE(got->ids.device().is_cpu());
        EXPECT_EQ(got->valid, expected->valid);
        ++batches;
      }
      EXPECT_EQ(batches, 8 - epoch);
      EXPECT_FALSE(feed.next());
    }
  }
}

/// Many batches queued at once: a buffer is not overwritten while a queued kernel still reads it.
TEST(Prefetch, ABufferWaitsForItsReaders) {
  const auto data = pictures();
  const auto plain = loader(data, false, true), sent = loader(data, true, true);
  Prefetch feed(*sent, test::device());
  plain->start(0);
  feed.start(0);
  std::vector<Tensor> copies;
  while (const auto batch = feed.next()) copies.push_back(clone(batch->images));
  ASSERT_EQ(copies.size(), 7u);
  for (const auto& copy : copies) EXPECT_EQ(test::to_f64(copy), test::to_f64(plain->next()->images));
}

/// Gives the pixels of the first channel as outputs: figures can be counted by hand.
class FirstPixels : public nn::Module {
 public:
  FirstPixels() : bias_(register_parameter("bias", zeros({4}))) {}
  Tensor forward(const Tensor& x) override {
    return nn::functional::add(nn::functional::reshape(nn::functional::narrow(x, 1, 0, 1), {x.size(0), 4}), bias_);
  }
  std::string_view kind() const override { return "FirstPixels"; }

 private:
  Tensor bias_;
};

TEST(Classifier, FiguresAreSummedWhereTheOutputsAre) {
  const auto model = std::make_shared<FirstPixels>();
  model->to(test::device(), DType::f32, MemoryFormat::contiguous);
  Classifier task(model, [&](const Tensor& x) { return model->forward(x); },
                  {.mean = {0.0}, .stddev = {1.0}, .device = test::device()});
  const io::Batch batch = {.images = test::from_list({3, 1, 2, 2}, DType::u8, {9, 1, 2, 3, 0, 255, 0, 7, 5, 5, 5, 1}),
                           .labels = test::from_list({3}, DType::i64, {0, 3, 1}),
                           .valid = 3};
  const Tensor sums = zeros({4}, DType::f64, test::device());
  task.train_step(batch, 1.0, sums);
  task.train_step(batch, 0.5, sums);
  double loss = 0;
  const double rows[3][4] = {{9, 1, 2, 3}, {0, 255, 0, 7}, {5, 5, 5, 1}};
  const int labels[3] = {0, 3, 1};
  for (int r = 0; r < 3; ++r) {
    double total = 0;
    for (const double v : rows[r]) total += std::exp(v / 255);
    loss += std::log(total) - rows[r][labels[r]] / 255;
  }
  const auto got = test::to_f64(sums);
  EXPECT_NEAR(got[0], 2 * loss, 1e-5);
  EXPECT_EQ(got[1], 6);
  EXPECT_EQ(got[2], 2) << "row 0; the label of row 2 ties with a lower class";
  EXPECT_EQ(got[3], 6) << "every class is among the first five of four";

  const Tensor once = zeros({4}, DType::f64, test::device());
  io::Batch padded = batch;
  padded.valid = 1;
  task.evaluate(padded, once);
  padded.valid = 0;
  task.evaluate(padded, once);
  EXPECT_EQ(test::to_f64(once)[1], 1);
  EXPECT_EQ(test::to_f64(once)[2], 1);
}

/// A source of plans that can be looked at.
struct Plans {
  std::string bytes = "two plans";
  std::string given;
  std::size_t taken = 2, chosen = 0;
  PlanCache::Source source() {
    return {.take = [this] { return bytes; },
            .give =
                [this](const std::string& b) {
                  given = b;
                  return b == bytes ? taken : 0;
                },
            .chosen = [this] { return chosen; }};
  }
};

TEST(PlanCache, KeepsPlansFromOneProcessToTheNext) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "deep" / "plans.bin";
  Plans plans;
  PlanCache first(path, plans.source());
  EXPECT_EQ(first.load(), 0u) << "no file yet";
  first.save();
  EXPECT_FALSE(std::filesystem::exists(path)) << "nothing was chosen";
  plans.chosen = 2;
  first.save();
  PlanCache second(path, plans.source());
  EXPECT_EQ(second.load(), 2u);
  EXPECT_EQ(plans.given, "two plans");
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path.parent_path())) ++files;
  EXPECT_EQ(files, 1u) << "a temporary file was left";
}

TEST(PlanCache, IgnoresAndReplacesAFileOfOthers) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "plans.bin";
  std::ofstream(path) << "of another device";
  Plans plans;
  PlanCache cache(path, plans.source());
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(cache.load(), 0u);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("plans.bin"), std::string::npos);
  plans.chosen = 1;
  cache.save();
  EXPECT_EQ(cache.read(), "two plans");
}

TEST(PlanCache, OnlyOneOfAJobWritesAndAFailureIsAWarning) {
  const test::TemporaryFolder folder;
  Plans plans;
  plans.chosen = 1;
  PlanCache other(folder.path() / "plans.bin", plans.source());
  other.set_writes(false);
  other.save();
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "plans.bin"));
  std::ofstream(folder.path() / "file") << "no folder";
  PlanCache impossible(folder.path() / "file" / "plans.bin", plans.source());
  ::testing::internal::CaptureStderr();
  impossible.save();
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("--plan-cache"), std::string::npos);
}

TEST(PlanCache, AFolderInItsPlaceIsNotRead) {
  const test::TemporaryFolder folder;
  Plans plans;
  PlanCache cache(folder.path(), plans.source());
  EXPECT_EQ(cache.load(), 0u);
  EXPECT_EQ(plans.given, "");
}

TEST(PlanCache, PathFollowsTheOption) {
  const Device gpu{DeviceKind::cuda, 0};
  EXPECT_EQ(plan_cache_path("none", gpu, "/ck"), "");
  EXPECT_EQ(plan_cache_path("auto", kCpu, "/ck"), "");
  EXPECT_EQ(plan_cache_path("/tmp/p.bin", gpu, "/ck"), "/tmp/p.bin");
  ::setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(plan_cache_path("auto", gpu, "/ck").parent_path(), "/cache/apex");
  ::unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace apex::train
