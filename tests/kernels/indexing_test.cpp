// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/indexing.hpp"

#include <omp.h>

#include <cmath>

#include "apex/kernels/cross_entropy.hpp"
#include "apex/kernels/data_checks.hpp"
#include "support/on_device.hpp"

namespace apex {
namespace {

using test::throws;

constexpr DType kFloats[] = {DType::f64, DType::f32, DType::f16, DType::bf16};

/// Whole numbers below n, each drawn by its position.
Tensor indices(const Dims& sizes, std::int64_t n, std::uint64_t seed, DType dtype = DType::i64) {
  return test::from_function(sizes, dtype, test::device(), [=](std::int64_t i) {
    return std::floor(static_cast<double>(n) * test::unit(seed, static_cast<std::uint64_t>(i)));
  });
}
/// Values of which thousands add exactly in f32, and few in 16 bits.
Tensor quarters(const Dims& sizes, DType dtype, std::uint64_t seed) {
  return test::from_function(sizes, dtype, test::device(), [=](std::int64_t i) {
    return std::floor(16 * test::unit(seed, static_cast<std::uint64_t>(i)) - 8) / 4;
  });
}

std::int64_t flat_at(const Dims& sizes, const Dims& place) {
  std::int64_t flat = 0;
  for (int d = 0; d < sizes.size(); ++d) flat = flat * sizes[d] + place[d];
  return flat;
}
/// Calls f(flat position in index, place in x that it points at) for each element of an index.
void each_pointer(const Tensor& index, int dim, const std::function<void(std::int64_t, const Dims&)>& f) {
  const auto to = test::to_f64(index);
  for (std::int64_t flat = 0; flat < index.numel(); ++flat) {
    Dims place = index.sizes();
    std::int64_t rest = flat;
    for (int d = index.dim() - 1; d >= 0; --d) {
      place[d] = rest % index.sizes()[d];
      rest /= index.sizes()[d];
    }
    place[dim] = static_cast<std::int64_t>(to[static_cast<std::size_t>(flat)]);
    f(flat, place);
  }
}
std::vector<double> gathered(const Tensor& x, const Tensor& index, int dim) {
  const auto xs = test::to_f64(x);
  std::vector<double> out(static_cast<std::size_t>(index.numel()));
  each_pointer(index, dim, [&](std::int64_t i, const Dims& place) {
    out[static_cast<std::size_t>(i)] = xs[static_cast<std::size_t>(flat_at(x.sizes(), place))];
  });
  return out;
}
std::vector<double> scattered(const Dims& sizes, std::vector<double> sum, const Tensor& src, const Tensor& index,
                              int dim, std::int64_t ignored = -1) {
  const auto terms = test::to_f64(src);
  each_pointer(index, dim, [&](std::int64_t i, const Dims& place) {
    if (place[dim] != ignored)
      sum[static_cast<std::size_t>(flat_at(sizes, place))] += terms[static_cast<std::size_t>(i)];
  });
  return sum;
}

/// Every row of `list` of a table [*, columns], as a broadcast index.
Tensor rows_of(const Tensor& list, std::int64_t columns) {
  return views::expand(views::reshape(list, {-1, 1}), {list.numel(), columns});
}

struct Case {
  Dims x, index;
  int dim;
};
// Few and many indices in a line, an index smaller than x elsewhere, one line, many lines, the innermost dimension and
// others.
const Case kCases[] = {
    {{5, 7}, {5, 3}, 1},
    {{5, 7}, {5, 40}, 1},
    {{40, 9}, {100, 9}, 0},
    {{6, 5, 4}, {3, 30, 2}, 1},
    {{1000}, {5000}, 0},
    {{3, 4, 50}, {3, 4, 1}, 2},
    {{17, 33}, {1, 33}, 0},
    {{2, 3000}, {2, 2100}, 1},
    {{300, 2}, {16, 2}, 0},
    {{300, 2}, {17, 2}, 0},
    // Rows that a GPU keeps in shared memory: their lengths are multiples of a pack's or not, an
    // index of more than one round of a block, more rows in x than in the index, everything in one place.
    {{5, 130}, {5, 131}, 1},
    {{3, 256}, {2, 320}, 1},
    {{2, 300}, {2, 4500}, 1},
    {{70, 150}, {65, 201}, 1},
    {{64, 1}, {64, 300}, 1},
    {{4, 3, 33}, {4, 3, 640}, 2}};

TEST(Gather, MatchesItsReference) {
  for (const auto dtype :
       {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8, DType::boolean})
    for (const auto& c : kCases) {
      const Tensor x = test::from_function(c.x, dtype, test::device(), [](std::int64_t i) { return i * 37 % 101; });
      for (const auto kind : {DType::i64, DType::i32}) {
        const Tensor index = indices(c.index, c.x[c.dim], 3, kind);
        const auto want = gathered(x, index, c.dim);
        for (const Tensor& from : {x, test::spread_out(x), test::misaligned(x)})
          for (const Tensor& by : {index, test::spread_out(index)}) {
            const Tensor y = test::fresh(c.index, dtype);
            kernels::gather(test::context(), y.view(), from.view(), by.view(), c.dim);
            ASSERT_TRUE(test::equal(y, want)) << dtype << c.x << c.index << c.dim;
          }
      }
    }
}

TEST(Gather, RowsOfATable) {
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::u8})
    for (const std::int64_t columns : {1, 3, 8, 64, 129}) {
      const Tensor x =
          test::from_function({50, columns}, dtype, test::device(), [](std::int64_t i) { return i * 37 % 101; });
      const Tensor index = rows_of(indices({77}, 50, 4), columns);
      for (const Tensor& from : {x, test::misaligned(x), test::spread_out(x)}) {
        const Tensor y = test::fresh(index.sizes(), dtype);
        kernels::gather(test::context(), y.view(), from.view(), index.view(), 0);
        ASSERT_TRUE(test::equal(y, gathered(x, index, 0))) << dtype << columns;
      }
    }
}

