// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// checkpoint_victim DIRECTORY FIRST COUNT [MEGABYTES [TIMEOUT [retry|full]]]: saves steps FIRST .. FIRST + COUNT - 1,
// for fault_test to kill, stop and starve. Prints "saved STEP" after each; with `retry` a failed save is tried once
// more, with `full` everything is read back.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "apex/checkpoint.hpp"
#include "apex/collectives/session.hpp"
#include "sample_tree.hpp"

namespace {

apex::checkpoint::Contents state(std::int64_t step, int megabytes) {
  apex::checkpoint::Contents contents;
  contents.step = step;
  for (int i = 0; i < 40; ++i)
    contents.sampler.tensors["small" + std::to_string(i)] = apex::test::filled({100 + i}, apex::DType::f32, 7u * i);
  for (int i = 0; i < megabytes; ++i)
    contents.sampler.tensors["large" + std::to_string(i)] = apex::test::filled({1 << 18}, apex::DType::f32, 1000u + i);
  return contents;
}

}  // namespace

int main(int argc, char** argv) {
  return apex::dist::run_main([&] {
    if (argc < 4) return apex::exit_code::kUsage;
    const long long first = std::atoll(argv[2]), count = std::atoll(argv[3]);
    const int megabytes = argc > 4 ? std::atoi(argv[4]) : 1;
    const double timeout = argc > 5 ? std::atof(argv[5]) : 60;
    const std::string mode = argc > 6 ? argv[6] : "";
    const bool retry = mode == "retry";
    const apex::dist::Session session({.timeout_s = timeout});
    const auto say = [&](const std::string& text) {
      if (session.rank() == 0) std::printf("%s\n", text.c_str());
      std::fflush(stdout);
    };
    say("pid " + std::to_string(getpid()));
    for (long long step = first; step < first + count; ++step) {
      const auto contents = state(step, megabytes);
      const apex::checkpoint::SaveOptions options{
          .verify = mode == "full" ? apex::io::Verify::full : apex::io::Verify::sample,
          .keep = 3,
          .best = step % 2 == 0};
      try {
        apex::checkpoint::save(argv[1], contents, options);
      } catch (const apex::Error& e) {
        if (!retry) throw;
        say(std::string("failed: ") + e.what());
        apex::checkpoint::save(argv[1], contents, options);
      }
      say("saved " + std::to_string(step));
    }
    return 0;
  });
}
