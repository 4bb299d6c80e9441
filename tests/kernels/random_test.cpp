// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/random.hpp"

#include <omp.h>

#include "apex/core/philox.hpp"
#include "support/on_device.hpp"

namespace apex {
namespace {

using test::throws;

constexpr kernels::RandomState kState{.seed = 1234, .offset = 7};

/// The word of position e, from the layout of the specification.
std::uint32_t word(std::uint64_t seed, std::uint64_t offset, std::uint64_t e) {
  const auto lo = [](std::uint64_t v) { return static_cast<std::uint32_t>(v); };
  const auto hi = [](std::uint64_t v) { return static_cast<std::uint32_t>(v >> 32); };
  return Philox4x32::generate({{lo(e / 4), hi(e / 4), 0x80000000u, lo(offset)}}, {{lo(seed), hi(seed) ^ hi(offset)}})
      .v[e % 4];
}

TEST(Dropout, KeepMask_ATT_7_12) {
  const std::uint32_t raw[] = {0x4f89674c, 0x4ece504e, 0x55195477, 0xd72179df,
                               0x51f1ca08, 0x4403d5ec, 0x2bfd7df6, 0xd0d48a1f};
  for (std::uint64_t e = 0; e < 8; ++e) EXPECT_EQ(word(1234, 7, e), raw[e]);
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor x = test::from_function(
        {1, 2, 2, 2}, DType::f32, test::device(), [](std::int64_t i) { return 3.0 * static_cast<double>(i + 1); },
        format);
    const Tensor y = test::fresh_like(x), mask = empty_like(x, DType::boolean);
    kernels::dropout(test::context(), y.view(), mask.view(), x.view(), 0.25, kState);
    EXPECT_TRUE(test::equal(mask, {1, 1, 1, 0, 1, 1, 1, 0}));
    EXPECT_TRUE(test::close(y, {4, 8, 12, 0, 20, 24, 28, 0}, test::forward_tolerance(DType::f32)));
  }
}

TEST(Dropout, KeepRate_ATT_7_13) {
  const Tensor x = test::from_function({1000000}, DType::f32, test::device(), [](std::int64_t) { return 1.0; }),
               y = empty_like(x);
  kernels::dropout(test::context(), y.view(), {}, x.view(), 0.1, kState);
  double kept = 0;
  for (const double v : test::to_f64(y)) kept += v != 0;
  EXPECT_GE(kept / 1e6, 0.8988);
  EXPECT_LE(kept / 1e6, 0.9012);
  kernels::dropout(test::context(), y.view(), {}, x.view(), 0.0, kState);
  EXPECT_EQ(test::to_f64(y), test::to_f64(x));
  kernels::dropout(test::context(), y.view(), {}, x.view(), 1.0, kState);
  for (const double v : test::to_f64(y)) ASSERT_EQ(v, 0);
}

TEST(Dropout, EveryTypeAndLengthKeepsTheLayout) {
  const kernels::RandomState s{.seed = 0x123456789abcdefull, .offset = (std::uint64_t{5} << 33) + 1};
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const std::int64_t n : {1, 7, 8, 9, 4093, 4096, 8203}) {
      const Tensor x = test::from_function({n}, dtype, test::device(),
                                           [](std::int64_t i) { return static_cast<double>(i % 63 + 1); });
      std::vector<double> want, kept;
      for (std::int64_t e = 0; e < n; ++e) {
        kept.push_back(word(s.seed, s.offset, static_cast<std::uint64_t>(e)) < 3221225472u);
        want.push_back(kept.back() * static_cast<double>(e % 63 + 1) / 0.75);
      }
      for (const Tensor& from : {x, test::misaligned(x)}) {
        const Tensor y = test::fresh({n}, dtype), alone = test::fresh({n}, dtype),
                     mask = test::make({n}, DType::boolean);
        kernels::dropout(test::context(), y.view(), mask.view(), from.view(), 0.25, s);
        kernels::dropout(test::context(), alone.view(), {}, from.view(), 0.25, s);
        EXPECT_TRUE(test::equal(mask, kept)) << dtype << n;
        EXPECT_TRUE(test::close(y, want, test::forward_tolerance(dtype))) << dtype << n;
        EXPECT_EQ(test::to_f64(y), test::to_f64(alone)) << dtype << n;
      }
      const Tensor mask = test::make({n}, DType::boolean);
      kernels::dropout(test::context(), x.view(), mask.view(), x.view(), 1.0, s);  // nothing stays, in place
      EXPECT_TRUE(test::equal(x, std::vector<double>(static_cast<std::size_t>(n), 0.0))) << dtype << n;
      EXPECT_TRUE(test::equal(mask, std::vector<double>(static_cast<std::size_t>(n), 0.0))) << dtype << n;
    }
}

