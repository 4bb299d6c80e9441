// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// Convolutions and products of the functional layer: gradients against differences, values against the formula.
#include "apex/nn/functional.hpp"
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

/// The derivative of |d f / d x|^2 against differences of it.
void check_second(const test::Function& f, const Inputs& inputs) {
  const auto penalty = [&](bool graph) {
    for (const auto& t : inputs) set_grad(leaf(t), {});
    backward(F::sum(F::square(f(inputs))), {}, {.create_graph = true});
    Tensor total;
    std::vector<Tensor> first;
    for (const auto& t : inputs) {
      first.push_back(grad(t));
      set_grad(t, {});
    }
    for (const auto& g : first) total = total.defined() ? F::add(total, F::sum(F::square(g))) : F::sum(F::square(g));
    if (graph) backward(total);
    return values(total)[0];
  };
  penalty(true);
  std::vector<std::vector<double>> got;
  for (const auto& t : inputs) {
    ASSERT_TRUE(grad(t).defined());
    got.push_back(values(grad(t)));
  }
  constexpr double kStep = 1e-5;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const auto at = values(inputs[k]);
    for (std::int64_t i = 0; i < inputs[k].numel(); ++i) {
      const double before = at[static_cast<std::size_t>(i)];
      test::set_element(inputs[k], i, before + kStep);
      const double above = penalty(false);
      test::set_element(inputs[k], i, before - kStep);
      const double below = penalty(false);
      test::set_element(inputs[k], i, before);
      const double want = (above - below) / (2 * kStep);
      EXPECT_NEAR(got[k][static_cast<std::size_t>(i)], want, 1e-5 * std::max(1.0, std::abs(want)))
          << "input " << k << ", element " << i;
    }
  }
}

TEST(Convolution, Gradients) {
  for (const auto format : {MemoryFormat::contiguous, kLast}) {
    const auto conv = [](F::Conv2dOptions o) {
      return [o](const Inputs& in) { return F::conv2d(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), o); };
    };
    const auto x = [&](Dims sizes) { return wave(sizes, 0, 1, 0, DType::f64, format); };
    check_gradient(conv({}), {x({2, 3, 4, 5}), wave({2, 3, 1, 1}, 1), wave({2}, 2)}, 1e-6);
    check_gradient(conv({.padding = {1, 1}}), {x({2, 2, 5, 4}), wave({3, 2, 3, 3}, 1, 1, 0, DType::f64, format)}, 1e-6);
    check_gradient(conv({.stride = {2, 2}, .padding = {1, 0}}), {x({1, 2, 7, 6}), wave({2, 2, 3, 2}, 1), wave({2}, 2)},
                   1e-6);
    check_gradient(conv({.stride = {1, 2}, .dilation = {2, 1}}), {x({1, 2, 6, 5}), wave({2, 2, 2, 3}, 1)}, 1e-6);
    check_gradient(conv({.padding = {1, 1}, .groups = 2}), {x({2, 4, 3, 3}), wave({6, 2, 3, 3}, 1), wave({6}, 2)},
                   1e-6);
    check_gradient(conv({}), {x({0, 3, 4, 5}), wave({2, 3, 1, 1}, 1), wave({2}, 2)}, 1e-6);
  }
  const Tensor odd = views::transpose(wave({2, 3, 5, 4}), 2, 3);  // neither layout: copied
  check_gradient([](const Inputs& in) { return F::conv2d(in[0], in[1]); }, {odd, wave({2, 3, 2, 2}, 1)}, 1e-6);
  EXPECT_EQ(F::conv2d(wave({2, 3, 4, 5}, 0, 1, 0, DType::f64, kLast), wave({2, 3, 1, 1})).memory_format(), kLast);
  const Tensor one_channel = wave({2, 1, 4, 5}, 0, 1, 0, DType::f64, kLast);
  EXPECT_EQ(F::conv2d(one_channel, wave({2, 1, 1, 1})).memory_format(), kLast);
  expect_error(Kind::argument, "conv2d", [] { F::conv2d(wave({2, 3, 4, 5}), wave({2, 4, 1, 1})); });
  expect_error(Kind::argument, "conv2d", [] { F::conv2d(wave({3, 4, 5}), wave({2, 3, 1, 1})); });
}

