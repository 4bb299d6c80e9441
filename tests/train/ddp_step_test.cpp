// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// Communication that goes on during backward, seen in a training step of ResNet-20: eagerly by the clock, in a CUDA
// graph by what waits for what. PAR-15.38
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include "apex/autograd.hpp"
#include "apex/collectives/session.hpp"
#include "apex/kernels/elementwise.hpp"
#include "apex/models/resnet.hpp"
#include "apex/nn/functional.hpp"
#include "apex/optimizers/fused_sgd.hpp"
#include "apex/parallel/distributed_data_parallel.hpp"
#include "apex/tensor_ops.hpp"
#include "apex/train/step_graph.hpp"
#include "support/tensors.hpp"

namespace apex::train {
namespace {

using Clock = parallel::DistributedDataParallel::Clock;
using Type = StepGraph::Node::Type;

constexpr std::int64_t kBucket = 20'000;  // elements: about ten buckets

/// ResNet-20 on pictures of 16x16. `at_leaf` is called with each parameter once its gradient is complete, before DDP
/// gets it.
class Training {
 public:
  std::function<void(const Tensor&)> at_leaf;

  Training() {
    manual_seed(7);
    model_ = models::create("resnet20", {.num_classes = 10, .in_channels = 3});
    model_->to(test::device(), DType::f32, MemoryFormat::channels_last);
    for (const Tensor& p : model_->parameters())  // hooks run in the order they were added
      hooks_.push_back(add_post_accumulate_hook(p, [this](const Tensor& leaf) {
        if (at_leaf) at_leaf(leaf);
      }));
    ddp_.emplace(model_, dist::ProcessGroup{}, parallel::DistributedDataParallelOptions{.message_size = kBucket});
    optimizer_ = std::make_unique<optimizers::FusedSGD>(model_->parameters(), optimizers::SGDOptions{.lr = 0.01});
    const auto rank = static_cast<std::uint64_t>(dist::ProcessGroup::world().rank());
    images_ = test::uniform({8, 3, 16, 16}, DType::f32, test::device(), 1 + rank, -1, 1, MemoryFormat::channels_last);
    labels_ = test::uniform({8}, DType::i64, test::device(), 100 + rank, 0, 10);
  }
  ~Training() {
    for (auto& hook : hooks_) hook.remove();
  }

  void step() {
    backward(nn::functional::cross_entropy(ddp_->forward(images_), labels_));
    optimizer_->step();
    optimizer_->zero_grad(true);
  }
  parallel::DistributedDataParallel& ddp() { return *ddp_; }

