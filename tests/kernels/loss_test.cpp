
// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/cross_entropy.hpp"
#include "apex/kernels/softmax.hpp"
#include "support/on_device.hpp"

namespace apex {
namespace {

using kernels::CrossEntropyOptions;
using kernels::Reduction;
using test::make;
using test::throws;
using test::values;

constexpr DType kFloating[] = {DType::f64, DType::f32, DType::f16, DType::bf16};

/// Lines of [outer, n, inner] along the middle.
template <class F>
void for_each_line(const Dims& sizes, int dim, F&& f) {
  std::int64_t outer = 1, inner = 1;
  for (int d = 0; d < dim; ++d) outer *= sizes[d];
  for (int d = dim + 1; d < sizes.size(); ++d) inner *= sizes[d];
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::int64_t i = 0; i < inner; ++i)
      f([=](std::int64_t k) { return static_cast<std::size_t>((o * sizes[dim] + k) * inner + i); });
}

TEST(Softmax, MatchesTheFormulaAlongEveryDimension) {
  for (const auto dtype : kFloating)
    for (const Dims& sizes : {Dims{3, 5, 4}, Dims{2, 33}, Dims{1, 1000}, Dims{4, 1}, Dims{0, 3}, Dims{3, 300},
                              Dims{2, 2049}, Dims{1, 13001}, Dims{2, 70, 65}, Dims{33, 16}, Dims{5, 48}, Dims{3, 256},
                              Dims{9, 776}, Dims{2, 4096}, Dims{2, 12296}})
      for (int dim = 0; dim < sizes.size(); ++dim) {
        const Tensor x = test::uniform(sizes, dtype, test::device(), 1, -4, 4),
                     dy = test::uniform(sizes, dtype, test::device(), 2);
        const auto v = test::to_f64(x), g = test::to_f64(dy);
        std::vector<double> p(v.size()), log_p(v.size());
        for_each_line(sizes, dim, [&](auto at) {
          double sum = 0;
          for (std::int64_t k = 0; k < sizes[dim]; ++k) sum += std::exp(v[at(k)]);
          for (std::int64_t k = 0; k < sizes[dim]; ++k) {
            p[at(k)] = std::exp(v[at(k)]) / sum;
            log_p[at(k)] = v[at(k)] - std::log(sum);
          }
        });
        for (const auto& in : {x, test::spread_out(x), test::misaligned(x)}) {
          const Tensor y = test::fresh(sizes, dtype);
          kernels::softmax(test::context(), y.view(), in.view(), dim);
          EXPECT_TRUE(test::close(y, p, test::forward_tolerance(dtype))) << dtype << sizes << dim;
          kernels::log_softmax(test::context(), y.view(), in.view(), dim - sizes.size());
          EXPECT_TRUE(test::close(y, log_p, test::forward_tolerance(dtype))) << dtype << sizes << dim;
        }
        // Gradients from the values the forward stored.
        const Tensor y = test::from_list(sizes, dtype, p), log_y = test::from_list(sizes, dtype, log_p),
                     dx = test::fresh(sizes, dtype);
        const auto ys = test::to_f64(y), ls = test::to_f64(log_y);
        std::vector<double> want(v.size()), log_want(v.size());
        for_each_line(sizes, dim, [&](auto at) {
          double dot = 0, sum = 0;
          for (std::int64_t k = 0; k < sizes[dim]; ++k) {
            dot += ys[at(k)] * g[at(k)];
            sum += g[at(k)];
          }
          for (std::int64_t k = 0; k < sizes[dim]; ++k) {
            want[at(k)] = ys[at(k)] * (g[at(k)] - dot);
            log_want[at(k)] = g[at(k)] - std::exp(ls[at(k)]) * sum;
          }
        });
        kernels::softmax_backward(test::context(), dx.view(), dy.view(), y.view(), dim);
        EXPECT_TRUE(test::close(dx, want, test::backward_tolerance(dtype))) << dtype << sizes << dim;
        for (const auto& in : {dy, test::spread_out(dy), test::misaligned(dy)}) {
          kernels::log_softmax_backward(test::context(), test::poisoned(dx).view(), in.view(), log_y.view(), dim);
          EXPECT_TRUE(test::close(dx, log_want, test::backward_tolerance(dtype))) << dtype << sizes << dim;
        }
      }
}

TEST(Softmax, StableInPlaceAndSpecialValues) {
  const Tensor x = values<float>({3, 3}, {1000, 1001, 999, -INFINITY, 0, -INFINITY, -INFINITY, -INFINITY, -INFINITY});
  kernels::softmax(test::context(), x.view(), x.view(), 1);
  const double e = std::exp(1.0), s = 1 + e + 1 / e, nan = std::nan("");
  EXPECT_TRUE(test::close(x, {1 / s, e / s, 1 / e / s, 0, 1, 0, nan, nan, nan}, test::forward_tolerance(DType::f32)));
}

TEST(Softmax, GradientsMatchDifferences) {
  const Tensor x = test::uniform({2, 5, 3}, DType::f64, test::device(), 1), y = empty_like(x), dx = test::fresh_like(x);
  const auto loss = [&] {
    kernels::softmax(test::context(), y.view(), x.view(), 1);
    return test::weighted_sum(y);
  };
  loss();
  kernels::softmax_backward(test::context(), dx.view(), test::weights_like(y).view(), y.view(), 1);
  EXPECT_TRUE(test::gradient_matches(x, dx, loss));
  const auto log_loss = [&] {
    kernels::log_softmax(test::context(), y.view(), x.view(), 1);
    return test::weighted_sum(y);
  };
  log_loss();
  kernels::log_softmax_backward(test::context(), dx.view(), test::weights_like(y).view(), y.view(), 1);
  EXPECT_TRUE(test::gradient_matches(x, dx, log_loss));
}

TEST(Softmax, BadArguments) {
  const Tensor x = make({2, 3}), i = make({2, 3}, DType::i64);
  EXPECT_TRUE(throws(Kind::argument, "dimension 2", [&] { kernels::softmax(test::context(), x.view(), x.view(), 2); }));
  EXPECT_TRUE(throws(Kind::argument, "x has sizes", [&] {
    kernels::softmax(test::context(), x.view(), make({3, 2}).view(), 0);
  }));
  EXPECT_TRUE(throws(Kind::unsupported, "i64", [&] { kernels::log_softmax(test::context(), i.view(), i.view(), 0); }));
  EXPECT_TRUE(throws(Kind::argument, "dy is f64", [&] {
    kernels::softmax_backward(test::context(), x.view(), make({2, 3}, DType::f64).view(), x.view(), 0);
  }));
  EXPECT_TRUE(throws(Kind::argument, "y is not given",
                     [&] { kernels::log_softmax_backward(test::context(), x.view(), x.view(), {}, 0); }));
}

/// Losses, lse and gradient for g = dloss by the formula.
struct Expected {
  std::vector<double> losses, lse, gradient;
  double counted = 0;
};
Expected expected(const std::vector<double>& x, std::int64_t classes, const std::vector<std::int64_t>& labels,
                  double epsilon, std::int64_t ignore, const std::vector<double>& g) {
  Expected e;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const double* row = x.data() + static_cast<std::int64_t>(i) * classes;
    double high = -INFINITY, sum = 0, mean = 0;
    for (std::int64_t c = 0; c < classes; ++c) high = std::max(high, row[c]);
    for (std::int64_t c = 0; c < classes; ++c) {
      sum += std::exp(row[c] - high);
      mean += row[c] / static_cast<double>(classes);
    }
    const double lse = high + std::log(sum);
    const bool counts = labels[i] != ignore;
    e.counted += counts;
    e.lse.push_back(lse);
    e.losses.push_back(!counts        ? 0
                       : epsilon == 0 ? lse - row[labels[i]]
                                      : (1 - epsilon) * (lse - row[labels[i]]) + epsilon * (lse - mean));
    for (std::int64_t c = 0; c < classes; ++c)
      e.gradient.push_back(!counts ? 0
                                   : g[i] * (std::exp(row[c] - lse) - (c == labels[i] ? 1 - epsilon : 0) -
                                             epsilon / static_cast<double>(classes)));
  }
  return e;
}

