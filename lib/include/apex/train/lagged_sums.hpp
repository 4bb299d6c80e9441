// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "apex/collectives/process_group.hpp"

namespace apex::train {

class Readback;

/// Sums over the ranks that are read late, so that nobody stands still for them: on the CPU one step, on a GPU two (one
/// for the copy to the host, one for the reduction, which is MPI's). All ranks get the same values at the same call, so
/// what they decide from them they decide alike.
class LaggedSums {
 public:
  /// @param device  where the sums are
  explicit LaggedSums(dist::ProcessGroup group, Device device = kCpu);
  LaggedSums(const LaggedSums&) = delete;
  LaggedSums& operator=(const LaggedSums&) = delete;
  ~LaggedSums();

  struct Result {
    std::vector<double> sums;
    bool stop = false;             ///< some rank wished to stop
    std::int64_t bad_samples = 0;  ///< over all ranks
  };
  /// Takes one step's sums (f64, one dimension; they may be overwritten by what is queued later) together with this
  /// rank's wish to stop and its bad samples. On a GPU the thread goes on when the device is done with the step before:
  /// it never runs ahead by more. Collective. @returns what has become known since, oldest first
  std::vector<Result> push(const Tensor& sums, bool stop, std::int64_t bad_samples = 0);
  /// Collective. @returns what has not been given back yet
  std::vector<Result> drain();

 private:
  /// What a rank says beside its sums.
  struct Word {
    bool stop = false;
    std::int64_t bad_samples = 0;
  };
  void reduce(std::vector<double> values, const Word& word);
  void collect(std::vector<Result>& out);

  dist::ProcessGroup group_;
  std::unique_ptr<Readback> copy_;  // GPU: the newest sums on their way to the host
  Word word_;                       // what came with them
  Tensor pending_;                  // in reduction
  dist::Work work_;
};

}  // namespace apex::train
