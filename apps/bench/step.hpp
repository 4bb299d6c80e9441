// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "peer.hpp"

namespace bench {

struct StepOptions {
  int rounds = 5;  ///< ours and the peer's in turn
  int steps = 5;   ///< a round; its median counts
  bool peer = false;
  std::string python = "python3";
};

/// Times a whole training step (forward, loss, backward, SGD with momentum) and prints one row.
/// @throws Kind::numerical when the timed steps did not learn their batch
void run_step(const StepCase& step, const StepOptions& options);

}  // namespace bench