TEST(CrossEntropy, MatchesTheFormula) {
  for (const auto dtype : kFloating)
    for (const std::int64_t classes : {1, 2, 10, 31, 1000})
      for (const double epsilon : {0.0, 0.1})
        for (const auto reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
          SCOPED_TRACE(concat(dtype, ' ', classes, ' ', epsilon, ' ', static_cast<int>(reduction)));
          const std::int64_t n = 7;
          const DType acc = accum_dtype(dtype);
          const Tensor dense = test::uniform({n, classes}, dtype, test::device(), 1, -3, 3);
          const Tensor x = test::spread_out(dense);
          std::vector<std::int64_t> labels;
          for (std::int64_t i = 0; i < n; ++i) labels.push_back(i == 3 ? -100 : i * 5 % classes);
          const Tensor label_tensor = values<std::int64_t>({n}, std::span<const std::int64_t>(labels));
          const CrossEntropyOptions o{.label_smoothing = epsilon, .reduction = reduction};
          const bool each = reduction == Reduction::none;
          const Tensor loss = test::fresh(each ? Dims{n} : Dims{}, acc), lse = test::fresh({n}, acc),
                       dx = test::fresh({n, classes}, dtype);
          const Tensor dloss = test::uniform(each ? Dims{n} : Dims{1}, acc, test::device(), 2, 0.5, 2);
          auto g = test::to_f64(dloss);
          if (!each) g.assign(static_cast<std::size_t>(n), reduction == Reduction::mean ? g[0] / 6 : g[0]);
          const auto want = expected(test::to_f64(x), classes, labels, epsilon, -100, g);
          double sum = 0;
          for (const double v : want.losses) sum += v;
          for (const auto& in : {dense, x}) {
            kernels::cross_entropy(test::context(), test::poisoned(loss).view(), test::poisoned(lse).view(), in.view(),
                                   label_tensor.view(), o);
            EXPECT_TRUE(test::close(
                loss, each ? want.losses : std::vector<double>{reduction == Reduction::mean ? sum / want.counted : sum},
                test::sum_tolerance(acc, n)));
            EXPECT_TRUE(test::close(lse, want.lse, test::forward_tolerance(acc)));
          }
          kernels::cross_entropy_backward(test::context(), dx.view(), dloss.view(), x.view(), lse.view(),
                                          label_tensor.view(), o);
          EXPECT_TRUE(test::close(dx, want.gradient, test::backward_tolerance(dtype)));
          const Tensor in_place = test::spread_out(x);
          kernels::cross_entropy_backward(test::context(), in_place.view(), dloss.view(), in_place.view(), lse.view(),
                                          label_tensor.view(), o);
          EXPECT_EQ(test::to_f64(in_place), test::to_f64(dx));
        }
}

