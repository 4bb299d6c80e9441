// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "apex/collectives/process_group.hpp"
#include "apex/collectives/session.hpp"

namespace apex::dist {
namespace {

std::int64_t sum_of_world_ranks(const ProcessGroup& group) {
  return group.all_reduce(std::int64_t{ProcessGroup::world().rank()}, ReduceOp::sum);
}

std::string thrown(const std::function<void()>& body, Kind kind) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    return e.what();
  }
  return "nothing was thrown";
}

TEST(Groups, NullGroup) {
  const ProcessGroup none;
  EXPECT_FALSE(none);
  EXPECT_NE(thrown([&] { none.barrier(); }, Kind::state).find("null"), std::string::npos);
  EXPECT_NE(thrown([&] { (void)none.rank(); }, Kind::state).find("null"), std::string::npos);
  EXPECT_NE(thrown([&] { (void)none.channel(Purpose::ddp); }, Kind::state).find("null"), std::string::npos);
}

TEST(Groups, Split) {
  const auto world = ProcessGroup::world();
  const auto half = world.split(world.rank() % 2, -world.rank());
  ASSERT_TRUE(half);
  std::int64_t sum = 0, members = 0;
  for (int r = world.rank() % 2; r < world.size(); r += 2) {
    sum += r;
    ++members;
  }
  EXPECT_EQ(half.size(), members);
  EXPECT_EQ(sum_of_world_ranks(half), sum);
  EXPECT_EQ(half.world_rank(half.rank()), world.rank());
  for (int r = 1; r < half.size(); ++r) EXPECT_LT(half.world_rank(r), half.world_rank(r - 1)) << "ordered by key";

  const auto some = world.split(world.rank() == 0 ? -1 : 4);
  EXPECT_EQ(static_cast<bool>(some), world.rank() != 0);
  EXPECT_EQ(some ? some.size() : 0, world.rank() == 0 ? 0 : world.size() - 1);
}

TEST(Groups, Subgroup) {
  const auto world = ProcessGroup::world();
  const int last = world.size() - 1;
  std::vector<int> ranks{last};
  if (last > 0) ranks.push_back(0);
  const auto ends = world.subgroup(ranks);
  const bool member = world.rank() == 0 || world.rank() == last;
  EXPECT_EQ(static_cast<bool>(ends), member);
  if (ends) {
    EXPECT_EQ(ends.size(), static_cast<int>(ranks.size()));
    EXPECT_EQ(ends.world_rank(0), last) << "in the order of the list";
    EXPECT_EQ(sum_of_world_ranks(ends), last);
  }
  thrown([&] { (void)world.subgroup(std::vector<int>{}); }, Kind::argument);
  thrown([&] { (void)world.subgroup(std::vector<int>{0, last + 1}); }, Kind::argument);
  thrown([&] { (void)world.subgroup(std::vector<int>{-1}); }, Kind::argument);
  EXPECT_NE(thrown(
                [&] {
                  (void)world.subgroup(std::vector<int>{0, 0});
                },
                Kind::argument)
                .find("twice"),
            std::string::npos);
}

TEST(Groups, Partition) {
  const auto world = ProcessGroup::world();
  for (int n = 1; n <= world.size(); ++n) {
    if (world.size() % n != 0) {
      EXPECT_NE(thrown([&] { (void)world.partition(n); }, Kind::argument).find("divide"), std::string::npos);
      continue;
    }
    const auto part = world.partition(n);
    EXPECT_EQ(part.size(), n);
    EXPECT_EQ(part.rank(), world.rank() % n);
    const int first = world.rank() / n * n;
    EXPECT_EQ(sum_of_world_ranks(part), n * first + n * (n - 1) / 2);
  }
  thrown([&] { (void)world.partition(0); }, Kind::argument);
}

TEST(Groups, NodeLocalAndDup) {
  const auto world = ProcessGroup::world();
  const auto node = world.node_local();
  EXPECT_GE(node.size(), 1);
  EXPECT_EQ(node.world_rank(node.rank()), world.rank());
  const auto twin = world.dup("twin");
  EXPECT_EQ(twin.label(), "twin");
  EXPECT_EQ(twin.rank(), world.rank());
  EXPECT_EQ(twin.size(), world.size());
  EXPECT_NE(twin.mpi_comm(), world.mpi_comm());
  EXPECT_FALSE(twin == world);
  // What is issued on one never meets what is issued on the other.
  const Tensor a = from_values<double>({1}, {1.0}), b = from_values<double>({1}, {2.0});
  const bool even = world.rank() % 2 == 0;
  const Work first = even ? world.all_reduce(a) : twin.all_reduce(b);
  const Work second = even ? twin.all_reduce(b) : world.all_reduce(a);
  second.wait();
  first.wait();
  EXPECT_EQ(a.item(), world.size());
  EXPECT_EQ(b.item(), 2.0 * world.size());
}

