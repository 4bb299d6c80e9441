// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <mpi.h>

#include "apex/core/error.hpp"

namespace apex {

/// MPI reports plain int; the wrapper gives `check` a type of its own.
struct MpiStatus {
  int code;
};

template <>
struct StatusTraits<MpiStatus> {
  static constexpr Domain domain = Domain::mpi;
  static bool ok(MpiStatus status) { return status.code == MPI_SUCCESS; }
  static int code(MpiStatus status) { return status.code; }
  static Kind kind(MpiStatus) { return Kind::communication; }
  static std::string text(MpiStatus status);
};

/// A macro because a function cannot see its argument's text.
#define APEX_CHECK_MPI(call) ::apex::check(::apex::MpiStatus{(call)}, #call)

}  // namespace apex
