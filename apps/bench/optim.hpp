// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "apex/collectives/session.hpp"
#include "apex/optimizers/optimizer.hpp"
#include "suite.hpp"

namespace bench {

/// How many numbers each tensor of a model has, in the model's order.
struct Sizes {
  std::string name;
  std::vector<std::int64_t> counts;
  std::int64_t total() const { return std::accumulate(counts.begin(), counts.end(), std::int64_t{0}); }
};
Sizes resnet50();
/// BERT-large's encoder with its embeddings (Devlin et al. 2018): 334 million numbers.
Sizes bert_large();

std::vector<apex::Tensor> tensors(const Sizes& sizes, apex::DType dtype, apex::Device device);
/// Uniform numbers in [low, 1), the same on every device for the same seed.
void refill(const std::vector<apex::Tensor>& list, std::uint64_t seed, double low = -1);

inline double one(const apex::Tensor& t, std::int64_t i) { return values_of(apex::views::narrow(t, 0, i, 1))[0]; }

/// First, middle and last element of every eleventh tensor.
template <class F>
void sample(const std::vector<apex::Tensor>& list, F&& f) {
  for (std::size_t t = 0; t < list.size(); t += 11)
    for (const std::int64_t i : {std::int64_t{0}, list[t].numel() / 2, list[t].numel() - 1}) f(t, i);
}

/// Bytes of state that this rank keeps.
double state_bytes(const apex::optimizers::Optimizer& optimizer);

struct RankedOptimOptions {
  std::string only, skip;  ///< as SuiteOptions
  bool list = false;       ///< only print the titles
  int runs = 20;           ///< steps in one timing; five timings of each side
  double bucket_mb = 25;   ///< buckets of both sides
  std::string json;
};

/// The rows of `apex_bench optim` over several ranks. One step is a backward that gives each parameter its gradient,
/// the last parameter first, and the update, in two ways that take turns: DistributedDataParallel with FusedAdam, and
/// DistributedFusedAdam, which reduces gradients while backward goes on. Beside the times: the bytes of optimizer state
/// of each on a rank. Then the parameters of both are compared with each other, and samples with Adam in double.
/// @throws Kind::numerical when they differ
void run_ranked_optim(const apex::dist::Session& session, const RankedOptimOptions& options);

}  // namespace bench
