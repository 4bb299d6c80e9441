// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// The rows of `apex_bench ops` beside the op table, and those that take several ranks.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "apex/autograd/ops.hpp"
#include "support/subprocess.hpp"

namespace apex::test {
namespace {

/// Title of each row to the names of its ops.
std::map<std::string, std::set<std::string>> rows_of(const std::string& text) {
  std::map<std::string, std::set<std::string>> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto tab = line.find('\t');
    EXPECT_NE(tab, std::string::npos) << line;
    if (tab == std::string::npos) continue;
    const std::string title = line.substr(0, tab);
    EXPECT_EQ(rows.count(title), 0u) << "two rows of one title: " << title;
    auto& ops = rows[title];
    std::istringstream names(line.substr(tab + 1));
    for (std::string name; std::getline(names, name, ',');) ops.insert(name);
  }
  return rows;
}

TEST(BenchProgram, SaysItsVersionAndWhenNobodyCanReadIt) {
  Subprocess version({APEX_BENCH, "--version"});
  ASSERT_TRUE(version.finish(60));
  EXPECT_EQ(version.exit_code(), 0);
  EXPECT_TRUE(version.output().starts_with("apex_bench ")) << version.output();
  for (const std::string words : {"--version", "--help", "ops --help"}) {
    Subprocess full({"sh", "-c", std::string(APEX_BENCH) + ' ' + words + " >/dev/full"});
    ASSERT_TRUE(full.finish(60));
    EXPECT_EQ(full.exit_code(), 6) << words;
  }
}

/// A part that runs with others ends with them when one rank is asked for its help.
TEST(BenchProgram, HelpOfOneRankEndsTheJobInOrder) {
  for (const std::string part : {"step", "collectives", "optim"}) {
    Subprocess run(
        {APEX_MPIEXEC, "-n", "1", APEX_BENCH, part, "--device", "cpu", ":", "-n", "1", APEX_BENCH, part, "--help"});
    ASSERT_TRUE(run.finish(60)) << run.output();
    EXPECT_EQ(run.exit_code(), 0) << run.output();
    const auto usage = run.output().find("Usage: apex_bench " + part);
    EXPECT_NE(usage, std::string::npos) << run.output();
    EXPECT_EQ(usage, run.output().rfind("Usage: apex_bench " + part)) << run.output();
  }
}

TEST(BenchRows, EveryOpOfTheTableHasOne) {
  Subprocess process({APEX_BENCH, "ops", "--list", "--device", "cpu"});
  ASSERT_TRUE(process.finish(60));
  ASSERT_EQ(process.exit_code(), 0) << process.output();
  std::set<std::string> timed;
  for (const auto& [title, ops] : rows_of(process.output())) timed.insert(ops.begin(), ops.end());
  std::set<std::string> table;
  for (const OpRow& row : kOps) {
    table.insert(row.name);
    EXPECT_EQ(timed.count(row.name), 1u) << row.name << " has no row in apex_bench ops (apps/bench/ops_*.cpp)";
  }
  for (const std::string& name : timed) EXPECT_EQ(table.count(name), 1u) << name << " is no op of the table";
}

TEST(BenchRows, AListIsOfWhatWasAskedForAndRunsNothing) {
  Subprocess some({APEX_BENCH, "ops", "--list", "--device", "cpu", "--only", "softmax"});
  ASSERT_TRUE(some.finish(60));
  ASSERT_EQ(some.exit_code(), 0) << some.output();
  std::set<std::string> ops;
  for (const auto& [title, names] : rows_of(some.output()))
    if (title.find("softmax") != std::string::npos) ops.insert(names.begin(), names.end());
  EXPECT_EQ(ops, (std::set<std::string>{"log_softmax", "softmax"}));
  Subprocess both({APEX_BENCH, "ops", "--list", "--peer", "--device", "cpu"});
  ASSERT_TRUE(both.finish(60));
  EXPECT_EQ(both.exit_code(), 2) << both.output();
}

/// Both ways to step over two ranks: the program compares their parameters, and a rank keeps half of the state.
TEST(BenchRows, OptimOverRanksComparesReplicatedAndSpread) {
  const std::vector<std::string> launch{APEX_MPIEXEC, "-n",        "2", APEX_BENCH, "optim", "--device",
                                        "cpu",        "--threads", "1", "--runs",   "1"};
  const std::string json = ::testing::TempDir() + "/apex_bench_optim_" + std::to_string(getpid()) + ".json";
  auto words = launch;
  words.insert(words.end(), {"--only", "bert-large", "--json", json});
  Subprocess run(words);
  ASSERT_TRUE(run.finish(120)) << run.output();
  EXPECT_EQ(run.exit_code(), 0) << run.output();
  EXPECT_NE(run.output().find("1 rows, 0 wrong"), std::string::npos) << run.output();
  std::ifstream file(json);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::filesystem::remove(json);
  const auto number = [&](const std::string& key) {
    const auto at = text.find('"' + key + "\": ");
    return at == std::string::npos ? 0.0 : std::stod(text.substr(at + key.size() + 4));
  };
  EXPECT_GT(number("ddp_ms"), 0) << text;
  EXPECT_GT(number("zero_ms"), 0) << text;
  EXPECT_GT(number("ddp_state_bytes"), 8 * 334e6 / 64) << text;
  EXPECT_GE(number("zero_state_bytes"), 0.5 * number("ddp_state_bytes") * 0.999) << text;
  EXPECT_LT(number("zero_state_bytes"), 0.505 * number("ddp_state_bytes")) << text;
  auto unknown = launch;
  unknown.insert(unknown.end(), {"--only", "no such row"});
  Subprocess none(unknown);
  ASSERT_TRUE(none.finish(60)) << none.output();
  EXPECT_NE(none.exit_code(), 0) << none.output();
  EXPECT_NE(none.output().find("no row is left"), std::string::npos) << none.output();
}

}  // namespace
}  // namespace apex::test
