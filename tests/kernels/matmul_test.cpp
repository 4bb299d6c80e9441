// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/matmul.hpp"

#include "support/tensors.hpp"

namespace apex {
namespace {

using test::throws;

constexpr DType kDtypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16};

Tensor blank(const Dims& sizes, DType dtype = DType::f32) { return empty(sizes, dtype, test::device()); }

/// alpha a b + beta c for [batch, ., .] values.
std::vector<double> product(const Tensor& a, const Tensor& b, const std::vector<double>& c, double alpha, double beta) {
  const std::int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1),
                     batches = a.dim() == 3 ? std::max(a.size(0), b.size(0)) : 1;
  const auto x = test::to_f64(a), y = test::to_f64(b);
  std::vector<double> out;
  for (std::int64_t s = 0; s < batches; ++s)
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (std::int64_t l = 0; l < k; ++l) {
          const std::int64_t sa = a.dim() == 3 && a.size(0) > 1 ? s : 0, sb = b.dim() == 3 && b.size(0) > 1 ? s : 0;
          sum += x[static_cast<std::size_t>((sa * m + i) * k + l)] * y[static_cast<std::size_t>((sb * k + l) * n + j)];
        }
        const double before = beta == 0 ? 0 : beta * c[out.size()];
        out.push_back(alpha * sum + before);
      }
  return out;
}

TEST(Matmul, EveryLayoutAndOddSizes) {
  struct Size {
    std::int64_t m, n, k;
  };
  for (const auto dtype : kDtypes)
    for (const auto& [m, n, k] :
         {Size{1, 1, 1}, {3, 5, 7}, {17, 33, 9}, {97, 100, 259}, {6, 200, 513}, {130, 1, 4}, {1, 64, 64}}) {
      const Tensor a = test::uniform({m, k}, dtype, test::device(), 1),
                   b = test::uniform({k, n}, dtype, test::device(), 2);
      const Tensor at = views::transpose(test::uniform({k, m}, dtype, test::device(), 3), 0, 1),
                   bt = views::transpose(test::uniform({n, k}, dtype, test::device(), 4), 0, 1);
      for (const auto& [p, q] : {std::pair{a, b},
                                 {at, b},
                                 {a, bt},
                                 {at, bt},
                                 {test::spread_out(a), b},
                                 {a, test::misaligned(b)},
                                 {test::misaligned(a), test::spread_out(b)}})
        for (const auto& c : {test::fresh({m, n}, dtype), views::transpose(test::fresh({n, m}, dtype), 0, 1),
                              test::spread_out(test::fresh({m, n}, dtype))}) {
          kernels::matmul(test::context(), c.view(), p.view(), q.view());
          ASSERT_TRUE(test::close(c, product(p, q, {}, 1, 0), test::product_tolerance(dtype, k)))
              << m << ' ' << n << ' ' << k << dtype;
        }
      const Tensor c = test::uniform({m, n}, dtype, test::device(), 5);
      const auto before = test::to_f64(c);
      kernels::matmul(test::context(), c.view(), a.view(), b.view(), {.alpha = -0.5, .beta = 2});
      EXPECT_TRUE(test::close(c, product(a, b, before, -0.5, 2), test::product_tolerance(dtype, k)));
    }
}

TEST(Matmul, Batches) {
  for (const auto dtype : kDtypes) {
    const Tensor a = test::uniform({3, 4, 5}, dtype, test::device(), 1),
                 b = test::uniform({3, 5, 2}, dtype, test::device(), 2),
                 one = test::uniform({1, 5, 2}, dtype, test::device(), 3);
    const Tensor c = test::fresh({3, 4, 2}, dtype);
    kernels::matmul(test::context(), c.view(), a.view(), b.view());
    EXPECT_TRUE(test::close(c, product(a, b, {}, 1, 0), test::product_tolerance(dtype, 5)));
    kernels::matmul(test::context(), c.view(), a.view(), one.view());
    EXPECT_TRUE(test::close(c, product(a, one, {}, 1, 0), test::product_tolerance(dtype, 5)));
    kernels::matmul(test::context(), c.view(), a.view(), views::expand(one, {3, 5, 2}).view());
    EXPECT_TRUE(test::close(c, product(a, one, {}, 1, 0), test::product_tolerance(dtype, 5)));
  }
}

