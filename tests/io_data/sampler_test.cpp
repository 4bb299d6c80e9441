// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/io/data/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "io_data/common.hpp"

namespace apex::io {
namespace {

using test::expect_error;
using Ids = std::vector<std::int64_t>;

TEST(Permutation, IsOneAndDependsOnSeedAndEpoch) {
  for (const std::int64_t n : {0, 1, 2, 7, 1000}) {
    Ids order = epoch_permutation(n, 3, 4);
    EXPECT_EQ(order, epoch_permutation(n, 3, 4));
    if (n == 1000) {
      EXPECT_NE(order, epoch_permutation(n, 3, 5));
      EXPECT_NE(order, epoch_permutation(n, 4, 4));
    }
    std::sort(order.begin(), order.end());
    for (std::int64_t i = 0; i < n; ++i) EXPECT_EQ(order[i], i);
  }
  expect_error(Kind::argument, {"-1"}, [] { epoch_permutation(-1, 0, 0); });
}

// All 24 orders of four equally often: chi-squared with 23 degrees of freedom is below 49.7 in 999 of 1000 cases.
TEST(Permutation, IsFair) {
  std::map<Ids, int> counts;
  const int epochs = 24000;
  for (int epoch = 0; epoch < epochs; ++epoch) ++counts[epoch_permutation(4, 99, epoch)];
  ASSERT_EQ(counts.size(), 24u);
  double chi = 0;
  for (const auto& [order, count] : counts) chi += std::pow(count - epochs / 24.0, 2) / (epochs / 24.0);
  EXPECT_LT(chi, 49.7);
}

// The recorded order is part of the promise: a run resumed by a later build must go on with the same samples.
TEST(Permutation, StaysTheSameFromBuildToBuild) {
  EXPECT_EQ(epoch_permutation(12, 1, 0), (Ids{1, 10, 4, 0, 9, 3, 7, 11, 6, 5, 8, 2}));
}

Ids all_of(const SamplerOptions& base, std::int64_t epoch, std::int64_t step) {
  Ids ids;
  for (int rank = 0; rank < base.world; ++rank) {
    SamplerOptions options = base;
    options.rank = rank;
    const auto slice = Sampler(options).slice(epoch, step);
    ids.insert(ids.end(), slice.ids.begin(), slice.ids.end());
  }
  return ids;
}

TEST(Sampler, RanksShareOnePermutation) {
  const std::int64_t n = 101;
  const Ids order = epoch_permutation(n, 5, 2);
  for (const int world : {1, 2, 3, 4, 6}) {
    const SamplerOptions options{.size = n, .batch = 12 / world, .world = world, .seed = 5};
    ASSERT_EQ(Sampler(options).steps_per_epoch(), 8);
    for (int step = 0; step < 8; ++step) {
      Ids ids = all_of(options, 2, step), expected(order.begin() + 12 * step, order.begin() + 12 * (step + 1));
      std::sort(ids.begin(), ids.end());
      std::sort(expected.begin(), expected.end());
      EXPECT_EQ(ids, expected) << world << " ranks, step " << step;  // the same set whatever the rank count
    }
    SamplerOptions last = options;
    last.rank = world - 1;
    const auto slice = Sampler(last).slice(2, 3);
    EXPECT_EQ(slice.valid, 12 / world);
    for (int i = 0; i < 12 / world; ++i) EXPECT_EQ(slice.ids[i], order[36 + i * world + world - 1]);
  }
}

// Operations 3.3, row 16: any count over any number of ranks; equal steps everywhere, each sample exactly once.
TEST(Sampler, PaddingCountsEverySampleOnce) {
  for (int world = 1; world <= 7; ++world)
    for (std::int64_t n = 1; n <= 23; ++n)
      for (const bool shuffle : {false, true}) {
        const SamplerOptions options{
            .size = n, .batch = 2, .world = world, .seed = 1, .shuffle = shuffle, .drop_last = false};
        const std::int64_t steps = Sampler(options).steps_per_epoch();
        EXPECT_EQ(steps, (n + 2 * world - 1) / (2 * world));
        Ids seen;
        for (int rank = 0; rank < world; ++rank) {
          SamplerOptions mine = options;
          mine.rank = rank;
          const Sampler sampler(mine);
          for (std::int64_t step = 0; step < steps; ++step) {
            const auto slice = sampler.slice(0, step);
            ASSERT_EQ(slice.ids.size(), 2u);
            for (std::int64_t i = 0; i < 2; ++i) {
              EXPECT_EQ(slice.ids[i] >= 0, i < slice.valid);
              if (slice.ids[i] >= 0) seen.push_back(slice.ids[i]);
            }
          }
        }
        std::sort(seen.begin(), seen.end());
        ASSERT_EQ(seen.size(), static_cast<std::size_t>(n));
        for (std::int64_t i = 0; i < n; ++i) EXPECT_EQ(seen[i], i);
      }
}

TEST(Sampler, AnyStepWithoutThoseBefore) {
  const SamplerOptions options{.size = 1000, .batch = 7, .world = 3, .rank = 1, .seed = 8};
  const Sampler sampler(options);
  std::vector<Ids> forward;
  for (std::int64_t step = 0; step < sampler.steps_per_epoch(); ++step) forward.push_back(sampler.slice(6, step).ids);
  EXPECT_EQ(Sampler(options).slice(6, 40).ids, forward[40]);
  EXPECT_EQ(sampler.slice(5, 0).ids, Sampler(options).slice(5, 0).ids);  // another epoch in between
  EXPECT_EQ(sampler.slice(7, 0).ids, Sampler(options).slice(7, 0).ids);
  EXPECT_EQ(sampler.slice(6, 11).ids, forward[11]);
}

TEST(Sampler, RefusesWhatCannotWork) {
  expect_error(Kind::argument, {"size is 0"}, [] { Sampler({.size = 0}); });
  expect_error(Kind::argument, {"batch is 0"}, [] { Sampler({.size = 5, .batch = 0}); });
  expect_error(Kind::argument, {"rank 2 of 2"}, [] { Sampler({.size = 5, .world = 2, .rank = 2}); });
  expect_error(Kind::data, {"5 samples", "6", "smaller batch"}, [] { Sampler({.size = 5, .batch = 3, .world = 2}); });
  const Sampler sampler({.size = 5, .batch = 2});
  expect_error(Kind::argument, {"step 2"}, [&] { sampler.slice(0, 2); });
  expect_error(Kind::argument, {"step -1"}, [&] { sampler.slice(0, -1); });
  expect_error(Kind::argument, {"epoch is -1"}, [&] { sampler.slice(-1, 0); });
}

}  // namespace
}  // namespace apex::io
