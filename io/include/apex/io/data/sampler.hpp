// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace apex::io {

/// 0 .. n-1 in an order that depends on (n, seed, epoch) alone: Fisher-Yates with Philox words.
std::vector<std::int64_t> epoch_permutation(std::int64_t n, std::uint64_t seed, std::int64_t epoch);

struct SamplerOptions {
  std::int64_t size = 0;   ///< samples of the data set
  std::int64_t batch = 1;  ///< samples per rank and step
  int world = 1;
  int rank = 0;
  std::uint64_t seed = 0;
  bool shuffle = true;    ///< false: 0, 1, 2, ...
  bool drop_last = true;  ///< true: whole batches only (training); false: the last one is padded (evaluation)
};

/// One rank's share of one global batch.
struct SampleSlice {
  std::vector<std::int64_t> ids;  ///< `batch` of them; -1 marks padding, which is always at the end
  std::int64_t valid = 0;         ///< how many are real
};

/// Which samples a rank takes at a step. The order of an epoch is one permutation for all ranks; global batch k holds
/// its positions k*B to (k+1)*B, B = world * batch, and rank r takes k*B + i*world + r for i = 0 .. batch-1. So the
/// global batch is the same set for any number of ranks, every rank makes the same number of steps, each sample is met
/// at most once (exactly once with padding), and any step can be had without those before it.
class Sampler {
 public:
  /// @throws Kind::argument on sizes below 1 or a rank outside the world; Kind::data when drop_last leaves no batch
  explicit Sampler(const SamplerOptions& options);

  const SamplerOptions& options() const noexcept { return options_; }
  std::int64_t global_batch() const noexcept { return options_.batch * options_.world; }
  std::int64_t steps_per_epoch() const noexcept { return steps_; }

  /// Thread-safe; keeps the two permutations used last. @throws Kind::argument on a step or an epoch out of range
  SampleSlice slice(std::int64_t epoch, std::int64_t step) const;

 private:
  using Order = std::shared_ptr<const std::vector<std::int64_t>>;
  struct Cache;
  Order order(std::int64_t epoch) const;

  SamplerOptions options_;
  std::int64_t steps_ = 0;
  std::shared_ptr<Cache> cache_;
};

}  // namespace apex::io
