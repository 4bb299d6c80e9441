// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "agreement.hpp"

#include <new>
#include <optional>

#include "apex/core/error.hpp"

namespace apex::io {
namespace {

struct Outcome {
  Kind kind = Kind::state;
  std::string message;
};

std::optional<Outcome> run(const std::function<void()>& work) {
  try {
    work();
    return std::nullopt;
  } catch (const Error& e) {
    return Outcome{e.kind(), e.what()};
  } catch (const std::bad_alloc&) {
    return Outcome{Kind::exhausted, "checkpoint: out of memory"};
  } catch (const std::exception& e) {
    return Outcome{Kind::data, e.what()};
  }
}

}  // namespace

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(Kind::communication, Domain::mpi, code, concat("checkpoint: ", call, " failed: ", text));
}

std::string broadcast(MPI_Comm comm, const std::string& text, int root) {
  int size = static_cast<int>(text.size());
  check_mpi(MPI_Bcast(&size, 1, MPI_INT, root, comm), "MPI_Bcast");
  std::string result = text;
  result.resize(static_cast<std::size_t>(size));
  check_mpi(MPI_Bcast(result.data(), size, MPI_CHAR, root, comm), "MPI_Bcast");
  return result;
}

void together(MPI_Comm comm, const std::function<void()>& work) {
  int rank = 0, size = 1;
  check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  const auto outcome = run(work);
  int failed = outcome ? rank : size;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MIN, comm), "MPI_Allreduce");
  if (failed == size) return;
  int kind = outcome ? static_cast<int>(outcome->kind) : 0;
  check_mpi(MPI_Bcast(&kind, 1, MPI_INT, failed, comm), "MPI_Bcast");
  const auto message = broadcast(comm, outcome ? outcome->message : std::string(), failed);
  fail(static_cast<Kind>(kind), size > 1 ? concat(message, " (rank ", failed, ')') : message);
}

}  // namespace apex::io