// The numbers of KER-15 E that do not depend on padding_idx: E-03 (no smoothing), E-04 (-infinity), E-01 (smoothing
// 0.1).
TEST(CrossEntropy, RecordedNumbers_KER_15_E) {
  const Tensor x = values<double>({2, 4}, {1, 2, 3, 4, 0.5, -0.5, 2, 0}), labels = values<std::int64_t>({2}, {2, 0});
  const Tensor loss = test::fresh({2}, DType::f64), lse = test::fresh({2}, DType::f64),
               dx = test::fresh({2, 4}, DType::f64);
  kernels::cross_entropy(test::context(), loss.view(), lse.view(), x.view(), labels.view(),
                         {.label_smoothing = 0.1, .ignore_index = -1, .reduction = Reduction::none});
  EXPECT_TRUE(test::close(loss, {1.49018970, 1.86502529}, {0, 1e-8}));
  EXPECT_TRUE(test::close(lse, {4.44018970, 2.36502529}, {0, 1e-8}));
  kernels::cross_entropy_backward(test::context(), dx.view(), values<double>({2}, {1, 0.5}).view(), x.view(),
                                  lse.view(), labels.view(), {.label_smoothing = 0.1, .reduction = Reduction::none});
  EXPECT_TRUE(test::close(
      dx, {0.00705860, 0.06214432, -0.68811718, 0.61891426, -0.38505385, 0.01599084, 0.33458955, 0.03447346},
      {0, 1e-8}));
  const Tensor inf = values<double>({1, 3}, {0, 1, -INFINITY}), one = values<std::int64_t>({1}, {1}),
               l = test::fresh({1}, DType::f64), s = test::fresh({1}, DType::f64), d = test::fresh({1, 3}, DType::f64);
  kernels::cross_entropy(test::context(), l.view(), s.view(), inf.view(), one.view());
  EXPECT_TRUE(test::close(l, {0.31326169}, {0, 1e-8}));
  kernels::cross_entropy_backward(test::context(), d.view(), values<double>({1}, {1}).view(), inf.view(), s.view(),
                                  one.view());
  EXPECT_TRUE(test::close(d, {0.26894142, -0.26894142, 0}, {0, 1e-8}));
}

