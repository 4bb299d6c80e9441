// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/reduce.hpp"

#include <omp.h>

#include <limits>
#include <map>

#include "support/on_device.hpp"

namespace apex {
namespace {

using kernels::ReduceOp;
using test::throws;

/// Groups of values by output position, in row-major order of the output with reduced dimensions as 1.
std::vector<std::vector<double>> groups(const Tensor& x, const std::vector<int>& dims) {
  Dims kept = x.sizes();
  for (const int d : dims) kept[d] = 1;
  const Dims strides = strides_for(kept);
  std::vector<std::vector<double>> out(static_cast<std::size_t>(element_count(kept)));
  const auto values = test::to_f64(x);
  for (std::int64_t flat = 0; flat < x.numel(); ++flat) {
    std::int64_t rest = flat, at = 0;
    for (int d = x.dim() - 1; d >= 0; --d) {
      if (kept[d] != 1) at += rest % x.sizes()[d] * strides[d];
      rest /= x.sizes()[d];
    }
    out[static_cast<std::size_t>(at)].push_back(values[static_cast<std::size_t>(flat)]);
  }
  return out;
}

double reference(ReduceOp op, const std::vector<double>& v) {
  double sum = 0, high = -INFINITY, low = INFINITY;
  for (const double x : v) {
    sum += x;
    high = std::isnan(x) || std::isnan(high) ? std::nan("") : std::max(high, x);
    low = std::isnan(x) || std::isnan(low) ? std::nan("") : std::min(low, x);
  }
  switch (op) {
    case ReduceOp::sum: return sum;
    case ReduceOp::mean: return sum / static_cast<double>(v.size());
    case ReduceOp::max: return high;
    case ReduceOp::min: return low;
  }
  return 0;
}

std::vector<double> expected(const Tensor& x, const std::vector<int>& dims, ReduceOp op) {
  std::vector<double> out;
  for (const auto& g : groups(x, dims)) out.push_back(reference(op, g));
  return out;
}

constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::mean, ReduceOp::max, ReduceOp::min};

TEST(Reduce, EverySetOfDimensionsInEveryLayout) {
  const Dims sizes{3, 5, 4, 7};
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const Tensor row = test::uniform(sizes, dtype, test::device(), 1),
                 last = test::uniform(sizes, dtype, test::device(), 1, -1, 1, MemoryFormat::channels_last);
    for (int set = 1; set < 16; ++set) {
      std::vector<int> dims;
      Dims listed, kept, dropped;
      for (int d = 0; d < 4; ++d) {
        if (set >> d & 1) {
          dims.push_back(d);
          listed.push_back(d % 2 == 0 ? d : d - 4);
        } else {
          dropped.push_back(sizes[d]);
        }
        kept.push_back(set >> d & 1 ? 1 : sizes[d]);
      }
      for (const auto op : kOps)
        for (const auto& x : {row, last, test::spread_out(row), test::misaligned(row)}) {
          const auto want = expected(x, dims, op);
          const std::int64_t terms = op == ReduceOp::sum ? x.numel() : 1;
          for (const Dims& out_sizes : {kept, dropped}) {
            const Tensor y = test::fresh(out_sizes, dtype);
            kernels::reduce(test::context(), y.view(), x.view(), listed, op);
            ASSERT_TRUE(test::close(y, want, test::sum_tolerance(dtype, terms)))
                << name_of(op) << dtype << listed << x.strides();
          }
        }
    }
  }
}

