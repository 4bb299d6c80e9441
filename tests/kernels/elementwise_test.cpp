// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/elementwise.hpp"

#include <limits>
#include <numbers>

#include "apex/kernels/copy.hpp"
#include "apex/kernels/reduce.hpp"
#include "support/layouts.hpp"

namespace apex {
namespace {

using kernels::BinaryOp;
using kernels::CompareOp;
using kernels::UnaryOp;
using test::throws;

constexpr DType kFloating[] = {DType::f64, DType::f32, DType::f16, DType::bf16};

double reference(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::add: return a + b;
    case BinaryOp::sub: return a - b;
    case BinaryOp::mul: return a * b;
    case BinaryOp::div: return a / b;
    case BinaryOp::minimum: return std::isnan(a) || std::isnan(b) ? std::nan("") : std::min(a, b);
    case BinaryOp::maximum: return std::isnan(a) || std::isnan(b) ? std::nan("") : std::max(a, b);
    case BinaryOp::pow: return std::pow(a, b);
  }
  return 0;
}
constexpr BinaryOp kBinary[] = {BinaryOp::add,     BinaryOp::sub,     BinaryOp::mul, BinaryOp::div,
                                BinaryOp::minimum, BinaryOp::maximum, BinaryOp::pow};

double reference(UnaryOp op, double x) {
  switch (op) {
    case UnaryOp::neg: return -x;
    case UnaryOp::abs: return std::fabs(x);
    case UnaryOp::sign: return std::isnan(x) ? x : (x > 0) - (x < 0);
    case UnaryOp::exp: return std::exp(x);
    case UnaryOp::log: return std::log(x);
    case UnaryOp::sqrt: return std::sqrt(x);
    case UnaryOp::rsqrt: return 1 / std::sqrt(x);
    case UnaryOp::reciprocal: return 1 / x;
    case UnaryOp::square: return x * x;
    case UnaryOp::tanh: return std::tanh(x);
    case UnaryOp::sigmoid: return 1 / (1 + std::exp(-x));
    case UnaryOp::relu: return std::isnan(x) ? x : std::max(x, 0.0);
    case UnaryOp::erf: return std::erf(x);
  }
  return 0;
}
constexpr UnaryOp kUnary[] = {UnaryOp::neg,     UnaryOp::abs,   UnaryOp::sign,       UnaryOp::exp,    UnaryOp::log,
                              UnaryOp::sqrt,    UnaryOp::rsqrt, UnaryOp::reciprocal, UnaryOp::square, UnaryOp::tanh,
                              UnaryOp::sigmoid, UnaryOp::relu,  UnaryOp::erf};

/// a op b element by element, both already broadcast to one shape.
std::vector<double> zip(const Tensor& a, const Tensor& b, const std::function<double(double, double)>& f) {
  const auto x = test::to_f64(a), y = test::to_f64(b);
  std::vector<double> out;
  for (std::size_t i = 0; i < x.size(); ++i) out.push_back(f(x[i], y[i]));
  return out;
}

TEST(Binary, EveryOpTypeAndLayout) {
  const Dims sizes{3, 5, 4, 7};
  for (const auto dtype : kFloating)
    for (const auto op : kBinary) {
      const Tensor a = test::uniform(sizes, dtype, test::device(), 1, 0.2, 2),
                   b = test::uniform(sizes, dtype, test::device(), 2, 0.2, 2);
      const auto want = zip(a, b, [&](double x, double y) { return reference(op, x, y); });
      const Tensor last = test::uniform(sizes, dtype, test::device(), 2, 0.2, 2, MemoryFormat::channels_last);
      for (const auto& [p, q] : {std::pair{a, b}, {test::misaligned(a), test::spread_out(b)}, {a, last}}) {
        const Tensor out = test::fresh(sizes, dtype);
        kernels::binary(test::context(), out.view(), p.view(), q.view(), op);
        EXPECT_TRUE(test::close(out, want, test::forward_tolerance(dtype))) << name_of(op) << ' ' << dtype;
      }
      const Tensor in_place = test::misaligned(a);
      kernels::binary(test::context(), in_place.view(), in_place.view(), b.view(), op);
      EXPECT_TRUE(test::close(in_place, want, test::forward_tolerance(dtype))) << name_of(op) << ' ' << dtype;
    }
}

TEST(Binary, Broadcasts) {
  for (const auto& [sa, sb] : {std::pair<Dims, Dims>{{2, 3, 4}, {4}},
                               {{3, 1}, {2, 1, 4}},
                               {{}, {2, 3, 4}},
                               {{2, 3, 4}, {1}},
                               {{2, 1, 1}, {3, 4}}}) {
    const Tensor a = test::uniform(sa, DType::f32, test::device(), 3),
                 b = test::uniform(sb, DType::f32, test::device(), 4), out = test::fresh({2, 3, 4}, DType::f32);
    kernels::binary(test::context(), out.view(), a.view(), b.view(), BinaryOp::sub);
    EXPECT_TRUE(test::equal(out, zip(views::expand(a, {2, 3, 4}), views::expand(b, {2, 3, 4}),
                                     [](double x, double y) { return static_cast<float>(x) - static_cast<float>(y); })))
        << sa << sb;
  }
}

TEST(Binary, ChannelsAndPlanesInEveryType) {
  for (const auto dtype : kFloating)
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
      for (const Dims& sizes : {Dims{2, 64, 4, 8}, Dims{3, 24, 5, 7}, Dims{2, 3, 9, 9}}) {
        const Tensor a = test::uniform(sizes, dtype, test::device(), 1, -1, 1, format),
                     b = test::uniform({sizes[1], 1, 1}, dtype, test::device(), 2), out = test::fresh_like(a);
        kernels::binary(test::context(), out.view(), b.view(), a.view(), BinaryOp::add);
        const auto want = zip(a, views::expand(b, sizes), std::plus<>());
        EXPECT_TRUE(test::close(out, want, test::forward_tolerance(dtype))) << dtype << sizes << a.strides();
      }
}

TEST(Binary, RowsLongerThanAPackLeaveNoRest) {
  for (const auto dtype : kFloating)
    for (const std::int64_t n : {1, 7, 1031, 20011}) {
      const Tensor a = test::uniform({n}, dtype, test::device(), 1), b = test::uniform({1}, dtype, test::device(), 2),
                   out = test::fresh({n}, dtype);
      kernels::binary(test::context(), out.view(), a.view(), b.view(), BinaryOp::mul);
      EXPECT_TRUE(test::close(out, zip(a, views::expand(b, {n}), std::multiplies<>()), test::forward_tolerance(dtype)))
          << dtype << n;
    }
}

// Positions beyond 31 bits; on the CPU they are 64 bits everywhere.
TEST(Binary, MoreThanTwoBillionElements) {
  if (!test::on_cuda()) return;
  const std::int64_t n = (std::int64_t{1} << 31) + 5;
  const Tensor a = test::make({n + 1}, DType::u8), b = test::make({n}, DType::u8),
               one = test::values<std::uint8_t>({1}, {1}), sum = test::make({}, DType::i64);
  kernels::fill(test::context(), a.view(), 2);
  kernels::fill(test::context(), views::narrow(a, 0, n, 1).view(), 40);
  for (const std::int64_t start : {0, 1}) {  // in packs, and one by one
    const Tensor part = views::narrow(a, 0, start, n);
    kernels::binary(test::context(), b.view(), part.view(), one.view(), BinaryOp::add);
    kernels::reduce(test::context(), sum.view(), b.view(), {}, kernels::ReduceOp::sum);
    EXPECT_EQ(sum.item(), static_cast<double>(3 * n + 38 * start));
    EXPECT_EQ(views::narrow(b, 0, n - 1, 1).item(), start == 0 ? 3 : 41);
  }
}

TEST(Binary, IntegersWrapAndSaturateNothing) {
  const Tensor a = test::values<std::int32_t>({4}, {std::numeric_limits<std::int32_t>::max(), -7, 3, 5});
  const Tensor b = test::values<std::int32_t>({4}, {1, 2, -4, 5}), out = test::make({4}, DType::i32);
  kernels::binary(test::context(), out.view(), a.view(), b.view(), BinaryOp::add);
  EXPECT_TRUE(test::equal(out, {-0x1p31, -5, -1, 10}));
  kernels::binary(test::context(), out.view(), a.view(), b.view(), BinaryOp::maximum);
  EXPECT_TRUE(test::equal(out, {0x1p31 - 1, 2, 3, 5}));
  const Tensor u = test::values<std::uint8_t>({2}, {250, 3}), v = test::values<std::uint8_t>({2}, {10, 5}),
               w = test::make({2}, DType::u8);
  kernels::binary(test::context(), w.view(), u.view(), v.view(), BinaryOp::add);
  EXPECT_TRUE(test::equal(w, {4, 8}));
  const Tensor p = test::values<std::int64_t>({1}, {std::int64_t{1} << 40}), q = test::make({1}, DType::i64);
  kernels::binary(test::context(), q.view(), p.view(), p.view(), BinaryOp::sub);
  EXPECT_TRUE(test::equal(q, {0}));
  EXPECT_TRUE(throws(Kind::unsupported, "div",
                     [&] { kernels::binary(test::context(), out.view(), a.view(), b.view(), BinaryOp::div); }));
  const Tensor t = test::make({1}, DType::boolean);
  EXPECT_TRUE(throws(Kind::unsupported, "bool",
                     [&] { kernels::binary(test::context(), t.view(), t.view(), t.view(), BinaryOp::add); }));
}

TEST(Binary, NaNGoesThrough) {
  const double nan = std::nan("");
  for (const auto dtype : kFloating) {
    const Tensor a = test::from_list({4}, dtype, {nan, 1, nan, 2}), b = test::from_list({4}, dtype, {1, nan, nan, 3}),
                 out = test::make({4}, dtype);
    kernels::binary(test::context(), out.view(), a.view(), b.view(), BinaryOp::maximum);
    EXPECT_TRUE(test::equal(out, {nan, nan, nan, 3})) << dtype;
    kernels::binary(test::context(), out.view(), a.view(), b.view(), BinaryOp::minimum);
    EXPECT_TRUE(test::equal(out, {nan, nan, nan, 2})) << dtype;
    kernels::unary(test::context(), out.view(), a.view(), UnaryOp::relu);
    EXPECT_TRUE(test::equal(out, {nan, 1, nan, 2})) << dtype;
  }
}

TEST(Binary, BadArguments) {
  const Tensor a = test::make({3}), b = test::make({4}), d = test::make({3}, DType::f64);
  EXPECT_TRUE(throws(Kind::argument, "add: b of sizes [4]",
                     [&] { kernels::binary(test::context(), a.view(), a.view(), b.view(), BinaryOp::add); }));
  EXPECT_TRUE(throws(Kind::argument, "b is f64",
                     [&] { kernels::binary(test::context(), a.view(), a.view(), d.view(), BinaryOp::add); }));
  EXPECT_TRUE(throws(Kind::argument, "a is not given",
                     [&] { kernels::binary(test::context(), a.view(), {}, a.view(), BinaryOp::add); }));
  EXPECT_TRUE(throws(Kind::argument, "cannot be written", [&] {
    kernels::binary(test::context(), views::expand(test::make({1}), {3}).view(), a.view(), a.view(), BinaryOp::add);
  }));
  const Tensor none = test::make({0, 3});
  kernels::binary(test::context(), none.view(), none.view(), a.view(), BinaryOp::add);  // nothing to do is no error
}

TEST(Compare, EveryOp) {
  const double nan = std::nan("");
  const std::vector<double> x = {1, 2, 3, nan, nan}, y = {2, 2, 2, 1, nan};
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const Tensor a = test::from_list({5}, dtype, x), b = test::from_list({5}, dtype, y),
                 out = test::make({5}, DType::boolean);
    const std::pair<CompareOp, std::vector<double>> cases[] = {
        {CompareOp::eq, {0, 1, 0, 0, 0}}, {CompareOp::ne, {1, 0, 1, 1, 1}}, {CompareOp::lt, {1, 0, 0, 0, 0}},
        {CompareOp::le, {1, 1, 0, 0, 0}}, {CompareOp::gt, {0, 0, 1, 0, 0}}, {CompareOp::ge, {0, 1, 1, 0, 0}}};
    for (const auto& [op, want] : cases) {
      kernels::compare(test::context(), out.view(), a.view(), b.view(), op);
      EXPECT_TRUE(test::equal(out, want)) << dtype << static_cast<int>(op);
      const Tensor strided = test::spread_out(out);
      kernels::compare(test::context(), strided.view(), test::spread_out(a).view(), b.view(), op);
      EXPECT_TRUE(test::equal(strided, want)) << dtype << static_cast<int>(op);
    }
  }
  const Tensor i = test::values<std::int64_t>({2}, {(std::int64_t{1} << 53) + 1, 3}),
               j = test::values<std::int64_t>({2}, {std::int64_t{1} << 53, 3});
  const Tensor out = test::make({2}, DType::boolean);
  kernels::compare(test::context(), out.view(), i.view(), j.view(), CompareOp::gt);
  EXPECT_TRUE(test::equal(out, {1, 0}));
  EXPECT_TRUE(throws(Kind::argument, "out is i64",
                     [&] { kernels::compare(test::context(), i.view(), i.view(), j.view(), CompareOp::gt); }));
}

