// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// What happens to a job when a rank skips, stops, dies or throws: fault matrix rows 1, 14, 17, 18 and PAR-15.36. After
// each case no process of the job may be left.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apex/core/device.hpp"
#include "job.hpp"

namespace apex {
namespace {

using test::expect_watchdog;
using test::Job;
using test::Subprocess;

TEST(Faults, AHealthyJobEndsWell) {
  Job job(2, "ok", 5);
  ASSERT_TRUE(job.finish(30));
  EXPECT_EQ(job.exit_code(), 0) << job.output();
  EXPECT_FALSE(job.says("apex:")) << job.output();
}

// PAR-15.36
TEST(Faults, ASkippedCollectiveIsNamedOnBothRanks) {
  Job job(2, "skip", 2);
  expect_watchdog(job, 2, "all_reduce");
  EXPECT_SAYS(job, "all_reduce sum #5 on world/user \"layer6.bn1\", f32 x 5 (fault_probe.cpp:");
  EXPECT_SAYS(job, "all_reduce sum #3 on world/user \"layer4.bn1\", f32 x 5 (fault_probe.cpp:");
  EXPECT_SAYS(job, "all_reduce sum #3 on world/user \"layer5.bn1\"");  // what rank 1 thought it was
  EXPECT_SAYS(job, "apex: rank 0");
  EXPECT_SAYS(job, "apex: rank 1");
  EXPECT_SAYS(job, "#2 on world/user \"warm-up 2\"");
  EXPECT_SAYS(job, "waiting now");
}

// PAR-15.36, fault matrix 18
TEST(Faults, DebugModeReportsASkippedCollectiveAtOnce) {
  Job job(2, "skip", 60, {"APEX_DIST_DEBUG=1"});
  ASSERT_TRUE(job.finish(20)) << job.output();
  EXPECT_EQ(job.exit_code(), 7) << job.output();
  EXPECT_SAYS(job, "disagree on their next collective");
  EXPECT_SAYS(job, "layer4.bn1");
  EXPECT_SAYS(job, "layer5.bn1");
}

TEST(Faults, DebugModeReportsSwappedCallSites) {
  Job job(3, "swap", 60, {"APEX_DIST_DEBUG=1"});
  ASSERT_TRUE(job.finish(20)) << job.output();
  EXPECT_EQ(job.exit_code(), 7) << job.output();
  EXPECT_SAYS(job, "rank 0,2 wants all_reduce sum");
  EXPECT_SAYS(job, "rank 1 wants broadcast");
  EXPECT_SAYS(job, "\"first\", f32 x 5 (fault_probe.cpp:");  // both call sites
  EXPECT_SAYS(job, "\"second\", f32 x 5 from rank 0 (fault_probe.cpp:");
}

TEST(Faults, EveryBlockingWaitHasALimit) {
  const std::map<std::string, std::string> cases{{"barrier", "barrier #3 on world/user \"before evaluation\""},
                                                 {"split", "splitting group world"},
                                                 {"finalise", "ending the session"},
                                                 {"async", "\"nobody waits\""}};
  std::map<std::string, std::unique_ptr<Job>> jobs;  // side by side: they mostly wait
  for (const auto& [name, what] : cases) jobs[name] = std::make_unique<Job>(2, name, 2);
  for (const auto& [name, what] : cases) expect_watchdog(*jobs[name], 2, what);
}

TEST(Faults, ADeadlineEndsForeignWaits) {
  Job job(2, "deadline", 60);  // its own limit is 1 s
  expect_watchdog(job, 2, "writing checkpoint step 100");
}

TEST(Faults, TheReportHoldsTheLast64) {
  Job job(2, "many", 1.5);
  expect_watchdog(job, 1.5, "the hundred and first");
  EXPECT_SAYS(job, "\"step 99\"");
  EXPECT_FALSE(job.says("\"step 30\""));
  EXPECT_SAYS(job, "last 64 collectives");
}

// Fault matrix 17
TEST(Faults, AStoppedRankEndsTheJobWithinTheLimit) {
  Job job(3, "loop", 3);
  const auto pids = job.wait_ready(3);
  ASSERT_EQ(pids.size(), 3u) << job.output();
  ::kill(pids.at(1), SIGSTOP);
  expect_watchdog(job, 3, "all_reduce max #");
  EXPECT_SAYS(job, "\"loop\"");
  EXPECT_SAYS(job, "apex: rank 0");
  EXPECT_SAYS(job, "apex: rank 2");
}

TEST(Faults, ASuspendedJobIsNotLate) {
  Job job(2, "long", 2);
  const auto pids = job.wait_ready(2);
  ASSERT_EQ(pids.size(), 2u);
  for (const auto& [rank, pid] : pids) ::kill(pid, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(4));
  for (const auto& [rank, pid] : pids) ::kill(pid, SIGCONT);
  ASSERT_TRUE(job.finish(20)) << job.output();
  EXPECT_EQ(job.exit_code(), 0) << job.output();
}

// Fault matrix 1
TEST(Faults, AKilledRankEndsTheJob) {
  Job job(3, "loop", 60);
  const auto pids = job.wait_ready(3);
  ASSERT_EQ(pids.size(), 3u) << job.output();
  ::kill(pids.at(1), SIGKILL);
  ASSERT_TRUE(job.finish(10)) << job.output();
  EXPECT_NE(job.exit_code(), 0);
  EXPECT_EQ(job.survivors(), 0);
}

TEST(Faults, AnErrorOnOneRankEndsAll) {
  struct Case {
    const char *scenario, *line;
    int code;
    std::unique_ptr<Job> job{};
  };
  Case cases[] = {{"throw", "apex: rank 1: cannot read /data/train: no such folder\n", 3},
                  {"throw_foreign", "apex: rank 1: a foreign exception\n", 1},
                  {"thread", "apex: rank 1: loss is NaN\n", 4},
                  {"uncaught", "apex: rank 1: uncaught on purpose\n", 5}};
  for (Case& c : cases) c.job = std::make_unique<Job>(2, c.scenario, 60);
  for (const Case& c : cases) {
    ASSERT_TRUE(c.job->finish(20)) << c.job->output();
    EXPECT_EQ(c.job->exit_code(), c.code) << c.scenario << '\n' << c.job->output();
    EXPECT_SAYS(*c.job, c.line);
    EXPECT_EQ(c.job->count("apex: "), 1) << c.job->output();
    EXPECT_EQ(c.job->survivors(), 0);
  }
}

TEST(Faults, AnAgreedErrorIsPrintedOnce) {
  Job job(3, "agree", 60);
  ASSERT_TRUE(job.finish(10)) << job.output();
  EXPECT_EQ(job.exit_code(), 5);
  EXPECT_SAYS(job, "apex: rank 1: the pack is damaged\n");
  EXPECT_EQ(job.count("apex: "), 1) << job.output();
}

TEST(Faults, WrongRankCountsStopAtOnce) {
  Job job(2, "expect", 60);
  ASSERT_TRUE(job.finish(10)) << job.output();
  EXPECT_EQ(job.exit_code(), 3);
  EXPECT_SAYS(job, "5 ranks were expected (--expect-ranks), but MPI started 2");
  EXPECT_EQ(job.count("apex: "), 1) << job.output();
}

// Fault matrix 14
TEST(Faults, ALaunchThatFellApartStopsAtOnce) {
  Subprocess alone({APEX_FAULT_PROBE, "ok"}, {"SLURM_STEP_NUM_TASKS=4"});
  ASSERT_TRUE(alone.finish(10));
  EXPECT_EQ(alone.exit_code(), 3);
  EXPECT_NE(alone.output().find("--mpi=pmix"), std::string::npos) << alone.output();
  EXPECT_EQ(std::count(alone.output().begin(), alone.output().end(), '\n'), 1) << alone.output();
}

TEST(Faults, ADeviceThatIsNotThere) {
  Subprocess alone({APEX_FAULT_PROBE, "cuda"}, {"CUDA_VISIBLE_DEVICES="});
  ASSERT_TRUE(alone.finish(30));
  EXPECT_EQ(alone.exit_code(), 2) << alone.output();
  EXPECT_EQ(std::count(alone.output().begin(), alone.output().end(), '\n'), 1) << alone.output();
  EXPECT_NE(alone.output().find(has_cuda ? "CUDA" : "cuda"), std::string::npos) << alone.output();
}

TEST(Faults, AnAdoptedMpiStaysUp) {
  Job job(2, "adopt", 60);
  ASSERT_TRUE(job.finish(10)) << job.output();
  EXPECT_EQ(job.exit_code(), 0) << job.output();
}

TEST(Faults, HandlesMayOutliveTheSession) {
  Job job(2, "late_handles", 60);
  ASSERT_TRUE(job.finish(10)) << job.output();
  EXPECT_EQ(job.exit_code(), 0) << job.output();
}

}  // namespace
}  // namespace apex