TEST(Reduce, LongSumsAreAccurateAndTheSameForEveryThreadCount) {
  const std::pair<Dims, Dims> cases[] = {
      {{1000003}, {}}, {{70001, 16}, {0}}, {{16, 70001}, {1}}, {{70001, 16}, {1}}, {{300, 20, 100}, {0, 2}}};
  const int threads = omp_get_max_threads();
  for (const auto& [sizes, dims] : cases) {
    const Tensor x = test::uniform(sizes, DType::f32, test::device(), 2, 0, 1);
    std::vector<int> set;
    for (int d = 0; d < x.dim(); ++d)
      if (dims.empty() || std::find(dims.begin(), dims.end(), d) != dims.end()) set.push_back(d);
    Dims kept = sizes;
    for (const int d : set) kept[d] = 1;
    const Tensor y = test::fresh(kept, DType::f32), z = test::fresh(kept, DType::f32);
    kernels::reduce(test::context(), y.view(), x.view(), dims, ReduceOp::sum);
    EXPECT_TRUE(test::close(y, expected(x, set, ReduceOp::sum), {1e-6, 0})) << sizes;
    omp_set_num_threads(threads == 1 ? 2 : 1);
    kernels::reduce(test::context(), z.view(), x.view(), dims, ReduceOp::sum);
    omp_set_num_threads(threads);
    EXPECT_EQ(test::to_f64(y), test::to_f64(z)) << sizes;
  }
}

TEST(Reduce, LongInEveryType) {
  const std::pair<Dims, std::vector<int>> cases[] = {{{9001}, {0}},       {{4001, 24}, {0}},      {{4001, 3}, {0}},
                                                     {{5, 9001}, {1}},    {{3, 16, 700}, {0, 2}}, {{64, 3, 50}, {0, 1}},
                                                     {{4, 2, 5000}, {2}}, {{200, 17}, {1}}};
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8})
    for (const auto& [sizes, dims] : cases) {
      const bool floating = is_floating(dtype);
      const Tensor x = test::from_function(sizes, dtype, test::device(), [&](std::int64_t i) {
        return static_cast<double>(i * 7919 % 251) / (floating ? 125.0 : 1.0) - (floating ? 1.0 : 0.0);
      });
      const Tensor moved = test::misaligned(x);
      const auto grouped = groups(x, dims);
      Dims listed, kept = sizes;
      for (const int d : dims) {
        listed.push_back(d);
        kept[d] = 1;
      }
      for (const auto op : kOps) {
        if (!floating && op == ReduceOp::mean) continue;
        std::vector<double> want;
        for (const auto& g : grouped) want.push_back(reference(op, g));
        const test::Tolerance t = !floating             ? test::Tolerance{}
                                  : dtype == DType::f64 ? test::Tolerance{1e-12, 1e-11}
                                                        : test::Tolerance{1e-6, 2e-4};
        const DType to = floating ? accum_dtype(dtype) : op == ReduceOp::sum ? DType::i64 : dtype;
        const Tensor y = test::fresh(kept, to), again = test::fresh(kept, to), other = test::fresh(kept, to);
        kernels::reduce(test::context(), y.view(), x.view(), listed, op);
        kernels::reduce(test::context(), again.view(), x.view(), listed, op);
        kernels::reduce(test::context(), other.view(), moved.view(), listed, op);
        EXPECT_TRUE(test::close(y, want, t)) << name_of(op) << dtype << sizes;
        EXPECT_EQ(test::to_f64(y), test::to_f64(again)) << name_of(op) << dtype << sizes;
        EXPECT_EQ(test::to_f64(y), test::to_f64(other)) << name_of(op) << dtype << sizes;  // whatever the address
      }
    }
}

