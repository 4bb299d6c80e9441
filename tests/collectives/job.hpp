// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "support/subprocess.hpp"

namespace apex::test {

/// The path that the build knows, unless the environment names another: on a GPU host programs may lie elsewhere.
inline std::string program(const char* variable, const char* built) {
  const char* other = std::getenv(variable);
  return other == nullptr ? built : other;
}

/// One job of the fault probe (APEX_FAULT_PROBE under APEX_MPIEXEC). Shared-memory files of MPI go to a folder of its
/// own, so that what a killed job leaves behind is the test's to remove.
class Job {
 public:
  Job(int ranks, const std::string& scenario, double timeout, const std::vector<std::string>& environment = {})
      : process_({program("APEX_MPIEXEC", APEX_MPIEXEC), "-n", std::to_string(ranks),
                  program("APEX_FAULT_PROBE", APEX_FAULT_PROBE), scenario, std::to_string(timeout)},
                 with_shm(environment)) {}
  ~Job() {
    for (const auto& [rank, pid] : pids())  // a failed test must not leave a stopped process
      if (process_exists(pid)) ::kill(pid, SIGKILL);
  }

  /// Waits for the "ready" lines of all ranks and gives their process ids.
  std::map<int, pid_t> wait_ready(std::size_t ranks, double seconds = 30) {
    process_.read_until([&](const std::string&) { return pids().size() == ranks; }, seconds);
    return pids();
  }
  bool finish(double seconds) {
    if (!process_.finish(seconds)) return false;
    // mpiexec may be gone a moment before the last rank is.
    for (int i = 0; i < 100 && survivors() > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return true;
  }
  int survivors() const {
    int n = 0;
    for (const auto& [rank, pid] : pids()) n += process_exists(pid);
    return n;
  }
  bool says(const std::string& words) const { return process_.output().find(words) != std::string::npos; }
  int count(const std::string& words) const {
    int n = 0;
    for (std::size_t at = 0; (at = process_.output().find(words, at)) != std::string::npos; ++at) ++n;
    return n;
  }
  const std::string& output() const { return process_.output(); }
  int exit_code() const { return process_.exit_code(); }
  Subprocess& process() { return process_; }

 private:
  std::vector<std::string> with_shm(std::vector<std::string> environment) const {
    environment.push_back("OMPI_MCA_btl_vader_backing_directory=" + shm_.path().string());
    return environment;
  }
  std::map<int, pid_t> pids() const {
    std::map<int, pid_t> found;
    std::istringstream lines(process_.output());
    for (std::string line; std::getline(lines, line);) {
      int rank = 0, pid = 0;
      if (std::sscanf(line.c_str(), "ready %d %d", &rank, &pid) == 2) found[rank] = pid;
    }
    return found;
  }

  TemporaryFolder shm_{"/dev/shm"};
  Subprocess process_;
};

#define EXPECT_SAYS(job, words) \
  EXPECT_TRUE((job).says(words)) << "should say: " << words << "\nbut said:\n" << (job).output()

/// The job's watchdog ended it in time, naming `what`, and nothing is left of it.
inline void expect_watchdog(Job& job, double limit, const std::string& what) {
  ASSERT_TRUE(job.finish(limit + 10)) << job.output();
  EXPECT_EQ(job.exit_code(), 7) << job.output();
  EXPECT_SAYS(job, "gave up after");
  EXPECT_SAYS(job, what);
  EXPECT_EQ(job.survivors(), 0);
}

}  // namespace apex::test
