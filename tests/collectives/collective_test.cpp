// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// Every collective, dtype, reduction and a range of sizes, against the plain formula in double.
#include <gtest/gtest.h>

#include <time.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "apex/collectives/process_group.hpp"
#include "apex/collectives/session.hpp"
#include "support/tensors.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/collectives/nccl.hpp"
#endif

namespace apex::dist {
namespace {

using Values = std::vector<double>;

constexpr DType kEveryDType[] = {DType::f64, DType::f32, DType::f16, DType::bf16,
                                 DType::i64, DType::i32, DType::u8,  DType::boolean};
constexpr std::int64_t kCounts[] = {0, 1, 2, 7, 33, 1023};

/// Small whole numbers: sums and products over four ranks are exact in every dtype. bf16 holds 8 bits.
double value(DType dtype, int rank, std::int64_t i) {
  if (dtype == DType::boolean) return (i + rank) % 3 == 0;
  return static_cast<double>((i * 5 + rank * 3) % 4 + 1);
}

Tensor make(DType dtype, std::int64_t count, const std::function<double(std::int64_t)>& f,
            Device device = test::device()) {
  return test::from_function({count}, dtype, device, f);
}

Values to_values(const Tensor& t) { return test::to_f64(t); }

bool defined_for(DType dtype, ReduceOp op) {
  if (dtype == DType::boolean) return op == ReduceOp::min || op == ReduceOp::max;
  return is_floating(dtype) || op != ReduceOp::avg;
}

double combine(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg: return a + b;
    case ReduceOp::product: return a * b;
    case ReduceOp::min: return std::min(a, b);
    case ReduceOp::max: return std::max(a, b);
  }
  return 0;
}

double expected(ReduceOp op, DType dtype, int size, const std::function<double(int)>& of_rank) {
  double x = of_rank(0);
  for (int r = 1; r < size; ++r) x = combine(op, x, of_rank(r));
  return op == ReduceOp::avg ? x / size : dtype == DType::u8 ? std::fmod(x, 256) : x;
}

/// Of the one rounding of an average.
double tolerance(ReduceOp op, DType dtype) {
  if (op != ReduceOp::avg) return 0;
  return 5 * (dtype == DType::f64 ? 0x1p-52 : dtype == DType::f32 ? 0x1p-23 : dtype == DType::f16 ? 0x1p-10 : 0x1p-7);
}

/// Whether the Session was started in this mode (see tests/support/mpi_main.cpp).
bool mode_is(const std::string& word) {
  const char* mode = std::getenv("APEX_TEST_SESSION");
  return mode != nullptr && std::string(mode).find(word) != std::string::npos;
}

/// On CUDA, ranks that share a GPU go through the host, and a debug Session compares first: both wait where they issue.
bool blocks_when_issued() { return test::on_cuda() && (mode_is("shared") || mode_is("debug")); }

/// Whether all ranks must use all channels in one order, because each collective waits for the one before it.
bool takes_one_order() {
#ifdef APEX_HAS_CUDA
  if (test::on_cuda() && !nccl_orders_communicators()) return true;
#endif
  return blocks_when_issued();
}

constexpr ReduceOp kEveryOp[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::product, ReduceOp::min, ReduceOp::max};

TEST(AllReduce, EveryDTypeOpAndSize) {
  const auto world = ProcessGroup::world();
  for (const DType dtype : kEveryDType)
    for (const ReduceOp op : kEveryOp) {
      if (!defined_for(dtype, op)) continue;
      for (const std::int64_t count : kCounts) {
        const Tensor t = make(dtype, count, [&](auto i) { return value(dtype, world.rank(), i); });
        world.all_reduce(t, op).wait();
        const Values got = to_values(t);
        std::size_t wrong = 0;
        for (std::int64_t i = 0; i < count; ++i)
          wrong += std::abs(got[static_cast<std::size_t>(i)] - expected(op, dtype, world.size(), [&](int r) {
                              return value(dtype, r, i);
                            })) > tolerance(op, dtype);
        EXPECT_EQ(wrong, 0u) << name_of(dtype) << ' ' << to_string(op) << " x " << count;
      }
    }
}

TEST(AllReduce, SixteenBitsAddInFloatAndRoundEachStep) {
  const auto world = ProcessGroup::world();
  // 20000 on each rank: two make 40000, four overflow binary16 (PAR-15.6).
  const Tensor t = make(DType::f16, 33, [](auto) { return 20000.0; });
  world.all_reduce(t, ReduceOp::sum).wait();
  const double sum = 20000.0 * world.size();
  EXPECT_EQ(to_values(t)[7], sum > 65504 ? std::numeric_limits<double>::infinity() : double(float(float16(sum))));
  // The average of the same overflows before it is divided, as a sum of 16-bit values does.
  const Tensor b = make(DType::bf16, 3, [](auto) { return 1e38; });
  world.all_reduce(b, ReduceOp::sum).wait();
  EXPECT_EQ(std::isinf(to_values(b)[0]), world.size() >= 4);
}

TEST(AllReduce, DenseTensorsInAnyStrideOrder) {
  const auto world = ProcessGroup::world();
  const Tensor image = test::from_function(
      {2, 3, 4, 5}, DType::f32, test::device(), [&](auto i) { return double(i + world.rank()); },
      MemoryFormat::channels_last);
  world.all_reduce(image, ReduceOp::sum).wait();
  const int p = world.size();
  const Values got = to_values(image);
  int wrong = 0;
  for (int i = 0; i < 120; ++i) wrong += got[static_cast<std::size_t>(i)] != p * i + p * (p - 1) / 2;
  EXPECT_EQ(wrong, 0);
  const Tensor scalar = make(DType::f64, 1, [](auto) { return 2.0; });
  world.all_reduce(views::reshape(scalar, {}), ReduceOp::product).wait();
  EXPECT_EQ(scalar.item(), std::pow(2.0, p));
}

TEST(Broadcast, EveryDTypeSizeAndRoot) {
  const auto world = ProcessGroup::world();
  for (const DType dtype : kEveryDType)
    for (const std::int64_t count : kCounts)
      for (int root = 0; root < world.size(); ++root) {
        const Tensor t = make(dtype, count, [&](auto i) { return value(dtype, world.rank(), i); });
        world.broadcast(t, root).wait();
        const Values got = to_values(t);
        std::size_t wrong = 0;
        for (std::int64_t i = 0; i < count; ++i) wrong += got[static_cast<std::size_t>(i)] != value(dtype, root, i);
        EXPECT_EQ(wrong, 0u) << name_of(dtype) << " x " << count << " from " << root;
      }
}

TEST(InStream, EveryCollectiveInAnyMixture) {
  const auto world = ProcessGroup::world(), here = world.in_stream();
  const int p = world.size(), r = world.rank();
  const double ranks = p * (p - 1) / 2.0;
  for (int round = 0; round < 30; ++round) {
    const std::int64_t n = 1 + 37 * round;
    const Tensor a = make(DType::f64, n, [&](auto i) { return double(i + r); });
    const Tensor all = make(DType::f64, n * p, [](auto) { return -1.0; });
    const Tensor part = make(DType::f64, n, [](auto) { return -1.0; });
    here.all_reduce(a).wait();                    // i p + ranks
    const Work first = world.all_gather(all, a);  // on a stream of its own, where there are streams
    if (!test::on_cuda()) first.wait();           // else the next one comes after it without: one channel, one order
    const Work second = here.reduce_scatter(part, all);
    first.wait();
    second.wait();
    here.broadcast(part, round % p).wait();
    const Values got = to_values(part);
    std::size_t wrong = 0;
    for (std::int64_t i = 0; i < n; ++i) wrong += got[static_cast<std::size_t>(i)] != p * (double(i) * p + ranks);
    EXPECT_EQ(wrong, 0u) << "round " << round;
  }
  EXPECT_GE(world.statistics().collectives, 120);
}

TEST(AllGather, EveryDTypeAndSize) {
  const auto world = ProcessGroup::world();
  for (const DType dtype : kEveryDType)
    for (const std::int64_t count : kCounts)
      for (const bool in_place : {false, true}) {
        const Tensor out = make(dtype, count * world.size(), [](auto) { return 0.0; });
        const Tensor own = views::narrow(out, 0, count * world.rank(), count);
        const Tensor in = make(dtype, count, [&](auto i) { return value(dtype, world.rank(), i); });
        if (in_place) test::assign(own, [&](auto i) { return value(dtype, world.rank(), i); });
        world.all_gather(out, in_place ? own : in).wait();
        const Values got = to_values(out);
        std::size_t wrong = 0;
        for (int r = 0; r < world.size(); ++r)
          for (std::int64_t i = 0; i < count; ++i)
            wrong += got[static_cast<std::size_t>(r * count + i)] != value(dtype, r, i);
        EXPECT_EQ(wrong, 0u) << name_of(dtype) << " x " << count;
      }
}

TEST(ReduceScatter, EveryDTypeOpAndSize) {
  const auto world = ProcessGroup::world();
  for (const DType dtype : kEveryDType)
    for (const ReduceOp op : kEveryOp) {
      if (!defined_for(dtype, op)) continue;
      for (const std::int64_t count : kCounts) {
        const Tensor in = make(dtype, count * world.size(), [&](auto i) { return value(dtype, world.rank(), i); });
        const Tensor out = make(dtype, count, [](auto) { return 0.0; });
        world.reduce_scatter(out, in, op).wait();
        const Values got = to_values(out);
        std::size_t wrong = 0;
        for (std::int64_t i = 0; i < count; ++i)
          wrong += std::abs(got[static_cast<std::size_t>(i)] - expected(op, dtype, world.size(), [&](int r) {
                              return value(dtype, r, world.rank() * count + i);
                            })) > tolerance(op, dtype);
        EXPECT_EQ(wrong, 0u) << name_of(dtype) << ' ' << to_string(op) << " x " << count;
      }
    }
}

TEST(HostValues, BlockingForms) {
  const auto world = ProcessGroup::world();
  const int p = world.size(), r = world.rank();
  EXPECT_EQ(world.all_reduce(double(r), ReduceOp::max), p - 1);
  EXPECT_EQ(world.all_reduce(std::int64_t{r}, ReduceOp::sum), p * (p - 1) / 2);
  double pair[2] = {1.0, double(r)};
  world.all_reduce(std::span<double>(pair), ReduceOp::avg);
  EXPECT_EQ(pair[0], 1.0);
  EXPECT_DOUBLE_EQ(pair[1], (p - 1) / 2.0);
  EXPECT_EQ(world.broadcast(concat("from ", r), p - 1), concat("from ", p - 1));
  EXPECT_EQ(world.broadcast(std::string(r == 0 ? 0 : 5, 'x'), 0), "");
  const auto all = world.all_gather(std::string(static_cast<std::size_t>(r), 'a'));
  ASSERT_EQ(all.size(), static_cast<std::size_t>(p));
  for (int q = 0; q < p; ++q)
    EXPECT_EQ(all[static_cast<std::size_t>(q)], std::string(static_cast<std::size_t>(q), 'a'));
  EXPECT_EQ(world.all_gather("").size(), static_cast<std::size_t>(p));
  world.barrier();
}

TEST(Work, ManyInFlightOnSeveralChannels) {
  const auto world = ProcessGroup::world();
  const bool one_order = takes_one_order();
  std::vector<Tensor> tensors;
  std::vector<Work> works;
  const Purpose purposes[] = {Purpose::user, Purpose::ddp, Purpose::batch_norm};
  for (int i = 0; i < 60; ++i) {
    // Ranks may issue on different channels in different orders, where collectives do not wait for each other.
    const auto purpose = purposes[(i + (one_order ? 0 : world.rank())) % 3];
    const int number = i / 3;
    const auto tag = static_cast<double>(number * 10 + static_cast<int>(purpose));
    tensors.push_back(make(DType::f64, 17 + number * 500, [&](auto) { return tag; }));
    works.push_back(world.channel(purpose).all_reduce(tensors.back(), ReduceOp::sum));
  }
  for (std::size_t i = works.size(); i-- > 0;) works[i].wait();
  for (int i = 0; i < 60; ++i) {
    const auto purpose = purposes[(i + (one_order ? 0 : world.rank())) % 3];
    const double want = world.size() * static_cast<double>(i / 3 * 10 + static_cast<int>(purpose));
    const Values got = to_values(tensors[static_cast<std::size_t>(i)]);
    EXPECT_TRUE(std::all_of(got.begin(), got.end(), [&](double v) { return v == want; })) << i;
  }
}

TEST(Work, KeepsItsTensorsAlive) {
  const auto world = ProcessGroup::world();
  Work work;
  std::weak_ptr<Storage> storage;
  {
    const Tensor t = make(DType::f32, 100000, [](auto) { return 1.0; });
    storage = t.storage();
    work = world.all_reduce(t);
  }
  work.wait();
  EXPECT_TRUE(storage.expired()) << "and no longer than needed";
}

TEST(Work, TestsAndLimits) {
  const auto world = ProcessGroup::world();
  if (blocks_when_issued()) GTEST_SKIP() << "collectives block here when they are issued: none is seen in flight";
  EXPECT_TRUE(Work().test());
  Work().wait();
  EXPECT_TRUE(Work().wait_host(0));
  const Tensor t = make(DType::f32, 10, [](auto) { return 1.0; });
  if (world.rank() == 0) {
    const Work work = world.all_reduce(t);
    if (world.size() > 1) {
      EXPECT_FALSE(work.test());
      EXPECT_FALSE(work.finished());
      EXPECT_FALSE(work.wait_host(0.05)) << "the others come later";
    }
    world.channel(Purpose::ddp).barrier();
    EXPECT_TRUE(work.wait_host(30));
    ASSERT_TRUE(work.finished());
    EXPECT_GE(*work.finished(), work.issued());
  } else {
    world.channel(Purpose::ddp).barrier();
    const Work work = world.all_reduce(t);
    while (!work.test()) std::this_thread::yield();
  }
  EXPECT_EQ(to_values(t)[3], world.size());
}

TEST(Work, ProgressesBehindTheCaller) {
  const auto world = ProcessGroup::world();
  // Far beyond what is sent at once, so that somebody must move it; in the mode of tiny pieces a hundred are enough.
  const Tensor t = make(DType::f32, mode_is("max_count") ? 700 : 300000, [](auto) { return 1.0; });
  world.barrier();
  const Work work = world.all_reduce(t);
  const bool threaded = !mode_is("funneled");
  const auto limit = Work::Clock::now() + std::chrono::seconds(threaded ? 20 : 0);
  while (!work.finished() && Work::Clock::now() < limit)  // the caller is busy elsewhere and moves nothing
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(work.finished().has_value() || (!threaded && world.size() > 1));
  work.wait();
}

TEST(Statistics, TellsExposedFromHidden) {
  const auto ddp = ProcessGroup::world().channel(Purpose::ddp);
  if (ddp.size() == 1) GTEST_SKIP() << "nothing to wait for";
  const std::int64_t n = mode_is("max_count") ? 7 : 1000;  // one piece: the time of many is not what is looked at here
  const Tensor t = make(DType::f32, n, [](auto) { return 1.0; });
  const auto difference = [&](const Statistics& a, const Statistics& b) {
    return Statistics{b.collectives - a.collectives, b.bytes - a.bytes, b.busy_s - a.busy_s, b.exposed_s - a.exposed_s};
  };
  // Rank 0 comes 600 ms late: the others stand still.
  ddp.barrier();
  auto before = ddp.statistics();
  if (ddp.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(600));
  const Work late = ddp.all_reduce(t);
  late.wait();
  EXPECT_TRUE(late.wait_host(30));  // on CUDA the times are known once the device is there
  auto delta = difference(before, ddp.statistics());
  EXPECT_EQ(delta.collectives, 1);
  EXPECT_EQ(delta.bytes, 4 * n);
  EXPECT_EQ(delta.exposed_s > 0.4, ddp.rank() != 0) << delta.exposed_s;
  if (blocks_when_issued()) return;  // nothing can be hidden
  // The same, but the others do something else meanwhile: hidden.
  ddp.barrier();
  before = ddp.statistics();
  if (ddp.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(600));
  const Work work = ddp.all_reduce(t);
  if (ddp.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(900));
  work.wait();
  EXPECT_TRUE(work.wait_host(30));
  delta = difference(before, ddp.statistics());
  if (ddp.rank() != 0) {
    EXPECT_LT(delta.exposed_s, 0.4);
    EXPECT_GT(delta.hidden_s(), 0.3);
  }
  EXPECT_GE(ProcessGroup::world().statistics().collectives, 0);
  ddp.barrier();
}

/// Ranks share cores with each other and with what computes: a rank that waits must leave its core alone.
TEST(Work, WaitingBurnsNoCore) {
  const auto world = ProcessGroup::world();
  const auto cpu_seconds = [] {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
  };
  const Tensor t = make(
      DType::f32, 1000, [](auto) { return 1.0; }, kCpu);
  world.barrier();
  const double before = cpu_seconds();
  if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(1));
  const Work work = world.channel(Purpose::ddp).all_reduce(t);
  world.barrier();  // the progress thread works on one while the caller waits for the other
  work.wait();
  EXPECT_LT(cpu_seconds() - before, 0.35);
}

