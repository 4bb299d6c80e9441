// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// apex_info: what this build is, what it runs on, and what it sees there. Needs neither a GPU nor mpirun.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iomanip>
#include <iostream>
#include <string>
#include <string_view>

#include "apex/core/error.hpp"
#include "apex/core/program.hpp"
#include "apex/core/standard_streams.hpp"
#include "apex/train/runtime.hpp"
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

/// With others in the job MPI starts all the same, and all end when one of them was asked for a text: it is printed
/// once. @param text  empty: this rank was asked for nothing. @returns whether that is all there was to do
bool say(const std::string& text, int rank) {
  std::array<char, 1024> words{};  // of the first rank that has some
  text.copy(words.data(), words.size() - 1);
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int first = text.empty() ? size : rank;
  MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (first == size) return false;
  MPI_Bcast(words.data(), static_cast<int>(words.size()), MPI_CHAR, first, MPI_COMM_WORLD);
  if (rank == 0) std::cout << words.data();
  return true;
}

int run(int argc, char** argv) {
  bool with_mpi = true;
  std::string text;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--help" || argument == "-h" || argument == "--version") {
      text = argument == "--version" ? apex::version_text("apex_info") : kHelp;
      break;
    }
    if (argument != "--no-mpi" && argument != "--no_mpi") {
      std::cerr << "apex_info: unknown argument '" << argument << "'; see apex_info --help\n";
      return apex::exit_code::kUsage;
    }
    with_mpi = false;
  }
  if (!text.empty() && !(with_mpi && apex::train::launched_with_others())) {
    std::cout << text;
    return apex::finish_output("apex_info", apex::exit_code::kOk);
  }
  int rank = 0, level = 0;
  Section mpi{"MPI", {{"not started", "--no-mpi"}}};
  if (with_mpi) {
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS) {
      std::cerr << "apex_info: MPI does not start here; --no-mpi leaves it alone\n";
      return apex::exit_code::kCommunication;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (say(text, rank)) {
      MPI_Finalize();
      return apex::finish_output("apex_info", apex::exit_code::kOk);
    }
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
