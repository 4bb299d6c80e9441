// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// What CUDA adds to collectives: streams, graphs, communicators. Skipped on the CPU.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "apex/collectives/session.hpp"
#include "support/tensors.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/collectives/nccl.hpp"
#include "apex/core/cuda.hpp"
#endif

namespace apex::dist {
namespace {

#ifdef APEX_HAS_CUDA

Tensor numbers(std::int64_t count, double first) {
  return test::from_function({count}, DType::f32, test::device(), [&](auto i) { return first + double(i % 100); });
}

bool mode_is(const char* word) {
  const char* mode = std::getenv("APEX_TEST_SESSION");
  return mode != nullptr && std::string(mode).find(word) != std::string::npos;
}
bool shared() { return mode_is("shared"); }

class DeviceCollectives : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test::on_cuda()) GTEST_SKIP() << "for CUDA";
  }
  /// 0 + 1 + ... over the ranks.
  double sum_of_ranks() const { return world.size() * (world.size() - 1) / 2; }

  const ProcessGroup world = ProcessGroup::world();
};

TEST_F(DeviceCollectives, EachChannelHasACommunicatorAndAStream) {
  if (world.size() == 1 || shared()) {
    EXPECT_EQ(nccl_comm(world), nullptr);
    EXPECT_THROW((void)nccl_stream(world), Error);
    return;
  }
  const auto ddp = world.channel(Purpose::ddp);
  ASSERT_NE(nccl_comm(world), nullptr);
  EXPECT_NE(nccl_comm(world), nccl_comm(ddp));
  EXPECT_NE(nccl_stream(world).stream, nccl_stream(ddp).stream);
  int size = 0, rank = -1;
  ASSERT_EQ(ncclCommCount(nccl_comm(ddp), &size), ncclSuccess);
  ASSERT_EQ(ncclCommUserRank(nccl_comm(ddp), &rank), ncclSuccess);
  EXPECT_EQ(size, world.size());
  EXPECT_EQ(rank, world.rank());
  EXPECT_EQ(nccl_version().substr(0, 2), "2.");
}

TEST_F(DeviceCollectives, TheRawCommunicatorCanBeUsed) {  // as a bench beside ours does
  if (world.size() == 1 || shared()) GTEST_SKIP() << "no NCCL";
  const Tensor t = numbers(1000, world.rank());
  const Context ctx = nccl_stream(world), here = test::context();
  cuda::order(here, ctx);
  APEX_CHECK(
      ncclAllReduce(t.raw_data(), t.raw_data(), 1000, ncclFloat32, ncclSum, nccl_comm(world), cuda::stream_of(ctx)));
  cuda::order(ctx, here);
  EXPECT_EQ(test::to_f64(t)[7], world.size() * 7 + sum_of_ranks());
}

TEST_F(DeviceCollectives, SubgroupsHaveTheirOwn) {
  const auto alone = world.split(world.rank(), 0, "alone");
  const Tensor t = numbers(5, world.rank());
  alone.all_reduce(t).wait();
  EXPECT_EQ(test::to_f64(t)[4], world.rank() + 4) << "one rank: nothing changes";

  const auto reversed = world.split(0, -world.rank(), "reversed");
  const Tensor parts = test::from_function({world.size()}, DType::f64, test::device(), [](auto) { return -1.0; });
  const Tensor mine = test::from_function({1}, DType::f64, test::device(), [&](auto) { return double(world.rank()); });
  reversed.all_gather(parts, mine).wait();
  const auto got = test::to_f64(parts);
  for (int r = 0; r < world.size(); ++r) EXPECT_EQ(got[static_cast<std::size_t>(r)], world.size() - 1 - r);

  const auto some = world.split(world.rank() == 0 ? -1 : 0, 0, "all but rank 0");
  if (some) {
    const Tensor ones = test::from_function({3}, DType::f32, test::device(), [](auto) { return 1.0; });
    some.all_reduce(ones).wait();
    EXPECT_EQ(test::to_f64(ones)[2], world.size() - 1);
  }
  const auto again = reversed.dup("a split of a split");
  const Tensor ones = test::from_function({3}, DType::f32, test::device(), [](auto) { return 1.0; });
  again.channel(Purpose::spatial).all_reduce(ones).wait();
  EXPECT_EQ(test::to_f64(ones)[2], world.size());
}