/// Element (i, j) of each product in c's order, from the definition: leading dimensions broadcast from the right.
std::vector<double> broadcast_product(const Dims& c, const Tensor& a, const Tensor& b) {
  const auto x = test::to_f64(a), y = test::to_f64(b);
  const std::int64_t m = c[c.size() - 2], n = c[c.size() - 1], k = a.size(-1);
  const auto batch_of = [&](const Tensor& t, std::int64_t flat) {  // which of t's matrices, in row-major order
    std::int64_t at = 0, step = 1;
    for (int i = 3; i <= c.size(); ++i) {
      const std::int64_t size = c[c.size() - i], index = flat % size;
      flat /= size;
      if (i > t.dim()) continue;
      if (t.size(-i) > 1) at += index * step;
      step *= t.size(-i);
    }
    return at;
  };
  std::vector<double> out;
  for (std::int64_t s = 0; s < element_count(c) / (m * n); ++s)
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (std::int64_t l = 0; l < k; ++l)
          sum += x[static_cast<std::size_t>((batch_of(a, s) * m + i) * k + l)] *
                 y[static_cast<std::size_t>((batch_of(b, s) * k + l) * n + j)];
        out.push_back(sum);
      }
  return out;
}

/// Sizes of c and of what is given for a and b before `turn` (a's and b's last two dimensions are swapped in memory).
struct BatchCase {
  const char* name;
  Dims c, a, b;
};
const BatchCase kBatchCases[] = {
    {"plain", {3, 4, 2}, {3, 4, 5}, {3, 5, 2}},
    {"one_right", {3, 4, 2}, {3, 4, 5}, {5, 2}},
    {"one_left", {3, 4, 2}, {4, 5}, {3, 5, 2}},
    {"one_each", {3, 4, 2}, {4, 5}, {1, 5, 2}},
    {"rank4", {2, 3, 7, 9}, {2, 3, 7, 33}, {2, 3, 33, 9}},
    {"shared_inside", {2, 3, 4, 6}, {2, 3, 4, 5}, {2, 1, 5, 6}},
    {"shared_outside", {2, 3, 4, 6}, {3, 4, 5}, {2, 3, 5, 6}},
    {"crossed", {2, 3, 4, 6}, {2, 1, 4, 5}, {3, 5, 6}},
    {"rows", {5, 1, 8}, {5, 1, 16}, {16, 8}},
    {"columns", {5, 8, 1}, {8, 16}, {5, 16, 1}},
    {"rank6", {2, 1, 2, 3, 3, 5}, {2, 1, 1, 3, 3, 4}, {2, 1, 4, 5}},
    {"many", {300, 3, 5}, {300, 3, 4}, {300, 4, 5}},
    {"large", {2, 130, 110}, {2, 130, 96}, {2, 96, 110}},
    {"nothing_to_sum", {2, 3, 4}, {2, 3, 0}, {0, 4}},
};
class MatmulBatches : public ::testing::TestWithParam<BatchCase> {};