TEST(Unary, EveryOpTypeAndLayout) {
  for (const auto dtype : kFloating)
    for (const auto op : kUnary) {
      const bool positive =
          op == UnaryOp::log || op == UnaryOp::sqrt || op == UnaryOp::rsqrt || op == UnaryOp::reciprocal;
      const Tensor x = test::uniform({5, 123}, dtype, test::device(), 7, positive ? 0.1 : -3, 3);
      std::vector<double> want;
      for (const double v : test::to_f64(x)) want.push_back(reference(op, v));
      for (const auto& in : {x, test::misaligned(x), test::spread_out(x)}) {
        const Tensor out = test::fresh({5, 123}, dtype);
        kernels::unary(test::context(), out.view(), in.view(), op);
        EXPECT_TRUE(test::close(out, want, test::forward_tolerance(dtype))) << name_of(op) << ' ' << dtype;
      }
      const Tensor in_place = test::misaligned(x);
      kernels::unary(test::context(), in_place.view(), in_place.view(), op);
      EXPECT_TRUE(test::close(in_place, want, test::forward_tolerance(dtype))) << name_of(op) << ' ' << dtype;
    }
}

TEST(Unary, SpecialValues) {
  const Tensor x = test::values<float>({6}, {-INFINITY, INFINITY, NAN, 0.0f, -200.0f, 200.0f}), y = test::make({6});
  kernels::unary(test::context(), y.view(), x.view(), UnaryOp::sigmoid);
  EXPECT_TRUE(test::close(y, {0, 1, std::nan(""), 0.5, 0, 1}, {0, 1e-30}));
  kernels::unary(test::context(), y.view(), x.view(), UnaryOp::tanh);
  EXPECT_TRUE(test::equal(y, {-1, 1, std::nan(""), 0, -1, 1}));
  kernels::unary(test::context(), y.view(), x.view(), UnaryOp::erf);
  EXPECT_TRUE(test::equal(y, {-1, 1, std::nan(""), 0, -1, 1}));
  kernels::unary(test::context(), y.view(), x.view(), UnaryOp::exp);
  EXPECT_TRUE(test::equal(y, {0, INFINITY, std::nan(""), 1, 0, INFINITY}));
  kernels::unary(test::context(), y.view(), x.view(), UnaryOp::log);
  EXPECT_TRUE(test::close(y, {std::nan(""), INFINITY, std::nan(""), -INFINITY, std::nan(""), std::log(200.0)},
                          test::forward_tolerance(DType::f32)));
  kernels::unary(test::context(), y.view(), x.view(), UnaryOp::rsqrt);
  EXPECT_TRUE(std::isinf(test::to_f64(y)[3]));
  const Tensor i = test::values<std::int64_t>({3}, {-4, 0, 9}), j = test::make({3}, DType::i64);
  kernels::unary(test::context(), j.view(), i.view(), UnaryOp::sign);
  EXPECT_TRUE(test::equal(j, {-1, 0, 1}));
  kernels::unary(test::context(), j.view(), i.view(), UnaryOp::square);
  EXPECT_TRUE(test::equal(j, {16, 0, 81}));
  EXPECT_TRUE(
      throws(Kind::unsupported, "exp", [&] { kernels::unary(test::context(), j.view(), i.view(), UnaryOp::exp); }));
  EXPECT_TRUE(
      throws(Kind::argument, "x is i64", [&] { kernels::unary(test::context(), y.view(), i.view(), UnaryOp::exp); }));
}

