// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// apex_info: what this build is, what it runs on, and what it sees there. Needs neither a GPU nor mpirun.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <iomanip>
#include <iostream>
#include <string_view>

#include "apex/core/error.hpp"
#include "apex/core/program.hpp"
#include "apex/core/standard_streams.hpp"
#include "facts.hpp"

namespace info {
namespace {

constexpr const char* kHelp =
    "apex_info [--no-mpi] [--version]\n"
    "Prints versions, what is built in, the GPUs and the links between them, and facts of MPI.\n"
    "  --no-mpi  leave MPI alone (on a login node where it cannot start)\n";

void print(const Section& section) {
  if (section.facts.empty()) return;
  std::size_t width = 0;
  for (const auto& [name, value] : section.facts) width = std::max(width, name.size());
  std::cout << section.title << '\n';
  for (const auto& [name, value] : section.facts)
    std::cout << "  " << std::left << std::setw(static_cast<int>(width)) << name << "  " << value << '\n';
}

int run(int argc, char** argv) {
  bool with_mpi = true;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--help" || argument == "-h") {
      std::cout << kHelp;
      return apex::finish_output("apex_info", apex::exit_code::kOk);
    }
    if (argument == "--version") {
      std::cout << apex::version_text("apex_info");
      return apex::finish_output("apex_info", apex::exit_code::kOk);
    }
    if (argument != "--no-mpi" && argument != "--no_mpi") {
      std::cerr << "apex_info: unknown argument '" << argument << "'; see apex_info --help\n";
      return apex::exit_code::kUsage;
    }
    with_mpi = false;
  }
  int rank = 0, level = 0;
  Section mpi{"MPI", {{"not started", "--no-mpi"}}};
  if (with_mpi) {
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS) {
      std::cerr << "apex_info: MPI does not start here; --no-mpi leaves it alone\n";
      return apex::exit_code::kCommunication;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    mpi = mpi_facts();
  }
  if (rank == 0) {
    for (const auto& section : {versions(), built_in(), devices(), links(), mpi}) print(section);
    std::cout << std::flush;
  }
  if (with_mpi) MPI_Finalize();
  return apex::finish_output("apex_info", apex::exit_code::kOk);
}

}  // namespace
}  // namespace info

int main(int argc, char** argv) {
  apex::fill_standard_streams();
  return info::run(argc, argv);
}