TEST_P(MatmulBatches, BroadcastInEveryLayout) {
  const BatchCase& p = GetParam();
  // Values of the logical sizes in another memory order.
  const auto turned = [](const Tensor& t) {
    Dims sizes = t.sizes();
    std::swap(sizes[t.dim() - 1], sizes[t.dim() - 2]);
    const Tensor block = views::transpose(empty(sizes, t.dtype(), t.device()), t.dim() - 1, t.dim() - 2);
    const auto v = test::to_f64(t);
    test::assign(block, [&](std::int64_t i) { return v[static_cast<std::size_t>(i)]; });
    return block;
  };
  // As an attention head lies in [batch, length, heads, depth]: batch dimensions that do not continue one another.
  const auto woven = [](const Tensor& t) {
    if (t.dim() < 3) return t;
    const int d = t.dim();
    Dims sizes = t.sizes();
    std::swap(sizes[d - 2], sizes[d - 3]);
    const Tensor block = views::transpose(empty(sizes, t.dtype(), t.device()), d - 2, d - 3);
    const auto v = test::to_f64(t);
    test::assign(block, [&](std::int64_t i) { return v[static_cast<std::size_t>(i)]; });
    return block;
  };
  for (const auto dtype : kDtypes) {
    const Tensor a = test::uniform(p.a, dtype, test::device(), 1), b = test::uniform(p.b, dtype, test::device(), 2);
    const auto want = broadcast_product(p.c, a, b);
    const std::int64_t k = a.size(-1);
    int variant = 0;
    for (const auto& [left, right] : {std::pair{a, b},
                                      {turned(a), b},
                                      {a, turned(b)},
                                      {turned(a), turned(b)},
                                      {woven(a), woven(b)},
                                      {test::spread_out(a), test::misaligned(b)}})
      for (const auto& c : {test::fresh(p.c, dtype), test::poisoned(woven(test::fresh(p.c, dtype))),
                            test::poisoned(turned(test::fresh(p.c, dtype)))}) {
        SCOPED_TRACE(concat(dtype, ' ', variant++));
        kernels::matmul(test::context(), c.view(), left.view(), right.view());
        ASSERT_TRUE(test::close(c, want, test::product_tolerance(dtype, k)));
      }
    const Tensor c = test::uniform(p.c, dtype, test::device(), 3);
    auto sum = test::to_f64(c);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = 0.25 * sum[i] - 2 * want[i];
    kernels::matmul(test::context(), c.view(), a.view(), b.view(), {.alpha = -2, .beta = 0.25});
    EXPECT_TRUE(test::close(c, sum, test::product_tolerance(dtype, 4 * k)));
    // Repeated by a stride of 0, as expand does it.
    Dims left = p.c, right = p.c;
    left[p.c.size() - 1] = k;
    right[p.c.size() - 2] = k;
    const Tensor out = test::fresh(p.c, dtype);
    kernels::matmul(test::context(), out.view(), views::expand(a, left).view(), views::expand(b, right).view());
    EXPECT_TRUE(test::close(out, want, test::product_tolerance(dtype, k)));
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, MatmulBatches, ::testing::ValuesIn(kBatchCases),
                         [](const auto& i) { return std::string(i.param.name); });

TEST(Matmul, BatchesHaveTheSameBitsAsProducts) {
  const Tensor a = test::uniform({70, 9, 20}, DType::f64, test::device(), 1),
               b = test::uniform({70, 20, 12}, DType::f64, test::device(), 2), c = test::fresh({70, 9, 12}, DType::f64),
               one = test::fresh({9, 12}, DType::f64);
  kernels::matmul(test::context(), c.view(), a.view(), b.view());
  if (test::on_cuda()) return;  // the library may choose another algorithm for one matrix
  for (std::int64_t i = 0; i < 70; ++i) {
    kernels::matmul(test::context(), one.view(), views::select(a, 0, i).view(), views::select(b, 0, i).view());
    ASSERT_EQ(test::to_f64(one), test::to_f64(views::select(c, 0, i))) << i;
  }
}

TEST(Matmul, NothingToSum) {
  for (const auto dtype : kDtypes) {
    const Tensor a = blank({2, 0}, dtype), b = blank({0, 3}, dtype), c = test::fresh({2, 3}, dtype);
    kernels::matmul(test::context(), c.view(), a.view(), b.view());
    EXPECT_TRUE(test::equal(c, std::vector<double>(6, 0)));
    test::assign(c, [](std::int64_t i) { return static_cast<double>(i); });
    kernels::matmul(test::context(), c.view(), a.view(), b.view(), {.beta = 0.5});
    EXPECT_TRUE(test::equal(c, {0, 0.5, 1, 1.5, 2, 2.5}));
    kernels::matmul(test::context(), blank({0, 3}, dtype).view(), blank({0, 4}, dtype).view(),
                    blank({4, 3}, dtype).view());
  }
}

TEST(Matmul, BadArguments) {
  const Tensor a = blank({2, 3}), b = blank({3, 4}), c = blank({2, 4}), i = blank({2, 3}, DType::i64),
               h = blank({2, 4}, DType::f16);
  EXPECT_TRUE(
      throws(Kind::argument, "do not give", [&] { kernels::matmul(test::context(), c.view(), a.view(), a.view()); }));
  EXPECT_TRUE(
      throws(Kind::argument, "do not give", [&] { kernels::matmul(test::context(), a.view(), a.view(), b.view()); }));
  EXPECT_TRUE(
      throws(Kind::argument, "a is i64", [&] { kernels::matmul(test::context(), c.view(), i.view(), b.view()); }));
  EXPECT_TRUE(
      throws(Kind::argument, "a is f32", [&] { kernels::matmul(test::context(), h.view(), a.view(), b.view()); }));
  EXPECT_TRUE(
      throws(Kind::unsupported, "i64", [&] { kernels::matmul(test::context(), i.view(), i.view(), i.view()); }));
  EXPECT_TRUE(
      throws(Kind::argument, "rank", [&] { kernels::matmul(test::context(), blank({4}).view(), a.view(), b.view()); }));
  EXPECT_TRUE(throws(Kind::argument, "rank 2", [&] {
    kernels::matmul(test::context(), c.view(), blank({1, 2, 3}).view(), b.view());
  }));
  EXPECT_TRUE(throws(Kind::argument, "rank 2",
                     [&] { kernels::matmul(test::context(), c.view(), blank({3}).view(), b.view()); }));
  EXPECT_TRUE(throws(Kind::argument, "do not give", [&] {
    kernels::matmul(test::context(), blank({4, 2, 4}).view(), blank({3, 2, 3}).view(), b.view());
  }));
  EXPECT_TRUE(throws(Kind::argument, "do not give", [&] {
    kernels::matmul(test::context(), blank({1, 2, 4}).view(), blank({3, 2, 3}).view(), b.view());
  }));
  EXPECT_TRUE(throws(Kind::argument, "cannot be written", [&] {
    kernels::matmul(test::context(), views::expand(blank({1, 4}), {2, 4}).view(), a.view(), b.view());
  }));
}

class LinearCase : public ::testing::TestWithParam<DType> {};

TEST_P(LinearCase, ForwardAndGradientsMatchTheFormula) {
  const DType dtype = GetParam();
  struct Size {
    std::int64_t n, in, out;
  };
  for (const auto& [n, in, out] : {Size{5, 7, 3}, {128, 64, 10}, {1, 1, 1}, {33, 130, 65}, {0, 4, 3}}) {
    const Tensor x = test::uniform({n, in}, dtype, test::device(), 1),
                 w = test::uniform({out, in}, dtype, test::device(), 2),
                 b = test::uniform({out}, dtype, test::device(), 3);
    const Tensor dy = test::uniform({n, out}, dtype, test::device(), 4), y = test::fresh({n, out}, dtype);
    const auto xs = test::to_f64(x), ws = test::to_f64(w), bs = test::to_f64(b), gs = test::to_f64(dy);
    const auto at = [](const std::vector<double>& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; };
    std::vector<double> plain, biased, dx, dw, db(static_cast<std::size_t>(out), 0.0);
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t o = 0; o < out; ++o) {
        double sum = 0;
        for (std::int64_t c = 0; c < in; ++c) sum += at(xs, i * in + c) * at(ws, o * in + c);
        plain.push_back(sum);
        biased.push_back(sum + at(bs, o));
        db[static_cast<std::size_t>(o)] += at(gs, i * out + o);
      }
      for (std::int64_t c = 0; c < in; ++c) {
        double sum = 0;
        for (std::int64_t o = 0; o < out; ++o) sum += at(gs, i * out + o) * at(ws, o * in + c);
        dx.push_back(sum);
      }
    }
    for (std::int64_t o = 0; o < out; ++o)
      for (std::int64_t c = 0; c < in; ++c) {
        double sum = 0;
        for (std::int64_t i = 0; i < n; ++i) sum += at(gs, i * out + o) * at(xs, i * in + c);
        dw.push_back(sum);
      }
    kernels::linear_forward(test::context(), y.view(), x.view(), w.view(), {});
    EXPECT_TRUE(test::close(y, plain, test::product_tolerance(dtype, in)));
    kernels::linear_forward(test::context(), y.view(), test::misaligned(x).view(), w.view(), b.view());
    EXPECT_TRUE(test::close(y, biased, test::product_tolerance(dtype, in)));
    const Tensor dx_out = test::fresh({n, in}, dtype), dw_out = test::fresh({out, in}, dtype),
                 db_out = test::fresh({out}, dtype);
    const Tensor turned = views::transpose(test::fresh({out, n}, dtype), 0, 1), wide = test::spread_out(b);
    kernels::linear_forward(test::context(), turned.view(), x.view(), w.view(), b.view());
    EXPECT_TRUE(test::close(turned, biased, test::product_tolerance(dtype, in)));
    kernels::linear_forward(test::context(), y.view(), test::spread_out(x).view(), w.view(), wide.view());
    EXPECT_TRUE(test::close(y, biased, test::product_tolerance(dtype, in)));
    kernels::linear_backward_data(test::context(), dx_out.view(), dy.view(), w.view());
    EXPECT_TRUE(test::close(dx_out, dx, test::product_tolerance(dtype, out)));
    kernels::linear_backward_weight(test::context(), dw_out.view(), db_out.view(), dy.view(), x.view());
    EXPECT_TRUE(test::close(dw_out, dw, test::sum_tolerance(dtype, n)));
    EXPECT_TRUE(test::close(db_out, db, test::sum_tolerance(dtype, n)));
    kernels::linear_backward_weight(test::context(), {}, db_out.view(), dy.view(), x.view());
    kernels::linear_backward_weight(test::context(), dw_out.view(), {}, test::spread_out(dy).view(), x.view());
    EXPECT_TRUE(test::close(dw_out, dw, test::sum_tolerance(dtype, n)));
  }
}
INSTANTIATE_TEST_SUITE_P(Types, LinearCase, ::testing::ValuesIn(kDtypes),
                         [](const auto& i) { return name_of(i.param); });