TEST(Unary, FunctionsOfF32OverTheirWholeRange) {
  const std::int64_t n = 20001;
  const struct {
    UnaryOp op;
    double low, high;
  } ranges[] = {{UnaryOp::exp, -103, 88.5}, {UnaryOp::tanh, -12, 12},    {UnaryOp::sigmoid, -88, 80},
                {UnaryOp::erf, -6, 6},      {UnaryOp::erf, -1e-3, 1e-3}, {UnaryOp::tanh, -1e-3, 1e-3}};
  const auto check = [&](UnaryOp op, const std::function<double(std::int64_t)>& at) {
    const Tensor x = test::from_function({n}, DType::f32, test::device(), at), y = test::fresh({n}, DType::f32);
    kernels::unary(test::context(), y.view(), x.view(), op);
    const auto xs = test::to_f64(x), got = test::to_f64(y);
    for (std::size_t i = 0; i < xs.size(); ++i) {
      const double want = reference(op, xs[i]);
      ASSERT_NEAR(got[i], want, 5e-7 * std::fabs(want) + 2e-45) << name_of(op) << " at " << xs[i];
    }
  };
  for (const auto& r : ranges)
    check(r.op, [&](std::int64_t i) { return r.low + (r.high - r.low) * static_cast<double>(i) / (n - 1); });
  check(UnaryOp::log, [](std::int64_t i) { return std::exp2(-148.5 + 276.0 * static_cast<double>(i) / (n - 1)); });
}

