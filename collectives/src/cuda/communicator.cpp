// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "communicator.hpp"

#include <cstdlib>

#include "../engine.hpp"
#include "apex/collectives/mpi.hpp"

namespace apex {

Kind StatusTraits<ncclResult_t>::kind(ncclResult_t status) noexcept {
  switch (status) {
    case ncclInvalidArgument:
    case ncclInvalidUsage: return Kind::state;
    default: return Kind::communication;
  }
}

std::string StatusTraits<ncclResult_t>::text(ncclResult_t status) {
  std::string words = ncclGetErrorString(status);
  const char* last = ncclGetLastError(nullptr);
  if (last != nullptr && *last != '\0') words += concat("; NCCL says: ", last);
  for (char& c : words)
    if (c == '\n') c = ' ';
  return words;
}

namespace dist {

std::string nccl_version() {
  int code = 0;
  APEX_CHECK(ncclGetVersion(&code));
  return concat(code / 10000, '.', code / 100 % 100, '.', code % 100);
}

bool nccl_orders_communicators() {
  int code = 0;
  APEX_CHECK(ncclGetVersion(&code));
  const char* wanted = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  return code >= 22600 && wanted != nullptr && std::strtol(wanted, nullptr, 0) != 0;
}

namespace detail {
namespace {

/// Waits until what a non-blocking communicator was asked to do is done.
void settle(ncclComm_t comm, const char* what) {
  Backoff backoff;
  for (;;) {
    ncclResult_t state = ncclSuccess;
    APEX_CHECK(ncclCommGetAsyncError(comm, &state));
    if (state != ncclInProgress) return check(state, what);
    backoff.pause();
  }
}

}  // namespace

Communicator Communicator::bootstrap(MPI_Comm comm) {
  int rank = 0, size = 1;
  APEX_CHECK_MPI(MPI_Comm_rank(comm, &rank));
  APEX_CHECK_MPI(MPI_Comm_size(comm, &size));
  ncclUniqueId id{};
  if (rank == 0) APEX_CHECK(ncclGetUniqueId(&id));
  APEX_CHECK_MPI(MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, comm));
  // An MPI may leave a broadcast unfinished until its next call, and NCCL makes none.
  APEX_CHECK_MPI(MPI_Barrier(comm));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t made = nullptr;
  APEX_CHECK(ncclCommInitRankConfig(&made, size, id, rank, &config));
  settle(made, "ncclCommInitRankConfig");
  return {made, false};
}

Communicator Communicator::split(int color, int key, bool blocking) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  ncclComm_t made = nullptr;
  APEX_CHECK(ncclCommSplit(comm_, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &made, &config));
  settle(comm_, "ncclCommSplit");  // only then is `made` written
  if (made != nullptr) settle(made, "ncclCommSplit");
  return {made, blocking};
}

void Communicator::destroy() noexcept {
  ncclComm_t comm = std::exchange(comm_, nullptr);
  if (comm == nullptr) return;
  try {
    APEX_CHECK(ncclCommFinalize(comm));
    if (!blocking_) settle(comm, "ncclCommFinalize");
    APEX_CHECK(ncclCommDestroy(comm));
  } catch (const std::exception& e) {
    log_warning(concat("ending an NCCL communicator failed: ", e.what()));
  }
}

}  // namespace detail
}  // namespace dist
}  // namespace apex
