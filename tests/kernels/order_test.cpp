// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "apex/kernels/copy.hpp"
#include "apex/kernels/reduce.hpp"
#include "apex/kernels/scan.hpp"
#include "apex/kernels/sort.hpp"
#include "support/on_device.hpp"

namespace apex {
namespace {

using test::throws;

constexpr DType kAll[] = {DType::f64, DType::f32, DType::f16, DType::bf16,
                          DType::i64, DType::i32, DType::u8,  DType::boolean};

/// NaN after every number.
bool smaller(double a, double b) { return a < b || (std::isnan(b) && !std::isnan(a)); }

struct Ordered {
  std::vector<double> values, indices;
};
/// The first k of each line of a [rows, length] matrix, by row or (columns) by column, in row-major order.
Ordered ordered(const Tensor& x, int dim, bool descending, std::int64_t k) {
  const auto v = test::to_f64(x);
  const std::int64_t rows = x.size(0), columns = x.size(1), length = x.size(dim), lines = dim == 1 ? rows : columns;
  Ordered out{std::vector<double>(static_cast<std::size_t>(lines * k)),
              std::vector<double>(static_cast<std::size_t>(lines * k))};
  for (std::int64_t line = 0; line < lines; ++line) {
    const auto value = [&](std::int64_t i) {
      return v[static_cast<std::size_t>(dim == 1 ? line * columns + i : i * columns + line)];
    };
    std::vector<std::int64_t> order(static_cast<std::size_t>(length));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return descending ? smaller(value(b), value(a)) : smaller(value(a), value(b));
    });
    for (std::int64_t j = 0; j < k; ++j) {
      const auto to = static_cast<std::size_t>(dim == 1 ? line * k + j : j * columns + line);
      out.values[to] = value(order[static_cast<std::size_t>(j)]);
      out.indices[to] = static_cast<double>(order[static_cast<std::size_t>(j)]);
    }
  }
  return out;
}

/// Numbers with many ties; in floating types also NaN, infinities and both zeros.
Tensor awkward(const Dims& sizes, DType dtype, std::uint64_t seed) {
  return test::from_function(sizes, dtype, test::device(), [=](std::int64_t i) {
    const double u = std::floor(40 * test::unit(seed, static_cast<std::uint64_t>(i)));
    if (dtype == DType::boolean) return u > 20 ? 1.0 : 0.0;
    if (!is_floating(dtype)) return dtype == DType::u8 ? u : u - 20;
    if (u == 0) return std::nan("");
    if (u == 1) return std::numeric_limits<double>::infinity();
    if (u == 2) return -std::numeric_limits<double>::infinity();
    if (u == 3) return -0.0;
    return u == 4 ? 0.0 : (u - 20) / 4;
  });
}

TEST(Sort, IsStableInEveryTypeAndLayout) {
  for (const auto dtype : kAll)
    for (const Dims& sizes : {Dims{3, 1}, Dims{5, 2}, Dims{7, 33}, Dims{70, 20}, Dims{2, 2049}, Dims{0, 4}, Dims{4, 0}})
      for (const int dim : {0, 1})
        for (const bool descending : {false, true}) {
          const Tensor x = awkward(sizes, dtype, 1);
          const auto want = ordered(x, dim, descending, sizes[dim]);
          for (const Tensor& from : {x, test::spread_out(x)}) {
            const Tensor values = test::spread_out(test::make(sizes, dtype)), indices = test::make(sizes, DType::i64);
            kernels::sort(test::context(), values.view(), indices.view(), from.view(), dim, descending);
            ASSERT_TRUE(test::equal(indices, want.indices)) << dtype << sizes << dim << descending;
            ASSERT_TRUE(test::equal(values, want.values)) << dtype << sizes << dim << descending;
          }
        }
}

TEST(Sort, LongLines) {
  for (const std::int64_t length : {2047, 2048, 4096, 4097, 100003, 1 << 20})
    for (const auto dtype : {DType::f32, DType::i64}) {
      const bool ties = length < 100000;
      const Tensor x = ties ? awkward({1, length}, dtype, 2)
                            : test::from_function({1, length}, dtype, test::device(), [](std::int64_t i) {
                                return std::floor(1e6 * test::unit(3, static_cast<std::uint64_t>(i)));
                              });
      const Tensor indices = test::make(x.sizes(), DType::i64), values = test::make(x.sizes(), dtype);
      const auto want = ordered(x, 1, true, length);
      kernels::sort(test::context(), values.view(), indices.view(), x.view(), -1, true);
      EXPECT_EQ(test::to_f64(indices), want.indices) << length << dtype;
      EXPECT_TRUE(test::equal(values, want.values)) << length << dtype;
    }
}

