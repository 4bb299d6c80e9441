// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// Fault matrix 16: data that do not divide by the ranks, and ranks without any. Nobody hangs, and every sample counts
// once. On 1 to 7 ranks, 0 to 9 samples.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "apex/collectives/session.hpp"
#include "apex/io/data/sampler.hpp"

namespace apex {
namespace {

using dist::ProcessGroup;
using dist::ReduceOp;

constexpr std::int64_t kMost = 9;

/// How often each sample was met, over all ranks.
std::vector<std::int64_t> counts_over(const ProcessGroup& world, const std::vector<std::int64_t>& ids) {
  std::vector<std::int64_t> counts(kMost + 1, 0);
  for (const auto id : ids) ++counts.at(static_cast<std::size_t>(id));
  world.all_reduce(std::span(counts), ReduceOp::sum);
  return counts;
}

TEST(Uneven, PaddedEvaluationCountsEverySampleOnce) {
  const auto world = ProcessGroup::world();
  for (std::int64_t size = 0; size <= kMost; ++size)
    for (const std::int64_t batch : {1, 2, 3}) {
      const auto make = [&] {
        return io::Sampler(
            {.size = size, .batch = batch, .world = world.size(), .rank = world.rank(), .drop_last = false});
      };
      if (size == 0) {
        EXPECT_THROW(make(), Error);  // on every rank alike
        continue;
      }
      const io::Sampler sampler = make();
      std::vector<std::int64_t> ids;
      std::int64_t steps = 0;
      for (; dist::all_have_next(steps < sampler.steps_per_epoch()); ++steps) {
        const auto slice = sampler.slice(0, steps);
        ids.insert(ids.end(), slice.ids.begin(), slice.ids.begin() + slice.valid);
        const Tensor sums = from_values<double>({2}, {double(slice.valid), 1});  // as a step does
        world.all_reduce(sums).wait();
        EXPECT_EQ(sums.data<double>()[1], world.size());
      }
      EXPECT_EQ(steps, sampler.steps_per_epoch()) << "every rank makes all steps";
      const auto counts = counts_over(world, ids);
      for (std::int64_t i = 0; i <= kMost; ++i)
        EXPECT_EQ(counts[static_cast<std::size_t>(i)], i < size)
            << "sample " << i << " of " << size << ", batch " << batch;
    }
}

TEST(Uneven, TrainingTakesWholeBatchesOnly) {
  const auto world = ProcessGroup::world();
  for (std::int64_t size = 0; size <= kMost; ++size) {
    const io::SamplerOptions options{.size = size, .batch = 1, .world = world.size(), .rank = world.rank()};
    if (size < world.size()) {
      EXPECT_THROW(io::Sampler{options}, Error);
      continue;
    }
    const io::Sampler sampler(options);
    std::vector<std::int64_t> ids;
    for (std::int64_t k = 0; dist::all_have_next(k < sampler.steps_per_epoch()); ++k)
      for (const auto id : sampler.slice(3, k).ids) ids.push_back(id);
    const auto counts = counts_over(world, ids);
    EXPECT_LE(*std::max_element(counts.begin(), counts.end()), 1);
    EXPECT_EQ(std::count(counts.begin(), counts.end(), 1), size / world.size() * world.size());
  }
}

/// Shards as files give them: rank r has the samples from r on, world apart; the last ranks may have none.
TEST(Uneven, ShardsOfAnyLength) {
  const auto world = ProcessGroup::world();
  for (std::int64_t size = 0; size <= kMost; ++size) {
    std::vector<std::int64_t> shard;
    for (std::int64_t i = world.rank(); i < size; i += world.size()) shard.push_back(i);
    std::size_t steps = 0;
    while (dist::all_have_next(steps < shard.size())) ++steps;
    EXPECT_EQ(steps, static_cast<std::size_t>(size / world.size())) << "as many as the shortest shard has";

    const auto all = counts_over(world, shard);
    EXPECT_EQ(std::count(all.begin(), all.end(), 1), size);
    std::string bytes;
    for (const auto i : shard) bytes += static_cast<char>('a' + i);
    const auto gathered = world.all_gather(bytes);
    for (int r = 0; r < world.size(); ++r) {
      std::string want;
      for (std::int64_t i = r; i < size; i += world.size()) want += static_cast<char>('a' + i);
      EXPECT_EQ(gathered[static_cast<std::size_t>(r)], want) << "of rank " << r;
    }
  }
}

/// A mean over all samples when the ranks hold different numbers of them: sums and counts are what travels.
TEST(Uneven, MeansWeighSamplesNotRanks) {
  const auto world = ProcessGroup::world();
  for (std::int64_t size = 1; size <= kMost; ++size) {
    double sums[2] = {0, 0};
    for (std::int64_t i = world.rank(); i < size; i += world.size()) sums[0] += double(i), sums[1] += 1;
    world.all_reduce(std::span<double>(sums), ReduceOp::sum);
    EXPECT_EQ(sums[1], double(size));
    EXPECT_EQ(sums[0] / sums[1], double(size - 1) / 2);
  }
}

}  // namespace
}  // namespace apex