TEST(Dropout, GlobalRowsDecide) {
  const Tensor x = test::from_function({6, 10}, DType::f64, test::device(), [](std::int64_t) { return 1.0; }),
               all = empty_like(x);
  kernels::dropout(test::context(), all.view(), {}, x.view(), 0.5, kState);
  for (int rank = 0; rank < 3; ++rank) {  // rank r of 3 holds rows r, r + 3
    const Tensor part = test::fresh({2, 10}, DType::f64);
    kernels::RandomState s = kState;
    s.first_row = rank;
    s.row_stride = 3;
    kernels::dropout(test::context(), part.view(), {}, views::narrow(x, 0, 0, 2).view(), 0.5, s);
    EXPECT_EQ(test::to_f64(views::select(part, 0, 0)), test::to_f64(views::select(all, 0, rank)));
    EXPECT_EQ(test::to_f64(views::select(part, 0, 1)), test::to_f64(views::select(all, 0, rank + 3)));
  }
}

TEST(Random, MatchesTheLayoutForEveryTypeAndStride) {
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{5} << 33}) {
      const kernels::RandomState s{.seed = 0x123456789abcdefull, .offset = offset};
      const Tensor plain = test::fresh({7, 9}, dtype), strided = views::transpose(test::fresh({9, 7}, dtype), 0, 1);
      std::vector<double> uniform, normal;
      for (std::uint64_t e = 0; e < 63; ++e) {
        uniform.push_back(-2 + 5 * ((word(s.seed, offset, e) >> 8) * 0x1p-24));
        const double u = (word(s.seed, offset, e / 2 * 2) + 1.0) * 0x1p-32,
                     v = word(s.seed, offset, e / 2 * 2 + 1) * 0x1p-32;
        const double r = std::sqrt(-2 * std::log(u)), angle = 2 * M_PI * v;
        normal.push_back(0.5 + 3 * r * (e % 2 == 0 ? std::cos(angle) : std::sin(angle)));
      }
      for (const auto& t : {plain, strided}) {
        kernels::uniform(test::context(), t.view(), -2, 3, s);
        EXPECT_TRUE(test::close(t, uniform, test::forward_tolerance(dtype))) << dtype;
        kernels::normal(test::context(), t.view(), 0.5, 3, s);
        EXPECT_TRUE(test::close(t, normal, test::forward_tolerance(dtype))) << dtype;
      }
    }
}

TEST(Random, HasItsMoments) {
  const Tensor t = test::make({200000}, DType::f64);
  kernels::normal(test::context(), t.view(), 0, 1, {.seed = 3});
  double m1 = 0, m2 = 0, m4 = 0;
  for (const double v : test::to_f64(t)) {
    m1 += v;
    m2 += v * v;
    m4 += v * v * v * v;
  }
  EXPECT_NEAR(m1 / 2e5, 0, 0.01);
  EXPECT_NEAR(m2 / 2e5, 1, 0.015);
  EXPECT_NEAR(m4 / 2e5, 3, 0.1);
  kernels::uniform(test::context(), t.view(), 0, 1, {.seed = 3, .offset = 1});
  double mean = 0;
  for (const double v : test::to_f64(t)) {
    ASSERT_GE(v, 0);
    ASSERT_LT(v, 1);
    mean += v;
  }
  EXPECT_NEAR(mean / 2e5, 0.5, 0.003);
}

TEST(Random, SameForEveryThreadCountAndFormat) {
  const Dims sizes{7, 11, 40, 40};
  const Tensor row = test::make(sizes),
               last = test::make(sizes, DType::f32, test::device(), MemoryFormat::channels_last);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  kernels::normal(test::context(), row.view(), 0, 1, kState);
  omp_set_num_threads(3);
  kernels::normal(test::context(), last.view(), 0, 1, kState);
  omp_set_num_threads(threads);
  EXPECT_EQ(test::to_f64(row), test::to_f64(last));
}