TEST(CrossEntropy, GradientMatchesDifferences) {
  const Tensor x = test::uniform({4, 6}, DType::f64, test::device(), 1),
               labels = values<std::int64_t>({4}, {0, 5, -100, 3}), loss = test::fresh({}, DType::f64),
               lse = test::fresh({4}, DType::f64), dx = test::fresh_like(x);
  const CrossEntropyOptions o{.label_smoothing = 0.2};
  const auto f = [&] {
    kernels::cross_entropy(test::context(), loss.view(), lse.view(), x.view(), labels.view(), o);
    return loss.item();
  };
  f();
  kernels::cross_entropy_backward(test::context(), dx.view(), values<double>({}, {1}).view(), x.view(), lse.view(),
                                  labels.view(), o);
  EXPECT_TRUE(test::gradient_matches(x, dx, f));
}

TEST(CrossEntropy, NothingCounted) {
  const Tensor x = test::uniform({2, 3}, DType::f32, test::device(), 1), labels = values<std::int64_t>({2}, {7, 7}),
               loss = test::fresh({}, DType::f32);
  kernels::cross_entropy(test::context(), loss.view(), {}, x.view(), labels.view(), {.ignore_index = 7});
  EXPECT_TRUE(std::isnan(loss.item()));
  const Tensor none = make({0, 3}), no_labels = make({0}, DType::i64);
  kernels::cross_entropy(test::context(), loss.view(), {}, none.view(), no_labels.view(),
                         {.reduction = Reduction::sum});
  EXPECT_EQ(loss.item(), 0);
}

/// Rows of every alignment, longer than one block's stride, and logits of -infinity all over a thread's share.
TEST(CrossEntropy, LongRows) {
  for (const auto dtype : kFloating)
    for (const std::int64_t classes : {1000, 2047, 5003, 20001}) {
      SCOPED_TRACE(concat(dtype, ' ', classes));
      const std::int64_t n = 5;
      const DType acc = accum_dtype(dtype);
      const Tensor x = test::misaligned(test::from_function({n, classes}, dtype, test::device(), [=](std::int64_t i) {
        return i / classes == 2 && i % classes > 40 ? -INFINITY : 6 * test::unit(1, static_cast<std::uint64_t>(i)) - 3;
      }));
      const std::vector<std::int64_t> labels = {0, classes - 1, 17, -100, classes / 2};
      const Tensor label_tensor = values<std::int64_t>({n}, std::span<const std::int64_t>(labels));
      const Tensor loss = test::fresh({}, acc), lse = test::fresh({n}, acc), dx = test::fresh({n, classes}, dtype);
      const Tensor one = test::from_list({}, acc, {1});
      const auto want = expected(test::to_f64(x), classes, labels, 0, -100, std::vector<double>(5, 0.25));
      double sum = 0;
      for (const double v : want.losses) sum += v;
      kernels::cross_entropy(test::context(), loss.view(), lse.view(), x.view(), label_tensor.view());
      EXPECT_TRUE(test::close(loss, {sum / 4}, test::sum_tolerance(acc, n)));
      EXPECT_TRUE(test::close(lse, want.lse, test::forward_tolerance(acc)));
      kernels::cross_entropy_backward(test::context(), dx.view(), one.view(), x.view(), lse.view(),
                                      label_tensor.view());
      EXPECT_TRUE(test::close(dx, want.gradient, test::backward_tolerance(dtype)));
      kernels::cross_entropy_backward(test::context(), x.view(), one.view(), x.view(), lse.view(), label_tensor.view());
      EXPECT_TRUE(test::close(x, want.gradient, test::backward_tolerance(dtype)));
    }
}

