// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// The index arithmetic of the CUDA kernels, on the host: no device and no memory needed, whatever the size.
#include "cuda/elementwise_index.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace apex::kernels::cuda {
namespace {

/// Offset of row-major position p, by the definition.
std::int64_t offset_of(const Dims& sizes, const Dims& strides, std::int64_t p) {
  std::int64_t offset = 0;
  for (int d = sizes.size() - 1; d >= 0; --d) {
    offset += p % sizes[d] * strides[d];
    p /= sizes[d];
  }
  return offset;
}

TEST(Divider, DividesEveryKindOfNumber) {
  for (const std::uint32_t divisor : {1u, 2u, 3u, 5u, 7u, 31u, 32u, 33u, 255u, 641u, 65535u, 65536u, 65537u, 1000003u,
                                      0x3fffffffu, 0x40000000u, 0x40000001u, 0x7ffffffeu, 0x7fffffffu})
    for (const std::uint32_t near : {0u, divisor - 1, divisor, divisor + 1, 2 * divisor - 1, 1000000007u, 0x7fffffffu})
      for (const std::uint32_t n : {near, near / 2, near / 3 * 2}) {
        if (n <= 0x7fffffffu) {
          ASSERT_EQ(Divider(divisor).quotient(n), n / divisor) << n << '/' << divisor;
        }
      }
}

TEST(Index, MergesWhatAdvancesAsOne) {
  const Dims sizes{4, 1, 5, 6};
  EXPECT_EQ(make_index<1>(sizes, {strides_for(sizes)}).rank, 1);
  const Dims last = strides_for(sizes, MemoryFormat::channels_last);
  EXPECT_EQ(make_index<1>({4, 7, 5, 6}, {strides_for({4, 7, 5, 6}, MemoryFormat::channels_last)}).rank, 1);
  EXPECT_EQ(
      (make_index<2>({4, 7, 5, 6}, {strides_for({4, 7, 5, 6}, MemoryFormat::channels_last), strides_for({4, 7, 5, 6})}))
          .rank,
      3);
  EXPECT_EQ(make_index<1>(sizes, {last}).rank, 1);
  const auto bias = make_index<2>({4, 7, 5, 6}, {strides_for({4, 7, 5, 6}, MemoryFormat::channels_last), {0, 1, 0, 0}});
  EXPECT_EQ(bias.rank, 2);
  EXPECT_EQ(bias.size[0], 7);
  EXPECT_EQ(bias.stride[1][1], 0);
  const auto scalar = make_index<1>({}, {Dims{}});
  EXPECT_EQ(scalar.numel, 1);
  EXPECT_EQ(scalar.at(0).v[0], 0);
  EXPECT_EQ(make_index<1>({3, 0}, {Dims{1, 1}}).numel, 0);
}

TEST(Index, VisitsEveryElementOnce) {
  const Dims sizes{3, 4, 5, 2};
  const Dims first[] = {strides_for(sizes), strides_for(sizes, MemoryFormat::channels_last), {1, 3, 12, 60}};
  for (const Dims& a : first)
    for (const Dims& b : {strides_for(sizes), Dims{0, 1, 0, 4}, Dims{0, 0, 0, 0}})
      for (const auto order : {Order::memory, Order::logical}) {
        const auto index = make_index<2>(sizes, {a, b}, order);
        std::vector<int> seen(120);
        std::array<std::int64_t, 120> with{};
        for (std::int64_t p = 0; p < 120; ++p)
          with[static_cast<std::size_t>(offset_of(sizes, a, p))] = offset_of(sizes, b, p);
        for (std::int64_t p = 0; p < index.numel; ++p) {
          const auto at = index.at(p);
          ASSERT_GE(at.v[0], 0);
          ASSERT_LT(at.v[0], 120);
          ++seen[static_cast<std::size_t>(at.v[0])];
          EXPECT_EQ(at.v[1], with[static_cast<std::size_t>(at.v[0])]);
          if (order == Order::logical) {
            EXPECT_EQ(at.v[0], offset_of(sizes, a, p));
          }
          if (order == Order::memory) {
            EXPECT_EQ(at.v[0], p);
          }
        }
        EXPECT_EQ(seen, std::vector<int>(120, 1));
      }
}

TEST(Index, BeyondThirtyOneBits) {
  const Dims sizes{3, 70000, 40000}, turned{1, 3, 210000};  // the last dimension outermost
  const auto index = make_index<2>(sizes, {strides_for(sizes), turned});
  EXPECT_TRUE(index.wide);
  for (const std::int64_t p : {std::int64_t{0}, std::int64_t{39999}, std::int64_t{2147483647}, std::int64_t{2147483648},
                               std::int64_t{5000000019}, std::int64_t{8399999999}}) {
    EXPECT_EQ(index.at(p).v[0], p);
    EXPECT_EQ(index.at(p).v[1], offset_of(sizes, turned, p));
  }
  const auto groups = packed(make_index<1>(Dims{(std::int64_t{1} << 31) + 5}, {Dims{1}}), 16);
  EXPECT_FALSE(groups.wide);
  EXPECT_EQ(groups.numel, 134217728);
  EXPECT_EQ(groups.at(134217727).v[0], 2147483632);
  // Offsets may be wide where positions are not.
  const auto sparse = make_index<1>(Dims{1000, 1000}, {Dims{10000000, 3000}});
  EXPECT_FALSE(sparse.wide);
  EXPECT_EQ(sparse.at(999999).v[0], 9992997000);
}

TEST(Packs, OnlyWhereEveryOperandAllows) {
  alignas(16) static const float block[64] = {};
  const auto ask = [&](const Dims& sizes, const Dims& a, const Dims& b, const float* second) {
    return packs<2>(make_index<2>(sizes, {a, b}), 4, {block, second}, {4, 4});
  };
  EXPECT_TRUE(ask({63}, {1}, {1}, block));
  EXPECT_TRUE(ask({63}, {1}, {0}, block + 1));   // a constant
  EXPECT_FALSE(ask({63}, {1}, {1}, block + 1));  // not aligned
  EXPECT_FALSE(ask({32}, {2}, {1}, block));
  EXPECT_TRUE(ask({3, 8}, {8, 1}, {0, 1}, block));
  EXPECT_FALSE(ask({3, 6}, {6, 1}, {0, 1}, block));  // a pack would cross a row
  EXPECT_FALSE(ask({3, 8}, {9, 1}, {8, 1}, block));  // rows begin anywhere
  EXPECT_TRUE(ask({3, 8}, {12, 1}, {8, 1}, block));
  EXPECT_TRUE(ask({3, 8}, {8, 1}, {1, 0}, block + 3));  // one element a row
}

}  // namespace
}  // namespace apex::kernels::cuda
