// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// What a step asks of the driver, counted by CUPTI: kernel by kernel, and as one graph. Not under compute-sanitizer,
// which CUPTI's callbacks exclude.
#include <gtest/gtest.h>

#include <optional>

#include "apex/autograd.hpp"
#include "apex/core/cuda.hpp"
#include "apex/models/resnet.hpp"
#include "apex/nn/functional.hpp"
#include "apex/optimizers/fused_sgd.hpp"
#include "apex/tensor_ops.hpp"
#include "apex/train/step_graph.hpp"
#include "probe.hpp"
#include "support/tensors.hpp"

namespace apex::train {
namespace {

bench::HostWaits counted(bench::Probe& probe, const std::function<void()>& body) {
  probe.begin();
  body();
  const auto out = probe.end();
  cuda::synchronize(test::context());
  return out;
}

TEST(LaunchesByCupti, AGraphIsOneLaunchOfAsManyKernels) {
  if (!test::on_cuda()) GTEST_SKIP() << "for CUDA";
  std::optional<bench::Probe> probe;
  try {
    probe.emplace();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  for (const DType dtype : {DType::f32, DType::f64}) {
    manual_seed(7);
    const auto model = models::create("resnet20", {.num_classes = 10, .in_channels = 3});
    model->to(test::device(), dtype, MemoryFormat::channels_last);
    optimizers::FusedSGD optimizer(model->parameters(), {.lr = 0.01, .momentum = 0.9});
    const Tensor images = test::uniform({8, 3, 8, 8}, dtype, test::device(), 1, -1, 1, MemoryFormat::channels_last),
                 labels = test::uniform({8}, DType::i64, test::device(), 2, 0, 10);
    const auto body = [&] {
      backward(nn::functional::cross_entropy(model->forward(images), labels));
      optimizer.step();
      optimizer.zero_grad(true);
    };
    for (int s = 0; s < 3; ++s) body();  // plans, and the optimizer's state
    const auto eager = counted(*probe, body);
    EXPECT_GT(eager.kernel_launches, 100) << "forward and backward of 20 layers";
    EXPECT_EQ(eager.graph_launches, 0);
    EXPECT_EQ(eager.total(), 0) << "the host waited: " << eager.first;

    StepGraph graph(test::device(), {.warm_up = 1});
    for (int s = 0; s < 3; ++s) graph.run("step", body);
    const auto launch = counted(*probe, [&] { graph.run("step", body); });
    ASSERT_TRUE(graph.replays()) << graph.why_not();
    EXPECT_EQ(launch.kernel_launches, 0);
    EXPECT_EQ(launch.graph_launches, 1);
    EXPECT_EQ(launch.total(), 0) << "the host waited: " << launch.first;
    EXPECT_NEAR(static_cast<double>(graph.kernel_nodes()), static_cast<double>(eager.kernel_launches),
                0.05 * static_cast<double>(eager.kernel_launches));
  }
}

}  // namespace
}  // namespace apex::train