TEST(CrossEntropy, LabelThatIsNoClass) {
  const Tensor x = test::uniform({3, 4}, DType::f32, test::device(), 1), loss = test::fresh({}, DType::f32),
               losses = test::fresh({3}, DType::f32), lse = test::fresh({3}, DType::f32), dx = test::fresh_like(x),
               ones = values<float>({3}, {1, 1, 1});
  const Tensor too_large = values<std::int64_t>({3}, {0, 4, 2}), negative = values<std::int64_t>({3}, {0, 1, -1});
  const CrossEntropyOptions none{.reduction = Reduction::none};
  if (!test::on_cuda()) {
    EXPECT_TRUE(throws(Kind::argument, "label of row 1 is 4",
                       [&] { kernels::cross_entropy(test::context(), loss.view(), {}, x.view(), too_large.view()); }));
    EXPECT_TRUE(throws(Kind::argument, "label of row 2 is -1", [&] {
      kernels::cross_entropy_backward(test::context(), dx.view(), ones.view(), x.view(), lse.view(), negative.view(),
                                      none);
    }));
    return;
  }
  const auto nans = [](const Tensor& t) {  // a letter a row
    std::string out;
    const auto all = test::to_f64(t);
    for (std::size_t row = 0; row < 3; ++row) {
      std::size_t count = 0;
      for (std::size_t i = 0; i < all.size() / 3; ++i) count += std::isnan(all[row * all.size() / 3 + i]);
      out += count == 0 ? '.' : count == all.size() / 3 ? 'N' : '?';
    }
    return out;
  };
  for (const auto& [labels, want] : {std::pair{too_large, ".N."}, {negative, "..N"}}) {
    kernels::cross_entropy(test::context(), loss.view(), lse.view(), x.view(), labels.view());
    EXPECT_TRUE(std::isnan(loss.item()));
    EXPECT_EQ(nans(lse), "...");
    kernels::cross_entropy(test::context(), losses.view(), lse.view(), x.view(), labels.view(), none);
    EXPECT_EQ(nans(losses), want);
    kernels::cross_entropy_backward(test::context(), dx.view(), ones.view(), x.view(), lse.view(), labels.view(), none);
    EXPECT_EQ(nans(dx), want);
  }
}

TEST(CrossEntropy, BadArguments) {
  const Tensor x = test::uniform({3, 4}, DType::f32, test::device(), 1), labels = values<std::int64_t>({3}, {0, 1, 2}),
               loss = make({}), lse = make({3});
  EXPECT_TRUE(throws(Kind::argument, "label_smoothing is 1.5", [&] {
    kernels::cross_entropy(test::context(), loss.view(), {}, x.view(), labels.view(), {.label_smoothing = 1.5});
  }));
  EXPECT_TRUE(throws(Kind::argument, "labels is i32", [&] {
    kernels::cross_entropy(test::context(), loss.view(), {}, x.view(), make({3}, DType::i32).view());
  }));
  EXPECT_TRUE(throws(Kind::argument, "labels has sizes", [&] {
    kernels::cross_entropy(test::context(), loss.view(), {}, x.view(), make({2}, DType::i64).view());
  }));
  EXPECT_TRUE(throws(Kind::argument, "loss has sizes",
                     [&] { kernels::cross_entropy(test::context(), make({2}).view(), {}, x.view(), labels.view()); }));
  EXPECT_TRUE(throws(Kind::argument, "loss is f64", [&] {
    kernels::cross_entropy(test::context(), make({}, DType::f64).view(), {}, x.view(), labels.view());
  }));
  EXPECT_TRUE(throws(Kind::argument, "no class", [&] {
    kernels::cross_entropy(test::context(), loss.view(), {}, make({3, 0}).view(), labels.view());
  }));
  EXPECT_TRUE(throws(Kind::argument, "lse is not given", [&] {
    kernels::cross_entropy_backward(test::context(), x.view(), loss.view(), x.view(), {}, labels.view());
  }));
}

}  // namespace
}  // namespace apex