TEST(Sort, WideIntegersAndEitherOutput) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max(), least = std::numeric_limits<std::int64_t>::min();
  const Tensor x = test::values<std::int64_t>({5}, {most, 0, most - 1, least, -1});
  const Tensor indices = test::make({5}, DType::i64), values = test::make({5}, DType::i64);
  kernels::sort(test::context(), {}, indices.view(), x.view(), 0);
  EXPECT_TRUE(test::equal(indices, {3, 4, 1, 2, 0}));
  kernels::sort(test::context(), values.view(), {}, x.view(), 0);
  EXPECT_EQ(test::on_host(values).data<std::int64_t>()[3], most - 1);
  EXPECT_EQ(test::on_host(values).data<std::int64_t>()[0], least);
  EXPECT_TRUE(throws(Kind::argument, "values has sizes",
                     [&] { kernels::sort(test::context(), test::make({4}, DType::i64).view(), {}, x.view(), 0); }));
  EXPECT_TRUE(throws(Kind::argument, "values is f32",
                     [&] { kernels::sort(test::context(), test::make({5}).view(), {}, x.view(), 0); }));
  EXPECT_TRUE(throws(Kind::argument, "indices is f32",
                     [&] { kernels::sort(test::context(), {}, test::make({5}).view(), x.view(), 0); }));
  EXPECT_TRUE(throws(Kind::argument, "dimension 1", [&] { kernels::sort(test::context(), {}, {}, x.view(), 1); }));
  EXPECT_TRUE(throws(Kind::argument, "x is not given", [&] { kernels::sort(test::context(), {}, {}, {}, 0); }));
}

TEST(TopK, BothEndsForEveryCount) {
  for (const auto dtype : kAll)
    for (const Dims& sizes : {Dims{5, 33}, Dims{3, 1000}, Dims{2, 5000}})
      for (const std::int64_t k : {1, 2, 5, 7, 8, 9, 33, 100, 256, 257})
        for (const bool largest : {true, false})
          for (const int dim : {1, 0}) {
            if (k > sizes[dim]) continue;
            const Tensor x = awkward(sizes, dtype, 4);
            Dims out = sizes;
            out[dim] = k;
            const Tensor values = test::make(out, dtype), indices = test::make(out, DType::i64);
            kernels::topk(test::context(), values.view(), indices.view(), x.view(), k, dim, largest);
            const auto want = ordered(x, dim, largest, k);
            ASSERT_TRUE(test::equal(indices, want.indices)) << dtype << sizes << k << largest << dim;
            ASSERT_TRUE(test::equal(values, want.values)) << dtype << sizes << k << largest << dim;
          }
}

TEST(ArgMin, FirstOfTheSmallestNaNFirst) {
  for (const auto dtype : kAll)
    for (const Dims& sizes : {Dims{5, 33}, Dims{3, 1000}, Dims{4100, 3}, Dims{2, 1}, Dims{70, 64}, Dims{3, 20000}})
      for (const int dim : {0, 1}) {
        const Tensor x = awkward(sizes, dtype, 5);
        const auto v = test::to_f64(x);
        std::vector<double> want;
        for (std::int64_t line = 0; line < sizes[1 - dim]; ++line) {
          std::int64_t best = 0;
          const auto at = [&](std::int64_t i) {
            return v[static_cast<std::size_t>(dim == 1 ? line * sizes[1] + i : i * sizes[1] + line)];
          };
          for (std::int64_t i = 1; i < sizes[dim]; ++i)
            if (at(i) < at(best) || (std::isnan(at(i)) && !std::isnan(at(best)))) best = i;
          want.push_back(static_cast<double>(best));
        }
        const Tensor y = test::make({sizes[1 - dim]}, DType::i64);
        for (const Tensor& from : {x, test::spread_out(x), test::misaligned(x)}) {
          kernels::argmin(test::context(), y.view(), from.view(), dim);
          ASSERT_TRUE(test::equal(y, want)) << dtype << sizes << dim;
        }
      }
  const std::int64_t least = std::numeric_limits<std::int64_t>::min();
  const Tensor y = test::make({}, DType::i64);
  kernels::argmin(test::context(), y.view(), test::values<std::int64_t>({4}, {0, -5, least, least}).view(), 0);
  EXPECT_TRUE(test::equal(y, {2}));
  EXPECT_TRUE(throws(Kind::argument, "is empty",
                     [&] { kernels::argmin(test::context(), y.view(), test::make({0}).view(), 0); }));
}

