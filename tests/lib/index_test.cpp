// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// What op_cases_index.cpp and op_cases_shape.cpp cannot say: views, padding rows, repeated indices, errors.
#include <cmath>
#include <limits>

#include "apex/nn/functional.hpp"
#include "apex/nn/layers.hpp"
#include "lib/support.hpp"

namespace apex {
namespace {

namespace F = nn::functional;
using test::expect_error;
using test::expect_values;
using test::leaf;
using test::values;
using test::wave;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Tensor list(std::initializer_list<std::int64_t> values) {
  return test::from_values<std::int64_t>({static_cast<std::int64_t>(values.size())}, values);
}

TEST(Join, CatAndStackSayWhatDoesNotFit) {
  const Tensor a = test::ones({2, 3}), b = test::ones({2, 4});
  expect_error(Kind::argument, "empty list", [] { F::cat(std::span<const Tensor>{}); });
  expect_error(Kind::argument, "empty list", [] { F::stack(std::span<const Tensor>{}); });
  expect_error(Kind::argument, "tensor 1 of sizes [2, 4] beside [2, 3]", [&] { F::cat({a, b}, 0); });
  expect_error(Kind::argument, "tensor 1 of sizes [3]", [&] { F::cat({a, test::ones({3})}, 0); });
  expect_error(Kind::argument, "tensor 1 is i64", [&] { F::cat({a, test::ones({2, 3}, DType::i64)}, 0); });
  expect_error(Kind::argument, "tensor 1 is undefined", [&] { F::cat({a, Tensor()}, 0); });
  expect_error(Kind::argument, "undefined", [&] { F::cat({Tensor(), a}, 0); });
  expect_error(Kind::argument, "dimension 2", [&] { F::cat({a, a}, 2); });
  expect_error(Kind::argument, "tensor 1 of sizes [2, 4] beside [2, 3]", [&] { F::stack({a, b}); });
  expect_error(Kind::argument, "dimension 3", [&] { F::stack({a, a}, 3); });
  EXPECT_EQ(F::stack({a, a}, -1).sizes(), (Dims{2, 3, 2}));
  EXPECT_EQ(F::stack({a, a}, 1).sizes(), (Dims{2, 2, 3}));
  const Tensor last = test::empty({2, 3, 4, 5}, DType::f32, MemoryFormat::channels_last);
  EXPECT_EQ(F::cat({last, last}, 1).memory_format(), MemoryFormat::channels_last);
  // One tensor twice: its gradient comes in two parts.
  const Tensor x = leaf(wave({2, 2}));
  backward(F::sum(F::mul(F::cat({x, x}, 0), test::from_values<double>({4, 1}, {1, 2, 3, 4}))));
  expect_values(grad(x), {4, 4, 6, 6}, 0);
}

TEST(Join, PadSliceFlipAndRollSayWhatDoesNotFit) {
  const Tensor x = test::ones({2, 3});
  expect_error(Kind::argument, "1 amounts for sizes [2, 3]", [&] { F::pad(x, {{1, 1}}); });
  expect_error(Kind::argument, "-2 before and -2 after cut more than dimension 1", [&] { F::pad(x, {{}, {-2, -2}}); });
  EXPECT_EQ(F::pad(x, {{}, {-2, -1}}).sizes(), (Dims{2, 0}));
  const auto padded = values(F::pad(test::from_values<float>({3}, {1, 2, 3}), {{-1, 2}}, kNaN));
  EXPECT_EQ(padded[0], 2);
  EXPECT_EQ(padded[1], 3);
  EXPECT_TRUE(std::isnan(padded[2]) && std::isnan(padded[3]));
  expect_error(Kind::argument, "step is 0", [&] { F::slice(x, 1, 0, 3, 0); });
  expect_error(Kind::argument, "dimension 2", [&] { F::slice(x, 2, 0, 3); });
  EXPECT_EQ(F::slice(x, 1, 1, 3).storage(), x.storage());
  expect_error(Kind::argument, "named twice", [&] { F::flip(x, {0, -2}); });
  expect_error(Kind::argument, "dimension 2", [&] { F::flip(x, {2}); });
  expect_error(Kind::argument, "dimension -3", [&] { F::roll(x, 1, -3); });
  EXPECT_TRUE(F::roll(x, 6, 1).is_same(x));
  expect_values(F::roll(test::from_values<float>({3}, {1, 2, 3}), -1, 0), {2, 3, 1}, 0);
}

/// An expanded tensor has a size without memory behind it, and an option may be any number.
TEST(Join, SizesBeyondInt64AreErrors) {
  constexpr std::int64_t kHalf = std::int64_t{1} << 62, kMost = std::numeric_limits<std::int64_t>::max(),
                         kLeast = std::numeric_limits<std::int64_t>::min();
  const Tensor x = test::from_values<float>({3}, {1, 2, 3}), endless = F::expand(test::ones({1}), {kHalf});
  expect_values(F::slice(x, 0, 0, 3, kMost), {1}, 0);
  expect_values(F::slice(x, 0, 1, 3, kMost - 1), {2}, 0);
  EXPECT_EQ(F::slice(endless, 0, 0, kHalf, kMost).sizes(), (Dims{1}));
  expect_values(F::roll(x, kMost, 0), values(F::roll(x, kMost % 3, 0)), 0);
  expect_values(F::roll(x, kLeast, 0), values(F::roll(x, kLeast % 3 + 3, 0)), 0);
  EXPECT_EQ(F::slice(endless, 0, 0, kHalf, kHalf / 2).sizes(), (Dims{2}));
  expect_error(Kind::argument, "cat: ", [&] { F::cat({endless, endless}); });
  expect_error(Kind::argument, "int64", [&] { F::stack({endless, endless}); });
  expect_error(Kind::argument, "pad: ", [&] { F::pad(x, {{kMost, 1}}); });
  expect_error(Kind::argument, "pad: ", [&] { F::pad(x, {{kMost - 2, 0}}); });
  expect_error(Kind::argument, "cut more than dimension 0", [&] { F::pad(x, {{kLeast, 0}}); });
  expect_error(Kind::argument, "cut more than dimension 0", [&] { F::pad(x, {{kLeast, kLeast}}); });
  expect_error(Kind::argument, "cut more than dimension 0", [&] { F::pad(x, {{-2, kLeast}}); });
  const Tensor none = test::empty({0, kHalf, 4});
  expect_error(Kind::argument, "int64", [&] { F::flatten(none, 1, 2); });
  expect_error(Kind::argument, "int64", [&] { F::reshape(test::empty({0}), {kHalf, 4}); });
  EXPECT_EQ(F::narrow(none, 1, kHalf - 1, 1).sizes(), (Dims{0, 1, 4}));
}

TEST(Index, EmbeddingLeavesPaddingRowsAlone) {
  const Tensor weight = leaf(wave({4, 3})), indices = test::from_values<std::int64_t>({2, 3}, {1, 3, 1, 0, 3, 1});
  backward(F::sum(F::embedding(indices, weight, -1)));
  expect_values(grad(weight), {1, 1, 1, 3, 3, 3, 0, 0, 0, 0, 0, 0}, 0);
  set_grad(weight, {});
  expect_values(F::embedding(indices, weight, 3), values(F::embedding(indices, weight)), 0);
  // The recorded backward gives the same.
  backward(F::sum(F::square(F::embedding(indices, weight, 3))), {}, {.create_graph = true});
  const Tensor first = grad(weight);
  set_grad(weight, {});
  const auto w = values(weight), g = values(first);
  for (std::size_t i = 0; i < w.size(); ++i)
    EXPECT_NEAR(g[i], 2 * w[i] * (i < 3 ? 1.0 : i < 6 ? 3.0 : 0.0), 1e-14) << i;
  backward(F::sum(first));
  expect_values(grad(weight), {2, 2, 2, 6, 6, 6, 0, 0, 0, 0, 0, 0}, 1e-14);
  set_grad(weight, {});
  expect_error(Kind::argument, "padding_idx 4", [&] { F::embedding(indices, weight, 4); });
  expect_error(Kind::argument, "must be [entries, features]", [&] { F::embedding(indices, wave({4})); });
  expect_error(Kind::argument, "index is f64", [&] { F::embedding(wave({2}), weight); });
}

TEST(Index, RepeatedIndicesAreSummedInOneOrder) {
  const Tensor weight = leaf(wave({5, 7}, 0, 1, 0, DType::f32));
  const Tensor indices =
      test::from_function({3000}, DType::i64, test::device(), [](std::int64_t i) { return i * i % 5; });
  const Tensor dy = test::uniform({3000, 7}, DType::f32, test::device(), 3);
  std::vector<double> first;
  for (int run = 0; run < 3; ++run) {
    backward(F::embedding(indices, weight), dy);
    if (run == 0) first = values(grad(weight));
    EXPECT_EQ(values(grad(weight)), first);
    set_grad(weight, {});
  }
}

TEST(Index, WrongIndicesOnTheHostNameTheirPlace) {
  if (test::on_cuda()) return;  // kernels.indexing has what CUDA does
  const Tensor x = wave({2, 3});
  expect_error(Kind::argument, "index_select: the index at [1] is 2, wanted 0 to 1", [&] {
    F::index_select(x, 0, list({0, 2}));
  });
  expect_error(Kind::argument, "index_select: the index at [2] is 3, wanted 0 to 2", [&] {
    F::index_select(x, 1, list({0, 1, 3}));
  });
  expect_error(Kind::argument, "embedding: the index at [1, 0, 2] is 4, wanted 0 to 1", [&] {
    F::embedding(test::from_values<std::int64_t>({2, 1, 3}, {0, 1, 0, 1, 0, 4}), x);
  });
  expect_error(Kind::argument, "gather: the index at [0, 0] is -1, wanted 0 to 2", [&] {
    F::gather(x, 1, test::from_values<std::int64_t>({1, 1}, {-1}));
  });
  expect_error(Kind::argument, "the label at [2] is 3", [&] { F::one_hot(list({0, 1, 3}), 3); });
}

TEST(Index, ShapesThatDoNotFit) {
  const Tensor x = wave({2, 3});
  expect_error(Kind::argument, "index must be of rank 1", [&] {
    F::index_select(x, 0, test::zeros({1, 1}, DType::i64));
  });
  expect_error(Kind::argument, "dimension 2", [&] { F::index_select(x, 2, list({0})); });
  expect_error(Kind::argument, "does not fit x", [&] { F::gather(x, 0, list({0})); });
  expect_error(Kind::argument, "undefined", [&] { F::gather(Tensor(), 0, list({0})); });
  expect_error(Kind::argument, "index is not given", [&] { F::gather(x, 0, Tensor()); });
  expect_error(Kind::argument, "src has sizes", [&] {
    F::scatter_add(x, 0, test::from_values<std::int64_t>({1, 1}, {0}), wave({1, 2}));
  });
  expect_error(Kind::argument, "src is not given", [&] { F::scatter_add(x, 0, list({0}), Tensor()); });
  expect_error(Kind::argument, "0 classes", [&] { F::one_hot(list({0}), 0); });
  expect_error(Kind::argument, "k is 4, dimension 1", [&] { F::topk(x, 4, 1); });
  expect_error(Kind::argument, "k is -1", [&] { F::topk(x, -1); });
  expect_error(Kind::argument, "dimension 2", [&] { F::sort(x, 2); });
  expect_error(Kind::argument, "is empty", [&] { F::argmax(test::empty({2, 0}), 1); });
  expect_error(Kind::argument, "nothing to take it of", [&] { F::max(test::empty({2, 0}), {1}); });
}

TEST(Reductions, EqualElementsShareAndNaNIsFound) {
  const Tensor x = leaf(test::from_values<double>({2, 3}, {1, 5, 5, 2, 2, 2}));
  backward(F::sum(F::max(x, {1})));
  expect_values(grad(x), {0, 0.5, 0.5, 1 / 3.0, 1 / 3.0, 1 / 3.0}, 1e-15);
  set_grad(x, {});
  const Tensor y = test::from_values<float>({3}, {1, static_cast<float>(kNaN), 3});
  EXPECT_TRUE(std::isnan(F::max(y).item()));
  EXPECT_EQ(F::argmax(y, 0).item(), 1);
  EXPECT_EQ(F::argmin(y, 0).item(), 1);
  EXPECT_EQ(F::any(test::from_values<float>({2}, {0, static_cast<float>(kNaN)})).item(), 1);
  EXPECT_EQ(F::any(test::empty({0})).item(), 0);
  EXPECT_EQ(F::all(test::empty({0})).item(), 1);
  EXPECT_EQ(F::sum(test::full({70000}, 2.0, DType::u8)).item(), 140000);
  EXPECT_EQ(F::sum(test::from_values<bool>({3}, {true, false, true})).dtype(), DType::i64);
}

TEST(EmbeddingLayer, LooksUpAndTrains) {
  Generator generator{5, 0};
  nn::Embedding layer(1000, 16, 2, generator);
  double sum = 0, squares = 0;
  const auto w = values(layer.weight());
  for (std::size_t i = 0; i < w.size(); ++i) {
    EXPECT_TRUE(i / 16 != 2 || w[i] == 0) << i;
    sum += w[i];
    squares += w[i] * w[i];
  }
  EXPECT_NEAR(sum / 16000, 0, 0.03);
  EXPECT_NEAR(squares / 16000, 1, 0.05);
  EXPECT_EQ(layer.padding_idx(), 2);
  layer.to(test::device());
  const Tensor y = layer.forward(test::from_values<std::int32_t>({1, 3}, {7, 2, 7}));
  EXPECT_EQ(y.sizes(), (Dims{1, 3, 16}));
  backward(F::sum(y));
  const auto g = values(grad(layer.weight()));
  for (std::size_t i = 0; i < g.size(); ++i) ASSERT_EQ(g[i], i / 16 == 7 ? 2 : 0) << i;
  expect_error(Kind::argument, "padding_idx 9", [] { nn::Embedding bad(3, 4, 9); });
  expect_error(Kind::argument, "both must be positive", [] { nn::Embedding bad(0, 4); });
}

}  // namespace
}  // namespace apex
