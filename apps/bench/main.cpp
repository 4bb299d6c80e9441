// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// apex_bench: timings, beside PyTorch's where python has torch. `apex_bench step` times a whole training step.
#include <omp.h>

#include <iostream>

#include "apex/core/error.hpp"
#include "apex/train/option_set.hpp"
#include "step.hpp"

int main(int argc, char** argv) {
  std::string what, arch = "resnet20", python = "python3";
  std::int64_t image = 0, batch = 0, channels = 0, classes = 0, threads = omp_get_max_threads(), rounds = 5, steps = 5;
  bool peer = false;
  apex::train::OptionSet set("apex_bench", "Times apex: apex_bench step [--peer].");
  set.text("arch,a", arch, "resnet20, resnet18, resnet34 or resnet50");
  set.integer("image-size", image, "side of the input; 0: 28 for resnet20, else 224", 0, 4096);
  set.integer("batch-size,b", batch, "0: 128 for resnet20, else 16", 0, 1 << 20);
  set.integer("channels", channels, "0: 1 for resnet20, else 3", 0, 3);
  set.integer("classes", classes, "0: 10 for resnet20, else 1000", 0, 1 << 20);
  set.integer("threads", threads, "CPU threads", 1, 4096);
  set.integer("rounds", rounds, "ours and the peer's in turn", 1, 1000);
  set.integer("steps", steps, "steps a round", 1, 1000);
  set.flag("peer", peer, "time the same step in PyTorch, in turn");
  set.text("python", python, "the Python that has torch");
  set.positional("WHAT", what, "step");
  try {
    set.parse(argc, argv);
    if (set.help_wanted()) {
      std::cout << set.help();
      return apex::exit_code::kOk;
    }
    if (what != "step") throw apex::train::UsageError("WHAT must be: step");
  } catch (const apex::train::UsageError& error) {
    std::cerr << "apex_bench: " << error.what() << "; see apex_bench --help\n";
    return apex::exit_code::kUsage;
  }
  const bool small = arch == "resnet20";
  const auto or_else = [](std::int64_t given, int fallback) { return given > 0 ? static_cast<int>(given) : fallback; };
  try {
    bench::run_step(
        {.arch = arch,
         .image = or_else(image, small ? 28 : 224),
         .channels = or_else(channels, small ? 1 : 3),
         .classes = or_else(classes, small ? 10 : 1000),
         .batch = or_else(batch, small ? 128 : 16),
         .threads = static_cast<int>(threads)},
        {.rounds = static_cast<int>(rounds), .steps = static_cast<int>(steps), .peer = peer, .python = python});
    return apex::exit_code::kOk;
  } catch (const apex::Error& error) {
    std::cerr << "apex_bench: " << error.what() << '\n';
    return apex::exit_code_of(error.kind());
  }
}