TEST(Convolution, OnlyWantedGradientsAreComputed) {
  const Tensor x = wave({1, 1, 4, 4}), w = leaf(wave({2, 1, 3, 3}, 1));
  const Tensor y = F::conv2d(x, w);
  backward(F::sum(y));
  EXPECT_FALSE(grad(x).defined());
  EXPECT_TRUE(grad(w).defined());
}

TEST(Convolution, TransposedGradients) {
  for (const auto format : {MemoryFormat::contiguous, kLast}) {
    const auto turned = [](F::ConvTranspose2dOptions o) {
      return [o](const Inputs& in) { return F::conv_transpose2d(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), o); };
    };
    const auto x = [&](Dims sizes) { return wave(sizes, 0, 1, 0, DType::f64, format); };
    check_gradient(turned({}), {x({2, 3, 2, 3}), wave({3, 2, 2, 2}, 1), wave({2}, 2)}, 1e-6);
    check_gradient(turned({.stride = {2, 2}, .padding = {1, 1}}),
                   {x({2, 2, 3, 2}), wave({2, 3, 4, 4}, 1, 1, 0, DType::f64, format), wave({3}, 2)}, 1e-6);
    check_gradient(turned({.stride = {2, 1}, .output_padding = {1, 0}, .dilation = {1, 2}}),
                   {x({1, 2, 3, 3}), wave({2, 2, 2, 3}, 1)}, 1e-6);
    check_gradient(turned({.padding = {1, 0}, .output_padding = {1, 0}, .dilation = {2, 1}}),
                   {x({1, 2, 3, 3}), wave({2, 2, 2, 2}, 1), wave({2}, 2)}, 1e-6);
    check_gradient(turned({.stride = {2, 2}, .groups = 2}), {x({2, 4, 2, 2}), wave({4, 3, 2, 2}, 1), wave({6}, 2)},
                   1e-6);
    check_gradient(turned({}), {x({0, 3, 2, 2}), wave({3, 2, 2, 2}, 1), wave({2}, 2)}, 1e-6);
  }
  const Tensor odd = views::transpose(wave({2, 3, 3, 2}), 2, 3);  // neither layout: copied
  check_gradient([](const Inputs& in) { return F::conv_transpose2d(in[0], in[1]); }, {odd, wave({3, 2, 2, 2}, 1)},
                 1e-6);
  EXPECT_EQ(F::conv_transpose2d(wave({2, 3, 4, 5}, 0, 1, 0, DType::f64, kLast), wave({3, 2, 1, 1})).memory_format(),
            kLast);
  expect_error(Kind::argument, "conv_transpose2d", [] { F::conv_transpose2d(wave({2, 3, 4, 5}), wave({2, 4, 1, 1})); });
  expect_error(Kind::argument, "conv_transpose2d", [] { F::conv_transpose2d(wave({3, 4, 5}), wave({3, 2, 1, 1})); });
  expect_error(Kind::argument, "undefined", [] { F::conv_transpose2d(wave({2, 3, 4, 5}), {}); });
  expect_error(Kind::argument, "undefined", [] { F::conv2d(wave({2, 3, 4, 5}), {}); });
}

/// <conv(x), y> = <x, conv_transposed(y)>: what makes one the transpose of the other.
TEST(Convolution, TransposedIsTheAdjoint) {
  const F::Conv2dOptions o{.stride = {2, 3}, .padding = {1, 2}, .dilation = {2, 1}, .groups = 2};
  const Tensor x = wave({2, 4, 9, 11}), w = wave({6, 2, 3, 4}, 1);
  const Tensor y = F::conv2d(x, w, {}, o), dy = wave(y.sizes(), 2);
  const Tensor back = F::conv_transpose2d(
      dy, w, {},
      {.stride = o.stride, .padding = o.padding, .output_padding = {0, 2}, .dilation = o.dilation, .groups = 2});
  ASSERT_EQ(back.sizes(), x.sizes());
  const auto dot = [](const Tensor& a, const Tensor& b) { return values(F::sum(F::mul(a, b)))[0]; };
  EXPECT_NEAR(dot(y, dy), dot(x, back), 1e-10);
}

