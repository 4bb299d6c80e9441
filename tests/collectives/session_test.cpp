// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "apex/collectives/session.hpp"
#include "support/tensors.hpp"

namespace apex::dist {
namespace {

TEST(Session, ASecondOneIsRefused) {
  try {
    Session second;
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), Kind::state);
    EXPECT_NE(std::string(e.what()).find("another Session"), std::string::npos);
  }
  ProcessGroup::world().barrier();  // the first still stands
}

TEST(Session, BadOptionsAreRefused) {
  const auto refused = [](const SessionOptions& options) {
    try {
      Session second(options);
    } catch (const Error& e) {
      return e.kind() == Kind::argument;
    }
    return false;
  };
  EXPECT_TRUE(refused({.timeout_s = 0}));
  EXPECT_TRUE(refused({.timeout_s = std::nan("")}));
  EXPECT_TRUE(refused({.expect_ranks = -1}));
  EXPECT_TRUE(refused({.max_count = 0}));
  EXPECT_TRUE(refused({.max_count = std::int64_t{1} << 31}));
  EXPECT_TRUE(refused({.device_index = -1}));
  EXPECT_TRUE(refused({.device = DeviceKind::cpu, .device_index = 0}));
}

TEST(Session, RanksOfTheNode) {
  const auto world = ProcessGroup::world();
  int size = 0, rank = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  EXPECT_EQ(world.size(), size);
  EXPECT_EQ(world.rank(), rank);
  EXPECT_EQ(world.world_rank(rank), rank);
  EXPECT_THROW((void)world.world_rank(size), Error);
}

TEST(Watch, LaunchesThatEndInTimeDoNothing) {
  watch(test::context(), "a launch");  // on the CPU there is nothing to watch
  const Tensor t = test::from_function({1000}, DType::f32, test::device(), [](auto) { return 1.0; });
  ProcessGroup::world().all_reduce(t).wait();
  watch(test::context(), "another launch");
  EXPECT_EQ(test::to_f64(t)[999], ProcessGroup::world().size());
}

TEST(Deadline, AScopeThatEndsInTimeDoesNothing) {
  {
    const Deadline outer("an outer scope", 30);
    const Deadline inner("a short one", 0.2);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
}

/// Signals blocked in a thread of this process, as the kernel tells it.
std::uint64_t blocked_signals(const std::filesystem::path& task) {
  std::ifstream status(task / "status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("SigBlk:", 0) == 0) return std::stoull(line.substr(7), nullptr, 16);
  return 0;
}

TEST(Threads, OursReceiveNoSignals) {
  const std::uint64_t usr1 = std::uint64_t{1} << (SIGUSR1 - 1), term = std::uint64_t{1} << (SIGTERM - 1);
  int quiet = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
    quiet += (blocked_signals(task.path()) & (usr1 | term)) == (usr1 | term);
  const char* mode = std::getenv("APEX_TEST_SESSION");
  const bool threaded = mode == nullptr || std::string(mode).find("funneled") == std::string::npos;
  EXPECT_GE(quiet, threaded ? 2 : 1) << "watchdog and progress thread";
  EXPECT_EQ(blocked_signals("/proc/self") & (usr1 | term), 0u) << "the main thread does";
}

}  // namespace
}  // namespace apex::dist
