// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <mpi.h>

#include <utility>

#include "apex/collectives/nccl.hpp"

namespace apex::dist::detail {

/// Owns an NCCL communicator. The device must be the thread's own already.
class Communicator {
 public:
  Communicator() = default;
  Communicator(Communicator&& other) noexcept
      : comm_(std::exchange(other.comm_, nullptr)), blocking_(other.blocking_) {}
  Communicator& operator=(Communicator other) noexcept {
    std::swap(comm_, other.comm_);
    std::swap(blocking_, other.blocking_);
    return *this;
  }
  ~Communicator() { destroy(); }

  /// Connects the ranks of `comm`, which carries the id. Non-blocking: a peer that never comes is the watchdog's
  /// business, and this communicator is for splitting only. Collective.
  static Communicator bootstrap(MPI_Comm comm);
  /// Ranks with one color form a communicator, ordered by key; null for those with a negative one. The result blocks
  /// (a call returns when its kernel is queued, so an event recorded after it is after the kernel), unless it is to be
  /// split further. Collective over this one, on which nothing may be in flight.
  Communicator split(int color, int key, bool blocking);

  ncclComm_t get() const noexcept { return comm_; }
  explicit operator bool() const noexcept { return comm_ != nullptr; }
  /// Collective. Never throws.
  void destroy() noexcept;

 private:
  Communicator(ncclComm_t comm, bool blocking) noexcept : comm_(comm), blocking_(blocking) {}

  ncclComm_t comm_ = nullptr;
  bool blocking_ = true;
};

}  // namespace apex::dist::detail