TEST(Random, SameOnEveryDevice) {
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const Dims& sizes : {Dims{3, 41}, Dims{8, 100}, Dims{1, 5}})
      for (const std::int64_t first : {0, 5}) {
        const kernels::RandomState s{.seed = 99, .offset = 3, .first_row = first, .row_stride = first == 0 ? 1 : 2};
        const Tensor x = test::uniform(sizes, dtype, kCpu, 1), here = empty(sizes, dtype),
                     mask = empty(sizes, DType::boolean);
        const Tensor there = test::fresh(sizes, dtype), there_mask = test::make(sizes, DType::boolean);
        kernels::uniform({}, here.view(), -1, 3, s);
        kernels::uniform(test::context(), there.view(), -1, 3, s);
        EXPECT_EQ(test::to_f64(there), test::to_f64(here)) << dtype << sizes;
        kernels::dropout({}, here.view(), mask.view(), x.view(), 0.3, s);
        kernels::dropout(test::context(), there.view(), there_mask.view(), test::on_device(x).view(), 0.3, s);
        EXPECT_EQ(test::to_f64(there), test::to_f64(here)) << dtype << sizes;
        EXPECT_EQ(test::to_f64(there_mask), test::to_f64(mask)) << dtype << sizes;
        kernels::normal({}, here.view(), 0, 1, s);
        kernels::normal(test::context(), there.view(), 0, 1, s);
        // The functions of the two mathematics libraries may differ in f64's last bits.
        const test::Tolerance ulp = dtype == DType::f64   ? test::Tolerance{8e-16, 8e-16}
                                    : dtype == DType::f32 ? test::Tolerance{0x1p-23, 0}
                                    : dtype == DType::f16 ? test::Tolerance{0x1p-10, 0}
                                                          : test::Tolerance{0x1p-7, 0};
        EXPECT_TRUE(test::close(there, test::to_f64(here), ulp)) << dtype << sizes;
      }
}

TEST(Random, TheOffsetMayLieOnTheDevice) {
  const Tensor base = test::values<std::int64_t>({1}, {(std::int64_t{1} << 33) + 5}),
               x = test::uniform({3, 41}, DType::f32, test::device(), 1), want = test::make({3, 41}),
               got = test::make({3, 41});
  const kernels::RandomState whole{.seed = 3, .offset = (std::uint64_t{1} << 33) + 7},
      parts{.seed = 3, .offset = 2, .base = base.data<std::int64_t>()};
  const auto same = [&](const std::function<void(const Tensor&, const kernels::RandomState&)>& draw) {
    draw(want, whole);
    draw(got, parts);
    return test::to_f64(want) == test::to_f64(got);
  };
  const auto ctx = test::context();
  EXPECT_TRUE(same([&](const Tensor& t, const auto& s) { kernels::uniform(ctx, t.view(), 0, 1, s); }));
  EXPECT_TRUE(same([&](const Tensor& t, const auto& s) { kernels::normal(ctx, t.view(), 0, 1, s); }));
  EXPECT_TRUE(same([&](const Tensor& t, const auto& s) { kernels::bernoulli(ctx, t.view(), 0.5, s); }));
  EXPECT_TRUE(same([&](const Tensor& t, const auto& s) { kernels::dropout(ctx, t.view(), {}, x.view(), 0.5, s); }));
}

TEST(Random, BernoulliEveryType) {
  for (const auto dtype :
       {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8, DType::boolean}) {
    const Tensor t = test::make({64}, dtype);
    kernels::bernoulli(test::context(), t.view(), 0.75, kState);
    std::vector<double> want;
    for (std::uint64_t e = 0; e < 64; ++e) want.push_back(word(1234, 7, e) < 3221225472u);
    EXPECT_TRUE(test::equal(t, want)) << dtype;
  }
}

TEST(Random, BadArguments) {
  const Tensor t = test::make({3}), i = test::make({3}, DType::i64), none = test::make({0, 4});
  kernels::uniform(test::context(), none.view(), 0, 1, kState);
  kernels::normal(test::context(), none.view(), 0, 1, {.seed = 1, .first_row = 3, .row_stride = 2});
  EXPECT_TRUE(
      throws(Kind::unsupported, "out is i64", [&] { kernels::uniform(test::context(), i.view(), 0, 1, kState); }));
  EXPECT_TRUE(throws(Kind::argument, "std is -1", [&] { kernels::normal(test::context(), t.view(), 0, -1, kState); }));
  EXPECT_TRUE(
      throws(Kind::argument, "probability 1.5", [&] { kernels::bernoulli(test::context(), t.view(), 1.5, kState); }));
  EXPECT_TRUE(throws(Kind::argument, "probability -0.1",
                     [&] { kernels::dropout(test::context(), t.view(), {}, t.view(), -0.1, kState); }));
  EXPECT_TRUE(throws(Kind::argument, "mask is f32",
                     [&] { kernels::dropout(test::context(), t.view(), t.view(), t.view(), 0.1, kState); }));
  EXPECT_TRUE(throws(Kind::argument, "x has sizes",
                     [&] { kernels::dropout(test::context(), t.view(), {}, test::make({4}).view(), 0.1, kState); }));
}

}  // namespace
}  // namespace apex