TEST(Unary, GradientsMatchDifferences) {
  for (const auto op : kUnary) {
    const bool positive =
        op == UnaryOp::log || op == UnaryOp::sqrt || op == UnaryOp::rsqrt || op == UnaryOp::reciprocal;
    const Tensor x = test::uniform({3, 7}, DType::f64, test::device(), 11, positive ? 0.3 : -2, 2), y = empty_like(x),
                 dx = test::fresh_like(x);
    const auto forward = [&] {
      kernels::unary(test::context(), y.view(), x.view(), op);
      return test::weighted_sum(y);
    };
    forward();
    const auto saves = kernels::saves_of(op);
    const ConstView saved = saves == kernels::Saves::input    ? x.view()
                            : saves == kernels::Saves::output ? y.view()
                                                              : View{};
    kernels::unary_backward(test::context(), dx.view(), test::weights_like(y).view(), saved, op);
    const Tensor copy = test::from_list({3, 7}, DType::f64, test::to_f64(dx));
    EXPECT_TRUE(test::gradient_matches(x, copy, forward)) << name_of(op);
  }
  const Tensor zero = test::values<double>({1}, {0}), dx = test::fresh({1}, DType::f64),
               one = test::values<double>({1}, {1});
  kernels::unary_backward(test::context(), dx.view(), one.view(), zero.view(), UnaryOp::abs);
  EXPECT_TRUE(test::equal(dx, {0}));
  EXPECT_TRUE(throws(Kind::argument, "saved is not given",
                     [&] { kernels::unary_backward(test::context(), dx.view(), one.view(), {}, UnaryOp::exp); }));
  const Tensor i = test::make({1}, DType::i64);
  EXPECT_TRUE(throws(Kind::unsupported, "dx",
                     [&] { kernels::unary_backward(test::context(), i.view(), i.view(), i.view(), UnaryOp::relu); }));
}

