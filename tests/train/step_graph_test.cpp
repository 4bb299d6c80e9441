// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// A training step as a graph against the same step queued kernel by kernel, on the device under test.
#include "apex/train/step_graph.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "apex/autograd.hpp"
#include "apex/fp16_utils.hpp"
#include "apex/kernels/backend.hpp"
#include "apex/models/resnet.hpp"
#include "apex/nn/functional.hpp"
#include "apex/nn/layers.hpp"
#include "apex/optimizers/fused_sgd.hpp"
#include "apex/tensor_ops.hpp"
#include "apex/train/classifier.hpp"
#include "support/subprocess.hpp"
#include "support/tensors.hpp"

namespace apex::train {
namespace {

constexpr int kSteps = 20;

/// ResNet-20 on pictures of 8x8, its batches and its learning rates. What a graph needs to keep is kept.
class Training {
 public:
  explicit Training(DType dtype, bool graph, std::int64_t micro_steps = 1) : micro_steps_(micro_steps) {
    manual_seed(7);
    model_ = models::create("resnet20", {.num_classes = 10, .in_channels = 3});
    const bool narrow = is_16bit(dtype);
    model_->to(test::device(), narrow ? DType::f32 : dtype, MemoryFormat::channels_last);
    if (narrow) fp16_utils::convert_network(*model_, dtype);
    optimizer_ = std::make_unique<optimizers::FusedSGD>(
        model_->parameters(),
        optimizers::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-4, .master_weights = narrow});
    task_ = std::make_unique<Classifier>(
        model_, [this](const Tensor& x) { return model_->forward(x); },
        ClassifierOptions{.mean = {0.5, 0.5, 0.5},
                          .stddev = {0.25, 0.25, 0.25},
                          .loss_scale = dtype == DType::f16 ? 1024.0 : 1.0,
                          .dtype = dtype,
                          .device = test::device()});
    if (dtype == DType::f16) scaling_.inv_scale = full({1}, 1.0 / 1024, DType::f32, test::device());
    sums_ = zeros({4}, DType::f64, test::device());
    rate_ = zeros({1}, DType::f64, test::device());
    if (!graph) return;
    optimizer_->set_lr_source(rate_);
    graph_ = std::make_unique<StepGraph>(test::device(), StepGraphOptions{.written = [this] {
                                           auto out = model_->parameters();
                                           for (const auto& b : model_->buffers()) out.push_back(b);
                                           return out;
                                         }});
  }

  /// The batch of step `step` has 8 rows, that of every tenth 5.
  void step(int step) {
    const std::int64_t rows = step % 10 == 9 ? 5 : 8;
    auto& inputs = rows == 8 ? whole_ : odd_;
    const double lr = 0.02 + 0.004 * step;
    for (std::int64_t m = 0; m < micro_steps_; ++m) {
      const auto seed = static_cast<std::uint64_t>(step * 10 + m);
      const io::Batch next = {.images = test::uniform({rows, 3, 8, 8}, DType::u8, test::device(), seed, 0, 256,
                                                      MemoryFormat::channels_last),
                              .labels = test::uniform({rows}, DType::i64, test::device(), seed + 1000, 0, 10),
                              .valid = rows};
      if (static_cast<std::int64_t>(inputs.size()) <= m) {
        inputs.push_back(next);
      } else {
        copy_(inputs[static_cast<std::size_t>(m)].images, next.images);
        copy_(inputs[static_cast<std::size_t>(m)].labels, next.labels);
      }
    }
    fill_(rate_, lr);
    optimizer_->set_lr(lr);
    const auto body = [&] {
      zero_(sums_);
      for (const auto& batch : inputs) task_->train_step(batch, 1.0 / static_cast<double>(micro_steps_), sums_);
      optimizer_->step(scaling_);
      optimizer_->zero_grad(true);
    };
    if (graph_)
      graph_->run(concat(rows), body);
    else
      body();
    sums.push_back(test::to_f64(sums_));
  }

  /// Everything that a step changes.
  std::vector<std::vector<double>> state() const {
    std::vector<std::vector<double>> out;
    for (const auto& p : model_->parameters()) out.push_back(test::to_f64(p));
    for (const auto& b : model_->buffers()) out.push_back(test::to_f64(b));
    optimizer_->for_each_state(
        [&](const Tensor&, const std::string&, const Tensor& value) { out.push_back(test::to_f64(value)); });
    return out;
  }
  Tensor evaluate() {
    const NoGradGuard no_grad;
    model_->train(false);
    const Tensor y = model_->forward(test::uniform({4, 3, 8, 8}, model_->parameters()[0].dtype(), test::device(), 99,
                                                   -1, 1, MemoryFormat::channels_last));
    model_->train(true);
    return y;
  }
  StepGraph& graph() { return *graph_; }
  nn::Module& model() { return *model_; }