 private:
  std::shared_ptr<nn::Module> model_;
  std::vector<HookHandle> hooks_;
  std::optional<parallel::DistributedDataParallel> ddp_;
  std::unique_ptr<optimizers::FusedSGD> optimizer_;
  Tensor images_, labels_;
};

TEST(DdpStep, HalfOfTheBucketsAreLaunchedBeforeTheLastGradient) {
  Training training;
  Clock::time_point last_gradient;
  training.at_leaf = [&](const Tensor&) { last_gradient = Clock::now(); };
  for (int s = 0; s < 4; ++s) training.step();
  const auto& timings = training.ddp().last_timings();
  const auto buckets = training.ddp().bucket_plan().buckets.size();
  ASSERT_GE(buckets, 4u);
  ASSERT_EQ(timings.size(), buckets);
  const auto early = static_cast<std::size_t>(
      std::count_if(timings.begin(), timings.end(), [&](const auto& t) { return t.launched < last_gradient; }));
  EXPECT_GE(2 * early, buckets) << early << " of " << buckets;
  EXPECT_LT(early, buckets) << "the bucket of the last gradient cannot be launched before it";
}

/// Kernels that communicate, in the order in which they wait for each other.
std::vector<std::size_t> collectives(const std::vector<StepGraph::Node>& nodes) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (nodes[i].type == Type::kernel && nodes[i].name.find("nccl") != std::string::npos) out.push_back(i);
  const auto earlier = [&](std::size_t node) {
    return std::count_if(out.begin(), out.end(), [&](auto other) { return StepGraph::depends(nodes, node, other); });
  };
  std::vector<std::pair<std::ptrdiff_t, std::size_t>> places;
  for (const auto node : out) places.emplace_back(earlier(node), node);
  std::sort(places.begin(), places.end());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = places[i].second;
  return out;
}

std::set<std::string> kernel_names(const std::vector<StepGraph::Node>& nodes) {
  std::set<std::string> out;
  for (const auto& n : nodes)
    if (n.type == Type::kernel) out.insert(n.name);
  return out;
}

/// The kernels that `node` waits for with no other kernel in between.
std::set<std::size_t> kernels_right_before(const std::vector<StepGraph::Node>& nodes, std::size_t node) {
  std::set<std::size_t> out, seen;
  std::vector<std::size_t> open = nodes[node].after;
  while (!open.empty()) {
    const std::size_t at = open.back();
    open.pop_back();
    if (!seen.insert(at).second) continue;
    if (nodes[at].type == Type::kernel)
      out.insert(at);
    else
      open.insert(open.end(), nodes[at].after.begin(), nodes[at].after.end());
  }
  return out;
}

TEST(DdpStep, InTheGraphTheFirstBucketDoesNotWaitForTheLastBackwardKernel) {
  if (!test::on_cuda()) GTEST_SKIP() << "for CUDA";
  Training training;
  Tensor last;
  training.at_leaf = [&](const Tensor& leaf) { last = leaf; };
  training.step();
  ASSERT_TRUE(last.defined());

  // A kernel that the step has nowhere else marks the place where the last gradient is complete.
  const Tensor from = test::uniform({3}, DType::f64, test::device(), 5), to = empty_like(from);
  bool marks = false;
  training.at_leaf = [&](const Tensor& leaf) {
    if (marks && leaf.is_same(last)) kernels::unary(test::context(), to.view(), from.view(), kernels::UnaryOp::tanh);
  };
  StepGraph graph(test::device(), {.warm_up = 1, .launched = [](std::int64_t launch) {
                                     dist::watch(test::context(), concat("graph step ", launch));
                                   }});
  for (int s = 0; s < 3; ++s) graph.run("plain", [&] { training.step(); });
  ASSERT_EQ(graph.why_not(), "");
  const auto without = kernel_names(graph.nodes());
  marks = true;
  for (int s = 0; s < 3; ++s) graph.run("marked", [&] { training.step(); });
  ASSERT_TRUE(graph.replays()) << graph.why_not();
  const auto nodes = graph.nodes();

  std::vector<std::size_t> marked;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (nodes[i].type == Type::kernel && without.count(nodes[i].name) == 0) marked.push_back(i);
  ASSERT_EQ(marked.size(), 1u);
  const auto before = kernels_right_before(nodes, marked.front());
  ASSERT_FALSE(before.empty()) << "the last kernel of backward";

  const auto reduced = collectives(nodes);
  const auto buckets = training.ddp().bucket_plan().buckets.size();
  ASSERT_GE(buckets, 4u);
  ASSERT_EQ(reduced.size(), buckets) << "one all-reduce a bucket";
  for (std::size_t i = 1; i < reduced.size(); ++i)
    EXPECT_TRUE(StepGraph::depends(nodes, reduced[i], reduced[i - 1])) << "buckets are reduced in order";
  std::size_t early = 0;
  for (const auto bucket : reduced) early += !StepGraph::depends(nodes, bucket, marked.front());
  EXPECT_GE(2 * early, buckets) << early << " of " << buckets << " buckets need not wait for the end of backward";
  for (const auto kernel : before) {
    EXPECT_FALSE(StepGraph::depends(nodes, reduced.front(), kernel)) << nodes[kernel].name;
    EXPECT_TRUE(StepGraph::depends(nodes, reduced.back(), kernel)) << nodes[kernel].name;
  }
  EXPECT_TRUE(StepGraph::depends(nodes, reduced.back(), marked.front())) << "the mark is where backward ends";
}

}  // namespace
}  // namespace apex::train