TEST(Convolution, WeightGradientAsAnOp) {
  const F::Conv2dOptions o{.stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2};
  const Tensor x = wave({2, 4, 6, 5}), w = leaf(wave({6, 2, 2, 2}, 1)), y = F::conv2d(x, w, {}, o),
               dy = wave(y.sizes(), 2);
  backward(y, dy);
  expect_values(F::conv2d_weight(x, w.sizes(), dy, o), values(grad(w)), 1e-13);
  check_gradient([&](const Inputs& in) { return F::conv2d_weight(in[0], w.sizes(), in[1], o); }, {x, dy}, 1e-6);
  expect_error(Kind::argument, "dy is an undefined tensor", [&] { F::conv2d_weight(x, w.sizes(), {}, o); });
  expect_error(Kind::argument, "dy has sizes", [&] { F::conv2d_weight(x, {6, 2, 2, 3}, dy, o); });
}

TEST(Convolution, SecondDerivatives) {
  for (const auto format : {MemoryFormat::contiguous, kLast}) {
    const auto x = [&](Dims sizes) { return wave(sizes, 0, 0.5, 0, DType::f64, format); };
    const auto w = [&](Dims sizes) { return wave(sizes, 1, 0.5, 0, DType::f64, format); };
    // The stride leaves a row and a column out at the end: output_padding brings them back.
    check_second(
        [](const Inputs& in) {
          return F::conv2d(in[0], in[1], in[2], {.stride = {2, 3}, .padding = {1, 0}, .groups = 2});
        },
        {x({1, 4, 4, 5}), w({2, 2, 3, 2}), wave({2}, 2)});
    check_second(
        [](const Inputs& in) {
          return F::conv2d(in[0], in[1], {}, {.dilation = {2, 1}});
        },
        {x({2, 2, 4, 3}), w({3, 2, 2, 2})});
    check_second(
        [](const Inputs& in) {
          return F::conv_transpose2d(in[0], in[1], in[2], {.stride = {2, 2}, .padding = {1, 1}});
        },
        {x({1, 2, 2, 3}), w({2, 2, 4, 4}), wave({2}, 2)});
    check_second(
        [](const Inputs& in) {
          return F::conv_transpose2d(in[0], in[1], {}, {.output_padding = {1, 0}, .dilation = {2, 1}, .groups = 2});
        },
        {x({1, 2, 3, 2}), w({2, 1, 2, 2})});
  }
  const Tensor odd = views::transpose(wave({1, 2, 3, 4}, 0, 0.5), 2, 3);  // neither layout
  check_second([](const Inputs& in) { return F::conv2d(in[0], in[1]); }, {odd, wave({2, 2, 2, 2}, 1, 0.5)});
  check_second(
      [](const Inputs& in) {
        return F::conv2d_weight(in[0], {2, 2, 2, 2}, in[1]);
      },
      {wave({2, 2, 3, 3}, 0, 0.5), wave({2, 2, 2, 2}, 1, 0.5)});
}

