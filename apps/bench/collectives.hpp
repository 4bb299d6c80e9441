// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>

#include "apex/collectives/session.hpp"

namespace bench {

struct CollectivesOptions {
  std::int64_t most_bytes = std::int64_t{256} << 20;
  int calls = 100;  ///< in one timing of a small size; a fifth of it above 1 MiB
  std::string json;
};

/// Times all_reduce from 1 KiB up beside a bare loop over the transport's own call (NCCL on CUDA, MPI on the CPU) on
/// the same communicator: ours in the caller's stream, and on a stream of its own and waited for at once (on the CPU
/// the two are alike). Bus GB/s as NCCL's tests count it: 2 (n - 1) / n bytes for each byte of the tensor.
/// @throws Kind::argument for a single rank, Kind::numerical when a sum is wrong
void run_collectives(const apex::dist::Session& session, const CollectivesOptions& options);

}  // namespace bench