TEST(ReluBackward, PassesWhereTheOutputIsPositive) {
  for (const auto dtype : kFloating) {
    const Tensor y = test::uniform({4, 100}, dtype, test::device(), 5),
                 dy = test::uniform({4, 100}, dtype, test::device(), 6), dx = test::fresh({4, 100}, dtype);
    kernels::relu_backward(test::context(), dx.view(), dy.view(), y.view());
    EXPECT_TRUE(test::equal(dx, zip(y, dy, [](double v, double g) { return v > 0 ? g : 0; }))) << dtype;
    kernels::relu_backward(test::context(), dx.view(), test::spread_out(dy).view(), test::misaligned(y).view());
    EXPECT_TRUE(test::equal(dx, zip(y, dy, [](double v, double g) { return v > 0 ? g : 0; }))) << dtype;
  }
  const Tensor y = test::values<float>({3}, {0.0f, -0.0f, 1e-30f}), g = test::values<float>({3}, {NAN, 1, 2}),
               dx = test::make({3});
  kernels::relu_backward(test::context(), dx.view(), g.view(), y.view());
  EXPECT_TRUE(test::equal(dx, {0, 0, 2.0f}));
  EXPECT_TRUE(throws(Kind::argument, "y has",
                     [&] { kernels::relu_backward(test::context(), dx.view(), g.view(), test::make({2}).view()); }) ||
              throws(Kind::argument, "y of sizes",
                     [&] { kernels::relu_backward(test::context(), dx.view(), g.view(), test::make({2}).view()); }));
}