TEST(Convolution, OfSequences) {
  const auto plain = [](const Inputs& in) {
    return F::conv1d(in[0], in[1], in[2], {.stride = 2, .padding = 1, .dilation = 2, .groups = 2});
  };
  check_gradient(plain, {wave({2, 4, 7}), wave({6, 2, 3}, 1), wave({6}, 2)}, 1e-6);
  const auto turned = [](const Inputs& in) {
    return F::conv_transpose1d(in[0], in[1], in[2], {.stride = 3, .padding = 1, .output_padding = 2, .groups = 2});
  };
  check_gradient(turned, {wave({2, 4, 3}), wave({4, 3, 2}, 1), wave({6}, 2)}, 1e-6);
  const auto row = [](std::initializer_list<double> v) {
    return test::from_values<double>({1, 1, static_cast<std::int64_t>(v.size())}, v);
  };
  expect_values(F::conv1d(row({1, 2, 3, 4}), row({10, 1}), test::from_values<double>({1}, {0.5}), {.padding = 1}),
                {1.5, 12.5, 23.5, 34.5, 40.5}, 0);
  expect_values(F::conv_transpose1d(row({1, 2}), row({10, 1}), {}, {.stride = 2, .output_padding = 1}),
                {10, 1, 20, 2, 0}, 0);
  const Tensor strided = views::transpose(wave({2, 7, 4}), 1, 2);
  check_gradient(plain, {strided, wave({6, 2, 3}, 1), wave({6}, 2)}, 1e-6);
  expect_error(Kind::argument, "conv1d", [] { F::conv1d(wave({2, 4, 1, 7}), wave({6, 4, 3})); });
  expect_error(Kind::argument, "conv1d", [] { F::conv1d({}, wave({6, 4, 3})); });
  expect_error(Kind::argument, "conv_transpose1d", [] { F::conv_transpose1d(wave({2, 4, 7}), wave({6, 4})); });
  // What does not fit is said of the sequence, not of the image of one row it is computed as.
  const Tensor x = wave({2, 4, 7}), w = wave({6, 4, 3}, 1), up = wave({4, 6, 3}, 1);
  expect_error(Kind::argument, "conv1d: x of sizes [2, 4, 7] in 1 groups does not fit w of sizes [6, 3, 3]", [&] {
    F::conv1d(x, wave({6, 3, 3}));
  });
  expect_error(Kind::argument, "conv1d: stride 0", [&] { F::conv1d(x, w, {}, {.stride = 0}); });
  expect_error(Kind::argument, "conv1d: padding -1", [&] { F::conv1d(x, w, {}, {.padding = -1}); });
  expect_error(Kind::argument, "conv1d: w of sizes [6, 4, 3] (dilation 4)",
               [&] { F::conv1d(x, w, {}, {.dilation = 4}); });
  expect_error(Kind::argument, "conv1d: groups 3", [&] { F::conv1d(x, w, {}, {.groups = 3}); });
  expect_error(Kind::argument, "conv1d: weight is f32", [&] { F::conv1d(x, F::cast(w, DType::f32)); });
  expect_error(Kind::argument, "conv1d: bias has sizes [5], wanted [6]", [&] { F::conv1d(x, w, wave({5})); });
  expect_error(Kind::argument, "conv1d: a size of ", [&] { F::conv1d(x, w, {}, {.padding = std::int64_t{1} << 62}); });
  expect_error(Kind::argument, "conv_transpose1d: output_padding 1",
               [&] { F::conv_transpose1d(x, up, {}, {.output_padding = 1}); });
  expect_error(Kind::argument, "conv_transpose1d: x of sizes [2, 4, 7] does not fit w of sizes [6, 4, 3]",
               [&] { F::conv_transpose1d(x, w); });
  expect_error(Kind::argument, "conv_transpose1d: bias is f32",
               [&] { F::conv_transpose1d(x, up, test::ones({6}, DType::f32)); });
  expect_error(Kind::argument, "conv_transpose1d: a size of ",
               [&] { F::conv_transpose1d(x, up, {}, {.stride = std::int64_t{1} << 62}); });
}