// PAR-15.37: the CPU result is the rank-ordered sum, rounded once.
TEST(Determinism, SumsRunInRankOrder) {
  if (!mode_is("deterministic") || test::on_cuda()) GTEST_SKIP() << "only in a deterministic Session, by MPI";
  const auto world = ProcessGroup::world();
  const auto draw = [](int rank, std::int64_t i) {
    return std::sin(double(i) * 1.7 + rank) * std::pow(10.0, (i + rank) % 4);
  };
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const std::int64_t count : {1, 5, 33, 1023}) {
      const auto stored = [&](int rank) { return make(dtype, count, [&](auto i) { return draw(rank, i); }); };
      Values sum(static_cast<std::size_t>(count));
      visit_floating(dtype, "sum", [&]<class T>() {
        using A = accum_t<T>;
        std::vector<Tensor> parts;
        for (int r = 0; r < world.size(); ++r) parts.push_back(stored(r));
        for (std::size_t i = 0; i < sum.size(); ++i) {
          A s = static_cast<A>(parts[0].data<T>()[i]);
          for (std::size_t r = 1; r < parts.size(); ++r) s += static_cast<A>(parts[r].data<T>()[i]);
          sum[i] = static_cast<double>(T(s));
        }
      });
      const Tensor t = stored(world.rank());
      world.all_reduce(t, ReduceOp::sum).wait();
      EXPECT_EQ(to_values(t), sum) << name_of(dtype) << " x " << count;
      // And reduce_scatter the same.
      const Tensor wide = empty({count * world.size()}, dtype), part = empty({count}, dtype);
      const Tensor own = stored(world.rank());
      for (int r = 0; r < world.size(); ++r)
        std::memcpy(static_cast<std::byte*>(wide.raw_data()) + static_cast<std::size_t>(r) * own.bytes(),
                    own.raw_data(), own.bytes());
      world.reduce_scatter(part, wide, ReduceOp::sum).wait();
      EXPECT_EQ(to_values(part), sum) << name_of(dtype) << " x " << count;
    }
}

