// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// More than 2^31 elements, which MPI's counts cannot say, in pieces of half a GiB (the session mode of this test) so
// that MPI's own copies stay small. Needs 6 GiB of memory for two ranks. The arithmetic of pieces is the same in every
// collective; collectives.ranks.pieces runs them all with pieces of seven elements.
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <span>

#include "apex/collectives/session.hpp"

namespace apex::dist {
namespace {

constexpr std::int64_t kCount = std::int64_t{INT_MAX} + 1000;

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
