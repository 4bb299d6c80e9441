// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <mpi.h>

#include <functional>
#include <string>

namespace apex::io {

/// Throws Kind::communication when an MPI call failed.
void check_mpi(int code, const char* call);

/// Runs `work` on every rank of `comm` and ends alike on all of them: when it throws on some, the error of the lowest
/// such rank is thrown on all. What `work` does must not wait for another rank.
void together(MPI_Comm comm, const std::function<void()>& work);

std::string broadcast(MPI_Comm comm, const std::string& text, int root);

}  // namespace apex::io