TEST(Determinism, RepeatedSumsAreTheSameBits) {
  if (!mode_is("deterministic")) GTEST_SKIP() << "only in a deterministic Session";
  const auto world = ProcessGroup::world();
  for (const std::int64_t count : {33, 100001}) {
    if (mode_is("max_count") && count > 1000) continue;  // one by one these take minutes
    const auto sum = [&] {
      const Tensor t = make(DType::f32, count,
                            [&](auto i) { return std::sin(double(i) * 1.7 + world.rank()) * std::pow(10.0, i % 7); });
      world.all_reduce(t).wait();
      return to_values(t);
    };
    const Values first = sum();
    for (int i = 0; i < 10; ++i) EXPECT_EQ(sum(), first) << count;
  }
}

TEST(BadArguments, ThrowBeforeAnythingIsSent) {
  const auto world = ProcessGroup::world();
  const int p = world.size();
  const Tensor flat = make(DType::f32, 6, [](auto) { return 1.0; });
  const Tensor transposed = views::narrow(views::reshape(flat, {2, 3}), 1, 0, 2);
  const Tensor large = empty({6 * p}, DType::f32, test::device());
  const auto kind_of = [](const std::function<void()>& f) {
    try {
      f();
    } catch (const Error& e) {
      return std::string(to_string(e.kind())) + ": " + e.what();
    }
    return std::string("nothing thrown");
  };
  const auto refused = [&](const std::function<void()>& f, const char* words) {
    const std::string got = kind_of(f);
    EXPECT_EQ(got.rfind("argument: ", 0), 0u) << got;
    EXPECT_NE(got.find(words), std::string::npos) << got << " should say " << words;
  };
  refused([&] { (void)world.all_reduce(Tensor()); }, "undefined");
  refused([&] { (void)world.all_reduce(transposed); }, "not dense");
  refused([&] { (void)world.all_reduce(make(DType::i32, 2, [](auto) { return 1; }), ReduceOp::avg); },
          "avg is not defined for i32");
  refused([&] { (void)world.all_reduce(make(DType::boolean, 2, [](auto) { return 1; }), ReduceOp::sum); }, "use min");
  refused([&] { (void)world.broadcast(transposed, 0); }, "not dense");
  refused([&] { (void)world.broadcast(flat, p); }, "root");
  refused([&] { (void)world.broadcast(flat, -1); }, "root");
  refused([&] { (void)world.broadcast(std::string(), p); }, "root");
  refused([&] { (void)world.all_gather(large, Tensor()); }, "undefined");
  refused(
      [&] {
        (void)world.all_gather(flat, views::transpose(views::reshape(flat, {2, 3}), 0, 1));
      },
      "not contiguous");
  refused([&] { (void)world.all_gather(empty({6 * p + 1}), flat); }, "elements");
  refused([&] { (void)world.all_gather(empty({6 * p}, DType::f64), flat); }, "f64");
  refused([&] { (void)world.reduce_scatter(flat, empty({6 * p + 1})); }, "elements");
  refused([&] { (void)world.reduce_scatter(flat, empty({6 * p}, DType::i32)); }, "i32");
  refused([&] { (void)world.reduce_scatter(views::narrow(large, 0, 0, 6), large); }, "overlap");
  if (p > 1)
    refused([&] { (void)world.all_gather(large, views::narrow(large, 0, (world.rank() + 1) % p * 6, 6)); }, "overlaps");
  refused(
      [&] {
        (void)world.reduce_scatter(make(DType::i64, 1, [](auto) { return 1; }),
                                   make(DType::i64, p, [](auto) { return 1; }), ReduceOp::avg);
      },
      "avg");
  world.barrier();  // nothing was left behind
}