// The result is used at once on the stream that waited, and memory is handed on as soon as that stream allows.
TEST_F(DeviceCollectives, StreamsAreOrderedWithoutTheHost) {
  const cuda::Stream side(test::device());
  const StreamGuard guard(side.context());
  const std::int64_t n = 1 << 20;
  for (int round = 0; round < 20; ++round) {
    Tensor t = numbers(n, world.rank() + round);
    const Work work = world.all_reduce(t);
    work.wait();
    const Tensor copy = empty({n}, DType::f32, test::device());
    APEX_CHECK(cudaMemcpyAsync(copy.raw_data(), t.raw_data(), t.bytes(), cudaMemcpyDeviceToDevice, side.get()));
    t = Tensor();  // its bytes may be the next tensor's
    const Tensor next = empty({n}, DType::f32, test::device());
    APEX_CHECK(cudaMemsetAsync(next.raw_data(), 0, next.bytes(), side.get()));
    const auto got = test::to_f64(copy);
    const int p = world.size();
    EXPECT_EQ(got[12345], p * (round + 12345 % 100) + sum_of_ranks());
    EXPECT_EQ(got.back(), p * (round + (n - 1) % 100) + sum_of_ranks());
  }
}

TEST_F(DeviceCollectives, DroppedHandlesKeepTheirTensors) {
  const auto before = world.statistics().collectives;
  std::weak_ptr<Storage> first;
  for (int i = 0; i < 50; ++i) {
    const Tensor t = numbers(100000, i);
    if (i == 0) first = t.storage();
    (void)world.all_reduce(t);
  }
  const Tensor last = numbers(3, 1);
  const Work work = world.all_reduce(last);
  EXPECT_TRUE(work.wait_host(30));
  EXPECT_TRUE(work.test());
  EXPECT_EQ(test::to_f64(last)[0], world.size());
  EXPECT_EQ(world.statistics().collectives, before + 51);  // looks what is done, too
  EXPECT_TRUE(first.expired()) << "kept no longer than needed";
}

TEST_F(DeviceCollectives, HostTensorsStillTravelByMpi) {
  const Tensor t = from_values<double>({2}, {1, 2});
  world.all_reduce(t).wait();
  EXPECT_EQ(t.data<double>()[1], 2 * world.size());
}

TEST_F(DeviceCollectives, SharingRanksCannotCapture) {
  if (!shared() || world.size() == 1) GTEST_SKIP() << "for ranks that share a GPU";
  const Tensor t = numbers(3, 0);
  const cuda::Stream stream(test::device());
  const StreamGuard guard(stream.context());
  cudaGraph_t graph{};
  APEX_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  EXPECT_TRUE(test::throws(Kind::unsupported, "share a GPU", [&] { (void)world.all_reduce(t); }));
  APEX_CHECK(cudaStreamEndCapture(stream.get(), &graph));
  APEX_CHECK(cudaGraphDestroy(graph));
}

TEST_F(DeviceCollectives, ACapturedStepGivesWhatAnEagerOneGives) {
  if (shared() && world.size() > 1) GTEST_SKIP() << "ranks that share a GPU cannot capture";
  const auto ddp = world.channel(Purpose::ddp);
  const cuda::Stream stream(test::device());
  const StreamGuard guard(stream.context());
  const int p = world.size();
  const Tensor a = numbers(5000, 0), b = numbers(777, 0), c = numbers(33, 0), out = numbers(777 * p, 0);
  const auto collectives = [&] {
    const Work first = world.all_reduce(a, ReduceOp::sum, "captured a");
    const Work second = ddp.all_gather(out, b, "captured b");
    first.wait();
    second.wait();
    const Work third = world.in_stream().all_reduce(c, ReduceOp::max, "captured c");
    third.wait();
    const Work fourth = world.all_reduce(c, ReduceOp::sum, "captured c again");
    fourth.wait();
    return std::vector<Work>{first, third};
  };
  collectives();  // NCCL connects when it is used first
  cuda::synchronize(stream.context());

  cudaGraph_t graph{};
  cudaGraphExec_t executable{};
  APEX_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  const auto captured = collectives();
  APEX_CHECK(cudaStreamEndCapture(stream.get(), &graph));
  APEX_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  for (const Work& work : captured) {
    if (p == 1) continue;
    EXPECT_TRUE(test::throws(Kind::state, "captured", [&] { (void)work.test(); }));
    EXPECT_TRUE(test::throws(Kind::state, "outside of the capture", [&] { work.wait(); }));
    EXPECT_FALSE(work.finished());
  }
  for (int round = 0; round < 5; ++round) {
    test::assign(a, [&](auto i) { return double(i % 50 + round + world.rank()); });
    test::assign(b, [&](auto i) { return double(i + 1000 * world.rank() + round); });
    test::assign(c, [&](auto i) { return double(i * world.rank() + round); });
    APEX_CHECK(cudaGraphLaunch(executable, stream.get()));
    watch(stream.context(), concat("graph step ", round));
    EXPECT_EQ(test::to_f64(a)[77], p * (27 + round) + sum_of_ranks());
    EXPECT_EQ(test::to_f64(out).back(), 776 + 1000 * (p - 1) + round);
    EXPECT_EQ(test::to_f64(c)[11], p * (11 * (p - 1) + round));
  }
  cuda::synchronize(stream.context());
  APEX_CHECK(cudaGraphExecDestroy(executable));
  APEX_CHECK(cudaGraphDestroy(graph));
  const Tensor eager = numbers(10, 1);  // and eagerly again on the same communicator
  world.all_reduce(eager).wait();
  EXPECT_EQ(test::to_f64(eager)[2], 3 * p);
}