TEST(ScatterAdd, MatchesItsReference) {
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32})
    for (const auto& c : kCases) {
      const Tensor base = quarters(c.x, dtype, 5), src = quarters(c.index, dtype, 6);
      for (const auto kind : {DType::i64, DType::i32}) {
        const Tensor index = indices(c.index, c.x[c.dim], 7, kind);
        const auto tolerance = is_floating(dtype) ? test::forward_tolerance(dtype) : test::Tolerance{};
        for (const Tensor& from : {src, test::spread_out(src)}) {
          const Tensor y = test::fresh(c.x, dtype), z = test::spread_out(base);
          kernels::scatter_add(test::context(), y.view(), base.view(), from.view(), index.view(), c.dim);
          const auto want = scattered(c.x, test::to_f64(base), src, index, c.dim);
          ASSERT_TRUE(test::close(y, want, tolerance)) << dtype << c.x << c.index << c.dim;
          kernels::scatter_add(test::context(), z.view(), z.view(), from.view(), index.view(), c.dim);  // in place
          ASSERT_TRUE(test::close(z, want, tolerance)) << dtype << c.x << c.index << c.dim;
          kernels::scatter_add(test::context(), y.view(), {}, from.view(), index.view(), c.dim);
          const std::vector<double> nothing(static_cast<std::size_t>(base.numel()), 0.0);
          ASSERT_TRUE(test::close(y, scattered(c.x, nothing, src, index, c.dim), tolerance)) << dtype << c.x << c.index;
        }
      }
    }
}