TEST(Debug, DifferentCollectivesAreReportedOnAllRanks) {
  if (!mode_is("debug")) GTEST_SKIP() << "only in a debug Session";
  const auto world = ProcessGroup::world();
  if (world.size() == 1) GTEST_SKIP();
  const Tensor t = make(DType::f32, 4, [](auto) { return 1.0; });
  std::string said;
  try {
    if (world.rank() == 1)
      world.broadcast(t, 0, "the odd one").wait();
    else
      world.all_reduce(t, ReduceOp::sum, "the others").wait();
  } catch (const Error& e) {
    said = e.what();
    EXPECT_EQ(e.kind(), Kind::communication);
  }
  if (!test::on_cuda()) {
    EXPECT_GT(t.storage().use_count(), 1) << "MPI may still be at work on a collective that failed";
  }
  for (const char* words :
       {"all_reduce sum", "the others", "broadcast", "the odd one", "f32 x 4", "rank 1 wants", "collective_test.cpp"})
    EXPECT_NE(said.find(words), std::string::npos) << words << " in: " << said;
  for (const std::int64_t count : {3, 4})  // another size, and then all is well again
    try {
      world.all_reduce(views::narrow(t, 0, 0, world.rank() == 0 ? count : 4)).wait();
      EXPECT_EQ(count, 4);
    } catch (const Error&) {
      EXPECT_EQ(count, 3);
    }
}

}  // namespace
}  // namespace apex::dist
