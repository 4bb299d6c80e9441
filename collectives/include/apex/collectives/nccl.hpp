// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <nccl.h>

#include <string>

#include "apex/collectives/process_group.hpp"
#include "apex/core/context.hpp"
#include "apex/core/error.hpp"

/// NCCL beneath a process group. Only in builds with the CUDA backend.
namespace apex {

template <>
struct StatusTraits<ncclResult_t> {
  static constexpr Domain domain = Domain::nccl;
  /// ncclInProgress is no failure: whoever uses a non-blocking communicator polls it.
  static bool ok(ncclResult_t status) noexcept { return status == ncclSuccess || status == ncclInProgress; }
  static int code(ncclResult_t status) noexcept { return static_cast<int>(status); }
  static Kind kind(ncclResult_t status) noexcept;
  /// With NCCL's own words on the last error.
  static std::string text(ncclResult_t status);
};

namespace dist {

/// The communicator of this channel (group and purpose), owned by the Session, blocking. Null for a group of one rank,
/// on the CPU, and where ranks share a GPU. What is issued on it by hand must be ordered, on all ranks alike, with
/// the collectives of this channel.
ncclComm_t nccl_comm(const ProcessGroup& group);
/// The stream that this channel's collectives run on, unless they are issued in_stream(). @throws Kind::state where
/// nccl_comm is null
Context nccl_stream(const ProcessGroup& group);
/// "2.28.9", of the library that was loaded.
std::string nccl_version();
/// Whether NCCL starts the kernels of several communicators in the order they were issued, as 2.26 and later do unless
/// NCCL_LAUNCH_ORDER_IMPLICIT=0. If not, kernels that hold the GPU's multiprocessors could wait for each other for
/// ever; so each collective of the job then waits for the one issued before it, on whatever channel, and all ranks must
/// use all channels in one order. Known once a Session exists.
bool nccl_orders_communicators();

}  // namespace dist
}  // namespace apex