TEST(ScatterAdd, RowsOfATableWithRepeatedAndIgnoredOnes) {
  for (const auto dtype : kFloats)
    for (const std::int64_t count : {9, 1000}) {
      const std::int64_t columns = 33, entries = 20;
      const Tensor list = indices({count}, entries, 8), index = rows_of(list, columns);
      const Tensor src = quarters(index.sizes(), dtype, 9), y = test::fresh({entries, columns}, dtype);
      kernels::scatter_add(test::context(), y.view(), {}, src.view(), index.view(), 0, {.ignore_index = 3});
      const std::vector<double> nothing(static_cast<std::size_t>(y.numel()), 0.0);
      EXPECT_TRUE(test::close(y, scattered(y.sizes(), nothing, src, index, 0, 3), test::forward_tolerance(dtype)));
      for (const double v : test::to_f64(views::narrow(y, 0, 3, 1))) EXPECT_EQ(v, 0);
    }
  // What is ignored need not be a place.
  const Tensor y = test::fresh({2, 1}, DType::f32);
  kernels::scatter_add(test::context(), y.view(), {}, test::values<float>({3, 1}, {1, 2, 4}).view(),
                       test::values<std::int64_t>({3, 1}, {0, -100, 1}).view(), 0, {.ignore_index = -100});
  EXPECT_TRUE(test::equal(y, {1, 4}));
}

TEST(ScatterAdd, RowsWithIgnoredOnes) {
  for (const auto dtype : kFloats)
    for (const auto kind : {DType::i64, DType::i32}) {
      const Tensor index = indices({66, 530}, 20, 12, kind), src = quarters(index.sizes(), dtype, 13);
      const Tensor base = quarters({66, 20}, dtype, 14), y = test::fresh({66, 20}, dtype),
                   z = test::fresh({66, 20}, dtype);
      const kernels::ScatterOptions options{.ignore_index = 3};
      kernels::scatter_add(test::context(), y.view(), base.view(), src.view(), index.view(), 1, options);
      EXPECT_TRUE(
          test::close(y, scattered(y.sizes(), test::to_f64(base), src, index, 1, 3), test::forward_tolerance(dtype)));
      kernels::scatter_add(test::context(), z.view(), base.view(), src.view(), index.view(), 1, options);
      EXPECT_EQ(test::to_f64(y), test::to_f64(z));
    }
}

TEST(ScatterAdd, AddsInTheOrderOfPlaces) {
  // 2^24, 1 and -2^24 in f32 leave 0; with 1 after the other two it would be left.
  const std::int64_t rows = 80, columns = 99;
  const Tensor src = test::from_function({rows, columns}, DType::f32, test::device(), [&](std::int64_t i) {
    return i % columns % 3 == 0 ? 0x1p24 : i % columns % 3 == 1 ? 1.0 : -0x1p24;
  });
  const Tensor index = test::from_function({rows, columns}, DType::i64, test::device(),
                                           [&](std::int64_t i) { return static_cast<double>(i % columns / 33); });
  const Tensor y = test::fresh({rows, 3}, DType::f32);
  kernels::scatter_add(test::context(), y.view(), {}, src.view(), index.view(), 1);
  for (const double v : test::to_f64(y)) ASSERT_EQ(v, 0);
}

TEST(ScatterAdd, GivesTheSameBitsOnEveryRunAndForEveryThreadCount) {
  for (const auto dtype : {DType::f32, DType::bf16}) {
    const Tensor src = test::uniform({20000, 40}, dtype, test::device(), 10);
    const Tensor index = rows_of(indices({20000}, 7, 11), 40);
    const Tensor y = test::fresh({7, 40}, dtype), z = test::fresh({7, 40}, dtype);
    const auto add = [&](const Tensor& to) {
      kernels::scatter_add(test::context(), to.view(), {}, src.view(), index.view(), 0);
    };
    add(y);
    const int threads = omp_get_max_threads();
    omp_set_num_threads(threads == 1 ? 2 : 1);
    add(z);
    omp_set_num_threads(threads);
    EXPECT_EQ(test::to_f64(y), test::to_f64(z));
    // Summed in f32 at least: thousands of terms, rounded once.
    const std::vector<double> nothing(static_cast<std::size_t>(y.numel()), 0.0);
    EXPECT_TRUE(test::close(y, scattered(y.sizes(), nothing, src, index, 0), test::sum_tolerance(dtype, 3000)));
  }
}