TEST(Product, BroadcastGradients) {
  const auto product = [](const Inputs& in) { return F::matmul(in[0], in[1]); };
  check_gradient(product, {wave({2, 3, 4, 5}), wave({2, 3, 5, 2}, 1)});
  check_gradient(product, {wave({2, 1, 3, 5}), wave({4, 5, 2}, 1)});
  check_gradient(product, {wave({2, 4, 3, 5}), wave({5, 2}, 1)});
  check_gradient(product, {wave({3, 5}), wave({2, 4, 5, 2}, 1)});
  check_gradient(product, {views::transpose(wave({2, 4, 5, 3}), 2, 3), views::transpose(wave({2, 5}, 1), 0, 1)});
  check_gradient(product, {views::transpose(wave({2, 3, 4, 5}), 1, 2), views::transpose(wave({2, 5, 4, 3}, 1), 1, 2)});
  check_gradient(product, {wave({0, 3, 5}), wave({5, 2}, 1)});
  check_gradient(product, {wave({2, 3, 0}), wave({0, 2}, 1)});
  EXPECT_EQ(F::matmul(wave({2, 1, 3, 5}), wave({4, 5, 2})).sizes(), (Dims{2, 4, 3, 2}));

  check_gradient(product, {wave({5}), wave({5}, 1)});
  check_gradient(product, {wave({5}), wave({2, 5, 3}, 1)});
  check_gradient(product, {wave({2, 3, 5}), wave({5}, 1)});
  EXPECT_EQ(F::matmul(wave({5}), wave({5})).sizes(), Dims{});
  EXPECT_EQ(F::matmul(wave({5}), wave({2, 5, 3})).sizes(), (Dims{2, 3}));
  EXPECT_EQ(F::matmul(wave({2, 3, 5}), wave({5})).sizes(), (Dims{2, 3}));

  expect_error(Kind::argument, "matmul", [] { F::matmul(wave({5}), wave({4})); });
  expect_error(Kind::argument, "matmul", [] { F::matmul(wave({2, 3, 4, 5}), wave({3, 2, 5, 6})); });
  expect_error(Kind::argument, "matmul", [] { F::matmul(wave({2, 3}), {}); });
  expect_error(Kind::argument, "matmul", [] { F::matmul({}, wave({2, 3})); });
  expect_error(Kind::argument, "b is f32", [] { F::bmm(wave({2, 3, 4}), wave({2, 4, 5}, 0, 1, 0, DType::f32)); });
}

TEST(Product, BmmTakesBatchesOfOneSize) {
  check_gradient([](const Inputs& in) { return F::bmm(in[0], in[1]); }, {wave({2, 3, 5}), wave({2, 5, 4}, 1)});
  expect_error(Kind::argument, "bmm", [] { F::bmm(wave({2, 3, 5}), wave({1, 5, 4})); });
  expect_error(Kind::argument, "bmm", [] { F::bmm(wave({3, 5}), wave({5, 4})); });
}

TEST(Product, BaddbmmGradients) {
  const auto f = [](const Inputs& in) { return F::baddbmm(in[0], in[1], in[2], 0.5, -2.0); };
  check_gradient(f, {wave({2, 3, 4}, 2), wave({2, 3, 5}), wave({2, 5, 4}, 1)});
  check_gradient(f, {wave({3, 1}, 2), wave({2, 3, 5}), wave({5, 4}, 1)});
  check_gradient(f, {wave({4}, 2), wave({3, 5}), wave({5, 4}, 1)});
  check_gradient(f, {wave({2, 3, 4}, 2), wave({2, 3, 0}), wave({2, 0, 4}, 1)});
  const Tensor a = wave({2, 3, 5}), b = wave({2, 5, 4}, 1), c = wave({3, 4}, 2);
  expect_values(F::baddbmm(c, a, b, 3.0, 2.0), values(F::add(F::scale(c, 3.0), F::scale(F::matmul(a, b), 2.0))), 1e-14);
  const Tensor nan = test::full({3, 4}, std::nan(""), DType::f64);
  expect_values(F::baddbmm(nan, a, b, 0.0), values(F::matmul(a, b)), 0);
  expect_error(Kind::argument, "does not broadcast", [&] { F::baddbmm(wave({2, 2, 4}), a, b); });
  expect_error(Kind::argument, "baddbmm", [&] { F::baddbmm(c, a, wave({4, 5})); });
  expect_error(Kind::argument, "input is f32", [&] { F::baddbmm(wave({3, 4}, 0, 1, 0, DType::f32), a, b); });
  expect_error(Kind::argument, "undefined", [&] { F::baddbmm(c, a, {}); });
}

TEST(Product, SecondDerivatives) {
  check_second([](const Inputs& in) { return F::matmul(in[0], in[1]); }, {wave({2, 2, 3}), wave({3, 2}, 1)});
  check_second([](const Inputs& in) { return F::matmul(in[0], in[1]); }, {wave({2, 1, 2, 3}), wave({2, 3, 2}, 1)});
  check_second([](const Inputs& in) { return F::baddbmm(in[0], in[1], in[2], 0.5, 2.0); },
               {wave({2}, 2), wave({2, 2, 3}), wave({2, 3, 2}, 1)});
}

}  // namespace
}  // namespace apex
