// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <random>

#include "apex/contrib/optimizers/shard_layout.hpp"
#include "apex/core/error.hpp"

namespace apex {
namespace {

using namespace contrib::optimizers;

TEST(ShardSize, FollowsTheCapAndTheAlignment) {  // OPT-10.A40
  EXPECT_EQ(shard_alignment(DType::f32), 32);
  EXPECT_EQ(shard_alignment(DType::bf16), 64);
  EXPECT_EQ(shard_size(DType::f32, 8, 100), 3276800);
  EXPECT_EQ(shard_size(DType::f32, 3, 100), 8738112);
  EXPECT_EQ(shard_size(DType::f32, 2, 800.0 / 1048576), 96);
  EXPECT_EQ(shard_size(DType::f32, 4, 71.0 / 4194304), 32) << "never less than one unit of alignment";
  EXPECT_EQ(shard_size(DType::f16, 4, 71.0 / 4194304), 64);
}

TEST(ShardSize, RefusesWhatIsNoSize) {
  for (const double cap : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")})
    EXPECT_THROW(shard_size(DType::f32, 2, cap), Error) << cap;
  EXPECT_THROW(shard_size(DType::f32, 0, 1), Error);
  EXPECT_THROW(ShardLayout(DType::f32, 2, 33), Error);
  EXPECT_THROW(ShardLayout(DType::f32, 0, 32), Error);
}

TEST(ShardLayout, PlacesThreeParametersAsRecorded) {  // OPT-10.A40
  ShardLayout layout(DType::f32, 2, shard_size(DType::f32, 2, 800.0 / 1048576));
  for (const std::int64_t n : {100, 7, 150}) layout.add(n);
  EXPECT_EQ(layout.bucket_size(), 192);
  ASSERT_EQ(layout.buckets(), 2);
  ASSERT_EQ(layout.fragments().size(), 4u);
  const auto& f = layout.fragments();
  EXPECT_EQ(f[0].in_bucket, (Range{0, 100}));
  EXPECT_EQ(f[1].in_bucket, (Range{128, 135}));
  EXPECT_EQ(f[2].in_bucket, (Range{160, 192}));
  EXPECT_EQ(f[2].in_param, (Range{0, 32}));
  EXPECT_EQ(f[3].bucket, 1);
  EXPECT_EQ(f[3].in_bucket, (Range{0, 118}));
  EXPECT_EQ(f[3].in_param, (Range{32, 150}));
  EXPECT_NEAR(layout.fill_ratio(), 310.0 / 384.0, 1e-15);

  const auto part = [&](std::size_t fragment, int rank) { return layout.local(fragment, rank); };
  EXPECT_EQ(part(0, 0)->in_param, (Range{0, 96}));
  EXPECT_FALSE(part(1, 0));
  EXPECT_FALSE(part(2, 0));
  EXPECT_EQ(part(3, 0)->in_param, (Range{32, 128}));
  EXPECT_EQ(part(0, 1)->in_param, (Range{96, 100}));
  EXPECT_EQ(part(0, 1)->in_shard, (Range{0, 4}));
  EXPECT_EQ(part(0, 1)->in_bucket, (Range{96, 100}));
  EXPECT_EQ(part(1, 1)->in_shard, (Range{32, 39}));
  EXPECT_EQ(part(2, 1)->in_param, (Range{0, 32}));
  EXPECT_EQ(part(2, 1)->in_shard, (Range{64, 96}));
  EXPECT_EQ(part(3, 1)->in_param, (Range{128, 150}));
  EXPECT_EQ(part(3, 1)->in_shard, (Range{0, 22}));
}

TEST(ShardLayout, EmptyParametersTakeNoPlace) {
  ShardLayout layout(DType::f32, 2, 32);
  layout.add(0);
  EXPECT_EQ(layout.buckets(), 0);
  EXPECT_EQ(layout.fill_ratio(), 1.0);
  layout.add(5);
  layout.add(0);
  EXPECT_EQ(layout.params(), 3);
  EXPECT_TRUE(layout.of_param(0).empty());
  EXPECT_EQ(layout.of_param(1).size(), 1u);
}

TEST(ShardLayout, AClosedBucketTakesNothingMore) {
  ShardLayout layout(DType::f32, 1, 64);
  layout.add(5);
  layout.close();
  layout.add(5);
  EXPECT_EQ(layout.buckets(), 2);
}

TEST(ShardLayout, EveryElementHasOnePlaceAndOneOwner) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 50; ++round) {
    const int ranks = static_cast<int>(random() % 5 + 1);
    const DType dtype = random() % 2 ? DType::f32 : DType::bf16;
    ShardLayout layout(dtype, ranks, shard_alignment(dtype) * static_cast<std::int64_t>(random() % 3 + 1));
    std::vector<std::int64_t> sizes;
    for (std::size_t i = random() % 12 + 1; i > 0; --i) sizes.push_back(static_cast<std::int64_t>(random() % 700));
    for (const auto n : sizes) layout.add(n);
    std::vector<std::vector<int>> taken(static_cast<std::size_t>(layout.buckets()),
                                        std::vector<int>(static_cast<std::size_t>(layout.bucket_size())));
    for (std::size_t p = 0; p < sizes.size(); ++p) {
      std::vector<int> owners(static_cast<std::size_t>(sizes[p]));
      std::int64_t next = 0;
      for (const std::size_t f : layout.of_param(static_cast<std::int64_t>(p))) {
        const Fragment& fragment = layout.fragments()[f];
        ASSERT_EQ(fragment.in_param.begin, next);
        ASSERT_EQ(fragment.in_param.size(), fragment.in_bucket.size());
        ASSERT_EQ(fragment.in_bucket.begin % shard_alignment(dtype), 0);
        next = fragment.in_param.end;
        for (auto i = fragment.in_bucket.begin; i < fragment.in_bucket.end; ++i)
          ASSERT_EQ(taken[static_cast<std::size_t>(fragment.bucket)][static_cast<std::size_t>(i)]++, 0);
        for (int r = 0; r < ranks; ++r)
          if (const auto part = layout.local(f, r)) {
            ASSERT_EQ(part->in_shard.size(), part->in_param.size());
            ASSERT_LE(part->in_shard.end, layout.shard());
            ASSERT_EQ(part->in_bucket.begin, part->in_shard.begin + r * layout.shard());
            for (auto i = part->in_param.begin; i < part->in_param.end; ++i) ++owners[static_cast<std::size_t>(i)];
          }
      }
      ASSERT_EQ(next, sizes[p]);
      for (const int count : owners) ASSERT_EQ(count, 1);
    }
  }
}

}  // namespace
}  // namespace apex