  std::vector<std::vector<double>> sums;

 private:
  std::int64_t micro_steps_;
  std::shared_ptr<nn::Module> model_;
  std::unique_ptr<optimizers::FusedSGD> optimizer_;
  std::unique_ptr<Classifier> task_;
  optimizers::StepScaling scaling_;
  Tensor sums_, rate_;
  std::vector<io::Batch> whole_, odd_;
  std::unique_ptr<StepGraph> graph_;
};

/// The same algorithms in both runs, chosen without timing.
struct StepGraphs : ::testing::Test {
  void SetUp() override { kernels::set_deterministic(true); }
  void TearDown() override { kernels::set_deterministic(false); }
};

void expect_equal_bits(DType dtype, std::int64_t micro_steps) {
  Training eager(dtype, false, micro_steps), graph(dtype, true, micro_steps);
  for (int s = 0; s < kSteps; ++s) {
    eager.step(s);
    graph.step(s);
    ASSERT_EQ(eager.sums.back(), graph.sums.back()) << "loss and counts of step " << s;
  }
  EXPECT_EQ(eager.state(), graph.state());
  EXPECT_EQ(test::to_f64(eager.evaluate()), test::to_f64(graph.evaluate()));
  EXPECT_LT(graph.sums.back()[0] / graph.sums.back()[1], 20.0);
  if (test::on_cuda()) {
    EXPECT_EQ(graph.graph().why_not(), "");
    // 18 steps of 8 rows and 2 of 5; the first two of each are eager.
    EXPECT_EQ(graph.graph().launches(), 16);
  } else {
    EXPECT_EQ(graph.graph().launches(), 0);
    EXPECT_NE(graph.graph().why_not(), "");
  }
}

TEST_F(StepGraphs, TwentyStepsHaveTheBitsOfEagerOnes) {
  // On the CPU both runs are eager: one type shows that, and that the loop here is right.
  const auto dtypes =
      test::on_cuda() ? std::vector{DType::f64, DType::f32, DType::f16, DType::bf16} : std::vector{DType::f32};
  for (const DType dtype : dtypes) {
    SCOPED_TRACE(concat(dtype));
    expect_equal_bits(dtype, 1);
  }
}

TEST_F(StepGraphs, MicroStepsAreCapturedTogether) { expect_equal_bits(DType::f32, 3); }

TEST_F(StepGraphs, OneLaunchHoldsTheWholeStepAndFreesWhatItMakes) {
  if (!test::on_cuda()) {
    Training t(DType::f32, true);
    t.step(0);
    EXPECT_TRUE(t.graph().nodes().empty());
    EXPECT_THROW(t.graph().write_dot("unused.dot"), Error);
    return;
  }
  Training t(DType::f32, true);
  for (int s = 0; s < 4; ++s) t.step(s);
  ASSERT_TRUE(t.graph().replays());
  const auto nodes = t.graph().nodes();
  EXPECT_GT(t.graph().kernel_nodes(), 100u) << "forward and backward of 20 layers";
  EXPECT_EQ(t.graph().allocation_nodes(), t.graph().release_nodes());
  std::set<std::string> names;
  for (const auto& n : nodes)
    if (n.type == StepGraph::Node::Type::kernel) names.insert(n.name);
  EXPECT_GT(names.size(), 5u) << "kernels have names";
  EXPECT_EQ(names.count("?"), 0u);
  const test::TemporaryFolder folder;
  const auto dot = folder.path() / "step.dot";
  t.graph().write_dot(dot.string());
  std::ifstream file(dot);
  std::string first;
  std::getline(file, first);
  EXPECT_NE(first.find("digraph"), std::string::npos);
}

TEST_F(StepGraphs, VersionsOfWhatALaunchWritesAreRaised) {
  Training t(DType::f32, true);
  for (int s = 0; s < 4; ++s) t.step(s);
  std::vector<std::uint64_t> before;
  for (const auto& p : t.model().parameters()) before.push_back(p.version());
  t.step(4);
  std::size_t i = 0;
  for (const auto& p : t.model().parameters()) EXPECT_GT(p.version(), before[i++]);
}

TEST(StepGraph, LaunchesDrawWhatEagerStepsWouldHaveDrawn) {
  const Tensor x = test::uniform({4, 6}, DType::f32, test::device(), 1), out = empty_like(x);
  nn::Dropout first(0.5), second(0.25);
  const auto body = [&] { copy_(out, second(first(x))); };
  const auto run = [&](int warm_up) {
    manual_seed(11);
    StepGraph graph(test::device(), {.warm_up = warm_up});
    std::vector<std::vector<double>> masks;
    for (int s = 0; s < 6; ++s) {
      if (s == 4) {  // somebody else draws in between, and later the seed is another
        Generator& g = default_generator();
        g.offset += 3;
      }
      if (s == 5) manual_seed(12);
      graph.run("step", body);
      masks.push_back(test::to_f64(out));
    }
    EXPECT_EQ(graph.launches(), test::on_cuda() ? std::max(0, 6 - warm_up) : 0);
    EXPECT_EQ(default_generator(), (Generator{12, 2}));
    return masks;
  };
  const auto eager = run(100), captured = run(1);
  EXPECT_EQ(captured, eager);
  EXPECT_EQ(std::set<std::vector<double>>(eager.begin(), eager.end()).size(), 6u) << "a mask came twice";
  manual_seed(0);
}

TEST(StepGraph, AnotherGeneratorThanTheDefaultOneKeepsTheStepEager) {
  if (!test::on_cuda()) return;
  StepGraph graph(test::device());
  const Tensor x = test::uniform({4, 6}, DType::f32, test::device(), 1), out = empty_like(x);
  Generator own{5, 0};
  nn::Dropout dropout(0.5, own);
  std::set<std::vector<double>> seen;
  for (int s = 0; s < 5; ++s) {
    graph.run("step", [&] { copy_(out, dropout(x)); });
    seen.insert(test::to_f64(out));
  }
  EXPECT_EQ(seen.size(), 5u) << "a mask came twice";
  EXPECT_EQ(graph.launches(), 0);
  EXPECT_NE(graph.why_not().find("default generator"), std::string::npos) << graph.why_not();
}

TEST(StepGraph, AStepThatWaitsForTheDeviceRunsEagerly) {
  int recovered = 0;
  StepGraph graph(test::device(), {.recover = [&] { ++recovered; }});
  const Tensor x = test::uniform({8}, DType::f32, test::device(), 1), total = zeros({1}, DType::f32, test::device());
  double last = 0;
  for (int s = 0; s < 5; ++s)
    graph.run("step", [&] {
      last = nn::functional::sum(x).item();
      add_(total, ones({1}, DType::f32, test::device()));
    });
  double expected = 0;
  for (const double v : test::to_f64(x)) expected += v;
  EXPECT_NEAR(last, expected, 1e-5);
  EXPECT_EQ(test::to_f64(total)[0], 5) << "every step was made once";
  EXPECT_NE(graph.why_not(), "");
  EXPECT_EQ(recovered, test::on_cuda() ? 1 : 0);
}

TEST(StepGraph, ErrorsOfTheBodyComeOut) {
  StepGraph graph(test::device());
  for (int s = 0; s < 4; ++s) EXPECT_THROW(graph.run("step", [] { fail(Kind::argument, "no"); }), Error);
}

TEST(StepGraph, OlderGraphsAreKeptUpToALimit) {
  StepGraph graph(test::device(), {.warm_up = 1, .keep = 2});
  const Tensor x = zeros({4}, DType::f32, test::device()), one = ones({4}, DType::f32, test::device());
  for (const char* key : {"a", "a", "b", "b", "a", "c", "c", "a", "b"}) graph.run(key, [&] { add_(x, one); });
  EXPECT_EQ(test::to_f64(x), std::vector<double>(4, 9.0));
  // "b" was forgotten for "c", so that its last run is eager again.
  EXPECT_EQ(graph.launches(), test::on_cuda() ? 5 : 0);
}

TEST(StepGraph, DependenceFollowsAllPaths) {
  using Node = StepGraph::Node;
  const std::vector<Node> nodes = {Node{.after = {}}, Node{.after = {0}}, Node{.after = {0}}, Node{.after = {1, 2}}};
  EXPECT_TRUE(StepGraph::depends(nodes, 3, 0));
  EXPECT_TRUE(StepGraph::depends(nodes, 3, 2));
  EXPECT_FALSE(StepGraph::depends(nodes, 2, 1));
  EXPECT_FALSE(StepGraph::depends(nodes, 0, 3));
}

}  // namespace
}  // namespace apex::train