TEST(Reduce, MixedTypesAndIntegers) {
  const Tensor h = test::from_function({70000}, DType::f16, test::device(), [](std::int64_t) { return 1.0; }),
               f = test::make({});
  kernels::reduce(test::context(), f.view(), h.view(), {}, ReduceOp::sum);
  EXPECT_EQ(f.item(), 70000);  // beyond f16, so the f32 result shows
  const Tensor b = test::values<bool>({2, 3}, {true, true, false, true, true, true}), n = test::make({2}, DType::i64);
  kernels::reduce(test::context(), n.view(), b.view(), {1}, ReduceOp::sum);
  EXPECT_TRUE(test::equal(n, {2, 3}));
  const Tensor i = test::values<std::int64_t>({3}, {(std::int64_t{1} << 60) + 1, 5, -7}),
               m = test::make({}, DType::i64);
  kernels::reduce(test::context(), m.view(), i.view(), {}, ReduceOp::max);
  EXPECT_EQ(*test::on_host(m).data<std::int64_t>(), (std::int64_t{1} << 60) + 1);
  kernels::reduce(test::context(), m.view(), i.view(), {}, ReduceOp::sum);
  EXPECT_EQ(*test::on_host(m).data<std::int64_t>(), (std::int64_t{1} << 60) - 1);
  const Tensor u = test::values<std::uint8_t>({3}, {9, 250, 3}), v = test::make({}, DType::u8);
  kernels::reduce(test::context(), v.view(), u.view(), {0}, ReduceOp::min);
  EXPECT_EQ(v.item(), 3);
  EXPECT_TRUE(throws(Kind::unsupported, "mean",
                     [&] { kernels::reduce(test::context(), m.view(), i.view(), {}, ReduceOp::mean); }));
  EXPECT_TRUE(throws(Kind::argument, "out is f32",
                     [&] { kernels::reduce(test::context(), f.view(), i.view(), {}, ReduceOp::sum); }));
  EXPECT_TRUE(throws(Kind::argument, "out is i64",
                     [&] { kernels::reduce(test::context(), m.view(), h.view(), {}, ReduceOp::sum); }));
}

TEST(Reduce, NaNAndNothing) {
  const double nan = std::nan("");
  const Tensor x = test::from_list({2, 20}, DType::f32, [] {
    std::vector<double> v(40, 1.0);
    v[27] = std::nan("");
    return v;
  }());
  const Tensor y = test::fresh({2}, DType::f32);
  for (const auto op : {ReduceOp::max, ReduceOp::min, ReduceOp::sum}) {
    kernels::reduce(test::context(), y.view(), x.view(), {1}, op);
    EXPECT_TRUE(test::equal(y, {op == ReduceOp::sum ? 20.0 : 1.0, nan}));
  }
  const Tensor none = test::make({2, 0}), z = test::fresh({2}, DType::f32);
  kernels::reduce(test::context(), z.view(), none.view(), {1}, ReduceOp::sum);
  EXPECT_TRUE(test::equal(z, {0, 0}));
  kernels::reduce(test::context(), z.view(), none.view(), {1}, ReduceOp::mean);
  EXPECT_TRUE(test::equal(z, {nan, nan}));
  EXPECT_TRUE(throws(Kind::argument, "nothing to take",
                     [&] { kernels::reduce(test::context(), z.view(), none.view(), {1}, ReduceOp::max); }));
  kernels::reduce(test::context(), test::make({0}).view(), none.view(), {0}, ReduceOp::max);  // no output either
}

TEST(Reduce, BadArguments) {
  const Tensor x = test::make({2, 3}), y = test::make({2});
  EXPECT_TRUE(throws(Kind::argument, "twice", [&] {
    kernels::reduce(test::context(), y.view(), x.view(), {1, -1}, ReduceOp::sum);
  }));
  EXPECT_TRUE(throws(Kind::argument, "dimension 2",
                     [&] { kernels::reduce(test::context(), y.view(), x.view(), {2}, ReduceOp::sum); }));
  EXPECT_TRUE(throws(Kind::argument, "wanted [3]",
                     [&] { kernels::reduce(test::context(), y.view(), x.view(), {0}, ReduceOp::sum); }));
}