TEST(OneHot, MatchesItsReference) {
  for (const auto dtype :
       {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8, DType::boolean})
    for (const Dims& sizes : {Dims{7}, Dims{3, 5}, Dims{}, Dims{0}, Dims{1000}}) {
      const Tensor labels = indices(sizes, 6, 12, DType::i32);
      Dims wide = sizes;
      wide.push_back(6);
      std::vector<double> want;
      for (const double label : test::to_f64(labels))
        for (int c = 0; c < 6; ++c) want.push_back(c == label);
      for (const Tensor& y : {test::fresh(wide, dtype), test::spread_out(test::make(wide, dtype))}) {
        kernels::one_hot(test::context(), y.view(), labels.view());
        EXPECT_TRUE(test::equal(y, want)) << dtype << sizes;
      }
    }
}

/// Data checks on for the time of a scope.
struct Checked {
  Checked() { kernels::set_data_checks(true); }
  ~Checked() { kernels::set_data_checks(before); }
  bool before = kernels::data_checks();
};

TEST(Indexing, WrongIndicesAreNamedOrShow) {
  const Tensor x = test::from_function({2, 3}, DType::f32, test::device(), [](std::int64_t i) { return i + 1.0; });
  const Tensor index = test::values<std::int64_t>({2, 2}, {0, 2, 3, -1}), y = test::fresh({2, 2}, DType::f32);
  const Tensor sum = test::fresh({2, 3}, DType::f32), labels = test::values<std::int32_t>({3}, {1, 2, 0});
  const Tensor hot = test::fresh({3, 2}, DType::f32), count = test::make({3, 2}, DType::i64);
  const auto gather = [&] { kernels::gather(test::context(), y.view(), x.view(), index.view(), 1); };
  const auto scatter = [&] {
    kernels::scatter_add(test::context(), sum.view(), x.view(), test::values<float>({2, 2}, {10, 20, 30, 40}).view(),
                         index.view(), 1);
  };
  const auto one_hot = [&](const Tensor& out) { kernels::one_hot(test::context(), out.view(), labels.view()); };
  if (test::on_cuda() && !kernels::data_checks()) {
    gather();
    EXPECT_TRUE(test::equal(y, {1, 3, std::nan(""), std::nan("")}));
    scatter();
    EXPECT_TRUE(test::equal(sum, {11, 2, 23, 4, 5, 6}));
    one_hot(hot);
    EXPECT_TRUE(test::equal(hot, {0, 1, std::nan(""), std::nan(""), 1, 0}));
    one_hot(count);
    EXPECT_TRUE(test::equal(count, {0, 1, 0, 0, 1, 0}));
  }
  const Checked checked;
  EXPECT_TRUE(throws(Kind::argument, "gather: the index at [1, 0] is 3, wanted 0 to 2", gather));
  EXPECT_TRUE(throws(Kind::argument, "scatter_add: the index at [1, 0] is 3, wanted 0 to 2", scatter));
  EXPECT_TRUE(throws(Kind::argument, "one_hot: the label at [1] is 2, wanted 0 to 1", [&] { one_hot(hot); }));
  const Tensor logits = test::make({3, 2}), loss = test::make({3});
  test::assign(logits, [](std::int64_t i) { return double(i); });
  EXPECT_TRUE(throws(Kind::argument, "cross_entropy: the label", [&] {
    kernels::cross_entropy(test::context(), loss.view(), {}, logits.view(),
                           test::values<std::int64_t>({3}, {0, 5, 1}).view(), {.reduction = kernels::Reduction::none});
  }));
  const Tensor late = indices({100000}, 3, 13);
  test::assign(views::narrow(late, 0, 77777, 20), [](std::int64_t) { return 9.0; });
  const Tensor line = test::values<float>({3}, {1, 2, 3}), out = test::make({100000}, DType::f32);
  EXPECT_TRUE(throws(Kind::argument, "the index at [77777] is 9",
                     [&] { kernels::gather(test::context(), out.view(), line.view(), late.view(), 0); }));
  // A broadcast index is named where it stands.
  const Tensor rows = rows_of(test::values<std::int64_t>({2}, {1, 5}), 3), picked = test::make({2, 3});
  EXPECT_TRUE(throws(Kind::argument, "the index at [1, 0] is 5, wanted 0 to 1",
                     [&] { kernels::gather(test::context(), picked.view(), x.view(), rows.view(), 0); }));
  const Tensor none = test::make({0, 3});
  EXPECT_TRUE(throws(Kind::argument, "there is nothing to point at",
                     [&] { kernels::gather(test::context(), picked.view(), none.view(), rows.view(), 0); }));
}

