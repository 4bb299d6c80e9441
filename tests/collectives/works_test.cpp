// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// The list of works on a device, with copies and host functions in the place of NCCL's kernels: one GPU will do.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cuda/device_works.hpp"
#include "support/tensors.hpp"

namespace apex::dist::detail {
namespace {

/// Holds a stream up until it is opened.
class Gate {
 public:
  void stand_in(const Context& ctx) {
    APEX_CHECK(cudaLaunchHostFunc(
        cuda::stream_of(ctx),
        [](void* self) {
          while (!static_cast<Gate*>(self)->open_) std::this_thread::sleep_for(std::chrono::microseconds(100));
        },
        this));
  }
  void open() { open_ = true; }
  ~Gate() { open(); }

 private:
  std::atomic<bool> open_{false};
};

class Works : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test::on_cuda()) GTEST_SKIP() << "for CUDA";
    channel_.label = "world/user";
    channel_.size = 2;
    device_ = test::device();
    list_ = std::make_unique<WorkList>(engine_, watchdog_, device_);
    a_ = std::make_unique<cuda::Stream>(device_);
    b_ = std::make_unique<cuda::Stream>(device_);
    bytes_ = empty({kBytes}, DType::u8, device_);
    set(Context::current(device_), 0);
    cuda::synchronize(Context::current(device_));
  }
  void TearDown() override {
    if (!list_) return;
    gate_.open();
    list_->drain();
    APEX_CHECK(cudaDeviceSynchronize());
    list_->stop();
  }

  void set(const Context& ctx, int value) {
    APEX_CHECK(cudaMemsetAsync(bytes_.raw_data(), value, kBytes, cuda::stream_of(ctx)));
  }
  /// What is in `bytes_` when ctx comes to it.
  Tensor fetch(const Context& ctx) {
    const auto host = Tensor::from_storage(cuda::pinned_pool::storage(kBytes), DType::u8, {kBytes}, {1});
    APEX_CHECK(
        cudaMemcpyAsync(host.raw_data(), bytes_.raw_data(), kBytes, cudaMemcpyDeviceToHost, cuda::stream_of(ctx)));
    return host;
  }
  static int last(const Tensor& host) { return host.data<std::uint8_t>()[kBytes - 1]; }

  /// A "collective" that sets all bytes to `value`.
  std::shared_ptr<DeviceWork> post(const Context& ctx, int value, std::int64_t bytes = 100) {
    tail_.order(*list_, ctx, ctx, 0);
    const auto id = watchdog_.watch(Description{.op = "post", .channel = "world/user", .label = std::to_string(value)});
    return list_->post_in_stream(
        channel_, lane_, ctx, bytes, id, [&] { set(ctx, value); }, tail_);
  }
  /// So many that the next one is the `n`-th after a timed one.
  void skip_to(int n, const Context& ctx) {
    while (lane_.until_timed != 0) post(ctx, 0);
    for (int i = 0; i < n; ++i) post(ctx, 0);
  }
  std::string report() {
    ::testing::internal::CaptureStderr();
    watchdog_.print_report("asked");
    const std::string text = ::testing::internal::GetCapturedStderr();
    return text.substr(0, text.find("last "));
  }
  bool soon(const std::function<bool()>& condition) {
    const auto end = Work::Clock::now() + std::chrono::seconds(10);
    while (!condition()) {
      if (Work::Clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  static constexpr std::int64_t kBytes = 1 << 16;
  Device device_;
  Watchdog watchdog_{60, "here"};
  Engine engine_{watchdog_, false};
  Channel channel_;
  Gate gate_;
  std::unique_ptr<WorkList> list_;
  std::unique_ptr<cuda::Stream> a_, b_;
  Tensor bytes_;
  Lane lane_;
  Tail tail_;
};

TEST_F(Works, InStreamTheyAreDoneWhenTheStreamIsThere) {
  const Context a = a_->context();
  gate_.stand_in(a);
  std::vector<std::shared_ptr<DeviceWork>> works;
  for (int i = 0; i < 40; ++i) works.push_back(post(a, i));
  for (const auto& work : works) {
    EXPECT_FALSE(work->wait_host(0));
    EXPECT_FALSE(work->finished());
    EXPECT_FALSE(work->exposed_s());
  }
  const auto before = Work::Clock::now();
  EXPECT_FALSE(works[3]->wait_host(0.05));
  EXPECT_GE(Work::Clock::now() - before, std::chrono::milliseconds(50));
  EXPECT_NE(report().find("post #0 on world/user \"39\""), std::string::npos);
  gate_.open();
  int timed = 0;
  for (const auto& work : works) {
    EXPECT_TRUE(work->wait_host(10));
    ASSERT_TRUE(work->finished());
    EXPECT_GE(*work->finished(), before);
    EXPECT_LT(*work->finished(), Work::Clock::now() + std::chrono::milliseconds(5));
    timed += work->exposed_s().has_value();
  }
  EXPECT_EQ(timed, 2) << "numbers 0 and 31";
  EXPECT_NE(report().find("waiting now: for nothing"), std::string::npos);
}

TEST_F(Works, NobodyNeedsToAsk) {
  const Context a = a_->context();
  skip_to(2, a);
  (void)post(a, 1);
  EXPECT_TRUE(soon([&] { return report().find("for nothing") != std::string::npos; })) << report();
}

TEST_F(Works, OnTheStreamOfIssueWaitingIsNothing) {
  const Context a = a_->context();
  gate_.stand_in(a);
  const auto work = post(a, 5);
  {
    const StreamGuard guard(a);
    work->wait();  // returns although nothing has been done
  }
  const Tensor host = fetch(a);
  gate_.open();
  cuda::synchronize(a);
  EXPECT_EQ(last(host), 5);
}

TEST_F(Works, AnotherStreamWaitsOnTheDevice) {
  const Context a = a_->context(), b = b_->context();
  for (const int before : {0, 3}) {  // a timed one, and one whose end is marked when somebody waits
    Gate gate;
    skip_to(before, a);
    set(a, 0);
    cuda::synchronize(a);
    gate.stand_in(a);
    const auto work = post(a, 7 + before);
    const StreamGuard guard(b);
    work->wait();
    const Tensor host = fetch(b);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate.open();
    cuda::synchronize(b);
    EXPECT_EQ(last(host), 7 + before);
    work->wait();  // once more: nothing is left to wait for
    EXPECT_TRUE(work->wait_host(10));
    work->wait();
  }
}

TEST_F(Works, OneAfterTheOtherAcrossStreams) {
  const Context a = a_->context(), b = b_->context();
  for (const int before : {0, 2}) {
    Gate gate;
    skip_to(before, a);
    gate.stand_in(a);
    (void)post(a, 1);
    const auto second = post(b, 2);
    EXPECT_FALSE(second->wait_host(0.05)) << "runs before the one that was issued first";
    gate.open();
    EXPECT_TRUE(second->wait_host(10));
    const Tensor host = fetch(b);
    cuda::synchronize(b);
    EXPECT_EQ(last(host), 2);
  }
}

TEST_F(Works, BetweenTheirOwnStreamAndAChannels) {
  const Context a = a_->context(), channels = b_->context();
  gate_.stand_in(channels);
  set(channels, 1);
  tail_.set(channels, 0, nullptr);  // as after an asynchronous one
  const auto work = post(a, 2);
  EXPECT_FALSE(work->wait_host(0.05));
  gate_.open();
  EXPECT_TRUE(work->wait_host(10));

  Gate gate;
  skip_to(1, a);
  gate.stand_in(a);
  (void)post(a, 3);
  tail_.order(*list_, channels, channels, 0);  // as before an asynchronous one that another stream issues
  const Tensor host = fetch(channels);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  gate.open();
  cuda::synchronize(channels);
  EXPECT_EQ(last(host), 3);
}

TEST_F(Works, OneInManyIsTimedAndStandsForTheOthers) {
  const Context a = a_->context();
  const auto totals = [&] { return engine_.statistics(channel_); };
  gate_.stand_in(a);
  const auto first = post(a, 0, 1000);
  gate_.open();
  ASSERT_TRUE(first->wait_host(10));
  EXPECT_LT(totals().busy_s, 0.02) << "the time before it is not its own";
  const double before = totals().busy_s;
  EXPECT_GT(before, 0);
  EXPECT_DOUBLE_EQ(before, *first->exposed_s());
  for (int i = 1; i < Lane::kTimed; ++i) (void)post(a, 0, 500);
  const auto timed = post(a, 0, 1000);
  ASSERT_TRUE(timed->wait_host(10));
  ASSERT_TRUE(timed->exposed_s());
  const double bytes_since = (Lane::kTimed - 1) * 500 + 1000;
  EXPECT_NEAR(totals().busy_s - before, bytes_since / 1000 * *timed->exposed_s(), 1e-12);
  EXPECT_DOUBLE_EQ(totals().busy_s, totals().exposed_s);
}

TEST_F(Works, AFailedPostLeavesNothingBehind) {
  const Context a = a_->context();
  for (const int before : {0, 2}) {
    skip_to(before, a);
    EXPECT_TRUE(test::throws(Kind::communication, "no peer", [&] {
      (void)list_->post_in_stream(
          channel_, lane_, a, 100, 0, [] { fail(Kind::communication, "no peer"); }, tail_);
    }));
    const auto work = post(a, 9);
    EXPECT_TRUE(work->wait_host(10));
  }
}

TEST_F(Works, ACaptureIsLeftAlone) {
  const Context a = a_->context(), b = b_->context();
  skip_to(2, a);
  const auto work = post(a, 4);  // nobody has marked its end
  cudaGraph_t graph{};
  APEX_CHECK(cudaStreamBeginCapture(a_->get(), cudaStreamCaptureModeThreadLocal));
  EXPECT_NE(capture_of(a), 0u);
  EXPECT_EQ(capture_of(b), 0u);
  set(a, 6);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the list has looked a few times
  EXPECT_FALSE(work->wait_host(0)) << "it cannot be known now";
  {
    const StreamGuard guard(b);
    EXPECT_TRUE(test::throws(Kind::state, "before the capture begins", [&] { work->wait(); }));
  }
  InStreamWork captured(*list_, a, nullptr, false);
  {
    const StreamGuard guard(a);
    captured.wait();
  }
  APEX_CHECK(cudaStreamEndCapture(a_->get(), &graph));
  cudaGraphExec_t executable{};
  APEX_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  APEX_CHECK(cudaGraphLaunch(executable, a_->get()));
  const Tensor host = fetch(a);
  EXPECT_TRUE(work->wait_host(10));
  cuda::synchronize(a);
  EXPECT_EQ(last(host), 6);
  EXPECT_TRUE(test::throws(Kind::state, "outside of the capture", [&] { captured.wait(); }));
  EXPECT_TRUE(test::throws(Kind::state, "cannot be asked for", [&] { (void)captured.wait_host(0); }));
  EXPECT_FALSE(captured.finished());
  EXPECT_FALSE(captured.exposed_s());
  APEX_CHECK(cudaGraphExecDestroy(executable));
  APEX_CHECK(cudaGraphDestroy(graph));
}

TEST_F(Works, AWorkFromBeforeACaptureIsRefusedInAnother) {
  const Context a = a_->context();
  gate_.stand_in(a);
  const auto work = post(a, 4);
  cudaGraph_t graph{};
  APEX_CHECK(cudaStreamBeginCapture(b_->get(), cudaStreamCaptureModeThreadLocal));
  {
    const StreamGuard guard(b_->context());
    EXPECT_TRUE(test::throws(Kind::state, "before a capture", [&] { work->wait(); }));
    gate_.open();
    EXPECT_TRUE(soon([&] { return work->wait_host(0); }));
    work->wait();  // by now there is nothing to wait for
  }
  APEX_CHECK(cudaStreamEndCapture(b_->get(), &graph));
  APEX_CHECK(cudaGraphDestroy(graph));
}

TEST_F(Works, AGraphJoinsTheStreamsOfItsCollectives) {
  const Context a = a_->context(), b = b_->context();
  cudaGraph_t graph{};
  cudaGraphExec_t executable{};
  APEX_CHECK(cudaStreamBeginCapture(a_->get(), cudaStreamCaptureModeThreadLocal));
  cuda::order(a, b);
  const auto capture = capture_of(a);
  EXPECT_EQ(capture_of(b), capture);
  set(b, 1);
  tail_.set(b, capture, nullptr);  // an asynchronous one, on the channel's stream
  tail_.order(*list_, a, a, capture);
  set(a, 2);
  const InStreamWork work(*list_, a, nullptr, false);
  tail_.set(a, capture, nullptr);
  tail_.order(*list_, b, b, 0);  // eager work is not ordered with it: nothing happens
  APEX_CHECK(cudaStreamEndCapture(a_->get(), &graph));
  std::size_t edges = 0;
  const auto count_edges = [&] {
#if CUDART_VERSION >= 13000
    return cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges);
#else
    return cudaGraphGetEdges(graph, nullptr, nullptr, &edges);
#endif
  };
  APEX_CHECK(count_edges());
  EXPECT_EQ(edges, 1u) << "the second after the first";
  APEX_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  APEX_CHECK(cudaGraphLaunch(executable, a_->get()));
  const Tensor host = fetch(a);
  cuda::synchronize(a);
  EXPECT_EQ(last(host), 2);
  APEX_CHECK(cudaGraphExecDestroy(executable));
  APEX_CHECK(cudaGraphDestroy(graph));
}

TEST_F(Works, TheEndWaitsForAll) {
  const Context a = a_->context();
  skip_to(1, a);
  Gate gate;
  gate.stand_in(a);
  const auto work = post(a, 1);
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    gate.open();
  });
  list_->drain();
  EXPECT_TRUE(work->finished());
  late.join();
}

}  // namespace
}  // namespace apex::dist::detail
