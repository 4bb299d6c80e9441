// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// Files whose metadata are wrong under right sums: what reaches HDF5 itself. Whatever HDF5 does with them, the reader
// answers. Run as one process.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <mpi.h>
#include <sys/wait.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "child.hpp"
#include "sample_tree.hpp"

namespace apex {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// The kind and text of the error that `work` meets in a child process; Kind::state and "" when it meets none.
std::pair<Kind, std::string> met(const std::function<void()>& work, unsigned cpu_seconds = 30) {
  try {
    io::try_in_child(work, cpu_seconds, "FILE");
  } catch (const Error& e) {
    return {e.kind(), e.what()};
  }
  return {Kind::state, ""};
}

TEST(Child, WhatHappensThereIsAnAnswerHere) {
  int touched = 0;
  EXPECT_EQ(met([&] { touched = 1; }).second, "");
  EXPECT_EQ(touched, 0) << "what a child changes is lost";
  EXPECT_EQ(met([] { fail(Kind::data, "no such thing"); }),
            (std::pair<Kind, std::string>{Kind::data, "no such thing"}));
  EXPECT_EQ(met([] { fail(Kind::damaged, std::string(100'000, 'x')); }).second, std::string(100'000, 'x'));
  EXPECT_EQ(met([] { throw std::out_of_range("beyond"); }).first, Kind::damaged);
  EXPECT_NE(met([] { throw std::bad_alloc(); }).second.find("FILE: damaged: its metadata ask for more memory"),
            std::string::npos);
  for (const auto& [number, name] : {std::pair{SIGSEGV, "SIGSEGV"}, {SIGABRT, "SIGABRT"}, {SIGFPE, "SIGFPE"}}) {
    const auto [kind, text] = met([&, n = number] { raise(n); });
    EXPECT_EQ(kind, Kind::damaged);
    EXPECT_EQ(text, concat("FILE: damaged: HDF5 crashed on its metadata (", name, ")"));
  }
}

TEST(Child, AnEndlessLoopEnds) {
  const auto start = Clock::now();
  const auto [kind, text] = met(
      [] {
        std::atomic<unsigned> i{0};
        for (;;) ++i;
      },
      1);
  EXPECT_EQ(kind, Kind::damaged);
  EXPECT_EQ(text, "FILE: damaged: HDF5 did not come to an end with its metadata in 1 s");
  EXPECT_LT(seconds_since(start), 15);
}

// The handlers of a program (and of MPI) are not asked, and nothing is left open or unwaited for.
TEST(Child, LeavesNothingBehind) {
  const int others = waitpid(-1, nullptr, WNOHANG);  // MPI may have a daemon of its own
  const int before = open("/dev/null", O_RDONLY);
  close(before);
  signal(SIGSEGV, [](int) { _exit(0); });
  EXPECT_NE(met([] { raise(SIGSEGV); }).second.find("SIGSEGV"), std::string::npos);
  signal(SIGSEGV, SIG_DFL);
  signal(SIGCHLD, SIG_IGN);  // some programs do: then nobody knows how a child ended
  EXPECT_EQ(met([] {}).second, "");
  EXPECT_NE(met([] { raise(SIGKILL); }).second.find("HDF5 crashed"), std::string::npos);
  signal(SIGCHLD, SIG_DFL);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), others) << "no child is left";
  const int after = open("/dev/null", O_RDONLY);
  close(after);
  EXPECT_EQ(before, after) << "no descriptor is left";
}

class Forged : public ::testing::Test {
 protected:
  Forged() : folder(concat("forged_", getpid())) {
    folder.own();
    io::Tree tree;
    tree.add("model/conv.weight", test::filled({4, 3, 3, 3}, DType::f32, 1), {{"kind", std::string("parameter")}});
    tree.add("model/fc.bias", test::filled({10}, DType::f64, 2));
    tree.add("model/half", test::filled({5}, DType::bf16, 3));
    tree.add("model/flags", test::filled({5}, DType::boolean, 4));
    tree.add("optimizer/0/groups/0/params", std::vector<std::string>{"conv.weight", "fc.bias"});
    auto& config = tree.group("config");
    config["path"] = std::string("/data");
    config["list"] = std::vector<std::int64_t>{1, 2, 3};
    config["words"] = std::vector<std::string>{"a", "bc"};
    config["yes"] = true;
    file = io::write_checkpoint(MPI_COMM_SELF, folder.path(), 5, tree).path;
    good = test::read_bytes(file);
    std::sscanf(good.c_str(), "apex-checkpoint 1\nbytes %zu\nmetadata %zu", &bytes, &metadata);
  }

  /// With a head whose sums are right.
  std::string sealed(std::string text) const {
    const std::uint64_t sum = XXH64(text.data() + 512, metadata - 512, 0);
    std::array<char, 512> head{};
    std::snprintf(head.data(), head.size(), "apex-checkpoint 1\nbytes %zu\nmetadata %zu\nxxh64 %016llx\n", bytes,
                  metadata, static_cast<unsigned long long>(sum));
    return text.replace(0, 512, head.data(), 512);
  }

  /// What open_checkpoint says; empty when it reads the file. Anything but damage is a failure.
  std::string answer(const std::string& text) {
    const auto path = folder.path() / "step_00000009.h5";
    test::write_bytes(path, text);
    try {
      const auto checkpoint = io::open_checkpoint(path);
      for (const auto& [name, info] : checkpoint.datasets())
        info.strings ? static_cast<void>(checkpoint.read_strings(name)) : static_cast<void>(checkpoint.read(name));
      return {};
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), Kind::damaged) << e.what();
      EXPECT_NE(std::string(e.what()).find(path.string()), std::string::npos) << e.what();
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
      return e.what();
    }
  }