TEST(SumTo, ReversesBroadcasting) {
  for (const auto dtype : {DType::f64, DType::f32, DType::bf16})
    for (const Dims& small : {Dims{4}, Dims{3, 1}, Dims{2, 1, 4}, Dims{1}, Dims{}, Dims{2, 3, 4}, Dims{1, 3, 1}}) {
      const Tensor x = test::uniform({2, 3, 4}, dtype, test::device(), 5), y = test::fresh(small, dtype);
      kernels::sum_to(test::context(), y.view(), x.view());
      Dims padded = Dims::filled(3 - small.size(), 1);
      for (const auto s : small) padded.push_back(s);
      std::vector<int> dims;
      for (int d = 0; d < 3; ++d)
        if (padded[d] == 1) dims.push_back(d);
      EXPECT_TRUE(test::close(y, expected(x, dims, ReduceOp::sum), test::sum_tolerance(dtype, 24))) << small;
    }
  EXPECT_TRUE(throws(Kind::argument, "does not broadcast", [] {
    kernels::sum_to(test::context(), test::make({3}).view(), test::make({2, 4}).view());
  }));
  EXPECT_TRUE(throws(Kind::unsupported, "sum_to", [] {
    kernels::sum_to(test::context(), test::make({1}, DType::i64).view(), test::make({4}, DType::i64).view());
  }));
  const Tensor zero = test::fresh({3}, DType::f32);
  kernels::sum_to(test::context(), zero.view(), test::make({0, 3}).view());
  EXPECT_TRUE(test::equal(zero, {0, 0, 0}));
}

TEST(ArgMax, FirstAmongEqualsAndNaN) {
  const Tensor x = test::from_list({3, 4}, DType::f32, {1, 5, 5, 2, 4, NAN, 9, NAN, -3, -3, -3, -3}),
               out = test::make({3}, DType::i64);
  kernels::argmax(test::context(), out.view(), x.view(), 1);
  EXPECT_TRUE(test::equal(out, {1, 1, 0}));
  const Tensor columns = test::make({1, 4}, DType::i64);
  kernels::argmax(test::context(), columns.view(), views::narrow(x, 0, 0, 1).view(), 0);
  EXPECT_TRUE(test::equal(columns, {0, 0, 0, 0}));
  kernels::argmax(test::context(), columns.view(), test::spread_out(x).view(), -2);
  EXPECT_TRUE(test::equal(columns, {1, 1, 1, 1}));
  EXPECT_TRUE(throws(Kind::argument, "empty", [&] {
    kernels::argmax(test::context(), out.view(), test::make({3, 0}).view(), 1);
  }));
  EXPECT_TRUE(throws(Kind::argument, "out is f32",
                     [&] { kernels::argmax(test::context(), test::make({3}).view(), x.view(), 1); }));
  EXPECT_TRUE(
      throws(Kind::argument, "dimension 2", [&] { kernels::argmax(test::context(), out.view(), x.view(), 2); }));
}

TEST(Reduce, IntegersApartInMemory) {
  for (const auto dtype : {DType::i64, DType::i32, DType::u8})
    for (const auto& [sizes, dims] :
         {std::pair<Dims, std::vector<int>>{{7, 29}, {0, 1}}, {{5, 301}, {1}}, {{3000}, {0}}}) {
      const Tensor x = test::spread_out(test::from_function(
          sizes, dtype, test::device(), [](std::int64_t i) { return static_cast<double>(i * 7919 % 251); }));
      Dims listed, kept = sizes;
      for (const int d : dims) {
        listed.push_back(d);
        kept[d] = 1;
      }
      for (const auto op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
        const Tensor y = test::make(kept, op == ReduceOp::sum ? DType::i64 : dtype);
        kernels::reduce(test::context(), y.view(), x.view(), listed, op);
        EXPECT_TRUE(test::equal(y, expected(x, dims, op))) << name_of(op) << dtype << sizes;
      }
    }
}

