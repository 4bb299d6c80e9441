// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// A whole step of DistributedDataParallel in a CUDA graph. PAR-15.38
#include <gtest/gtest.h>

#include "apex/kernels/copy.hpp"
#include "toy.hpp"

namespace apex::parallel {
namespace {

#ifdef APEX_HAS_CUDA

using test::filled;
using Options = DistributedDataParallelOptions;

int ranks() { return dist::ProcessGroup::world().size(); }
int rank() { return dist::ProcessGroup::world().rank(); }

class Net : public nn::Module {
 public:
  Net() {
    a = register_parameter("a", filled({64, 64}, 1.0));
    b = register_parameter("b", filled({64, 64}, 2.0));
  }
  Tensor forward(const Tensor& x) override {
    return nn::functional::sum(nn::functional::mul(nn::functional::mul(x, a), b));
  }
  Tensor a, b;
};

class DdpGraph : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test::on_cuda()) GTEST_SKIP() << "for CUDA";
    const char* mode = std::getenv("APEX_TEST_SESSION");
    if (ranks() > 1 && mode != nullptr && std::string(mode).find("shared") != std::string::npos)
      GTEST_SKIP() << "ranks that share a GPU cannot capture";
  }
};

/// Runs `body` while the stream is captured; the graph, which may be broken when body threw.
cudaGraph_t capture(const cuda::Stream& stream, const std::function<void()>& body) {
  cudaGraph_t graph{};
  APEX_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  body();
  APEX_CHECK(cudaStreamEndCapture(stream.get(), &graph));
  return graph;
}

TEST_F(DdpGraph, ReplaysGiveWhatEagerStepsGive) {
  struct Case {
    const char* name;
    Options options;
  };
  for (const auto& [name, options] :
       {Case{"one bucket", {}}, Case{"two buckets", {.message_size = 1}},
        Case{"two streams", {.message_size = 1, .num_allreduce_streams = 2}},
        Case{"predivide, f32 buffers", {.allreduce_always_fp32 = true, .gradient_predivide_factor = 2}}}) {
    const auto net = std::make_shared<Net>();
    DistributedDataParallel ddp(net, {}, options);
    const cuda::Stream stream(test::device());
    cuda::synchronize(test::context());
    const StreamGuard guard(stream.context());
    const Tensor x = filled({64, 64}, 1.0), grad_a = filled({64, 64}, 0.0), grad_b = filled({64, 64}, 0.0);
    const auto body = [&] {  // all that is made in it goes away in it
      backward(ddp.forward(x));
      kernels::copy(x.context(), grad_a.view(), grad(net->a).view());
      kernels::copy(x.context(), grad_b.view(), grad(net->b).view());
      ddp.zero_grad(true);
    };
    const auto check = [&](double value, const char* how) {
      const double mean = value + (ranks() - 1) / 2.0;
      for (const double g : test::to_f64(grad_a)) ASSERT_NEAR(g, 2 * mean, 1e-6 * mean) << name << ", " << how;
      for (const double g : test::to_f64(grad_b)) ASSERT_NEAR(g, mean, 1e-6 * mean) << name << ", " << how;
    };
    for (int i = 0; i < 3; ++i) {
      test::assign(x, [&](auto) { return 1.0 + i + rank(); });
      body();
      check(1 + i, "eager");
    }
    cuda::synchronize(stream.context());
    EXPECT_TRUE(ddp.last_exposed_s().has_value());
    cudaGraph_t graph = capture(stream, body);
    EXPECT_TRUE(ddp.last_timings().empty()) << "a graph tells no times";
    EXPECT_FALSE(ddp.last_exposed_s().has_value());
    cudaGraphExec_t executable{};
    APEX_CHECK(cudaGraphInstantiate(&executable, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch));
    for (int i = 0; i < 10; ++i) {
      test::assign(x, [&](auto) { return 10.0 + i + rank(); });
      APEX_CHECK(cudaGraphLaunch(executable, stream.get()));
      dist::watch(stream.context(), concat("graph step ", i));
      check(10 + i, "graph");
    }
    cuda::synchronize(stream.context());
    APEX_CHECK(cudaGraphExecDestroy(executable));
    APEX_CHECK(cudaGraphDestroy(graph));
    test::assign(x, [&](auto) { return 3.0 + rank(); });
    body();
    check(3, "eager again");
  }
}

TEST_F(DdpGraph, ARecordingStepCannotBeCaptured) {
  const auto refused = [](const Options& options, int steps_before, Kind kind, const char* words) {
    const auto net = std::make_shared<Net>();
    DistributedDataParallel ddp(net, {}, options);
    const cuda::Stream stream(test::device());
    cuda::synchronize(test::context());
    const StreamGuard guard(stream.context());
    const Tensor x = filled({64, 64}, 1.0);
    for (int i = 0; i < steps_before; ++i) {
      backward(ddp.forward(x));
      ddp.zero_grad(true);
    }
    cuda::synchronize(stream.context());
    const cudaGraph_t graph =
        capture(stream, [&] { EXPECT_TRUE(test::throws(kind, words, [&] { (void)ddp.forward(x); })); });
    APEX_CHECK(cudaGraphDestroy(graph));
    backward(ddp.forward(x));  // and eagerly all is well
    EXPECT_TRUE(test::gradient_is(net->b, 1, 1e-6));
  };
  refused({}, 0, Kind::state, "cannot be captured");
  refused({.find_unused_parameters = true}, 2, Kind::unsupported, "find_unused_parameters");
  refused({.delay_allreduce = true}, 2, Kind::unsupported, "delay_allreduce");
}

TEST_F(DdpGraph, OneRankAloneAddsNothing) {
  const auto net = std::make_shared<Net>();
  DistributedDataParallel ddp(net, dist::ProcessGroup::world().partition(1), {.message_size = 1});
  const cuda::Stream stream(test::device());
  cuda::synchronize(test::context());
  const StreamGuard guard(stream.context());
  const Tensor x = filled({64, 64}, 1.0);
  const auto step = [&](nn::Module& module) {
    backward(module.forward(x));
    module.zero_grad(true);
  };
  const auto nodes = [&](nn::Module& module) {
    const cudaGraph_t graph = capture(stream, [&] { step(module); });
    std::size_t count = 0;
    APEX_CHECK(cudaGraphGetNodes(graph, nullptr, &count));
    APEX_CHECK(cudaGraphDestroy(graph));
    return count;
  };
  for (int i = 0; i < 2; ++i) step(ddp);
  const std::size_t with = nodes(ddp);
  const auto plain = std::make_shared<Net>();
  cuda::synchronize(stream.context());
  step(*plain);
  EXPECT_EQ(with, nodes(*plain)) << "no copy, no communication";
}

#else

TEST(DdpGraph, ABuildWithoutCudaSaysSo) { EXPECT_FALSE(has_cuda); }

#endif

}  // namespace
}  // namespace apex::parallel
