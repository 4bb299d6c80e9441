// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "apex/collectives/process_group.hpp"

namespace apex::train {

/// Sums over the ranks that are read one step late, so that nobody stands still for them. Each push() starts the
/// reduction of one step's sums together with this rank's wish to stop, and gives back the step before. All ranks get
/// the same values at the same push, so what they decide from them they decide alike.
class LaggedSums {
 public:
  explicit LaggedSums(dist::ProcessGroup group) : group_(std::move(group)) {}

  struct Result {
    std::vector<double> sums;
    bool stop = false;  ///< some rank wished to stop
  };
  /// Collective. @returns the previous push's result; nothing after the first push and after drain()
  std::optional<Result> push(const std::vector<double>& sums, bool stop);
  /// Collective. @returns the last push's result, if it has not been given back yet
  std::optional<Result> drain();

 private:
  dist::ProcessGroup group_;
  Tensor pending_;
  dist::Work work_;
};

}  // namespace apex::train
