// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// More than 2^31 elements, which MPI's counts cannot say. Needs 6 GiB of memory for two ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <span>

#include "apex/collectives/session.hpp"

namespace apex::dist {
namespace {

constexpr std::int64_t kCount = std::int64_t{INT_MAX} + 1000;

/// All bytes are `value` but for some around the places where an index could wrap.
struct Pattern {
  std::uint8_t value, marks;

  static std::vector<std::int64_t> marked() {
    return {0, 1, INT_MAX - 1, INT_MAX, std::int64_t{INT_MAX} + 1, kCount / 2, kCount - 1};
  }
  void put(const Tensor& t) const {
    std::memset(t.raw_data(), value, t.bytes());
    std::uint8_t next = marks;
    for (const auto i : marked()) t.data<std::uint8_t>()[i] = next++;
  }
  void expect(const Tensor& t) const {
    const std::span<const std::uint8_t> bytes(t.data<std::uint8_t>(), static_cast<std::size_t>(kCount));
    std::uint8_t next = marks;
    for (const auto i : marked()) EXPECT_EQ(bytes[static_cast<std::size_t>(i)], next++) << i;
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), value), kCount - static_cast<std::int64_t>(marked().size()));
  }
};

// In pieces of half a GiB (the session mode of this test), so that MPI's own copies stay small. Broadcasts are cut the
// same way.
TEST(Large, AllReduce) {
  const auto world = ProcessGroup::world();
  const Tensor t = empty({kCount}, DType::u8);
  Pattern{static_cast<std::uint8_t>(1 + world.rank()), static_cast<std::uint8_t>(50 + world.rank())}.put(t);
  world.all_reduce(t, ReduceOp::max).wait();
  Pattern{static_cast<std::uint8_t>(world.size()), static_cast<std::uint8_t>(49 + world.size())}.expect(t);
}

TEST(Large, AllGather) {
  const auto world = ProcessGroup::world();
  const std::int64_t n = kCount / world.size() + 1;
  const Tensor out = empty({n * world.size()}, DType::u8);
  const Tensor own = views::narrow(out, 0, n * world.rank(), n);
  std::memset(own.raw_data(), 10 + world.rank(), own.bytes());
  own.data<std::uint8_t>()[n - 1] = static_cast<std::uint8_t>(200 + world.rank());
  world.all_gather(out, own).wait();
  for (int r = 0; r < world.size(); ++r) {
    const std::span<const std::uint8_t> part(out.data<std::uint8_t>() + r * n, static_cast<std::size_t>(n));
    EXPECT_EQ(part.back(), 200 + r);
    EXPECT_EQ(std::count(part.begin(), part.end(), static_cast<std::uint8_t>(10 + r)), n - 1) << "from rank " << r;
  }
}

}  // namespace
}  // namespace apex::dist