TEST(CumSum, BothWaysInEveryTypeAndLayout) {
  for (const auto dtype : kAll)
    for (const Dims& sizes : {Dims{3, 7}, Dims{2, 33}, Dims{5, 3000}, Dims{3000, 5}, Dims{40, 5000}, Dims{1030, 264},
                              Dims{0, 4}, Dims{4, 0}})
      for (const int dim : {0, 1})
        for (const bool reverse : {false, true}) {
          const Tensor x = test::from_function(sizes, dtype, test::device(), [&](std::int64_t i) {
            const double u = std::floor(8 * test::unit(6, static_cast<std::uint64_t>(i)));
            return is_floating(dtype) ? (u - 4) / 16 : u;
          });
          const auto v = test::to_f64(x);
          std::vector<double> want(v.size());
          const std::int64_t rows = sizes[0], columns = sizes[1], length = sizes[dim];
          for (std::int64_t line = 0; line < (dim == 1 ? rows : columns); ++line) {
            double sum = 0;
            for (std::int64_t i = 0; i < length; ++i) {
              const std::int64_t j = reverse ? length - 1 - i : i;
              const auto at = static_cast<std::size_t>(dim == 1 ? line * columns + j : j * columns + line);
              want[at] = sum += v[at];
            }
          }
          const DType out = is_floating(dtype) ? dtype : DType::i64;
          const auto tolerance = is_floating(dtype) ? test::forward_tolerance(dtype) : test::Tolerance{};
          for (const Tensor& from : {x, test::spread_out(x)}) {
            const Tensor y = test::fresh(sizes, out);
            kernels::cumsum(test::context(), y.view(), from.view(), dim, reverse);
            ASSERT_TRUE(test::close(y, want, tolerance)) << dtype << sizes << dim << reverse;
          }
          if (out != dtype) continue;
          kernels::cumsum(test::context(), x.view(), x.view(), dim, reverse);  // in place
          ASSERT_TRUE(test::close(x, want, tolerance)) << dtype << sizes << dim << reverse;
        }
  const Tensor x = test::make({3}, DType::i32);
  EXPECT_TRUE(throws(Kind::argument, "out is i32", [&] { kernels::cumsum(test::context(), x.view(), x.view(), 0); }));
  EXPECT_TRUE(throws(Kind::argument, "out has sizes",
                     [&] { kernels::cumsum(test::context(), test::make({4}, DType::i64).view(), x.view(), 0); }));
  EXPECT_TRUE(throws(Kind::argument, "dimension 1", [&] { kernels::cumsum(test::context(), x.view(), x.view(), 1); }));
}

TEST(Arange, CountsInEveryType) {
  for (const auto dtype : kAll) {
    for (const auto& [start, step] : {std::pair{0.0, 1.0}, {2.0, 3.0}, {0.5, 0.25}}) {
      const Tensor y = test::make({5}, dtype), want = test::make({5}, DType::f64);
      kernels::arange(test::context(), y.view(), start, step);
      std::vector<double> values;
      for (int i = 0; i < 5; ++i) {
        const double v = start + i * step;
        values.push_back(dtype == DType::boolean ? v != 0 : is_floating(dtype) ? v : std::trunc(v));
      }
      EXPECT_TRUE(test::equal(y, values)) << dtype << start;
    }
  }
  const std::int64_t far = (std::int64_t{1} << 53);
  const Tensor y = test::make({3}, DType::i64), gaps = test::spread_out(test::make({70000}, DType::i32));
  kernels::arange(test::context(), y.view(), static_cast<double>(far), 1);  // beyond what f64 counts
  EXPECT_EQ(test::on_host(y).data<std::int64_t>()[1], far + 1);
  kernels::arange(test::context(), gaps.view(), 7, -2);
  const auto v = test::to_f64(gaps);
  for (std::size_t i = 0; i < v.size(); ++i) ASSERT_EQ(v[i], 7 - 2 * static_cast<double>(i));
  kernels::arange(test::context(), test::make({0}, DType::i64).view());
  EXPECT_TRUE(throws(Kind::argument, "wanted rank 1", [&] {
    kernels::arange(test::context(), test::make({2, 2}).view());
  }));
}

}  // namespace
}  // namespace apex