  test::Folder folder;
  std::filesystem::path file;
  std::string good;
  std::size_t bytes = 0, metadata = 0;
};

TEST_F(Forged, TheHeadIsUnderstood) {
  EXPECT_EQ(sealed(good), good);
  EXPECT_EQ(answer(good), "");
}

// APEX_FUZZ_SECONDS bounds it; the sequence is the same each time, and as far as it goes, so is the result.
TEST_F(Forged, RandomMetadataUnderRightSumsAreAnswered) {
  const char* limit = std::getenv("APEX_FUZZ_SECONDS");
  const double seconds = limit ? std::atof(limit) : 5;
  std::mt19937 random(7);
  const auto pick = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  int rounds = 0, read = 0, crashed = 0;
  double slowest = 0;
  for (const auto start = Clock::now(); seconds_since(start) < seconds; ++rounds) {
    std::string bad = good;
    const auto at = [&] { return 512 + pick(metadata - 512); };
    switch (pick(4)) {
      case 0: bad[at()] = static_cast<char>(pick(256)); break;
      case 1:
        for (std::size_t i = 0, n = 1 + pick(8); i < n; ++i) bad[at()] ^= static_cast<char>(1 << pick(8));
        break;
      case 2: bad[at()] = static_cast<char>(std::array{0x00, 0x01, 0x7f, 0x80, 0xff}[pick(5)]); break;
      default: {
        const std::size_t from = at(), to = at(), n = std::min(metadata - std::max(from, to), 1 + pick(64));
        bad.replace(to, n, good.substr(from, n));
      }
    }
    const auto before = Clock::now();
    const auto said = answer(sealed(bad));
    slowest = std::max(slowest, seconds_since(before));
    read += said.empty();
    crashed += said.find("HDF5 crashed") != std::string::npos || said.find("come to an end") != std::string::npos;
    ASSERT_FALSE(HasFailure()) << "round " << rounds;
  }
  std::printf("%d files: %d read, %d refused, %d of them after HDF5 crashed or hung; the slowest took %.1f s\n", rounds,
              read, rounds - read, crashed, slowest);
  EXPECT_GE(rounds, 10) << "too few to mean anything";
  EXPECT_LT(slowest, 30);
  EXPECT_EQ(answer(good), "") << "and the reader still works";
}

}  // namespace
}  // namespace apex
