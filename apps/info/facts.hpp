// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace info {

/// A title and what is under it: a name and a value a line.
struct Section {
  std::string title;
  std::vector<std::pair<std::string, std::string>> facts;
};

/// Versions of the program and of the libraries beneath, at compile and run time.
Section versions();
/// What this build can do.
Section built_in();
/// The GPUs this process sees; one fact, the reason, where there are none.
Section devices();
/// How GPUs reach each other; empty with fewer than two.
Section links();
/// MPI's, after MPI_Init_thread.
Section mpi_facts();

}  // namespace info
