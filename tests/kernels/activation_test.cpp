// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/activation.hpp"

#include "apex/kernels/elementwise.hpp"
#include "support/layouts.hpp"
#include "support/references.hpp"

namespace apex {
namespace {

namespace reference = test::reference;
using kernels::Activation;
using kernels::ActivationKind;
using test::throws;

constexpr DType kFloating[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
constexpr double kInf = std::numeric_limits<double>::infinity();

const std::vector<Activation>& cases() {
  static const std::vector<Activation> all = {
      {ActivationKind::gelu},
      {ActivationKind::gelu_tanh},
      {ActivationKind::silu},
      {ActivationKind::leaky_relu, 0.2},
      {ActivationKind::leaky_relu, 0.0},
      {ActivationKind::elu, 1.3},
      {ActivationKind::softplus, 1.0, 20.0},
      {ActivationKind::softplus, 2.5, 3.0},
      {ActivationKind::clamp, -0.5, 0.75},
      {ActivationKind::clamp, -kInf, 0.0},
      {ActivationKind::hardtanh, -1.0, 1.0},
      {ActivationKind::log_sigmoid},
  };
  return all;
}

double value(const Activation& f, double x) {
  switch (f.kind) {
    case ActivationKind::gelu: return reference::gelu(x);
    case ActivationKind::gelu_tanh: return reference::gelu_tanh(x);
    case ActivationKind::silu: return reference::silu(x);
    case ActivationKind::leaky_relu: return reference::leaky_relu(x, f.a);
    case ActivationKind::elu: return reference::elu(x, f.a);
    case ActivationKind::softplus: return reference::softplus(x, f.a, f.b);
    case ActivationKind::clamp:
    case ActivationKind::hardtanh: return reference::clamp(x, f.a, f.b);
    case ActivationKind::log_sigmoid: return reference::log_sigmoid(x);
  }
  return 0;
}
/// f' between corners, by differences of the reference.
double slope(const Activation& f, double x) {
  const double h = 1e-5;
  return (value(f, x + h) - value(f, x - h)) / (2 * h);
}
bool near_a_corner(const Activation& f, double x) {
  for (const double corner : {0.0, f.a, f.b, f.kind == ActivationKind::softplus ? f.b / f.a : 0.0})
    if (std::fabs(x - corner) < 1e-4) return true;
  return false;
}

std::vector<double> mapped(const Tensor& x, const std::function<double(double)>& f) {
  std::vector<double> out;
  for (const double v : test::to_f64(x)) out.push_back(f(v));
  return out;
}

TEST(Activation, EveryKindTypeAndLayout) {
  for (const auto dtype : kFloating)
    for (const auto& f : cases())
      for (const auto lie : test::kLies) {
        SCOPED_TRACE(concat(name_of(f.kind), ' ', f.a, ' ', dtype, test::name_of(lie)));
        const Tensor x = test::laid_uniform(lie, dtype, 1, -6, 6), y = test::result_of(lie, dtype);
        const auto want = mapped(x, [&](double v) { return value(f, v); });
        kernels::activation(test::context(), y.view(), x.view(), f);
        EXPECT_TRUE(test::close(y, want, test::forward_tolerance(dtype)));
        const Tensor apart = test::poisoned(test::spread_out(y));
        kernels::activation(test::context(), apart.view(), test::spread_out(x).view(), f);
        EXPECT_TRUE(test::close(apart, want, test::forward_tolerance(dtype)));
        kernels::activation(test::context(), x.view(), x.view(), f);  // in place
        EXPECT_EQ(test::to_f64(x), test::to_f64(y));
      }
}

TEST(Activation, EveryBackwardTypeAndLayout) {
  for (const auto dtype : kFloating)
    for (const auto& f : cases())
      for (const auto lie : test::kLies) {
        SCOPED_TRACE(concat(name_of(f.kind), ' ', f.a, ' ', dtype, test::name_of(lie)));
        const Tensor x = test::laid_uniform(lie, dtype, 1, -6, 6), dy = test::laid_uniform(lie, dtype, 2);
        const Tensor dx = test::result_of(lie, dtype);
        const auto xs = test::to_f64(x), gs = test::to_f64(dy);
        kernels::activation_backward(test::context(), dx.view(), dy.view(), x.view(), f);
        const auto got = test::to_f64(dx);
        const auto tolerance = test::backward_tolerance(dtype);
        std::size_t compared = 0;
        for (std::size_t i = 0; i < xs.size(); ++i) {
          if (near_a_corner(f, xs[i])) continue;
          const double want = gs[i] * slope(f, xs[i]);
          ASSERT_NEAR(got[i], want, tolerance.bound(want) + 1e-9) << i << " at " << xs[i];
          ++compared;
        }
        EXPECT_GT(compared, xs.size() * 9 / 10);
        const Tensor apart = test::poisoned(test::spread_out(dx));
        kernels::activation_backward(test::context(), apart.view(), dy.view(), test::spread_out(x).view(), f);
        EXPECT_TRUE(test::close(apart, got, test::forward_tolerance(dtype)));
        kernels::activation_backward(test::context(), dy.view(), dy.view(), x.view(), f);  // in place
        EXPECT_EQ(test::to_f64(dy), got);
      }
}

TEST(Activation, GradientsMatchDifferences) {
  for (const auto& f : cases()) {
    SCOPED_TRACE(name_of(f.kind));
    const Tensor x = test::from_function({5, 7}, DType::f64, test::device(),
                                         [](std::int64_t i) { return 4.0 * std::sin(0.7 * double(i) + 0.1); });
    const Tensor y = empty_like(x), dx = test::fresh_like(x);
    const auto loss = [&] {
      kernels::activation(test::context(), y.view(), x.view(), f);
      return test::weighted_sum(y);
    };
    loss();
    kernels::activation_backward(test::context(), dx.view(), test::weights_like(y).view(), x.view(), f);
    EXPECT_TRUE(test::gradient_matches(x, dx, loss));
  }
}

TEST(Activation, Corners) {
  const auto slopes = [](const Activation& f, const std::vector<double>& at) {
    const auto n = static_cast<std::int64_t>(at.size());
    const Tensor x = test::from_list({n}, DType::f32, at), dx = test::fresh({n}, DType::f32);
    const Tensor one = test::from_function({n}, DType::f32, test::device(), [](std::int64_t) { return 1.0; });
    kernels::activation_backward(test::context(), dx.view(), one.view(), x.view(), f);
    return test::to_f64(dx);
  };
  using V = std::vector<double>;
  EXPECT_EQ(slopes({ActivationKind::leaky_relu, 0.25}, {0.0, -0.0}), (V{0.25, 0.25}));
  EXPECT_EQ(slopes({ActivationKind::elu, 0.5}, {0.0}), (V{0.5}));
  EXPECT_EQ(slopes({ActivationKind::clamp, -1, 2}, {-1, 2, -1.5, 3, 0}), (V{1, 1, 0, 0, 1}));
  EXPECT_EQ(slopes({ActivationKind::hardtanh, -1, 2}, {-1, 2, -1.5, 3, 0}), (V{0, 0, 0, 0, 1}));
  EXPECT_EQ(slopes({ActivationKind::clamp, 1, 1}, {1, 0}), (V{1, 0}));
  // A gradient that is no number does not get through where the slope is 0.
  const Tensor x = test::from_list({2}, DType::f32, {-3, 3}), bad = test::from_list({2}, DType::f32, {kInf, NAN}),
               dx = test::fresh({2}, DType::f32);
  kernels::activation_backward(test::context(), dx.view(), bad.view(), x.view(), {ActivationKind::hardtanh, -1, 1});
  EXPECT_TRUE(test::equal(dx, {0, 0}));
}

TEST(Activation, LimitsAndNaN) {
  const std::vector<double> at = {-kInf, kInf, NAN, -1e30, 1e30, -200, 200};
  const std::vector<std::pair<Activation, std::vector<double>>> limits = {
      {{ActivationKind::gelu}, {0, kInf, NAN, 0, 1e30, 0, 200}},
      {{ActivationKind::gelu_tanh}, {0, kInf, NAN, 0, 1e30, 0, 200}},
      {{ActivationKind::silu}, {0, kInf, NAN, 0, 1e30, 0, 200}},
      {{ActivationKind::leaky_relu, 0.5}, {-kInf, kInf, NAN, -5e29, 1e30, -100, 200}},
      {{ActivationKind::elu, 2}, {-2, kInf, NAN, -2, 1e30, -2, 200}},
      {{ActivationKind::softplus, 1, 20}, {0, kInf, NAN, 0, 1e30, 0, 200}},
      {{ActivationKind::softplus, 1, kInf}, {0, kInf, NAN, 0, 1e30, 0, 200}},
      {{ActivationKind::clamp, -3, 4}, {-3, 4, NAN, -3, 4, -3, 4}},
      {{ActivationKind::log_sigmoid}, {-kInf, 0, NAN, -1e30, 0, -200, 0}},
  };
  for (const auto dtype : {DType::f64, DType::f32, DType::bf16})  // f16 has no 1e30
    for (const auto& [f, want] : limits) {
      SCOPED_TRACE(concat(name_of(f.kind), ' ', dtype));
      const Tensor x = test::from_list({7}, dtype, at), y = test::fresh({7}, dtype), dx = test::fresh({7}, dtype);
      kernels::activation(test::context(), y.view(), x.view(), f);
      test::Tolerance rounding = test::forward_tolerance(dtype);
      EXPECT_TRUE(test::close(y, want, {rounding.rtol, 1e-30}));
      const Tensor one = test::from_function({7}, dtype, test::device(), [](std::int64_t) { return 1.0; });
      kernels::activation_backward(test::context(), dx.view(), one.view(), x.view(), f);
      const auto slopes = test::to_f64(dx);
      for (std::size_t i = 0; i < at.size(); ++i) EXPECT_TRUE(std::isnan(at[i]) || std::isfinite(slopes[i])) << at[i];
    }
}

TEST(Activation, SmallResultsKeepTheirDigits) {
  // Tails where a form like 1 + tanh would have lost all digits; f32 and 16 bits against the formula.
  for (const auto dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Tensor x = test::from_list({5}, dtype, {-3, -5, -7, -9, -0.001}), y = test::fresh({5}, dtype);
    const test::Tolerance relative{dtype == DType::f64 ? 1e-11 : dtype == DType::f32 ? 2e-5 : 5e-3, 0};
    for (const auto& f :
         {Activation{ActivationKind::gelu}, {ActivationKind::silu}, {ActivationKind::softplus, 1, 20}}) {
      kernels::activation(test::context(), y.view(), x.view(), f);
      EXPECT_TRUE(test::close(y, mapped(x, [&](double v) { return value(f, v); }), relative))
          << name_of(f.kind) << dtype;
    }
  }
}

TEST(Activation, BroadcastsAndEmpty) {
  const Activation f{ActivationKind::silu};
  const Tensor x = test::uniform({3, 1}, DType::f32, test::device(), 1), y = test::fresh({3, 5}, DType::f32);
  kernels::activation(test::context(), y.view(), x.view(), f);
  EXPECT_TRUE(test::close(y, mapped(views::expand(x, {3, 5}), reference::silu), test::forward_tolerance(DType::f32)));
  const Tensor none = test::make({0, 4});
  kernels::activation(test::context(), none.view(), none.view(), f);
  kernels::activation_backward(test::context(), none.view(), none.view(), none.view(), f);
}

TEST(Activation, BadArguments) {
  const Tensor x = test::make({3}), i = test::make({3}, DType::i64), d = test::make({3}, DType::f64);
  const auto run = [&](const Tensor& y, const Tensor& from, const Activation& f) {
    kernels::activation(test::context(), y.view(), from.view(), f);
  };
  EXPECT_TRUE(throws(Kind::unsupported, "gelu", [&] { run(i, i, {ActivationKind::gelu}); }));
  EXPECT_TRUE(throws(Kind::argument, "silu: x is f64", [&] { run(x, d, {ActivationKind::silu}); }));
  EXPECT_TRUE(throws(Kind::argument, "x of sizes [4]", [&] { run(x, test::make({4}), {ActivationKind::elu, 1}); }));
  EXPECT_TRUE(throws(Kind::argument, "clamp: the range from 2 to 1", [&] {
    run(x, x, {ActivationKind::clamp, 2, 1});
  }));
  EXPECT_TRUE(throws(Kind::argument, "hardtanh: the range", [&] { run(x, x, {ActivationKind::hardtanh, 0, NAN}); }));
  EXPECT_TRUE(throws(Kind::argument, "beta is 0", [&] { run(x, x, {ActivationKind::softplus, 0, 20}); }));
  EXPECT_TRUE(throws(Kind::argument, "threshold is NaN", [&] { run(x, x, {ActivationKind::softplus, 1, NAN}); }));
  EXPECT_TRUE(throws(Kind::argument, "slope or scale", [&] { run(x, x, {ActivationKind::leaky_relu, NAN}); }));
  EXPECT_TRUE(throws(Kind::argument, "y is not given",
                     [&] { kernels::activation(test::context(), {}, x.view(), {ActivationKind::gelu}); }));
  EXPECT_TRUE(throws(Kind::argument, "dy is not given", [&] {
    kernels::activation_backward(test::context(), x.view(), {}, x.view(), {ActivationKind::gelu});
  }));
  EXPECT_TRUE(throws(Kind::argument, "dy is f64", [&] {
    kernels::activation_backward(test::context(), x.view(), d.view(), x.view(), {ActivationKind::gelu});
  }));
}

}  // namespace
}  // namespace apex
