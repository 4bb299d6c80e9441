// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// What happens to a job on GPUs when a rank skips, stops or dies, eagerly and inside a graph, and how ranks find their
// GPUs. Two ranks on the GPUs of this host; skipped where there are fewer than a case needs.
#include <gtest/gtest.h>

#include <string>

#include "apex/core/device.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#endif
#include "job.hpp"

namespace apex {
namespace {

using test::expect_watchdog;
using test::Job;
using test::Subprocess;

int devices() {
#ifdef APEX_HAS_CUDA
  return cuda::device_count();
#else
  return 0;
#endif
}

constexpr double kStart = 120;  // contexts, libraries and NCCL on a cold host

#define NEEDS_GPUS(n) \
  if (devices() < (n)) GTEST_SKIP() << "needs " << (n) << " GPU(s), has " << devices()

TEST(GpuFaults, AHealthyJobEndsWell) {
  NEEDS_GPUS(2);
  Job job(2, "ok", 60);
  ASSERT_TRUE(job.finish(kStart)) << job.output();
  EXPECT_EQ(job.exit_code(), 0) << job.output();
  EXPECT_SAYS(job, "NCCL_NVLS_ENABLE=0");
}

TEST(GpuFaults, AsBetweenNodes) {
  NEEDS_GPUS(2);
  Job job(2, "ok", 60, {"NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1"});
  ASSERT_TRUE(job.finish(kStart)) << job.output();
  EXPECT_EQ(job.exit_code(), 0) << job.output();
}

// PAR-15.36
TEST(GpuFaults, ASkippedCollectiveIsNamedOnBothRanks) {
  NEEDS_GPUS(2);
  Job job(2, "skip", 8);
  ASSERT_EQ(job.wait_ready(2, kStart).size(), 2u) << job.output();
  expect_watchdog(job, 8, "all_reduce");
  EXPECT_SAYS(job, "on world/user \"layer6.bn1\", f32 x 5 (fault_probe.cpp:");
  EXPECT_SAYS(job, "apex: rank 0");
  EXPECT_SAYS(job, "apex: rank 1");
  EXPECT_SAYS(job, "waiting now");
}

TEST(GpuFaults, DebugModeReportsASkippedCollectiveAtOnce) {
  NEEDS_GPUS(2);
  Job job(2, "skip", 60, {"APEX_DIST_DEBUG=1"});
  ASSERT_TRUE(job.finish(kStart)) << job.output();
  EXPECT_EQ(job.exit_code(), 7) << job.output();
  EXPECT_SAYS(job, "disagree on their next collective");
}

TEST(GpuFaults, ACollectiveNobodyWaitsForHasALimit) {
  NEEDS_GPUS(2);
  Job job(2, "async", 8);
  ASSERT_EQ(job.wait_ready(2, kStart).size(), 2u) << job.output();
  expect_watchdog(job, 8, "\"nobody waits\"");
}

TEST(GpuFaults, AStoppedRankEndsTheJobWithinTheLimit) {
  NEEDS_GPUS(2);
  Job job(2, "loop", 8);
  const auto pids = job.wait_ready(2, kStart);
  ASSERT_EQ(pids.size(), 2u) << job.output();
  ::kill(pids.at(1), SIGSTOP);
  expect_watchdog(job, 8, "all_reduce max #");
  EXPECT_SAYS(job, "\"loop\"");
}

TEST(GpuFaults, AStoppedRankEndsTheJobInStreamToo) {
  NEEDS_GPUS(2);
  Job job(2, "in_stream", 8);
  const auto pids = job.wait_ready(2, kStart);
  ASSERT_EQ(pids.size(), 2u) << job.output();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  ::kill(pids.at(1), SIGSTOP);
  expect_watchdog(job, 8, "all_reduce max #");
  EXPECT_SAYS(job, "\"in stream\"");
}

TEST(GpuFaults, AStoppedRankEndsTheJobUnderAGraphToo) {
  NEEDS_GPUS(2);
  Job job(2, "graph", 8);
  const auto pids = job.wait_ready(2, kStart);
  ASSERT_EQ(pids.size(), 2u) << job.output();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  ::kill(pids.at(1), SIGSTOP);
  expect_watchdog(job, 8, "graph step");
}

TEST(GpuFaults, AKilledRankEndsTheJob) {
  NEEDS_GPUS(2);
  for (const char* scenario : {"loop", "graph"}) {
    Job job(2, scenario, 60);
    const auto pids = job.wait_ready(2, kStart);
    ASSERT_EQ(pids.size(), 2u) << job.output();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    ::kill(pids.at(1), SIGKILL);
    ASSERT_TRUE(job.finish(20)) << job.output();
    EXPECT_NE(job.exit_code(), 0);
    EXPECT_EQ(job.survivors(), 0);
  }
}

TEST(GpuFaults, ASuspendedJobIsNotLate) {
  NEEDS_GPUS(2);
  Job job(2, "long", 8);
  const auto pids = job.wait_ready(2, kStart);
  ASSERT_EQ(pids.size(), 2u) << job.output();
  for (const auto& [rank, pid] : pids) ::kill(pid, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(12));
  for (const auto& [rank, pid] : pids) ::kill(pid, SIGCONT);
  ASSERT_TRUE(job.finish(30)) << job.output();
  EXPECT_EQ(job.exit_code(), 0) << job.output();
}

TEST(GpuFaults, AnErrorOnOneRankEndsAll) {
  NEEDS_GPUS(2);
  Job job(2, "throw", 60);
  ASSERT_TRUE(job.finish(kStart)) << job.output();
  EXPECT_EQ(job.exit_code(), 3) << job.output();
  EXPECT_SAYS(job, "apex: rank 1: cannot read /data/train: no such folder\n");
  EXPECT_EQ(job.survivors(), 0);
}

TEST(GpuFaults, TwoRanksOnOneGpuAreRefused) {
  NEEDS_GPUS(1);
  Job same(2, "same_gpu", 30);
  ASSERT_TRUE(same.finish(kStart)) << same.output();
  EXPECT_EQ(same.exit_code(), 3) << same.output();
  EXPECT_SAYS(same, "ranks 0 and 1 on ");
  EXPECT_SAYS(same, "would use the same GPU, ");
  EXPECT_SAYS(same, "GPU-");
  EXPECT_EQ(same.count("would use the same GPU"), 1) << "all ranks see the same: " << same.output();
  Job narrow(2, "ok", 30, {"CUDA_VISIBLE_DEVICES=0"});
  ASSERT_TRUE(narrow.finish(kStart)) << narrow.output();
  EXPECT_EQ(narrow.exit_code(), 3) << narrow.output();
  EXPECT_SAYS(narrow, "ranks 0 and 1 on ");
}

TEST(GpuFaults, RanksMayShareAGpuWhenAllowed) {
  NEEDS_GPUS(1);
  Job job(2, "shared_gpu", 30);
  ASSERT_TRUE(job.finish(kStart)) << job.output();
  EXPECT_EQ(job.exit_code(), 0) << job.output();
  EXPECT_SAYS(job, "ranks share a GPU");
}

TEST(GpuFaults, AGpuThatIsNotThere) {
  NEEDS_GPUS(1);
  Job job(1, "far_gpu", 30);
  ASSERT_TRUE(job.finish(kStart)) << job.output();
  EXPECT_EQ(job.exit_code(), exit_code::kUsage) << job.output();
  EXPECT_SAYS(job, "cuda:63, but sees ");
  Job none(1, "ok", 30, {"CUDA_VISIBLE_DEVICES="});
  ASSERT_TRUE(none.finish(kStart)) << none.output();
  EXPECT_EQ(none.exit_code(), exit_code::kUsage) << none.output();
  EXPECT_SAYS(none, "sees no device");
}

}  // namespace
}  // namespace apex