TEST(Arithmetic, ScaleShiftAddScaledAccumulate) {
  for (const auto dtype : kFloating) {
    const Tensor a = test::uniform({3, 50}, dtype, test::device(), 8),
                 b = test::uniform({3, 50}, dtype, test::device(), 9), out = test::fresh({3, 50}, dtype);
    kernels::scale_shift(test::context(), out.view(), test::spread_out(a).view(), 0.3, -1.25);
    EXPECT_TRUE(
        test::close(out, zip(a, a, [](double x, double) { return x * 0.3 - 1.25; }), test::forward_tolerance(dtype)))
        << dtype;
    kernels::add_scaled(test::context(), out.view(), a.view(), -0.7, b.view());
    EXPECT_TRUE(
        test::close(out, zip(a, b, [](double x, double y) { return x - 0.7 * y; }), test::forward_tolerance(dtype)))
        << dtype;
    for (const auto other : kFloating) {
      const Tensor sum = test::misaligned(a), term = test::uniform({50}, other, test::device(), 10);
      kernels::accumulate(test::context(), sum.view(), term.view());
      EXPECT_TRUE(test::close(sum, zip(a, views::expand(term, {3, 50}), std::plus<>()), test::forward_tolerance(dtype)))
          << dtype << other;
    }
  }
  const Tensor i = test::make({2}, DType::i32), f = test::make({2});
  EXPECT_TRUE(
      throws(Kind::unsupported, "scale_shift", [&] { kernels::scale_shift(test::context(), i.view(), i.view(), 2); }));
  EXPECT_TRUE(throws(Kind::unsupported, "add_scaled",
                     [&] { kernels::add_scaled(test::context(), i.view(), i.view(), 2, i.view()); }));
  EXPECT_TRUE(
      throws(Kind::unsupported, "src is i32", [&] { kernels::accumulate(test::context(), f.view(), i.view()); }));
  EXPECT_TRUE(throws(Kind::argument, "does not broadcast",
                     [&] { kernels::accumulate(test::context(), f.view(), test::make({3}).view()); }));
}

TEST(Where, ChoosesInEveryType) {
  for (const auto dtype :
       {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8, DType::boolean}) {
    const Tensor c = test::values<bool>({3, 1}, {true, false, true});
    const Tensor a = test::from_list({2}, dtype, {1, 1}), b = test::from_list({3, 2}, dtype, {0, 0, 0, 0, 0, 0}),
                 out = test::make({3, 2}, dtype);
    kernels::where(test::context(), out.view(), c.view(), a.view(), b.view());
    EXPECT_TRUE(test::equal(out, {1, 1, 0, 0, 1, 1})) << dtype;
  }
  const Tensor bytes = test::values<std::uint8_t>({2}, {0, 200}), x = test::values<float>({2}, {1, 2}),
               y = test::values<float>({2}, {3, 4}), out = test::make({2});
  kernels::where(test::context(), out.view(), bytes.view(), x.view(), y.view());
  EXPECT_TRUE(test::equal(out, {3, 2}));
  EXPECT_TRUE(throws(Kind::argument, "condition is f32",
                     [&] { kernels::where(test::context(), out.view(), x.view(), x.view(), y.view()); }));
}

