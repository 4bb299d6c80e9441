// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <omp.h>

#include <numeric>
#include <tuple>

#include "apex/kernels/data_checks.hpp"
#include "apex/kernels/loss.hpp"
#include "support/layouts.hpp"
#include "support/references.hpp"

namespace apex {
namespace {

namespace reference = test::reference;
using kernels::LossKind;
using kernels::PointwiseLoss;
using kernels::Reduction;
using test::make;
using test::throws;

constexpr DType kFloating[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
constexpr Reduction kReductions[] = {Reduction::none, Reduction::mean, Reduction::sum};

struct LossCase {
  PointwiseLoss options;
  double x_low, x_high, t_low, t_high;
  bool weights = false;
};
const std::vector<LossCase>& cases() {
  static const std::vector<LossCase> all = {
      {{.kind = LossKind::mse}, -2, 2, -2, 2},
      {{.kind = LossKind::l1}, -2, 2, -2, 2},
      {{.kind = LossKind::smooth_l1, .delta = 1.0}, -2, 2, -2, 2},
      {{.kind = LossKind::smooth_l1, .delta = 0.0}, -2, 2, -2, 2},
      {{.kind = LossKind::huber, .delta = 0.75}, -2, 2, -2, 2},
      {{.kind = LossKind::bce}, 0.1, 0.9, 0, 1},
      {{.kind = LossKind::bce}, 0.1, 0.9, 0, 1, true},
      {{.kind = LossKind::bce_with_logits}, -5, 5, 0, 1},
      {{.kind = LossKind::bce_with_logits}, -5, 5, 0, 1, true},
      {{.kind = LossKind::kl_div}, -3, 0, 0.05, 1},
      {{.kind = LossKind::kl_div, .log_target = true}, -3, 0, -3, 0},
  };
  return all;
}

double value(const PointwiseLoss& o, double x, double t, double w, double p) {
  switch (o.kind) {
    case LossKind::mse: return reference::mse(x, t);
    case LossKind::l1: return reference::l1(x, t);
    case LossKind::smooth_l1: return reference::smooth_l1(x, t, o.delta);
    case LossKind::huber: return reference::huber(x, t, o.delta);
    case LossKind::bce: return reference::bce(x, t, w);
    case LossKind::bce_with_logits: return reference::bce_with_logits(x, t, w, p);
    case LossKind::kl_div: return o.log_target ? reference::kl_div_log(x, t) : reference::kl_div(x, t);
  }
  return 0;
}

std::string name_of_case(const LossCase& c, DType dtype) {
  return concat(name_of(c.options.kind), ' ', c.options.delta, c.options.log_target ? " log" : "",
                c.weights ? " weighted " : " ", dtype);
}

/// Operands of one case in one layout; weights broadcast over rows.
struct Operands {
  Tensor x, t, w, p;
  std::vector<double> losses;  // by the reference

  Operands(const LossCase& c, test::Lie lie, DType dtype) {
    x = test::laid_uniform(lie, dtype, 1, c.x_low, c.x_high);
    t = test::laid_uniform(lie, dtype, 2, c.t_low, c.t_high);
    const Dims columns{test::sizes_of(lie)[1]};
    if (c.weights) w = test::uniform(columns, dtype, test::device(), 3, 0.5, 2);
    if (c.weights && c.options.kind == LossKind::bce_with_logits)
      p = test::uniform(columns, dtype, test::device(), 4, 0.5, 3);
    const auto xs = test::to_f64(x), ts = test::to_f64(t);
    for (std::size_t i = 0; i < xs.size(); ++i)
      losses.push_back(value(c.options, xs[i], ts[i], weight(w, i), weight(p, i)));
  }
  static double weight(const Tensor& w, std::size_t i) {
    return w.defined() ? test::to_f64(w)[i % static_cast<std::size_t>(w.numel())] : 1;
  }
};

TEST(PointwiseLoss, EveryKindTypeLayoutAndReduction) {
  for (const auto dtype : kFloating)
    for (const auto& c : cases())
      for (const auto lie : test::kLies)
        for (const auto reduction : kReductions) {
          SCOPED_TRACE(concat(name_of_case(c, dtype), test::name_of(lie), ' ', static_cast<int>(reduction)));
          const Operands in(c, lie, dtype);
          PointwiseLoss o = c.options;
          o.reduction = reduction;
          const DType acc = accum_dtype(dtype);
          const double sum = std::accumulate(in.losses.begin(), in.losses.end(), 0.0);
          const auto n = static_cast<std::int64_t>(in.losses.size());
          const bool each = reduction == Reduction::none;
          const std::vector<double> want =
              each ? in.losses : std::vector<double>{reduction == Reduction::mean ? sum / static_cast<double>(n) : sum};
          // The loss is in f32 even of 16-bit elements: their values are exact.
          const auto tolerance = test::sum_tolerance(acc, each ? 1 : n);
          for (const Tensor& x : {in.x, test::spread_out(in.x)}) {
            const Tensor loss = test::fresh(each ? x.sizes() : Dims{}, acc);
            kernels::pointwise_loss(test::context(), loss.view(), x.view(), in.t.view(), in.w.view(), in.p.view(), o);
            EXPECT_TRUE(test::close(loss, want, tolerance));
          }
        }
}

TEST(PointwiseLoss, EveryBackwardTypeLayoutAndReduction) {
  for (const auto dtype : kFloating)
    for (const auto& c : cases())
      for (const auto lie : test::kLies)
        for (const auto reduction : kReductions) {
          SCOPED_TRACE(concat(name_of_case(c, dtype), test::name_of(lie), ' ', static_cast<int>(reduction)));
          const Operands in(c, lie, dtype);
          PointwiseLoss o = c.options;
          o.reduction = reduction;
          const bool each = reduction == Reduction::none;
          const Tensor dloss =
              test::uniform(each ? in.x.sizes() : Dims{}, accum_dtype(dtype), test::device(), 5, 0.5, 2);
          const auto xs = test::to_f64(in.x), ts = test::to_f64(in.t), gs = test::to_f64(dloss);
          const Tensor dx = test::result_of(lie, dtype), dt = test::result_of(lie, dtype);
          kernels::pointwise_loss_backward(test::context(), dx.view(), dt.view(), dloss.view(), in.x.view(),
                                           in.t.view(), in.w.view(), in.p.view(), o);
          const auto by_x = test::to_f64(dx), by_t = test::to_f64(dt);
          const auto tolerance = test::backward_tolerance(dtype);
          const double h = 1e-5;
          for (std::size_t i = 0; i < xs.size(); ++i) {
            const double w = Operands::weight(in.w, i), p = Operands::weight(in.p, i), d = std::fabs(xs[i] - ts[i]);
            if (d < 1e-4 || std::fabs(d - c.options.delta) < 1e-4) continue;  // corners
            const double g = gs[each ? i : 0] / (reduction == Reduction::mean ? static_cast<double>(xs.size()) : 1);
            const auto at = [&](double x, double t) { return value(o, x, t, w, p); };
            const double want_x = g * (at(xs[i] + h, ts[i]) - at(xs[i] - h, ts[i])) / (2 * h);
            const double want_t = g * (at(xs[i], ts[i] + h) - at(xs[i], ts[i] - h)) / (2 * h);
            ASSERT_NEAR(by_x[i], want_x, tolerance.bound(want_x) + 1e-7 * std::fabs(g)) << i;
            ASSERT_NEAR(by_t[i], want_t, tolerance.bound(want_t) + 1e-7 * std::fabs(g)) << i;
          }
          // One of the two alone, strided, and in place.
          const Tensor apart = test::poisoned(test::spread_out(dx));
          kernels::pointwise_loss_backward(test::context(), apart.view(), {}, dloss.view(),
                                           test::spread_out(in.x).view(), in.t.view(), in.w.view(), in.p.view(), o);
          EXPECT_TRUE(test::close(apart, by_x, test::forward_tolerance(dtype)));
          kernels::pointwise_loss_backward(test::context(), {}, in.t.view(), dloss.view(), in.x.view(), in.t.view(),
                                           in.w.view(), in.p.view(), o);
          EXPECT_EQ(test::to_f64(in.t), by_t);
        }
}

TEST(PointwiseLoss, ManyElementsInOnePiece) {
  const std::int64_t n = 100003;
  for (const auto dtype : kFloating)
    for (const auto& c : cases()) {
      if (c.weights) continue;
      SCOPED_TRACE(name_of_case(c, dtype));
      const Tensor x = test::uniform({n}, dtype, test::device(), 1, c.x_low, c.x_high),
                   t = test::uniform({n}, dtype, test::device(), 2, c.t_low, c.t_high);
      const auto xs = test::to_f64(x), ts = test::to_f64(t);
      double sum = 0;
      for (std::size_t i = 0; i < xs.size(); ++i) sum += value(c.options, xs[i], ts[i], 1, 1);
      const Tensor loss = test::fresh({}, accum_dtype(dtype));
      kernels::pointwise_loss(test::context(), loss.view(), x.view(), t.view(), {}, {}, c.options);
      EXPECT_NEAR(loss.item(), sum / static_cast<double>(n), 2e-6 * std::fabs(sum) / static_cast<double>(n));
      // In one piece and apart in memory the same formula is in different kernels.
      PointwiseLoss o = c.options;
      o.reduction = Reduction::sum;
      const Tensor g = test::from_list({}, accum_dtype(dtype), {0.5});
      const Tensor dx = test::fresh({n}, dtype), dt = test::fresh({n}, dtype), apart_x = test::fresh({n}, dtype),
                   apart_t = test::fresh({n}, dtype);
      kernels::pointwise_loss_backward(test::context(), dx.view(), dt.view(), g.view(), x.view(), t.view(), {}, {}, o);
      kernels::pointwise_loss_backward(test::context(), apart_x.view(), apart_t.view(), g.view(),
                                       test::spread_out(x).view(), t.view(), {}, {}, o);
      EXPECT_TRUE(test::close(dx, test::to_f64(apart_x), test::forward_tolerance(dtype)));
      EXPECT_TRUE(test::close(dt, test::to_f64(apart_t), test::forward_tolerance(dtype)));
    }
}

TEST(PointwiseLoss, SixteenBitEdges) {
  // The smallest numbers of bf16 are subnormal in f32 too; a probability of 0 and 1; a beta that f32 hardly knows.
  const double tiny = 0x1p-130;
  const auto loss_of = [&](const PointwiseLoss& o, double x, double t) {
    const Tensor loss = test::fresh({}, DType::f32);
    kernels::pointwise_loss(test::context(), loss.view(), test::from_list({1}, DType::bf16, {x}).view(),
                            test::from_list({1}, DType::bf16, {t}).view(), {}, {}, o);
    return loss.item();
  };
  EXPECT_NEAR(loss_of({.kind = LossKind::kl_div}, -1, tiny), 0, 1e-30);
  EXPECT_NEAR(loss_of({.kind = LossKind::bce}, tiny, 1), 130 * std::log(2.0), 1e-3);
  EXPECT_NEAR(loss_of({.kind = LossKind::bce}, 0, 1), 100, 1e-3);
  EXPECT_NEAR(loss_of({.kind = LossKind::bce}, 1, 1), 0, 1e-6);
  EXPECT_NEAR(loss_of({.kind = LossKind::bce_with_logits}, 20, 1), std::log1p(std::exp(-20.0)), 1e-14);
  EXPECT_EQ(loss_of({.kind = LossKind::smooth_l1, .delta = 1e-40}, 1, 1), 0);
  EXPECT_NEAR(loss_of({.kind = LossKind::smooth_l1, .delta = 1e-40}, 1, 2), 1, 1e-6);
}

TEST(PointwiseLoss, GradientsMatchDifferences) {
  for (const auto& c : cases()) {
    SCOPED_TRACE(name_of_case(c, DType::f64));
    const auto spaced = [](double low, double high, double phase) {
      return test::from_function({4, 3}, DType::f64, test::device(), [=](std::int64_t i) {
        return low + (high - low) * (0.5 + 0.49 * std::sin(1.7 * double(i) + phase));
      });
    };
    const Tensor x = spaced(c.x_low, c.x_high, 0), t = spaced(c.t_low, c.t_high, 1.1);
    const Tensor loss = test::fresh({}, DType::f64), one = test::from_list({}, DType::f64, {1});
    const Tensor dx = test::fresh_like(x), dt = test::fresh_like(t);
    const auto f = [&] {
      kernels::pointwise_loss(test::context(), loss.view(), x.view(), t.view(), {}, {}, c.options);
      return loss.item();
    };
    kernels::pointwise_loss_backward(test::context(), dx.view(), dt.view(), one.view(), x.view(), t.view(), {}, {},
                                     c.options);
    EXPECT_TRUE(test::gradient_matches(x, dx, f));
    EXPECT_TRUE(test::gradient_matches(t, dt, f));
  }
}

TEST(PointwiseLoss, SpecialPoints) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const auto run = [&](const PointwiseLoss& options, const std::vector<double>& x, const std::vector<double>& t) {
    PointwiseLoss o = options;
    o.reduction = Reduction::none;
    const auto n = static_cast<std::int64_t>(x.size());
    const Tensor loss = test::fresh({n}, DType::f32), dx = test::fresh({n}, DType::f32);
    const Tensor xs = test::from_list({n}, DType::f32, x), ts = test::from_list({n}, DType::f32, t);
    const Tensor one = test::from_function({n}, DType::f32, test::device(), [](std::int64_t) { return 1.0; });
    kernels::pointwise_loss(test::context(), loss.view(), xs.view(), ts.view(), {}, {}, o);
    kernels::pointwise_loss_backward(test::context(), dx.view(), {}, one.view(), xs.view(), ts.view(), {}, {}, o);
    return std::pair{test::to_f64(loss), test::to_f64(dx)};
  };
  const test::Tolerance f32 = test::forward_tolerance(DType::f32);
  // Certain and right: no loss. Certain and wrong: cut off at 100, with a gradient that is a number.
  auto [loss, dx] = run({.kind = LossKind::bce}, {0, 1, 0, 1, 1.5, -0.5, nan}, {0, 1, 1, 0, 1, 0, 1});
  EXPECT_TRUE(test::close(loss, {0, 0, 100, 100, nan, nan, nan}, f32));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(std::isfinite(dx[static_cast<std::size_t>(i)])) << i;
  EXPECT_LT(dx[2], -1e10);
  EXPECT_GT(dx[3], 1e10);
  std::tie(loss, dx) =
      run({.kind = LossKind::bce_with_logits}, {inf, -inf, inf, 1000, -1000, nan, 1000}, {1, 0, 0, 0, 1, 0, 1});
  EXPECT_TRUE(test::close(loss, {0, 0, inf, 1000, 1000, nan, 0}, f32));
  EXPECT_TRUE(test::close(dx, {0, 0, 1, 1, -1, nan, 0}, f32));
  std::tie(loss, dx) = run({.kind = LossKind::kl_div}, {-inf, -1, -2}, {0, 0, -1});
  EXPECT_TRUE(test::close(loss, {0, 0, nan}, f32));
  std::tie(loss, dx) =
      run({.kind = LossKind::kl_div, .log_target = true}, {-1, -inf, -inf, -1, -2}, {-inf, -inf, 0, nan, -200});
  EXPECT_TRUE(test::close(loss, {0, 0, inf, nan, 0}, f32));
  EXPECT_TRUE(test::close(dx, {0, 0, -1, nan, 0}, f32));
  std::tie(loss, dx) = run({.kind = LossKind::l1}, {1, nan, inf}, {1, 0, 0});
  EXPECT_TRUE(test::close(loss, {0, nan, inf}, f32));
  EXPECT_TRUE(test::close(dx, {0, nan, 1}, f32));
  std::tie(loss, dx) = run({.kind = LossKind::huber, .delta = 2}, {1, 3, nan, -inf}, {1, 0, 0, 0});
  EXPECT_TRUE(test::close(loss, {0, 4, nan, inf}, f32));
  EXPECT_TRUE(test::close(dx, {0, 2, nan, -2}, f32));
}

TEST(PointwiseLoss, SumsOfManyAreExactEnoughAndTheSameForEveryThreadCount) {
  const Tensor x = test::uniform({1000, 301}, DType::f32, test::device(), 1),
               t = test::uniform({1000, 301}, DType::f32, test::device(), 2);
  const auto xs = test::to_f64(x), ts = test::to_f64(t);
  double want = 0;
  for (std::size_t i = 0; i < xs.size(); ++i) want += reference::mse(xs[i], ts[i]);
  const Tensor loss = test::fresh({}, DType::f32);
  std::vector<double> got;
  const int threads = omp_get_max_threads();
  for (const int count : {1, 2, 3}) {
    omp_set_num_threads(count);
    kernels::pointwise_loss(test::context(), loss.view(), x.view(), t.view(), {}, {}, {.reduction = Reduction::sum});
    got.push_back(loss.item());
  }
  omp_set_num_threads(threads);
  EXPECT_NEAR(got[0], want, 1e-6 * want);
  EXPECT_EQ(got, std::vector<double>(3, got[0]));
}

TEST(PointwiseLoss, NothingToCompare) {
  const Tensor none = make({0, 3}), loss = test::fresh({}, DType::f32), each = make({0, 3}), dx = make({0, 3}),
               one = test::from_list({}, DType::f32, {1});
  for (const auto& c : cases()) {
    PointwiseLoss o = c.options;
    kernels::pointwise_loss(test::context(), loss.view(), none.view(), none.view(), {}, {}, o);
    EXPECT_TRUE(std::isnan(loss.item()));
    o.reduction = Reduction::sum;
    kernels::pointwise_loss(test::context(), loss.view(), none.view(), none.view(), {}, {}, o);
    EXPECT_EQ(loss.item(), 0);
    kernels::pointwise_loss_backward(test::context(), dx.view(), {}, one.view(), none.view(), none.view(), {}, {}, o);
    o.reduction = Reduction::none;
    kernels::pointwise_loss(test::context(), each.view(), none.view(), none.view(), {}, {}, o);
  }
}

TEST(PointwiseLoss, BadArguments) {
  const Tensor x = make({2, 3}), t = make({2, 3}), loss = make({}), w = make({3});
  const auto run = [&](const Tensor& to, const Tensor& a, const Tensor& b, const Tensor& weight, const Tensor& pos,
                       const PointwiseLoss& o) {
    kernels::pointwise_loss(test::context(), to.view(), a.view(), b.view(), weight.view(), pos.view(), o);
  };
  EXPECT_TRUE(throws(Kind::argument, "mse_loss: target has sizes", [&] { run(loss, x, make({3}), {}, {}, {}); }));
  EXPECT_TRUE(throws(Kind::argument, "target is f64", [&] { run(loss, x, make({2, 3}, DType::f64), {}, {}, {}); }));
  EXPECT_TRUE(throws(Kind::argument, "target is not given", [&] { run(loss, x, {}, {}, {}, {}); }));
  EXPECT_TRUE(throws(Kind::argument, "loss has sizes", [&] { run(make({2}), x, t, {}, {}, {}); }));
  EXPECT_TRUE(
      throws(Kind::argument, "loss has sizes", [&] { run(loss, x, t, {}, {}, {.reduction = Reduction::none}); }));
  EXPECT_TRUE(throws(Kind::argument, "loss is f64", [&] { run(make({}, DType::f64), x, t, {}, {}, {}); }));
  EXPECT_TRUE(throws(Kind::argument, "mse_loss: takes no weight", [&] { run(loss, x, t, w, {}, {}); }));
  EXPECT_TRUE(throws(Kind::argument, "binary_cross_entropy: takes no pos_weight",
                     [&] { run(loss, x, t, w, w, {.kind = LossKind::bce}); }));
  EXPECT_TRUE(throws(Kind::argument, "pos_weight of sizes [2]",
                     [&] { run(loss, x, t, {}, make({2}), {.kind = LossKind::bce_with_logits}); }));
  EXPECT_TRUE(throws(Kind::argument, "beta is -1",
                     [&] { run(loss, x, t, {}, {}, {.kind = LossKind::smooth_l1, .delta = -1}); }));
  EXPECT_TRUE(
      throws(Kind::argument, "delta is 0", [&] { run(loss, x, t, {}, {}, {.kind = LossKind::huber, .delta = 0}); }));
  const Tensor i = make({2, 3}, DType::i64);
  EXPECT_TRUE(throws(Kind::unsupported, "i64", [&] { run(loss, i, i, {}, {}, {}); }));
  EXPECT_TRUE(throws(Kind::argument, "dx has sizes", [&] {
    kernels::pointwise_loss_backward(test::context(), w.view(), {}, loss.view(), x.view(), t.view(), {}, {}, {});
  }));
  EXPECT_TRUE(throws(Kind::argument, "dtarget is f64", [&] {
    kernels::pointwise_loss_backward(test::context(), {}, make({2, 3}, DType::f64).view(), loss.view(), x.view(),
                                     t.view(), {}, {}, {});
  }));
}

std::vector<std::int64_t> some_labels(std::int64_t count, std::int64_t classes) {
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < count; ++i) labels.push_back(i == 3 ? -100 : i * 5 % classes);
  return labels;
}

TEST(NllLoss, MatchesTheFormula) {
  for (const auto dtype : kFloating)
    for (const Dims& sizes : {Dims{7, 5}, Dims{3, 4, 5}, Dims{2, 3, 3, 4}, Dims{6, 1}, Dims{5, 1000}})
      for (const bool last : {false, true})
        for (const bool weighted : {false, true})
          for (const auto reduction : kReductions) {
            if (last && sizes.size() != 4) continue;
            SCOPED_TRACE(concat(dtype, ' ', sizes, last ? " last " : " ", weighted, ' ', static_cast<int>(reduction)));
            const DType acc = accum_dtype(dtype);
            const auto format = last ? MemoryFormat::channels_last : MemoryFormat::contiguous;
            const Tensor x = test::uniform(sizes, dtype, test::device(), 1, -4, 0, format);
            Dims places;
            std::int64_t inner = 1;
            for (int d = 0; d < sizes.size(); ++d) {
              if (d != 1) places.push_back(sizes[d]);
              if (d > 1) inner *= sizes[d];
            }
            const auto labels = some_labels(sizes[0] * inner, sizes[1]);
            const Tensor label_tensor = test::values<std::int64_t>(places, std::span<const std::int64_t>(labels));
            const Tensor w = weighted ? test::uniform({sizes[1]}, dtype, test::device(), 2, 0.5, 2) : Tensor();
            const auto want = reference::nll(test::to_f64(x), sizes[1], inner, labels,
                                             weighted ? test::to_f64(w) : std::vector<double>(), -100);
            const bool each = reduction == Reduction::none;
            const double one = reduction == Reduction::mean ? want.sum / want.weight_sum : want.sum;
            const Tensor loss = test::fresh(each ? places : Dims{}, acc), total = test::fresh({}, acc);
            const kernels::NllOptions o{.reduction = reduction};
            for (const Tensor& in : {x, test::spread_out(x)}) {
              kernels::nll_loss(test::context(), test::poisoned(loss).view(), total.view(), in.view(),
                                label_tensor.view(), w.view(), o);
              EXPECT_TRUE(test::close(loss, each ? want.losses : std::vector<double>{one},
                                      test::sum_tolerance(acc, sizes[0] * inner)));
              EXPECT_TRUE(test::close(total, {want.weight_sum}, test::sum_tolerance(acc, sizes[0] * inner)));
            }
            const Tensor dloss = test::uniform(each ? places : Dims{}, acc, test::device(), 3, 0.5, 2);
            const auto g = test::to_f64(dloss);
            std::vector<double> gradient(static_cast<std::size_t>(x.numel()), 0.0);
            for (std::size_t i = 0; i < labels.size(); ++i) {
              if (labels[i] < 0) continue;
              const std::int64_t n = static_cast<std::int64_t>(i) / inner, d = static_cast<std::int64_t>(i) % inner;
              gradient[static_cast<std::size_t>((n * sizes[1] + labels[i]) * inner + d)] =
                  -want.weights[i] * g[each ? i : 0] / (reduction == Reduction::mean ? want.weight_sum : 1);
            }
            const Tensor dx = test::fresh(sizes, dtype, format);
            for (const Tensor& out : {dx, test::poisoned(test::spread_out(dx))}) {
              kernels::nll_loss_backward(test::context(), out.view(), dloss.view(), label_tensor.view(), w.view(),
                                         total.view(), o);
              EXPECT_TRUE(test::close(out, gradient, test::backward_tolerance(dtype)));
            }
          }
}

TEST(NllLoss, NothingCounts) {
  const Tensor x = test::uniform({2, 3}, DType::f32, test::device(), 1), loss = test::fresh({}, DType::f32),
               labels = test::values<std::int64_t>({2}, {7, 7});
  kernels::nll_loss(test::context(), loss.view(), {}, x.view(), labels.view(), {}, {.ignore_index = 7});
  EXPECT_TRUE(std::isnan(loss.item()));
  const Tensor none = make({0, 3}), no_labels = make({0}, DType::i64);
  kernels::nll_loss(test::context(), loss.view(), {}, none.view(), no_labels.view(), {}, {.reduction = Reduction::sum});
  EXPECT_EQ(loss.item(), 0);
  kernels::nll_loss_backward(test::context(), none.view(), loss.view(), no_labels.view(), {}, {},
                             {.reduction = Reduction::sum});
}

TEST(NllLoss, LabelThatIsNoClass) {
  const Tensor x = test::uniform({3, 4}, DType::f32, test::device(), 1), losses = test::fresh({3}, DType::f32),
               dx = test::fresh_like(x), ones = test::values<float>({3}, {1, 1, 1}),
               labels = test::values<std::int64_t>({3}, {0, 4, -1});
  const kernels::NllOptions o{.reduction = Reduction::none};
  const auto forward = [&] { kernels::nll_loss(test::context(), losses.view(), {}, x.view(), labels.view(), {}, o); };
  const auto backward = [&] {
    kernels::nll_loss_backward(test::context(), dx.view(), ones.view(), labels.view(), {}, {}, o);
  };
  const auto expect_fault = [&] {
    EXPECT_TRUE(throws(Kind::argument, "nll_loss: the label at [1] is 4, wanted 0 to 3 or -100 (ignored)", forward));
    EXPECT_TRUE(throws(Kind::argument, "nll_loss: the label at [1] is 4", backward));
    const Tensor planes = test::uniform({2, 4, 3}, DType::f32, test::device(), 1),
                 each = test::fresh({2, 3}, DType::f32),
                 several = test::values<std::int64_t>({2, 3}, {0, 1, 2, 3, 0, 7});
    EXPECT_TRUE(throws(Kind::argument, "nll_loss: the label at [1, 2] is 7", [&] {
      kernels::nll_loss(test::context(), each.view(), {}, planes.view(), several.view(), {}, o);
    }));
  };
  if (!test::on_cuda()) return expect_fault();
  const bool checked = kernels::data_checks();
  kernels::set_data_checks(true);
  expect_fault();
  kernels::set_data_checks(checked);
  forward();
  backward();
  const auto l = test::to_f64(losses);
  EXPECT_FALSE(std::isnan(l[0]));
  EXPECT_TRUE(std::isnan(l[1]) && std::isnan(l[2]));
  EXPECT_TRUE(test::equal(dx, {-1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(NllLoss, BadArguments) {
  const Tensor x = make({3, 4}), labels = test::values<std::int64_t>({3}, {0, 1, 2}), loss = make({});
  const auto run = [&](const Tensor& from, const Tensor& l, const Tensor& w) {
    kernels::nll_loss(test::context(), loss.view(), {}, from.view(), l.view(), w.view());
  };
  EXPECT_TRUE(throws(Kind::argument, "is not [N, C, ...]", [&] { run(make({4}), labels, {}); }));
  EXPECT_TRUE(throws(Kind::argument, "has no class", [&] { run(make({3, 0}), labels, {}); }));
  EXPECT_TRUE(throws(Kind::argument, "labels has sizes", [&] { run(make({3, 4, 2}), labels, {}); }));
  EXPECT_TRUE(throws(Kind::argument, "labels is i32", [&] { run(x, make({3}, DType::i32), {}); }));
  EXPECT_TRUE(throws(Kind::argument, "weight", [&] { run(x, labels, make({3})); }));
  EXPECT_TRUE(throws(Kind::argument, "weight is f64", [&] { run(x, labels, make({4}, DType::f64)); }));
  EXPECT_TRUE(throws(Kind::unsupported, "i64", [&] { run(make({3, 4}, DType::i64), labels, {}); }));
  EXPECT_TRUE(throws(Kind::argument, "total_weight is not given", [&] {
    kernels::nll_loss_backward(test::context(), x.view(), loss.view(), labels.view(), {}, {});
  }));
}

}  // namespace
}  // namespace apex
