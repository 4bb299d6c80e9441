// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/nn/functional.hpp"

#include <cmath>
#include <limits>
#include <map>

#include "apex/tensor_ops.hpp"
#include "lib/support.hpp"

namespace apex {
namespace {

namespace F = nn::functional;
using test::check_gradient;
using test::expect_error;
using test::expect_values;
using test::leaf;
using test::values;
using test::wave;
using Inputs = std::vector<Tensor>;

constexpr auto kLast = MemoryFormat::channels_last;

/// A view with gaps: every second column of a wider tensor, transposed.
Tensor gappy(std::int64_t rows, std::int64_t columns, int k) {
  const Tensor wide = wave({columns, 2 * rows}, k, 1.0, 2.5);
  return views::as_strided(wide, {rows, columns}, {2, 2 * rows}, 0);
}

TEST(Functional, BinaryGradients) {
  const std::map<std::string, Tensor (*)(const Tensor&, const Tensor&)> ops = {
      {"add", F::add}, {"sub", F::sub},         {"mul", F::mul},
      {"div", F::div}, {"minimum", F::minimum}, {"maximum", F::maximum}};
  for (const auto& [name, op] : ops) {
    SCOPED_TRACE(name);
    const auto f = [op = op](const Inputs& in) { return op(in[0], in[1]); };
    check_gradient(f, {wave({3, 5}, 0), wave({3, 5}, 1, 1.0, 2.0)});
    check_gradient(f, {wave({3, 5}, 0), wave({5}, 1, 1.0, 2.0)});
    check_gradient(f, {wave({1, 5}, 0), wave({3, 1}, 1, 1.0, 2.0)});
    check_gradient(f, {wave({}, 0), wave({2, 1, 3}, 1, 1.0, 2.0)});
    check_gradient(f, {gappy(3, 4, 0), gappy(3, 4, 2)});
    check_gradient(f, {wave({2, 3, 4, 5}, 0, 1.0, 0.0, DType::f64, kLast), wave({1, 3, 1, 1}, 1, 1.0, 2.0)});
    check_gradient(f, {wave({0, 5}, 0), wave({5}, 1)});
    expect_error(Kind::argument, "do not broadcast", [&, op = op] { op(wave({3}), wave({4})); });
    expect_error(Kind::argument, name.c_str(), [&, op = op] { op(wave({3}), test::ones({3}, DType::i64)); });
    expect_error(Kind::argument, "undefined", [&, op = op] { op(Tensor(), wave({3})); });
  }
}

TEST(Functional, MixedFloatingTypesAreBroughtToTheWidest) {
  const std::pair<std::pair<DType, DType>, DType> cases[] = {{{DType::f32, DType::f64}, DType::f64},
                                                             {{DType::f16, DType::f32}, DType::f32},
                                                             {{DType::f16, DType::bf16}, DType::f32},
                                                             {{DType::bf16, DType::bf16}, DType::bf16}};
  for (const auto& [given, want] : cases) {
    const Tensor a = leaf(test::full({3}, 1.5, given.first)), b = leaf(test::full({3}, 0.25, given.second));
    const Tensor y = F::mul(a, b);
    EXPECT_EQ(y.dtype(), want);
    expect_values(y, {0.375, 0.375, 0.375}, 0);
    EXPECT_EQ(F::cat({a, b}).dtype(), want);
    EXPECT_EQ(F::where(F::lt(a, b), a, b).dtype(), want);
    backward(y, test::ones({3}, want));
    EXPECT_EQ(grad(a).dtype(), given.first);
    EXPECT_EQ(grad(b).dtype(), given.second);
    expect_values(grad(a), {0.25, 0.25, 0.25}, 0);
    expect_values(grad(b), {1.5, 1.5, 1.5}, 0);
  }
}

TEST(Functional, BinaryValues) {
  const Tensor a = wave({2, 1}, 0), b = wave({3}, 1);
  const auto x = values(a), y = values(b);
  std::vector<double> want;
  for (const double p : x)
    for (const double q : y) want.push_back(p - q);
  expect_values(F::sub(a, b), want, 0);
}

TEST(Functional, TiesOfMinimumAndMaximumGoToTheFirst) {
  for (const auto op : {F::minimum, F::maximum}) {
    const Tensor a = leaf(test::ones({2}, DType::f64)), b = leaf(test::ones({2}, DType::f64));
    backward(F::sum(op(a, b)));
    expect_values(grad(a), {1, 1}, 0);
    expect_values(grad(b), {0, 0}, 0);
  }
}

TEST(Functional, UnaryGradients) {
  struct Case {
    const char* name;
    Tensor (*op)(const Tensor&);
    double (*reference)(double);
    bool positive;
  };
  const Case cases[] = {
      {"neg", F::neg, [](double x) { return -x; }, false},
      {"abs", F::abs, [](double x) { return std::abs(x); }, false},
      {"exp", F::exp, [](double x) { return std::exp(x); }, false},
      {"log", F::log, [](double x) { return std::log(x); }, true},
      {"sqrt", F::sqrt, [](double x) { return std::sqrt(x); }, true},
      {"rsqrt", F::rsqrt, [](double x) { return 1 / std::sqrt(x); }, true},
      {"reciprocal", F::reciprocal, [](double x) { return 1 / x; }, true},
      {"square", F::square, [](double x) { return x * x; }, false},
      {"tanh", F::tanh, [](double x) { return std::tanh(x); }, false},
      {"sigmoid", F::sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, false},
      {"relu", F::relu, [](double x) { return x > 0 ? x : 0; }, false},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const auto f = [&](const Inputs& in) { return c.op(in[0]); };
    const double shift = c.positive ? 2.0 : 0.0;
    check_gradient(f, {wave({3, 7}, 0, 1.0, shift)});
    check_gradient(f, {views::transpose(wave({3, 7}, 1, 1.0, shift), 0, 1)});
    check_gradient(f, {gappy(3, 4, 1)});
    check_gradient(f, {wave({2, 0}, 0)});
    const Tensor x = wave({5}, 2, 1.0, shift);
    std::vector<double> want;
    for (const double v : values(x)) want.push_back(c.reference(v));
    expect_values(c.op(x), want, 1e-14);
  }
}

TEST(Functional, SecondDerivatives) {
  // d/dx of (d sum f / dx)^2 by the tape, against central differences of the first gradient.
  const std::map<std::string, Tensor (*)(const Tensor&)> ops = {{"exp", F::exp},
                                                                {"log", F::log},
                                                                {"sqrt", F::sqrt},
                                                                {"rsqrt", F::rsqrt},
                                                                {"reciprocal", F::reciprocal},
                                                                {"square", F::square},
                                                                {"tanh", F::tanh},
                                                                {"sigmoid", F::sigmoid}};
  for (const auto& [name, op] : ops) {
    SCOPED_TRACE(name);
    const auto gradient_at = [op = op](double at, bool second) {
      const Tensor x = leaf(test::vector_of({at}, DType::f64));
      backward(op(x), {}, {.create_graph = true});
      const Tensor first = grad(x);
      set_grad(x, {});
      if (!second) return first.item();
      backward(first);
      const double out = grad(x).item();
      set_grad(x, {});
      return out;
    };
    const double want = (gradient_at(0.7 + 1e-5, false) - gradient_at(0.7 - 1e-5, false)) / 2e-5;
    EXPECT_NEAR(gradient_at(0.7, true), want, 1e-8 * std::max(1.0, std::abs(want)));
  }
}

TEST(Functional, ScaleWhereAndReductions) {
  check_gradient([](const Inputs& in) { return F::scale(in[0], -2.5, 3.0); }, {wave({3, 4})});
  expect_values(F::scale(test::vector_of({1, 2}, DType::f64), -2.5, 3.0), {0.5, -2}, 0);
  const Tensor condition = test::from_values<bool>({2, 3}, {true, false, true, false, false, true});
  check_gradient([&](const Inputs& in) { return F::where(condition, in[0], in[1]); }, {wave({2, 3}), wave({3}, 1)});
  expect_values(F::where(condition, test::zeros({}, DType::f64), test::ones({2, 3}, DType::f64)), {0, 1, 0, 1, 1, 0},
                0);

  for (const bool keep : {false, true}) {
    for (const Dims& dims : {Dims{}, Dims{0}, Dims{-1}, Dims{0, 2}, Dims{1}}) {
      SCOPED_TRACE(to_string(dims));
      check_gradient([&](const Inputs& in) { return F::sum(in[0], dims, keep); }, {wave({2, 3, 5})});
      check_gradient([&](const Inputs& in) { return F::mean(in[0], dims, keep); },
                     {views::transpose(wave({5, 3, 2}), 0, 2)});
    }
  }
  EXPECT_EQ(F::sum(wave({2, 3, 5}), {1}, true).sizes(), (Dims{2, 1, 5}));
  EXPECT_EQ(F::sum(wave({2, 3, 5}), {1}).sizes(), (Dims{2, 5}));
  EXPECT_EQ(F::sum(wave({2, 3, 5})).dim(), 0);
  expect_values(F::mean(test::vector_of({1, 2, 6}, DType::f64)), {3}, 0);
  expect_values(F::sum(wave({0, 3}), {0}), {0, 0, 0}, 0);
  expect_error(Kind::argument, "twice", [] { F::sum(wave({2, 3}), {1, -1}); });
  expect_error(Kind::argument, "dimension 2", [] { F::mean(wave({2, 3}), {2}); });
}

TEST(Functional, ShapeGradients) {
  check_gradient([](const Inputs& in) { return F::reshape(in[0], {4, -1}); }, {wave({2, 6})});
  check_gradient([](const Inputs& in) { return F::reshape(in[0], {3, 4}); }, {views::transpose(wave({3, 4}), 0, 1)});
  check_gradient([](const Inputs& in) { return F::flatten(in[0], 1, 2); }, {wave({2, 3, 2, 2})});
  check_gradient([](const Inputs& in) { return F::permute(in[0], {2, 0, -2}); }, {wave({2, 3, 4})});
  check_gradient([](const Inputs& in) { return F::transpose(in[0], 0, -1); }, {wave({2, 3, 4})});
  check_gradient([](const Inputs& in) { return F::narrow(in[0], 1, 1, 2); }, {wave({2, 4, 3})});
  check_gradient([](const Inputs& in) { return F::narrow(in[0], -1, 0, 1); },
                 {wave({2, 3, 4, 5}, 0, 1, 0, DType::f64, kLast)});
  check_gradient([](const Inputs& in) { return F::expand(in[0], {2, 3, 4}); }, {wave({3, 1})});
  check_gradient([](const Inputs& in) { return F::contiguous(in[0], kLast); }, {wave({2, 3, 2, 2})});
  check_gradient([](const Inputs& in) { return F::contiguous(F::transpose(in[0], 0, 1)); }, {wave({2, 3})});
  EXPECT_EQ(F::flatten(wave({2, 3, 4, 5}), 1).sizes(), (Dims{2, 60}));
  EXPECT_EQ(F::flatten(wave({})).sizes(), (Dims{1}));
  EXPECT_EQ(F::flatten(wave({0, 3, 4}), 1).sizes(), (Dims{0, 12}));
  const Tensor x = wave({2, 3});
  EXPECT_TRUE(F::contiguous(x).is_same(x));
  EXPECT_EQ(F::reshape(x, {6}).storage(), x.storage());
  expect_error(Kind::argument, "do not fit", [&] { F::reshape(x, {4}); });
  expect_error(Kind::argument, "flatten", [&] { F::flatten(x, 1, 0); });
  expect_error(Kind::argument, "permute", [&] { F::permute(x, {0}); });
  expect_error(Kind::argument, "narrow", [&] { F::narrow(x, 0, 1, 2); });
  expect_error(Kind::argument, "expand", [&] { F::expand(x, {3, 3}); });
}

TEST(Functional, CastRoundsOnceAndCastsTheGradientBack) {
  const Tensor x = leaf(test::vector_of({1.0 / 3, -2.0}, DType::f64));
  const Tensor y = F::cast(x, DType::f32);
  EXPECT_EQ(y.dtype(), DType::f32);
  expect_values(y, {static_cast<double>(static_cast<float>(1.0 / 3)), -2}, 0);
  backward(F::sum(y));
  EXPECT_EQ(grad(x).dtype(), DType::f64);
  expect_values(grad(x), {1, 1}, 0);
  EXPECT_TRUE(F::cast(x, DType::f64).is_same(x));
  EXPECT_FALSE(requires_grad(F::cast(x, DType::i64)));
  EXPECT_TRUE(F::to(x, test::device()).is_same(x));
  if (!has_cuda)
    expect_error(Kind::unsupported, "no backend for cuda:0", [&] { F::to(x, Device{DeviceKind::cuda, 0}); });
}

TEST(Functional, MatmulAndLinearGradients) {
  const auto product = [](const Inputs& in) { return F::matmul(in[0], in[1]); };
  check_gradient(product, {wave({3, 5}), wave({5, 4}, 1)});
  check_gradient(product, {views::transpose(wave({5, 3}), 0, 1), views::transpose(wave({4, 5}, 1), 0, 1)});
  check_gradient(product, {wave({2, 3, 5}), wave({2, 5, 4}, 1)});
  check_gradient(product, {wave({1, 3, 5}), wave({2, 5, 4}, 1)});
  check_gradient(product, {wave({2, 3, 5}), wave({1, 5, 4}, 1)});
  check_gradient(product, {wave({0, 5}), wave({5, 4}, 1)});
  expect_values(F::matmul(test::from_values<double>({2, 2}, {1, 2, 3, 4}), test::from_values<double>({2, 1}, {5, 6})),
                {17, 39}, 0);
  expect_error(Kind::argument, "matmul", [] { F::matmul(wave({2, 3}), wave({2, 3})); });
  expect_error(Kind::argument, "matmul", [] { F::matmul(wave({2, 3, 4}), wave({3, 4, 5})); });

  const auto line = [](const Inputs& in) { return F::linear(in[0], in[1], in.size() > 2 ? in[2] : Tensor()); };
  check_gradient(line, {wave({3, 5}), wave({4, 5}, 1), wave({4}, 2)});
  check_gradient(line, {wave({3, 5}), wave({4, 5}, 1)});
  check_gradient(line, {wave({2, 3, 5}), wave({4, 5}, 1), wave({4}, 2)});
  check_gradient(line, {wave({5}), wave({4, 5}, 1), wave({4}, 2)});
  check_gradient(line, {gappy(3, 5, 0), wave({4, 5}, 1), wave({4}, 2)});
  check_gradient(line, {wave({0, 5}), wave({4, 5}, 1), wave({4}, 2)});
  expect_error(Kind::argument, "linear", [&] { F::linear(wave({3, 5}), wave({4, 6})); });
  expect_error(Kind::argument, "bias", [&] { F::linear(wave({3, 5}), wave({4, 5}), wave({5})); });
}

/// Batch norm in plain loops over a [N, C, ...] tensor.
std::vector<double> reference_batch_norm(const Tensor& x, const Tensor& w, const Tensor& b,
                                         const std::vector<double>& mean, const std::vector<double>& var, double eps) {
  const auto v = values(x), ws = values(w), bs = values(b);
  const std::int64_t channels = x.size(1), inner = x.numel() / x.size(0) / channels;
  std::vector<double> y;
  for (std::size_t i = 0; i < v.size(); ++i) {
    const auto c = static_cast<std::size_t>(static_cast<std::int64_t>(i) / inner % channels);
    y.push_back((v[i] - mean[c]) / std::sqrt(var[c] + eps) * ws[c] + bs[c]);
  }
  return y;
}

struct Statistics {
  std::vector<double> mean, var;
  double n;
};
Statistics statistics(const Tensor& x) {
  const auto v = values(x);
  const std::int64_t channels = x.size(1), inner = x.numel() / x.size(0) / channels;
  Statistics s{std::vector<double>(channels), std::vector<double>(channels), static_cast<double>(x.numel() / channels)};
  const auto channel = [&](std::size_t i) {
    return static_cast<std::size_t>(static_cast<std::int64_t>(i) / inner % channels);
  };
  for (std::size_t i = 0; i < v.size(); ++i) s.mean[channel(i)] += v[i] / s.n;
  for (std::size_t i = 0; i < v.size(); ++i) s.var[channel(i)] += std::pow(v[i] - s.mean[channel(i)], 2) / s.n;
  return s;
}

TEST(Functional, BatchNormTraining) {
  for (const auto format : {MemoryFormat::contiguous, kLast}) {
    const Tensor x = wave({3, 2, 3, 4}, 0, 1.0, 5.0, DType::f64, format), w = wave({2}, 1, 1, 2), b = wave({2}, 2);
    const Tensor mean = test::zeros({2}, DType::f64), var = test::ones({2}, DType::f64);
    const auto version = mean.version();
    const Tensor y =
        F::batch_norm(x, {.weight = w, .bias = b, .running_mean = mean, .running_var = var, .momentum = 0.3});
    const auto s = statistics(x);
    expect_values(y, reference_batch_norm(x, w, b, s.mean, s.var, 1e-5), 1e-12);
    const double unbiased = s.n / (s.n - 1);
    expect_values(mean, {0.3 * s.mean[0], 0.3 * s.mean[1]}, 1e-14);
    expect_values(var, {0.7 + 0.3 * s.var[0] * unbiased, 0.7 + 0.3 * s.var[1] * unbiased}, 1e-14);
    EXPECT_GT(mean.version(), version);
    EXPECT_EQ(y.strides(), x.strides());
  }
  expect_error(Kind::argument, "batch_norm", [] { F::batch_norm(wave({1, 3}), {}); });  // one value a channel
  expect_error(Kind::argument, "rank 1", [] { F::batch_norm(wave({3}), {}); });
  expect_error(Kind::argument, "running_mean", [] { F::batch_norm(wave({2, 3}), {.training = false}); });
  expect_error(Kind::argument, "batch_norm", [] { F::batch_norm(wave({2, 3}), {.weight = wave({4})}); });
  expect_error(Kind::argument, "residual", [] { F::batch_norm_add_relu(wave({2, 3}), wave({3, 3}), {}); });
}

TEST(Functional, BatchNormGradients) {
  const std::vector<Tensor> shapes = {wave({4, 3}), wave({3, 2, 5}), wave({2, 3, 3, 2}),
                                      wave({2, 3, 3, 2}, 0, 1, 0, DType::f64, kLast), wave({2, 2, 2, 2, 3})};
  for (const Tensor& like : shapes) {
    const std::int64_t c = like.size(1);
    SCOPED_TRACE(to_string(like.sizes()));
    const Tensor mean = wave({c}, 5, 0.1), var = wave({c}, 6, 0.5, 1.0);
    const auto x = [&](int k) {
      Tensor t = empty_like(like);
      for (std::int64_t i = 0; i < t.numel(); ++i)
        test::set_element(t, i, std::sin(1.7 * double(i * i % 101) + 1.3 * k) + 0.2);
      return t;
    };
    for (const bool training : {true, false}) {
      const auto arguments = [&](const Tensor& w, const Tensor& b) {
        F::BatchNormArguments a{.weight = w, .bias = b, .training = training};
        if (!training) a.running_mean = mean, a.running_var = var;
        return a;
      };
      check_gradient([&](const Inputs& in) { return F::batch_norm(in[0], arguments(in[1], in[2])); },
                     {x(0), wave({c}, 1, 0.5, 1.2), wave({c}, 2, 0.5)}, 3e-6);
      check_gradient([&](const Inputs& in) { return F::batch_norm(in[0], arguments({}, {})); }, {x(0)}, 3e-6);
      check_gradient([&](const Inputs& in) { return F::batch_norm_relu(in[0], arguments(in[1], in[2])); },
                     {x(0), wave({c}, 1, 0.5, 1.2), wave({c}, 2, 0.5)}, 3e-6);
      check_gradient([&](const Inputs& in) { return F::batch_norm_add_relu(in[0], in[3], arguments(in[1], in[2])); },
                     {x(0), wave({c}, 1, 0.5, 1.2), wave({c}, 2, 0.5), x(3)}, 3e-6);
    }
  }
}

TEST(Functional, FusedBatchNormEqualsItsParts) {
  const Tensor residual = wave({2, 3, 4, 5}, 4);  // row-major against channels-last x
  for (const bool training : {true, false}) {
    const Tensor x = leaf(wave({2, 3, 4, 5}, 0, 1, 0, DType::f64, kLast)), w = leaf(wave({3}, 1, 0.5, 1)),
                 b = leaf(wave({3}, 2, 0.5));
    const F::BatchNormArguments a{.weight = w,
                                  .bias = b,
                                  .running_mean = wave({3}, 7, 0.1),
                                  .running_var = wave({3}, 8, 0.2, 1),
                                  .training = training};
    const auto gradients = [&](const Tensor& y) {
      for (const Tensor& t : {x, w, b}) set_grad(t, {});
      backward(y, wave({2, 3, 4, 5}, 9));
      std::vector<double> all = values(y);
      for (const Tensor& t : {x, w, b})
        for (const double g : values(grad(t))) all.push_back(g);
      return all;
    };
    const auto plain = gradients(F::relu(F::batch_norm(x, a)));
    const auto fused = gradients(F::batch_norm_relu(x, a));
    const auto sum = gradients(F::relu(F::add(F::batch_norm(x, a), residual)));
    const auto fused_sum = gradients(F::batch_norm_add_relu(x, residual, a));
    ASSERT_EQ(plain.size(), fused.size());
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_NEAR(plain[i], fused[i], 1e-12);
      EXPECT_NEAR(sum[i], fused_sum[i], 1e-12);
    }
  }
}

TEST(Functional, PoolingGradients) {
  for (const auto format : {MemoryFormat::contiguous, kLast}) {
    const auto x = [&](Dims sizes) { return wave(sizes, 0, 1, 0, DType::f64, format); };
    const auto max = [](F::PoolOptions o) { return [o](const Inputs& in) { return F::max_pool2d(in[0], o); }; };
    const auto mean = [](F::AvgPoolOptions o) { return [o](const Inputs& in) { return F::avg_pool2d(in[0], o); }; };
    check_gradient(max({}), {x({2, 3, 4, 6})});
    check_gradient(max({.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}), {x({1, 2, 7, 5})});
    check_gradient(max({.kernel = {3, 2}, .stride = {2, 1}, .ceil_mode = true}), {x({1, 2, 6, 5})});
    check_gradient(mean({}), {x({2, 3, 4, 6})});
    check_gradient(mean({.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .count_include_pad = false}),
                   {x({1, 2, 7, 5})});
    check_gradient(mean({.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .ceil_mode = true}), {x({1, 2, 6, 5})});
    for (const std::array<std::int64_t, 2> out : {std::array<std::int64_t, 2>{1, 1}, {2, 3}})
      check_gradient([&](const Inputs& in) { return F::adaptive_avg_pool2d(in[0], out); }, {x({2, 3, 5, 4})});
    check_gradient([](const Inputs& in) { return F::adaptive_avg_pool2d(in[0], {1, 1}); }, {x({0, 3, 5, 4})});
  }
  expect_error(Kind::argument, "max_pool2d", [] { F::max_pool2d(wave({3, 4, 5}), {}); });
  expect_error(Kind::argument, "positive", [] { F::adaptive_avg_pool2d(wave({1, 1, 2, 2}), {0, 1}); });
  expect_error(Kind::argument, "padding", [] { F::max_pool2d(wave({1, 1, 4, 4}), {.padding = {2, 2}}); });
}

TEST(Functional, SoftmaxAndCrossEntropyGradients) {
  for (const int dim : {0, 1, -1}) {
    check_gradient([&](const Inputs& in) { return F::softmax(in[0], dim); }, {wave({3, 4})});
    check_gradient([&](const Inputs& in) { return F::log_softmax(in[0], dim); },
                   {views::transpose(wave({4, 3}), 0, 1)});
  }
  const Tensor labels = test::from_values<std::int64_t>({4}, {2, 0, -100, 4});
  using kernels::Reduction;
  for (const auto reduction : {Reduction::mean, Reduction::sum, Reduction::none})
    for (const double smoothing : {0.0, 0.1})
      check_gradient(
          [&](const Inputs& in) {
            return F::cross_entropy(in[0], labels, {.label_smoothing = smoothing, .reduction = reduction});
          },
          {wave({4, 5})});
  const auto wrong_label = [] { return F::cross_entropy(wave({2, 3}), test::from_values<std::int64_t>({2}, {0, 3})); };
  if (test::on_cuda())  // nobody waits for the device, so it cannot throw
    EXPECT_TRUE(std::isnan(wrong_label().item()));
  else
    expect_error(Kind::argument, "row 1", wrong_label);
  expect_error(Kind::argument, "cross_entropy", [] {
    F::cross_entropy(wave({2, 3}), test::from_values<std::int64_t>({3}, {0, 1, 2}));
  });
  expect_error(Kind::argument, "cross_entropy", [] {
    F::cross_entropy(wave({3}), test::from_values<std::int64_t>({3}, {0, 1, 2}));
  });
  expect_error(Kind::argument, "dimension", [] { F::softmax(wave({3}), 1); });
  EXPECT_EQ(F::cross_entropy(wave({2, 3}, 0, 1, 0, DType::f32), test::from_values<std::int64_t>({2}, {0, 1})).dim(), 0);
}

TEST(Functional, DropoutMasksByGlobalSample) {
  const Tensor x = leaf(test::ones({6, 50}, DType::f64));
  Generator g{7, 3};
  const Tensor whole = F::dropout(x, 0.25, true, g);
  EXPECT_EQ(g, (Generator{7, 4}));
  const auto v = values(whole);
  int kept = 0;
  for (const double e : v) {
    EXPECT_TRUE(e == 0 || std::abs(e - 4.0 / 3) < 1e-12);
    kept += e != 0;
  }
  EXPECT_NEAR(kept, 225, 40);
  backward(F::sum(whole));
  expect_values(grad(x), v, 0);                    // the gradient passes by the same mask
  for (std::int64_t rank = 0; rank < 2; ++rank) {  // rows 0, 2, 4 and 1, 3, 5
    SampleRowsGuard rows({rank, 2});
    Generator again{7, 3};
    const auto part = values(F::dropout(test::ones({3, 50}, DType::f64), 0.25, true, again));
    for (std::int64_t r = 0; r < 3; ++r)
      for (std::int64_t c = 0; c < 50; ++c) EXPECT_EQ(part[r * 50 + c], v[(2 * r + rank) * 50 + c]);
  }
  EXPECT_TRUE(F::dropout(x, 0.25, false, g).is_same(x));
  EXPECT_TRUE(F::dropout(x, 0.0, true, g).is_same(x));
  EXPECT_EQ(g.offset, 4u);
  expect_error(Kind::argument, "p = 1.5", [&] { F::dropout(x, 1.5, true, g); });
}

TEST(TensorOps, CreationAndFormats) {
  expect_values(test::full({2}, 2.5), {2.5, 2.5}, 0);
  const Tensor x = wave({2, 3, 2, 2}, 0, 1, 0, DType::f32, kLast);
  EXPECT_EQ(clone(x).strides(), x.strides());
  EXPECT_NE(clone(x).storage(), x.storage());
  expect_values(to_format(x, MemoryFormat::contiguous), values(x), 0);
  EXPECT_TRUE(to_format(x, MemoryFormat::contiguous).is_contiguous());
  EXPECT_EQ(to_format(x, kLast).storage(), x.storage());
  const Tensor one_channel = wave({2, 1, 2, 2});
  EXPECT_EQ(to_format(one_channel, kLast).memory_format(), kLast);
  EXPECT_EQ(to_format(one_channel, kLast).storage(), one_channel.storage());
  EXPECT_EQ(F::contiguous(one_channel, kLast).memory_format(), kLast);
  const Tensor turned = views::transpose(wave({2, 3}), 0, 1);  // rank 2: row-major whatever was asked
  EXPECT_TRUE(to_format(turned, kLast).is_contiguous());
  expect_values(to_format(turned, kLast), values(turned), 0);
  EXPECT_EQ(ones_like(x).strides(), x.strides());
  expect_values(zeros_like(wave({2})), {0, 0}, 0);
}

/// Values and gradients of an op in 16 bits against f32 from the same numbers: each is rounded once.
struct HalfCase {
  const char* name;
  test::Function f;
  std::vector<Dims> inputs;
  std::size_t wide = 8;  ///< inputs from this one on are f32 in both runs
  double slack = 0;      ///< in units of the largest value: where the gradient is made of several rounded results
};

const std::vector<HalfCase>& half_cases() {
  static const Tensor labels = test::from_values<std::int64_t>({5}, {2, 0, -100, 6, 1});
  static const auto norm = [](const Inputs& in) { return F::BatchNormArguments{.weight = in[1], .bias = in[2]}; };
  static const auto frozen = [](const Inputs& in) {
    return F::BatchNormArguments{.weight = in[1],
                                 .bias = in[2],
                                 .running_mean = test::full({3}, 0.1),
                                 .running_var = test::full({3}, 0.7),
                                 .training = false};
  };
  static const F::Conv2dOptions padded{.stride = {2, 1}, .padding = {1, 2}};
  static const std::vector<HalfCase> cases = {
      {"matmul", [](const Inputs& in) { return F::matmul(in[0], in[1]); }, {{5, 7}, {7, 3}}},
      {"matmul, batches",
       [](const Inputs& in) { return F::matmul(in[0], F::transpose(in[1], 1, 2)); },
       {{2, 5, 7}, {1, 3, 7}},
       8,
       2},
      {"matmul, one for all", [](const Inputs& in) { return F::matmul(in[0], in[1]); }, {{2, 3, 5, 7}, {7, 3}}},
      {"baddbmm",
       [](const Inputs& in) { return F::baddbmm(in[0], in[1], in[2], 0.5, 2.0); },
       {{5, 3}, {2, 5, 7}, {2, 7, 3}},
       8,
       2},
      {"linear", [](const Inputs& in) { return F::linear(in[0], in[1], in[2]); }, {{5, 7}, {3, 7}, {3}}},
      {"conv2d",
       [](const Inputs& in) { return F::conv2d(in[0], in[1], in[2], padded); },
       {{2, 3, 7, 5}, {4, 3, 3, 3}, {4}}},
      {"conv2d, channels-last",
       [](const Inputs& in) { return F::conv2d(F::contiguous(in[0], kLast), in[1], in[2], padded); },
       {{2, 3, 7, 5}, {4, 3, 3, 3}, {4}}},
      {"conv2d, groups",
       [](const Inputs& in) { return F::conv2d(in[0], in[1], {}, {.groups = 2}); },
       {{2, 4, 5, 5}, {6, 2, 2, 3}}},
      {"conv_transpose2d",
       [](const Inputs& in) {
         return F::conv_transpose2d(in[0], in[1], in[2], {.stride = {2, 2}, .padding = {1, 1}});
       },
       {{2, 3, 4, 5}, {3, 4, 4, 4}, {4}},
       8,
       1},
      {"conv_transpose2d, channels-last and groups",
       [](const Inputs& in) {
         return F::conv_transpose2d(F::contiguous(in[0], kLast), in[1], in[2], {.stride = {2, 1}, .groups = 2});
       },
       {{2, 4, 3, 5}, {4, 3, 2, 3}, {6}},
       8,
       1},
      {"conv2d_weight",
       [](const Inputs& in) {
         return F::conv2d_weight(in[0], {4, 3, 3, 3}, in[1], padded);
       },
       {{2, 3, 7, 5}, {2, 4, 4, 7}}},
      {"max_pool2d",
       [](const Inputs& in) {
         return F::max_pool2d(in[0], {.kernel = {3, 3}, .padding = {1, 1}});
       },
       {{2, 3, 7, 5}}},
      {"avg_pool2d",
       [](const Inputs& in) {
         return F::avg_pool2d(in[0], {.kernel = {3, 3}, .stride = {2, 2}});
       },
       {{2, 3, 7, 5}}},
      {"adaptive_avg_pool2d",
       [](const Inputs& in) {
         return F::adaptive_avg_pool2d(in[0], {1, 1});
       },
       {{2, 3, 7, 5}}},
      {"batch_norm", [](const Inputs& in) { return F::batch_norm(in[0], norm(in)); }, {{4, 3, 5, 2}, {3}, {3}}, 1},
      {"batch_norm, all 16 bits",
       [](const Inputs& in) { return F::batch_norm(in[0], norm(in)); },
       {{4, 3, 5, 2}, {3}, {3}}},
      {"batch_norm, evaluation",
       [](const Inputs& in) { return F::batch_norm(in[0], frozen(in)); },
       {{4, 3, 5, 2}, {3}, {3}},
       1},
      {"batch_norm_relu",
       [](const Inputs& in) { return F::batch_norm_relu(F::contiguous(in[0], kLast), norm(in)); },
       {{4, 3, 5, 2}, {3}, {3}},
       1},
      {"softmax", [](const Inputs& in) { return F::softmax(in[0], 1); }, {{5, 7}}, 8, 2},
      {"cross_entropy",
       [](const Inputs& in) { return F::cross_entropy(in[0], labels, {.label_smoothing = 0.1}); },
       {{5, 7}}},
  };
  return cases;
}

TEST(Functional, SixteenBitsFollowF32) {
  for (const DType half : {DType::f16, DType::bf16}) {
    for (const HalfCase& c : half_cases()) {
      SCOPED_TRACE(concat(c.name, ' ', half));
      const auto run = [&](bool narrow) {
        Inputs in;
        for (std::size_t k = 0; k < c.inputs.size(); ++k) {
          const bool wide = k >= c.wide;
          const Tensor rounded = cast(wave(c.inputs[k], static_cast<int>(k), 1.0, k == 0 ? 0.0 : 0.3, DType::f32),
                                      wide ? DType::f32 : half);
          in.push_back(leaf(cast(rounded, wide || !narrow ? DType::f32 : half).detach()));
        }
        const Tensor y = c.f(in);
        const Tensor dy = cast(test::from_function(y.sizes(), DType::f32, y.device(),
                                                   [](std::int64_t i) { return std::cos(0.9 * double(i) + 0.3); }),
                               half);
        backward(y, cast(dy, y.dtype()));
        std::vector<Tensor> all = {y.detach()};
        for (const auto& x : in) {
          EXPECT_EQ(grad(x).dtype(), x.dtype());
          all.push_back(grad(x));
        }
        return all;
      };
      const auto narrow = run(true), wide = run(false);
      const double unit = half == DType::f16 ? 0x1p-11 : 0x1p-8;
      for (std::size_t k = 0; k < wide.size(); ++k) {
        const auto got = values(narrow[k]), want = values(wide[k]);
        double largest = 0;
        for (const double v : want) largest = std::max(largest, std::abs(v));
        ASSERT_EQ(got.size(), want.size());
        for (std::size_t i = 0; i < want.size(); ++i)
          EXPECT_NEAR(got[i], want[i], 1.01 * unit * std::abs(want[i]) + (c.slack * unit + 1e-5) * largest)
              << "result " << k << ", " << i;
      }
    }
  }
}

TEST(Functional, SixteenBitsKeepNaNAndInfinity) {
  for (const DType half : {DType::f16, DType::bf16}) {
    const auto from = [&](const std::vector<double>& v) { return cast(test::vector_of(v), half); };
    const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
    const Tensor rows = F::reshape(from({nan, 1, inf, 1, 2, 3}), {3, 2}), weight = F::reshape(from({1, 2}), {1, 2});
    const auto products = values(F::linear(rows, weight));
    EXPECT_TRUE(std::isnan(products[0]));
    EXPECT_EQ(products[1], inf);
    EXPECT_EQ(products[2], 8);
    const Tensor image = F::reshape(from({nan, 1, 2, 3, -inf, 4, 5, 6}), {1, 2, 2, 2});
    const auto pooled = values(F::max_pool2d(image, {}));
    EXPECT_TRUE(std::isnan(pooled[0]));
    EXPECT_EQ(pooled[1], 6);
    const auto convolved = values(F::conv2d(image, F::reshape(from({1, 0.5}), {1, 2, 1, 1})));
    EXPECT_TRUE(std::isnan(convolved[0]));
    EXPECT_EQ(convolved[1], 3);
    EXPECT_EQ(values(F::matmul(F::reshape(from({300, 300}), {1, 2}), F::reshape(from({300, 300}), {2, 1})))[0],
              half == DType::f16 ? inf : 180224.0);  // beyond f16; the nearest bf16
    EXPECT_TRUE(std::isnan(values(F::relu(from({nan})))[0]));
  }
}

}  // namespace
}  // namespace apex
