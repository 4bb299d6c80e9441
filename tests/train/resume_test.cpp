// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/train/resume.hpp"

#include <gtest/gtest.h>

#include <csignal>

#include "apex/train/signals.hpp"

namespace apex::train {
namespace {

Kind kind_of(const checkpoint::Section& section) {
  try {
    plan_of(section);
  } catch (const Error& error) {
    return error.kind();
  }
  return Kind::state;  // nothing was thrown
}

TEST(BucketPlanSection, HoldsThePlanWhateverItsSize) {
  parallel::BucketPlan plan{{{4, 2}, {0}, {1, 3}}};
  EXPECT_EQ(plan_of(plan_section(plan)), plan);
  EXPECT_EQ(plan_of(plan_section({})), parallel::BucketPlan{});
  for (std::int32_t i = 0; i < 100'000; ++i) plan.buckets.push_back({5 + i});
  EXPECT_EQ(plan_of(plan_section(plan)), plan);
}

TEST(BucketPlanSection, ReadsTheAttributeOfOldFiles) {
  checkpoint::Section old;
  old.attributes["bucket_plan"] = std::vector<std::int64_t>{2, 1, 2, 7, 3, 5};
  EXPECT_EQ(plan_of(old), (parallel::BucketPlan{{{7}, {3, 5}}}));
}

TEST(BucketPlanSection, RefusesWhatIsNone) {
  EXPECT_EQ(kind_of({}), Kind::damaged);
  checkpoint::Section other = plan_section({{{0}}});
  other.tensors["bucket_plan"] = empty({2}, DType::f32, kCpu);
  EXPECT_EQ(kind_of(other), Kind::damaged);
}

TEST(Signals, HaveTheirNames) {
  EXPECT_EQ(signal_name(SIGUSR1), "USR1");
  EXPECT_EQ(signal_name(SIGTERM), "TERM");
  EXPECT_EQ(signal_name(4242), "4242");
}

}  // namespace
}  // namespace apex::train