constexpr DType kIntegers[] = {DType::i64, DType::i32, DType::u8};
constexpr DType kAllTypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16,
                               DType::i64, DType::i32, DType::u8,  DType::boolean};

TEST(Lies, FloatingBinaryAndUnary) {
  for (const auto lie : test::kLies)
    for (const auto dtype : kFloating) {
      const test::Tolerance near = test::forward_tolerance(dtype);
      const Tensor a = test::laid_uniform(lie, dtype, 1, 0.2, 2), b = test::laid_uniform(lie, dtype, 2, 0.2, 2),
                   out = test::result_of(lie, dtype);
      for (const auto op : kBinary) {
        kernels::binary(test::context(), test::poisoned(out).view(), a.view(), b.view(), op);
        EXPECT_TRUE(test::close(out, zip(a, b, [&](double x, double y) { return reference(op, x, y); }), near))
            << name_of(op) << dtype << name_of(lie);
      }
      for (const auto op : kUnary) {
        kernels::unary(test::context(), test::poisoned(out).view(), a.view(), op);
        EXPECT_TRUE(test::close(out, zip(a, a, [&](double x, double) { return reference(op, x); }), near))
            << name_of(op) << dtype << name_of(lie);
      }
    }
}

TEST(Lies, ScaleShiftAddScaledAccumulate) {
  for (const auto lie : test::kLies)
    for (const auto dtype : kFloating) {
      const test::Tolerance near = test::forward_tolerance(dtype);
      const Tensor a = test::laid_uniform(lie, dtype, 1), b = test::laid_uniform(lie, dtype, 2),
                   out = test::result_of(lie, dtype);
      kernels::scale_shift(test::context(), out.view(), a.view(), 0.3, -1.25);
      EXPECT_TRUE(test::close(out, zip(a, a, [](double x, double) { return x * 0.3 - 1.25; }), near))
          << dtype << name_of(lie);
      kernels::add_scaled(test::context(), test::poisoned(out).view(), a.view(), -0.7, b.view());
      EXPECT_TRUE(test::close(out, zip(a, b, [](double x, double y) { return x - 0.7 * y; }), near))
          << dtype << name_of(lie);
      kernels::relu_backward(test::context(), test::poisoned(out).view(), a.view(), b.view());
      EXPECT_TRUE(test::equal(out, zip(a, b, [](double g, double y) { return y > 0 ? g : 0; })))
          << dtype << name_of(lie);
      for (const auto other : kFloating) {
        const Tensor sum = test::laid_uniform(lie, dtype, 1), term = test::laid_uniform(lie, other, 3);
        kernels::accumulate(test::context(), sum.view(), term.view());
        EXPECT_TRUE(test::close(sum, zip(a, term, std::plus<>()), near)) << dtype << other << name_of(lie);
      }
    }
}

double reference_backward(UnaryOp op, double g, double v) {
  switch (op) {
    case UnaryOp::neg: return -g;
    case UnaryOp::abs: return v > 0 ? g : v < 0 ? -g : 0;
    case UnaryOp::sign: return 0;
    case UnaryOp::exp: return g * v;
    case UnaryOp::log: return g / v;
    case UnaryOp::sqrt: return g / (2 * v);
    case UnaryOp::rsqrt: return -0.5 * g * v * v * v;
    case UnaryOp::reciprocal: return -g * v * v;
    case UnaryOp::square: return 2 * g * v;
    case UnaryOp::tanh: return g * (1 - v * v);
    case UnaryOp::sigmoid: return g * v * (1 - v);
    case UnaryOp::relu: return v > 0 ? g : 0;
    case UnaryOp::erf: return g * 2 / std::sqrt(std::numbers::pi) * std::exp(-v * v);
  }
  return 0;
}