TEST_F(DeviceCollectives, AWorkFromBeforeACaptureIsRefusedInIt) {
  if (world.size() == 1 || shared()) GTEST_SKIP() << "nothing is in flight";
  const Tensor t = numbers(10, 1);
  world.all_reduce(t).wait();  // NCCL connects when it is used first
  test::to_f64(t);
  world.barrier();
  // Rank 0 comes late, so that on the others the work is in flight for sure when the capture begins.
  if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const Work work = world.all_reduce(t);
  {
    const cuda::Stream stream(test::device());
    const StreamGuard guard(stream.context());
    cudaGraph_t graph{};
    APEX_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
    if (world.rank() != 0) {
      EXPECT_TRUE(test::throws(Kind::state, "before a capture", [&] { work.wait(); }));
    }
    APEX_CHECK(cudaStreamEndCapture(stream.get(), &graph));
    APEX_CHECK(cudaGraphDestroy(graph));
  }
  work.wait();
  EXPECT_EQ(test::to_f64(t)[3], 4 * world.size() * world.size());
}

TEST_F(DeviceCollectives, InStreamTheCallerWaitsForNothing) {
  if (world.size() == 1 || shared()) GTEST_SKIP() << "nothing is in flight";
  const auto here = world.in_stream();
  const cuda::Stream side(test::device()), other(test::device());
  const StreamGuard guard(side.context());
  const std::int64_t n = 1 << 20;
  for (int round = 0; round < 20; ++round) {
    Tensor t = numbers(n, world.rank() + round);
    const Work work = here.all_reduce(t);
    work.wait();
    Tensor copy;
    {
      const StreamGuard there(other.context());  // and from another stream
      work.wait();
      copy = empty({n}, DType::f32, test::device());
      APEX_CHECK(cudaMemcpyAsync(copy.raw_data(), t.raw_data(), t.bytes(), cudaMemcpyDeviceToDevice, other.get()));
    }

    cuda::order(other.context(), side.context());
    t = Tensor();
    const int p = world.size();
    EXPECT_EQ(test::to_f64(copy)[12345], p * (round + 12345 % 100) + sum_of_ranks());
    EXPECT_TRUE(work.wait_host(30));
  }
}

TEST_F(DeviceCollectives, InStreamTimesOneIn31) {
  if (world.size() == 1 || shared()) GTEST_SKIP() << "nothing is in flight";
  if (mode_is("debug")) GTEST_SKIP() << "the ranks meet before, to compare";
  const auto group = world.dup("times").in_stream();
  const Tensor t = numbers(1000, 1);
  const Work first = group.all_reduce(t);  // NCCL connects
  ASSERT_TRUE(first.wait_host(30));
  EXPECT_TRUE(first.exposed_s());
  for (int i = 1; i < 31; ++i) {
    const Work work = group.all_reduce(t);
    ASSERT_TRUE(work.wait_host(30));
    EXPECT_TRUE(work.finished());
    EXPECT_FALSE(work.exposed_s());
  }
  const double before = group.statistics().exposed_s;
  test::to_f64(t);
  world.barrier();
  if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const Work timed = group.all_reduce(t);
  ASSERT_TRUE(timed.wait_host(30));
  ASSERT_TRUE(timed.exposed_s());
  EXPECT_EQ(*timed.exposed_s() > 0.2, world.rank() != 0) << *timed.exposed_s();
  EXPECT_NEAR(group.statistics().exposed_s - before, 31 * *timed.exposed_s(), 1e-9);
}

TEST_F(DeviceCollectives, TimesAreTheDevices) {
  if (world.size() == 1 || shared()) GTEST_SKIP() << "nothing is in flight";
  if (mode_is("debug")) GTEST_SKIP() << "the ranks meet before, to compare";
  const Tensor t = numbers(1000, 1);
  world.all_reduce(t).wait();  // NCCL connects when it is used first
  test::to_f64(t);
  world.barrier();
  if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto begin = Work::Clock::now();
  const Work work = world.all_reduce(t);
  work.wait();
  ASSERT_TRUE(work.wait_host(30));
  const auto end = Work::Clock::now();
  ASSERT_TRUE(work.finished() && work.exposed_s());
  EXPECT_GT(*work.finished(), begin);
  EXPECT_LT(*work.finished(), end + std::chrono::milliseconds(1));
  EXPECT_EQ(*work.exposed_s() > 0.2, world.rank() != 0) << *work.exposed_s();
}

#else

TEST(DeviceCollectives, ABuildWithoutCudaSaysSo) { EXPECT_FALSE(has_cuda); }

#endif

}  // namespace
}  // namespace apex::dist