TEST(Indexing, RefusesWhatDoesNotFit) {
  const Tensor x = test::make({4, 3}), index = indices({2, 3}, 4, 14), y = test::make({2, 3});
  const auto gather = [&](const Tensor& to, const Tensor& from, const Tensor& by, int dim) {
    return [=] { kernels::gather(test::context(), to.view(), from.view(), by.view(), dim); };
  };
  EXPECT_TRUE(throws(Kind::argument, "dimension 2", gather(y, x, index, 2)));
  EXPECT_TRUE(throws(Kind::argument, "dimension 0 of a tensor of rank 0", gather(y, test::make({}), index, 0)));
  EXPECT_TRUE(throws(Kind::argument, "index is f32", gather(y, x, test::make({2, 3}), 0)));
  EXPECT_TRUE(throws(Kind::argument, "index of sizes [2, 4] does not fit x",
                     gather(test::make({2, 4}), x, indices({2, 4}, 3, 1), 0)));
  EXPECT_TRUE(
      throws(Kind::argument, "index of sizes [3] does not fit", gather(test::make({3}), x, indices({3}, 3, 1), 0)));
  EXPECT_TRUE(throws(Kind::argument, "out has sizes", gather(test::make({3, 2}), x, index, 0)));
  EXPECT_TRUE(throws(Kind::argument, "out is f64", gather(test::make({2, 3}, DType::f64), x, index, 0)));
  EXPECT_TRUE(
      throws(Kind::argument, "cannot be written", gather(views::expand(test::make({1, 3}), {2, 3}), x, index, 0)));
  const auto scatter = [&](const Tensor& to, const Tensor& base, const Tensor& src, const Tensor& by) {
    return [=] { kernels::scatter_add(test::context(), to.view(), base.view(), src.view(), by.view(), 0); };
  };
  EXPECT_TRUE(throws(Kind::unsupported, "u8",
                     scatter(test::make({4, 3}, DType::u8), {}, test::make({2, 3}, DType::u8), index)));
  EXPECT_TRUE(throws(Kind::argument, "base has sizes", scatter(x, y, y, index)));
  EXPECT_TRUE(throws(Kind::argument, "src has sizes", scatter(x, {}, x, index)));
  EXPECT_TRUE(throws(Kind::argument, "src is f64", scatter(x, {}, test::make({2, 3}, DType::f64), index)));
  EXPECT_TRUE(throws(Kind::argument, "does not fit out", scatter(x, {}, test::make({2, 4}), indices({2, 4}, 3, 1))));
  const Tensor labels = indices({3}, 2, 15);
  EXPECT_TRUE(throws(Kind::argument, "out has sizes", [&] {
    kernels::one_hot(test::context(), test::make({2, 2}).view(), labels.view());
  }));
  EXPECT_TRUE(throws(Kind::argument, "labels is f32", [&] {
    kernels::one_hot(test::context(), test::make({3, 2}).view(), test::make({3}).view());
  }));
}

}  // namespace
}  // namespace apex