TEST(ArgMax, LongLinesBothWays) {
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8})
    for (const auto& [sizes, dim] : {std::pair<Dims, int>{{3, 3000}, 1},
                                     {{5, 700}, 1},
                                     {{37, 4099}, 0},
                                     {{9, 4, 3}, 1},
                                     {{70, 520}, 1},
                                     {{2, 70000}, 1},
                                     {{33, 7}, 1},
                                     {{6, 16}, 1}}) {
      const Tensor x = test::from_function(sizes, dtype, test::device(),
                                           [](std::int64_t i) { return static_cast<double>(i * 7919 % 251); });
      Dims kept = sizes;
      kept[dim] = 1;
      const Tensor out = test::make(kept, DType::i64), best = test::make(kept, DType::i64);
      kernels::argmax(test::context(), out.view(), x.view(), dim);
      std::vector<double> want;
      for (const auto& g : groups(x, {dim}))
        want.push_back(static_cast<double>(std::max_element(g.begin(), g.end()) - g.begin()));
      EXPECT_TRUE(test::equal(out, want)) << dtype << sizes;
      kernels::topk(test::context(), {}, best.view(), x.view(), 1, dim);
      EXPECT_TRUE(test::equal(best, want)) << dtype << sizes;
    }
}

TEST(ArgMax, NothingButTheLeastValue) {
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8})
    for (const std::int64_t length : {5, 64, 1000}) {
      const double least = is_floating(dtype)    ? -std::numeric_limits<double>::infinity()
                           : dtype == DType::u8  ? 0
                           : dtype == DType::i32 ? std::numeric_limits<std::int32_t>::min()
                                                 : -0x1p63;
      const Tensor x = test::from_function({3, length}, dtype, test::device(), [=](std::int64_t) { return least; });
      const Tensor out = test::make({3}, DType::i64);
      kernels::argmax(test::context(), out.view(), x.view(), 1);
      EXPECT_TRUE(test::equal(out, {0, 0, 0})) << dtype << length;
      kernels::argmin(test::context(), out.view(), x.view(), 1);
      EXPECT_TRUE(test::equal(out, {0, 0, 0})) << dtype << length;
    }
}

TEST(TopK, SortsByValueThenIndex) {
  const Tensor x = test::from_list({2, 5}, DType::f64, {3, 9, 9, NAN, 1, 0, 0, 0, 0, 0}),
               v = test::make({2, 3}, DType::f64), i = test::make({2, 3}, DType::i64);
  kernels::topk(test::context(), v.view(), i.view(), x.view(), 3, 1);
  EXPECT_TRUE(test::equal(v, {std::nan(""), 9, 9, 0, 0, 0}));
  EXPECT_TRUE(test::equal(i, {3, 1, 2, 0, 1, 2}));
  const Tensor column = test::make({1, 5}, DType::i64);
  kernels::topk(test::context(), {}, column.view(), test::spread_out(x).view(), 1, 0);
  EXPECT_TRUE(test::equal(column, {0, 0, 0, 0, 0}));
  kernels::topk(test::context(), test::make({2, 0}, DType::f64).view(), {}, x.view(), 0, 1);
  const Tensor random = test::uniform({7, 33}, DType::f32, test::device(), 9), best = test::make({7, 33}, DType::f32);
  kernels::topk(test::context(), best.view(), {}, random.view(), 33, 1);
  const auto values = test::to_f64(random), sorted = test::to_f64(best);
  for (std::size_t r = 0; r < 7; ++r) {
    std::vector<double> want(values.begin() + static_cast<std::ptrdiff_t>(r * 33),
                             values.begin() + static_cast<std::ptrdiff_t>(r * 33 + 33));
    std::sort(want.begin(), want.end(), std::greater<>());
    EXPECT_EQ(std::vector<double>(sorted.begin() + static_cast<std::ptrdiff_t>(r * 33),
                                  sorted.begin() + static_cast<std::ptrdiff_t>(r * 33 + 33)),
              want);
  }
  EXPECT_TRUE(throws(Kind::argument, "k is 6", [&] { kernels::topk(test::context(), {}, i.view(), x.view(), 6, 1); }));
  EXPECT_TRUE(
      throws(Kind::argument, "k is -1", [&] { kernels::topk(test::context(), {}, i.view(), x.view(), -1, 1); }));
  EXPECT_TRUE(throws(Kind::argument, "values is f32", [&] {
    kernels::topk(test::context(), test::make({2, 3}).view(), {}, x.view(), 3, 1);
  }));
}

}  // namespace
}  // namespace apex