TEST(Linear, BadArguments) {
  const Tensor x = blank({5, 7}), w = blank({3, 7}), y = blank({5, 3}), b = blank({3}), bad = blank({4});
  EXPECT_TRUE(throws(Kind::argument, "takes 3 features", [&] {
    kernels::linear_forward(test::context(), y.view(), x.view(), blank({3, 3}).view(), {});
  }));
  EXPECT_TRUE(throws(Kind::argument, "y has sizes",
                     [&] { kernels::linear_forward(test::context(), x.view(), x.view(), w.view(), {}); }));
  EXPECT_TRUE(throws(Kind::argument, "bias has sizes",
                     [&] { kernels::linear_forward(test::context(), y.view(), x.view(), w.view(), bad.view()); }));
  EXPECT_TRUE(throws(Kind::argument, "x has sizes",
                     [&] { kernels::linear_forward(test::context(), y.view(), b.view(), w.view(), {}); }));
  EXPECT_TRUE(throws(Kind::argument, "gives 3 features",
                     [&] { kernels::linear_backward_data(test::context(), x.view(), x.view(), w.view()); }));
  EXPECT_TRUE(throws(Kind::argument, "dx has sizes",
                     [&] { kernels::linear_backward_data(test::context(), y.view(), y.view(), w.view()); }));
  EXPECT_TRUE(throws(Kind::argument, "rows", [&] {
    kernels::linear_backward_weight(test::context(), w.view(), {}, blank({4, 3}).view(), x.view());
  }));
  EXPECT_TRUE(throws(Kind::argument, "dw has sizes",
                     [&] { kernels::linear_backward_weight(test::context(), y.view(), {}, y.view(), x.view()); }));
  EXPECT_TRUE(throws(Kind::argument, "db has sizes",
                     [&] { kernels::linear_backward_weight(test::context(), {}, bad.view(), y.view(), x.view()); }));
}

}  // namespace
}  // namespace apex