TEST(Lies, UnaryBackward) {
  for (const auto lie : test::kLies)
    for (const auto dtype : kFloating)
      for (const auto op : kUnary) {
        const Tensor g = test::laid_uniform(lie, dtype, 1), v = test::laid_uniform(lie, dtype, 2, -2, 2),
                     out = test::result_of(lie, dtype);
        kernels::unary_backward(test::context(), out.view(), g.view(), v.view(), op);
        EXPECT_TRUE(test::close(out, zip(g, v, [&](double d, double s) { return reference_backward(op, d, s); }),
                                test::backward_tolerance(dtype)))
            << name_of(op) << dtype << name_of(lie);
      }
}

TEST(Lies, Integers) {
  for (const auto lie : test::kLies)
    for (const auto dtype : kIntegers) {
      const bool bytes = dtype == DType::u8;
      const double shift = bytes ? 0 : 100;
      const Tensor a = test::laid(lie, dtype,
                                  [=](std::int64_t i) { return static_cast<double>(i * 37 % 251) - shift; }),
                   b = test::laid(lie, dtype,
                                  [=](std::int64_t i) { return static_cast<double>(i * 53 % 241) - shift; }),
                   out = test::result_of(lie, dtype);
      const auto wrapped = [=](double v) { return bytes ? v - 256 * std::floor(v / 256) : v; };
      for (const auto op : {BinaryOp::add, BinaryOp::sub, BinaryOp::mul, BinaryOp::minimum, BinaryOp::maximum}) {
        kernels::binary(test::context(), out.view(), a.view(), b.view(), op);
        EXPECT_TRUE(test::equal(out, zip(a, b, [&](double x, double y) { return wrapped(reference(op, x, y)); })))
            << name_of(op) << dtype << name_of(lie);
      }
      if (bytes) continue;
      for (const auto op : {UnaryOp::neg, UnaryOp::abs, UnaryOp::sign, UnaryOp::square, UnaryOp::relu}) {
        kernels::unary(test::context(), out.view(), a.view(), op);
        EXPECT_TRUE(test::equal(out, zip(a, a, [&](double x, double) { return reference(op, x); })))
            << name_of(op) << dtype << name_of(lie);
      }
    }
}

bool reference(CompareOp op, double x, double y) {
  switch (op) {
    case CompareOp::eq: return x == y;
    case CompareOp::ne: return x != y;
    case CompareOp::lt: return x < y;
    case CompareOp::le: return x <= y;
    case CompareOp::gt: return x > y;
    case CompareOp::ge: return x >= y;
  }
  return false;
}

TEST(Lies, CompareAndWhereInEveryType) {
  const auto below = [](std::int64_t n, std::uint64_t seed) {
    return [=](std::int64_t i) {
      return std::floor(static_cast<double>(n) * test::unit(seed, static_cast<std::uint64_t>(i)));
    };
  };
  for (const auto lie : test::kLies)
    for (const auto dtype : kAllTypes) {
      const std::int64_t most = dtype == DType::boolean ? 2 : 4;  // few, so that many are equal
      const Tensor a = test::laid(lie, dtype, below(most, 1)), b = test::laid(lie, dtype, below(most, 2));
      const Tensor yes = test::result_of(lie, DType::boolean), out = test::result_of(lie, dtype);
      for (const auto op : {CompareOp::eq, CompareOp::ne, CompareOp::lt, CompareOp::le, CompareOp::gt, CompareOp::ge}) {
        kernels::compare(test::context(), yes.view(), a.view(), b.view(), op);
        EXPECT_TRUE(test::equal(yes, zip(a, b, [&](double x, double y) { return reference(op, x, y) ? 1.0 : 0.0; })))
            << static_cast<int>(op) << dtype << name_of(lie);
      }
      for (const auto condition_type : {DType::boolean, DType::u8}) {
        const Tensor condition = test::laid(lie, condition_type, below(2, 3));
        const auto c = test::to_f64(condition), x = test::to_f64(a), y = test::to_f64(b);
        std::vector<double> want;
        for (std::size_t i = 0; i < c.size(); ++i) want.push_back(c[i] != 0 ? x[i] : y[i]);
        kernels::where(test::context(), out.view(), condition.view(), a.view(), b.view());
        EXPECT_TRUE(test::equal(out, want)) << condition_type << dtype << name_of(lie);
      }
    }
}

}  // namespace
}  // namespace apex
