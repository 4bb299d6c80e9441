// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <limits>

#include "apex/nn/activations.hpp"
#include "apex/nn/functional.hpp"
#include "apex/nn/layers.hpp"
#include "apex/nn/losses.hpp"
#include "lib/support.hpp"
#include "support/references.hpp"

namespace apex {
namespace {

namespace F = nn::functional;
namespace reference = test::reference;
using F::Reduction;
using test::check_gradient;
using test::expect_error;
using test::expect_values;
using test::leaf;
using test::values;
using test::wave;
using Inputs = std::vector<Tensor>;

constexpr auto kLast = MemoryFormat::channels_last;

struct Case {
  const char* name;
  Tensor (*op)(const Tensor&);
  double (*reference)(double);
};
const Case kActivations[] = {
    {"erf", [](const Tensor& x) { return F::erf(x); }, [](double x) { return std::erf(x); }},
    {"gelu", [](const Tensor& x) { return F::gelu(x); }, reference::gelu},
    {"gelu tanh", [](const Tensor& x) { return F::gelu(x, F::GeluForm::tanh); }, reference::gelu_tanh},
    {"silu", [](const Tensor& x) { return F::silu(x); }, reference::silu},
    {"leaky_relu", [](const Tensor& x) { return F::leaky_relu(x, 0.2); },
     [](double x) { return reference::leaky_relu(x, 0.2); }},
    {"elu", [](const Tensor& x) { return F::elu(x, 1.5); }, [](double x) { return reference::elu(x, 1.5); }},
    {"softplus", [](const Tensor& x) { return F::softplus(x, 2.0, 1.5); },
     [](double x) { return reference::softplus(x, 2.0, 1.5); }},
    {"clamp", [](const Tensor& x) { return F::clamp(x, -0.75, 0.3); },
     [](double x) { return reference::clamp(x, -0.75, 0.3); }},
    {"hardtanh", [](const Tensor& x) { return F::hardtanh(x); }, [](double x) { return reference::clamp(x, -1, 1); }},
    {"log_sigmoid", [](const Tensor& x) { return F::log_sigmoid(x); }, reference::log_sigmoid},
};

TEST(Activations, ValuesAndGradients) {
  for (const auto& c : kActivations) {
    SCOPED_TRACE(c.name);
    const auto f = [&](const Inputs& in) { return c.op(in[0]); };
    check_gradient(f, {wave({3, 7}, 0, 2.0)});
    check_gradient(f, {views::transpose(wave({3, 7}, 1, 2.0), 0, 1)});
    check_gradient(f, {wave({2, 3, 2, 2}, 1, 2.0, 0, DType::f64, kLast)});
    check_gradient(f, {wave({}, 0)});
    check_gradient(f, {wave({2, 0}, 0)});
    const Tensor x = wave({2, 3, 4, 5}, 2, 3.0, 0, DType::f64, kLast);
    std::vector<double> want;
    for (const double v : values(x)) want.push_back(c.reference(v));
    expect_values(c.op(x), want, 1e-12);
    EXPECT_EQ(c.op(x).strides(), x.strides());
  }
  expect_error(Kind::argument, "clamp: the range", [] { F::clamp(wave({2}), 1, 0); });
  expect_error(Kind::argument, "softplus: beta", [] { F::softplus(wave({2}), -1); });
}

TEST(Activations, AGradientThatIsUsedElsewhereIsNotOverwritten) {
  const Tensor x = leaf(wave({4})), dy = wave({4}, 1);
  const auto before = values(dy);
  backward(F::gelu(x), dy);
  expect_values(dy, before, 0);
}

using TwoInputs = std::function<Tensor(const Tensor&, const Tensor&, Reduction)>;
struct LossCase {
  const char* name;
  TwoInputs op;
  std::function<double(double, double)> reference;
  double x_shift, x_size, t_shift, t_size;
};
const std::vector<LossCase>& losses() {
  static const std::vector<LossCase> all = {
      {"mse", F::mse_loss, reference::mse, 0, 1, 0, 1},
      {"l1", F::l1_loss, reference::l1, 0, 1, 0, 1},
      {"smooth_l1", [](const Tensor& x, const Tensor& t, Reduction r) { return F::smooth_l1_loss(x, t, 0.6, r); },
       [](double x, double t) { return reference::smooth_l1(x, t, 0.6); }, 0, 1, 0, 1},
      {"huber", [](const Tensor& x, const Tensor& t, Reduction r) { return F::huber_loss(x, t, 0.6, r); },
       [](double x, double t) { return reference::huber(x, t, 0.6); }, 0, 1, 0, 1},
      {"bce",
       [](const Tensor& x, const Tensor& t, Reduction r) { return F::binary_cross_entropy(x, t, {.reduction = r}); },
       [](double x, double t) { return reference::bce(x, t); }, 0.5, 0.4, 0.5, 0.5},
      {"bce with logits",
       [](const Tensor& x, const Tensor& t, Reduction r) {
         return F::binary_cross_entropy_with_logits(x, t, {.reduction = r});
       },
       [](double x, double t) { return reference::bce_with_logits(x, t); }, 0, 4, 0.5, 0.5},
      {"kl_div", [](const Tensor& x, const Tensor& t, Reduction r) { return F::kl_div(x, t, {.reduction = r}); },
       reference::kl_div, -2, 1, 0.5, 0.4},
      {"kl_div of logarithms",
       [](const Tensor& x, const Tensor& t, Reduction r) {
         return F::kl_div(x, t, {.log_target = true, .reduction = r});
       },
       reference::kl_div_log, -2, 1, -1, 1},
  };
  return all;
}

TEST(Losses, ValuesAndGradientsOfBothInputs) {
  for (const auto& c : losses())
    for (const auto reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
      SCOPED_TRACE(concat(c.name, ' ', static_cast<int>(reduction)));
      const auto f = [&](const Inputs& in) { return c.op(in[0], in[1], reduction); };
      const auto x = [&](const Dims& sizes) { return wave(sizes, 0, c.x_size, c.x_shift); };
      const auto t = [&](const Dims& sizes) { return wave(sizes, 1, c.t_size, c.t_shift); };
      check_gradient(f, {x({3, 5}), t({3, 5})}, 1e-6);
      check_gradient(f, {views::transpose(x({5, 3}), 0, 1), t({3, 5})}, 1e-6);
      check_gradient(f, {x({}), t({})}, 1e-6);
      const Tensor a = x({4, 3}), b = t({4, 3});
      const auto xs = values(a), ts = values(b);
      std::vector<double> want;
      double sum = 0;
      for (std::size_t i = 0; i < xs.size(); ++i) {
        want.push_back(c.reference(xs[i], ts[i]));
        sum += want.back();
      }
      if (reduction != Reduction::none) want = {reduction == Reduction::mean ? sum / 12 : sum};
      expect_values(c.op(a, b, reduction), want, 1e-12);
      EXPECT_EQ(c.op(a, b, reduction).dim(), reduction == Reduction::none ? 2 : 0);
      expect_error(Kind::argument, "target", [&] { c.op(a, Tensor(), reduction); });
      expect_error(Kind::argument, "target has sizes", [&] { c.op(a, t({3, 4}), reduction); });
    }
  for (const auto dtype : {DType::f16, DType::bf16, DType::f32})
    EXPECT_EQ(F::mse_loss(wave({3}, 0, 1, 0, dtype), wave({3}, 1, 1, 0, dtype)).dtype(), DType::f32);
}

TEST(Losses, Weights) {
  const Tensor w = wave({5}, 3, 0.5, 1.0), p = wave({5}, 4, 0.5, 2.0);
  const auto ws = values(w), ps = values(p);
  const auto with_logits = [&](const Inputs& in) {
    return F::binary_cross_entropy_with_logits(in[0], in[1], {.weight = w, .pos_weight = p});
  };
  const Tensor x = wave({3, 5}, 0, 2.0), t = wave({3, 5}, 1, 0.5, 0.5);
  check_gradient(with_logits, {x, t}, 1e-6);
  const auto xs = values(x), ts = values(t);
  double want = 0;
  for (std::size_t i = 0; i < xs.size(); ++i)
    want += reference::bce_with_logits(xs[i], ts[i], ws[i % 5], ps[i % 5]) / 15;
  expect_values(with_logits({x, t}), {want}, 1e-12);
  check_gradient([&](const Inputs& in) { return F::binary_cross_entropy(in[0], in[1], {.weight = w}); },
                 {wave({3, 5}, 0, 0.4, 0.5), t.detach()}, 1e-6);
  expect_error(Kind::unsupported, "binary_cross_entropy_with_logits: pos_weight takes no gradient",
               [&] { F::binary_cross_entropy_with_logits(x, t, {.pos_weight = leaf(wave({5}))}); });
}

TEST(Losses, NllIsTheTailOfCrossEntropy) {
  const Tensor labels = test::from_values<std::int64_t>({4}, {2, 0, -100, 4}), w = wave({5}, 3, 0.5, 1.0);
  for (const auto reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
    const F::NllLossOptions o{.weight = w, .reduction = reduction};
    check_gradient([&](const Inputs& in) { return F::nll_loss(in[0], labels, o); }, {wave({4, 5}, 0, 1.0, -2.0)});
    const Tensor x = wave({4, 5}, 0, 2.0);
    const Tensor both = F::nll_loss(F::log_softmax(x, 1), labels, {.reduction = reduction});
    expect_values(both, values(F::cross_entropy(x, labels, {.reduction = reduction})), 1e-12);
  }
  const Tensor pixels = test::from_values<std::int64_t>({2, 1, 3}, {0, 1, 1, 2, -100, 0});
  check_gradient([&](const Inputs& in) { return F::nll_loss(F::log_softmax(in[0], 1), pixels); },
                 {wave({2, 3, 1, 3}, 0, 1, 0, DType::f64, kLast)});
  expect_error(Kind::argument, "labels", [] { F::nll_loss(wave({4, 5}), Tensor()); });
}

TEST(Dropout, AllAndNothing) {
  const Tensor x = leaf(test::from_values<double>({2, 2}, {1., -2., std::numeric_limits<double>::infinity(), 4.}));
  Generator g{7, 0};
  const Tensor none = F::dropout(x, 1.0, true, g);
  expect_values(none, {0, 0, 0, 0}, 0);
  backward(F::sum(none));
  expect_values(grad(x), {0, 0, 0, 0}, 0);
  for (const Dims& sizes : {Dims{}, Dims{1}, Dims{0, 3}, Dims{2, 3, 4, 5, 6}})
    EXPECT_EQ(F::dropout(wave(sizes), 0.5, true, g).sizes(), sizes);
}

TEST(Dropout, WholeChannelsByGlobalSample) {
  const Tensor x = leaf(test::ones({4, 16, 3, 5}, DType::f64));
  Generator g{9, 2};
  const Tensor whole = F::dropout2d(x, 0.5, true, g);
  EXPECT_EQ(g, (Generator{9, 3}));
  const auto v = values(whole);
  int kept = 0;
  for (std::size_t c = 0; c < 64; ++c) {
    kept += v[c * 15] != 0;
    for (std::size_t i = 0; i < 15; ++i) ASSERT_EQ(v[c * 15 + i], v[c * 15] == 0 ? 0 : 2) << c;
  }
  EXPECT_NEAR(kept, 32, 16);
  backward(F::sum(whole));
  expect_values(grad(x), v, 0);
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    const SampleRowsGuard rows({rank, 2});
    Generator again{9, 2};
    const auto part = values(F::dropout2d(test::ones({2, 16, 3, 5}, DType::f64), 0.5, true, again));
    for (std::size_t r = 0; r < 2; ++r)
      for (std::size_t i = 0; i < 240; ++i)
        ASSERT_EQ(part[r * 240 + i], v[(2 * r + static_cast<std::size_t>(rank)) * 240 + i]);
  }
  expect_values(F::dropout2d(x, 1.0, true, g), std::vector<double>(960, 0.0), 0);
  EXPECT_TRUE(F::dropout2d(x, 0.5, false, g).is_same(x));
  EXPECT_EQ(F::dropout2d(wave({2, 3, 4, 5}, 0, 1, 0, DType::f64, kLast), 0.5, true, g).memory_format(), kLast);
  expect_error(Kind::argument, "not [N, C, ...]", [&] { F::dropout2d(wave({3}), 0.5, true, g); });
  expect_error(Kind::argument, "p = 2", [&] { F::dropout2d(x, 2, true, g); });
}

TEST(Layers, ActivationsAndLossesReachTheirOps) {
  const Tensor x = wave({2, 3}, 0, 2.0), t = wave({2, 3}, 1);
  const auto same = [&](nn::Module& layer, const Tensor& want) {
    expect_values(layer(x), values(want), 0);
    EXPECT_TRUE(layer.parameters().empty());
  };
  nn::GELU gelu, gelu_tanh(F::GeluForm::tanh);
  nn::SiLU silu;
  nn::Sigmoid sigmoid;
  nn::Tanh tanh;
  nn::LeakyReLU leaky(0.2);
  nn::ELU elu(0.5);
  nn::Softplus softplus(2.0);
  nn::Hardtanh hardtanh(-0.5, 0.5);
  nn::LogSigmoid log_sigmoid;
  nn::Softmax softmax(1);
  nn::LogSoftmax log_softmax(-1);
  same(gelu, F::gelu(x));
  same(gelu_tanh, F::gelu(x, F::GeluForm::tanh));
  same(silu, F::silu(x));
  same(sigmoid, F::sigmoid(x));
  same(tanh, F::tanh(x));
  same(leaky, F::leaky_relu(x, 0.2));
  same(elu, F::elu(x, 0.5));
  same(softplus, F::softplus(x, 2.0));
  same(hardtanh, F::clamp(x, -0.5, 0.5));
  same(log_sigmoid, F::log_sigmoid(x));
  same(softmax, F::softmax(x, 1));
  same(log_softmax, F::log_softmax(x, 1));
  Generator g{3, 0};
  nn::Dropout2d dropout(0.5, g);
  Generator again = g;
  same(dropout, F::dropout2d(x, 0.5, true, again));
  dropout.eval();
  same(dropout, x);
  expect_error(Kind::argument, "Dropout2d: p = 3", [] { nn::Dropout2d bad(3); });

  const Tensor labels = test::from_values<std::int64_t>({2}, {0, 2});
  const auto equal = [](const Tensor& got, const Tensor& want) { expect_values(got, values(want), 0); };
  equal(nn::MSELoss{Reduction::sum}(x, t), F::mse_loss(x, t, Reduction::sum));
  equal(nn::L1Loss{}(x, t), F::l1_loss(x, t));
  equal(nn::SmoothL1Loss{0.5}(x, t), F::smooth_l1_loss(x, t, 0.5));
  equal(nn::HuberLoss{0.5}(x, t), F::huber_loss(x, t, 0.5));
  equal(nn::BCELoss{}(F::sigmoid(x), t), F::binary_cross_entropy(F::sigmoid(x), t));
  equal(nn::BCEWithLogitsLoss{}(x, t), F::binary_cross_entropy_with_logits(x, t));
  equal(nn::NLLLoss{}(x, labels), F::nll_loss(x, labels));
  equal(nn::KLDivLoss{{.log_target = true}}(x, t), F::kl_div(x, t, {.log_target = true}));
  equal(nn::CrossEntropyLoss{}(x, labels), F::cross_entropy(x, labels));
}

/// Values and gradients in 16 bits against f32 from the same numbers: each is rounded once.
TEST(Activations, SixteenBitsAreF32RoundedOnce) {
  for (const DType half : {DType::f16, DType::bf16})
    for (const auto& c : kActivations) {
      SCOPED_TRACE(concat(c.name, ' ', half));
      const Tensor rounded = F::cast(wave({40}, 0, 3.0, 0, DType::f32), half),
                   dy = F::cast(wave({40}, 1, 1, 0, DType::f32), half);
      const auto run = [&](DType dtype) {
        const Tensor x = leaf(F::cast(rounded, dtype).detach());
        const Tensor y = c.op(x);
        backward(y, F::cast(dy, dtype));
        auto all = values(y);
        const auto g = values(grad(x));
        all.insert(all.end(), g.begin(), g.end());
        return all;
      };
      const auto narrow = run(half), wide = run(DType::f32);
      const double unit = half == DType::f16 ? 0x1p-11 : 0x1p-8;
      for (std::size_t i = 0; i < wide.size(); ++i)
        EXPECT_NEAR(narrow[i], wide[i], 1.02 * unit * std::abs(wide[i]) + 1e-6) << i;
    }
}

}  // namespace
}  // namespace apex
