// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <cstdlib>
#include <string>

#include "apex/collectives/session.hpp"

namespace apex::dist {
namespace {

/// The variable as a number; -1 when unset or no number.
int number(const Environment& environment, const char* name) {
  const char* text = environment(name);
  if (text == nullptr || *text == '\0') return -1;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  return *end == '\0' && value >= 0 && value <= 0x7fffffff ? static_cast<int>(value) : -1;
}

constexpr const char* kAdvice =
    "start with `srun --mpi=pmix` (see `srun --mpi=list`) or with the mpirun of the MPI that apex was built with";

}  // namespace

const char* process_environment(const char* name) { return std::getenv(name); }

// SLURM_NTASKS is not looked at: it describes an interactive allocation too, in which one process alone is right.
std::optional<std::string> launcher_problem(int world_size, int expect_ranks, const Environment& environment) {
  if (world_size == 1) {
    for (const char* name : {"SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
      const int tasks = number(environment, name);
      if (tasks > 1)
        return concat("the launcher started ", tasks, " tasks (", name,
                      "), but MPI sees only this one: each would train "
                      "alone; ",
                      kAdvice);
    }
    const int rank = number(environment, "PMIX_RANK");
    if (rank > 0)
      return concat("the launcher calls this task rank ", rank,
                    " (PMIX_RANK), but MPI sees only one task: each would "
                    "train alone; ",
                    kAdvice);
  }
  if (expect_ranks > 0 && world_size != expect_ranks)
    return concat(expect_ranks, " ranks were expected (--expect-ranks), but MPI started ", world_size, "; ", kAdvice);
  return std::nullopt;
}

std::optional<std::string> launcher_problem_before_mpi(const Environment& environment) {
  const int tasks = number(environment, "SLURM_STEP_NUM_TASKS");
  if (tasks <= 1) return std::nullopt;
  for (const char* name : {"PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_SIZE"})
    if (environment(name) != nullptr) return std::nullopt;
  return concat("Slurm started ", tasks,
                " tasks (SLURM_STEP_NUM_TASKS) without a way for them to find each other: each "
                "would train alone; ",
                kAdvice);
}

}  // namespace apex::dist
