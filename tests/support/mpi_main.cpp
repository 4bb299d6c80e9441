// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// main() of every test that runs under mpiexec. Rank 0 prints as usual; the other ranks are silent but for failures,
// which go to stderr under their rank. Every rank exits alike. Until a test's last collective, ASSERT_ only what is
// equal on all ranks: a rank that leaves early lets the others wait.
//
// APEX_TEST_SESSION runs the same program in another mode: words separated by commas out of
//   deterministic  debug  funneled  max_count=N  timeout=SECONDS
//   shared (all ranks on GPU 0, tensors by way of the host)
// APEX_TEST_DEVICE=cuda runs it on GPUs, one for each rank of this host: 77 (skipped) where there are fewer; none at
// all is a failure with APEX_REQUIRE_CUDA=1.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

#include "apex/collectives/session.hpp"
#include "support/session_device.hpp"

namespace {

class FailuresOfOtherRanks : public ::testing::EmptyTestEventListener {
 public:
  explicit FailuresOfOtherRanks(int rank) : rank_(rank) {}

 private:
  void OnTestStart(const ::testing::TestInfo& info) override {
    name_ = std::string(info.test_suite_name()) + '.' + info.name();
  }
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "[rank %d] %s: %s:%d: %s\n", rank_, name_.c_str(),
                 result.file_name() ? result.file_name() : "?", result.line_number(), result.message());
  }

  int rank_;
  std::string name_;
};

apex::dist::SessionOptions session_options() {
  apex::dist::SessionOptions options{.timeout_s = 60, .device = apex::test::session_device()};
  const char* text = std::getenv("APEX_TEST_SESSION");
  std::istringstream words(text ? text : "");
  for (std::string word; std::getline(words, word, ',');) {
    const auto equals = word.find('=');
    const double value = equals == std::string::npos ? 0 : std::stod(word.substr(equals + 1));
    const std::string name = word.substr(0, equals);
    if (name == "deterministic")
      options.deterministic = true;
    else if (name == "debug")
      options.debug = true;
    else if (name == "funneled")
      options.thread_level = MPI_THREAD_FUNNELED;
    else if (name == "max_count")
      options.max_count = static_cast<std::int64_t>(value);
    else if (name == "timeout")
      options.timeout_s = value;
    else if (name == "shared" && options.device == apex::DeviceKind::cuda)
      options.allow_shared_device = true, options.device_index = 0;
    else
      apex::fail(apex::Kind::argument, apex::concat("APEX_TEST_SESSION: unknown word '", word, "'"));
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  return apex::dist::run_main([&] {
    ::testing::InitGoogleTest(&argc, argv);
    const char* mode = std::getenv("APEX_TEST_SESSION");
    const bool share = mode != nullptr && std::string(mode).find("shared") != std::string::npos;
    if (const int code = apex::test::code_without_devices(share)) return code;
    apex::dist::Session session(argc, argv, session_options());
    if (session.device().is_cuda())  // test::device() is this rank's own
      setenv("APEX_TEST_DEVICE", apex::to_string(session.device()).c_str(), 1);
    if (session.rank() != 0) {
      auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
      delete listeners.Release(listeners.default_result_printer());
      listeners.Append(new FailuresOfOtherRanks(session.rank()));
    }
    const int failed = RUN_ALL_TESTS();
    return static_cast<int>(session.world().all_reduce(std::int64_t{failed}, apex::dist::ReduceOp::max, "test result"));
  });
}
