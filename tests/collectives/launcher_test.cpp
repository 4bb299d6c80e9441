// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "apex/collectives/session.hpp"

namespace apex::dist {
namespace {

using Variables = std::map<std::string, std::string>;

Environment of(const Variables& variables) {
  return [&variables](const char* name) -> const char* {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second.c_str();
  };
}

std::string problem(const Variables& variables, int world_size = 1, int expect = 0) {
  return launcher_problem(world_size, expect, of(variables)).value_or("");
}

TEST(Launcher, OneRankAloneIsFine) {
  EXPECT_EQ(problem({}), "");
  EXPECT_EQ(problem({{"OMPI_COMM_WORLD_SIZE", "1"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"PMIX_RANK", "0"}}), "");
}

TEST(Launcher, AnInteractiveAllocationIsNoProblem) { EXPECT_EQ(problem({{"SLURM_NTASKS", "8"}}), ""); }

// Fault matrix 14.
TEST(Launcher, SeveralTasksThatMpiDoesNotSee) {
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const std::string text = problem({{name, "4"}});
    EXPECT_NE(text.find("4 tasks"), std::string::npos) << name;
    EXPECT_NE(text.find(name), std::string::npos);
    EXPECT_NE(text.find("--mpi=pmix"), std::string::npos);
    EXPECT_EQ(text.find('\n'), std::string::npos) << "one line";
    EXPECT_EQ(problem({{name, "4"}}, 4), "") << "MPI sees them";
  }
}

TEST(Launcher, ARankAboveZeroAlone) {
  EXPECT_NE(problem({{"PMIX_RANK", "3"}}).find("rank 3"), std::string::npos);
  EXPECT_EQ(problem({{"PMIX_RANK", "3"}}, 4), "");
}

TEST(Launcher, UnreadableNumbersAreIgnored) {
  EXPECT_EQ(problem({{"PMI_SIZE", ""}, {"OMPI_COMM_WORLD_SIZE", "4x"}, {"PMIX_RANK", "-1"}}), "");
}

TEST(Launcher, ExpectedRanks) {
  EXPECT_EQ(problem({}, 4, 4), "");
  EXPECT_EQ(problem({}, 4, 0), "");
  const std::string text = problem({}, 2, 4);
  EXPECT_NE(text.find("4 ranks were expected"), std::string::npos);
  EXPECT_NE(text.find("MPI started 2"), std::string::npos);
  EXPECT_NE(problem({}, 1, 2), "");
}

TEST(Launcher, SlurmWithoutAWayToMeetIsSeenBeforeMpi) {
  const auto before = [](const Variables& v) { return launcher_problem_before_mpi(of(v)).value_or(""); };
  EXPECT_EQ(before({}), "");
  EXPECT_EQ(before({{"SLURM_STEP_NUM_TASKS", "1"}}), "");
  EXPECT_NE(before({{"SLURM_STEP_NUM_TASKS", "4"}}).find("--mpi=pmix"), std::string::npos);
  for (const char* name : {"PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_SIZE"})
    EXPECT_EQ(before({{"SLURM_STEP_NUM_TASKS", "4"}, {name, "0"}}), "") << name;
}

}  // namespace
}  // namespace apex::dist