TEST(Groups, GroupsOfGroups) {
  const auto world = ProcessGroup::world();
  const auto rest = world.split(world.rank() == 0 ? 0 : 1);
  const auto each = rest.partition(1);
  EXPECT_EQ(each.size(), 1);
  EXPECT_EQ(each.world_rank(0), world.rank());
  EXPECT_EQ(sum_of_world_ranks(each), world.rank());
}

TEST(Groups, EveryPurposeHasItsCommunicator) {
  const auto world = ProcessGroup::world();
  std::vector<MPI_Comm> comms;
  for (int i = 0; i < kPurposes; ++i) {
    const auto channel = world.channel(static_cast<Purpose>(i));
    EXPECT_EQ(channel.purpose(), static_cast<Purpose>(i));
    EXPECT_EQ(channel.size(), world.size());
    for (const MPI_Comm other : comms) EXPECT_NE(other, channel.mpi_comm());
    comms.push_back(channel.mpi_comm());
    int result = 0;
    MPI_Comm_compare(comms.back(), MPI_COMM_WORLD, &result);
    EXPECT_EQ(result, MPI_CONGRUENT);
  }
  EXPECT_TRUE(world.channel(Purpose::user) == world);
}

TEST(Groups, InStreamIsTheSameChannel) {
  const auto ddp = ProcessGroup::world().channel(Purpose::ddp), here = ddp.in_stream();
  EXPECT_TRUE(here.is_in_stream());
  EXPECT_FALSE(ddp.is_in_stream());
  EXPECT_FALSE(here == ddp);
  EXPECT_EQ(here.mpi_comm(), ddp.mpi_comm());
  EXPECT_EQ(here.purpose(), Purpose::ddp);
  EXPECT_TRUE(here.channel(Purpose::spatial).is_in_stream());
  EXPECT_TRUE(here.dup("in stream").is_in_stream());
  EXPECT_NE(thrown([] { (void)ProcessGroup().in_stream(); }, Kind::state).find("null"), std::string::npos);
}

TEST(Agree, ThrowsTheLowestFailingRanksMessageEverywhere) {
  const auto world = ProcessGroup::world();
  world.agree(true, "not looked at");
  for (int bad = 0; bad < world.size(); ++bad) {
    const bool ok = world.rank() < bad;
    const std::string said =
        thrown([&] { world.agree(ok, concat("no file on ", world.rank()), Kind::data); }, Kind::data);
    const std::string want = concat("no file on ", bad);
    EXPECT_EQ(said, world.size() == 1 ? want : concat("rank ", bad, ": ", want));
  }
  world.agree(true, "");
}

TEST(Agree, NamesWorldRanksInASubgroup) {
  const auto world = ProcessGroup::world();
  if (world.size() < 3) GTEST_SKIP();
  const auto rest = world.split(world.rank() == 0 ? -1 : 0);
  if (rest) {
    const std::string said = thrown([&] { rest.agree(rest.rank() != 1, "bad"); }, Kind::argument);
    EXPECT_EQ(said, "rank 2: bad");
  }
}

TEST(Agree, TogetherCarriesAnyError) {
  const auto world = ProcessGroup::world();
  const int last = world.size() - 1;
  int runs = 0;
  world.together([&] { ++runs; });
  EXPECT_EQ(runs, 1);
  EXPECT_NE(thrown(
                [&] {
                  world.together([&] {
                    if (world.rank() == last) fail(Kind::damaged, "bad hash");
                  });
                },
                Kind::damaged)
                .find("bad hash"),
            std::string::npos);
  EXPECT_NE(thrown(
                [&] {
                  world.together([&] {
                    if (world.rank() == last) throw std::bad_alloc();
                  });
                },
                Kind::exhausted)
                .find("memory"),
            std::string::npos);
  EXPECT_NE(thrown(
                [&] {
                  world.together([&] {
                    if (world.rank() == last) throw std::logic_error("odd");
                  });
                },
                Kind::state)
                .find("odd"),
            std::string::npos);
}

TEST(AllHaveNext, UnevenShardsEndTogether) {
  const auto world = ProcessGroup::world();
  const int own = 3 + world.rank();
  int steps = 0;
  for (; all_have_next(steps < own); ++steps) {}
  EXPECT_EQ(steps, 3);
  EXPECT_TRUE(all_have_next(true, world.partition(1)));
}

}  // namespace
}  // namespace apex::dist
