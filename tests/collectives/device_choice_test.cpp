// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// Which devices a job may run on: the decision alone, for ranks that see what the test says they see.
#include <gtest/gtest.h>

#include <cstdio>
#include <vector>

#include "apex/core/error.hpp"
#include "device_link.hpp"

namespace apex::dist::detail {
namespace {

DeviceFacts rank_on(int gpu, int visible = 8, const char* host = "node1") {
  DeviceFacts f;
  f.visible = visible;
  f.index = visible > 0 ? gpu % visible : -1;
  f.uuid[0] = static_cast<unsigned char>(gpu + 1);
  f.uuid[15] = 7;
  std::snprintf(f.name, sizeof f.name, "NVIDIA H200, GPU-%02x, PCI 0000:%02x:00.0", gpu + 1, gpu + 0x10);
  std::snprintf(f.host, sizeof f.host, "%s", host);
  return f;
}

struct Decision {
  std::string problem;
  bool cuda = false, shared = false;
  Kind kind = Kind::state;
};

Decision decide(const std::vector<DeviceFacts>& ranks) {
  Decision d;
  d.problem = device_problem(ranks, d.cuda, d.shared, d.kind);
  EXPECT_EQ(d.problem.find('\n'), std::string::npos);
  return d;
}

#define EXPECT_HAS(text, words) EXPECT_NE((text).find(words), std::string::npos) << (text)

TEST(DeviceChoice, AGpuForEachRank) {
  const auto d = decide({rank_on(0), rank_on(1), rank_on(2)});
  EXPECT_EQ(d.problem, "");
  EXPECT_TRUE(d.cuda);
  EXPECT_FALSE(d.shared);
}

TEST(DeviceChoice, NoGpuAnywhereIsTheCpu) {
  const auto d = decide({rank_on(0, 0), rank_on(1, 0)});
  EXPECT_EQ(d.problem, "");
  EXPECT_FALSE(d.cuda);
}

TEST(DeviceChoice, TheCpuWhenAskedFor) {
  auto a = rank_on(0), b = rank_on(0);
  a.wanted = static_cast<int>(DeviceKind::cpu);
  const auto d = decide({a, b});
  EXPECT_EQ(d.problem, "");
  EXPECT_FALSE(d.cuda);
}

TEST(DeviceChoice, RanksThatDifferAreNamed) {
  auto cpu = rank_on(0, 8, "node1"), gpu = rank_on(1, 8, "node2");
  cpu.wanted = static_cast<int>(DeviceKind::cpu);
  gpu.wanted = static_cast<int>(DeviceKind::cuda);
  EXPECT_HAS(decide({cpu, gpu}).problem, "rank 0 (node1) was asked to run on the CPU, rank 1 (node2) on CUDA");
  EXPECT_HAS(decide({rank_on(0), rank_on(1, 0, "node2")}).problem,
             "rank 1 (node2) sees no CUDA device, rank 0 (node1) does");
  auto asked = rank_on(0, 0, "node3");
  asked.wanted = static_cast<int>(DeviceKind::cuda);
  EXPECT_HAS(decide({rank_on(0), asked}).problem, "rank 1 (node3) was asked to run on CUDA, but sees no device");
  EXPECT_EQ(decide({rank_on(0), asked}).kind, Kind::unsupported) << "as everywhere where a GPU is asked for in vain";
  EXPECT_EQ(decide({cpu, gpu}).kind, Kind::data);
  auto outside = rank_on(0, 2);
  outside.index = 5;
  EXPECT_HAS(decide({rank_on(1), outside}).problem, "cuda:5, but sees 2 device(s)");
  EXPECT_EQ(decide({rank_on(1), outside}).kind, Kind::unsupported);
}

// Each rank sees one device of its own as cuda:0: the same index, different GPUs.
TEST(DeviceChoice, TheGpuCountsNotItsIndex) {
  const auto a = rank_on(0, 1), b = rank_on(1, 1);
  EXPECT_EQ(a.index, b.index);
  EXPECT_EQ(decide({a, b}).problem, "");
}

TEST(DeviceChoice, TwoRanksOnOneGpuAreRefusedByName) {
  auto a = rank_on(0), b = rank_on(1), c = rank_on(1, 1);  // c sees GPU 1 alone, and calls it cuda:0
  const auto d = decide({a, b, c});
  EXPECT_HAS(d.problem, "ranks 1 and 2 on node1 would use the same GPU, NVIDIA H200, GPU-02, PCI 0000:11:00.0");
  EXPECT_HAS(d.problem, "cuda:1 and cuda:0");

  b.share = c.share = 1;
  EXPECT_NE(decide({a, b, c}).problem, "") << "all ranks must allow it";
  a.share = 1;
  const auto allowed = decide({a, b, c});
  EXPECT_EQ(allowed.problem, "");
  EXPECT_TRUE(allowed.cuda);
  EXPECT_TRUE(allowed.shared);
}

}  // namespace
}  // namespace apex::dist::detail
