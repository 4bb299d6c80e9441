// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <map>

#include "apex/core/storage.hpp"
#include "apex/nn/functional.hpp"
#include "apex/nn/layers.hpp"
#include "lib/support.hpp"

// grad(), and gradients of gradients.

namespace apex {
namespace {

namespace F = nn::functional;
using test::expect_error;
using test::expect_values;
using test::Function;
using test::leaf;
using test::values;
using test::wave;
using Inputs = std::vector<Tensor>;

constexpr auto kLast = MemoryFormat::channels_last;

Tensor constant_like(const Tensor& t, double phase) {
  return test::from_function(t.sizes(), t.dtype(), t.device(),
                             [=](std::int64_t i) { return std::cos(0.9 * static_cast<double>(i) + phase); });
}

/// The gradients of sum(f w) by every input, and what they come to when each is weighted and all are summed.
std::vector<Tensor> first_gradients(const Function& f, const Inputs& in, bool create_graph) {
  const Tensor y = f(in);
  const Tensor dy = leaf(constant_like(y, 0.3));
  return grad(std::span(&y, 1), in, std::span(&dy, 1), {.create_graph = create_graph, .allow_unused = true});
}
double weighted_gradients(const Function& f, const Inputs& in) {
  double total = 0;
  double phase = 0.5;
  for (const Tensor& g : first_gradients(f, in, false)) {
    if (g.defined()) {
      const auto v = values(g), w = values(constant_like(g, phase));
      for (std::size_t i = 0; i < v.size(); ++i) total += v[i] * w[i];
    }
    phase += 1;
  }
  return total;
}

/// Gradients of a weighted sum of all first gradients against central differences of it; and first gradients made of
/// recorded ops against plain ones.
void check_second(const Function& f, const Inputs& in, double tolerance = 2e-6) {
  for (const Tensor& t : in) leaf(t);
  const auto plain = first_gradients(f, in, false), recorded = first_gradients(f, in, true);
  Tensor total = test::zeros({}, DType::f64);
  double phase = 0.5;
  for (std::size_t k = 0; k < in.size(); ++k, phase += 1) {
    ASSERT_EQ(plain[k].defined(), recorded[k].defined()) << k;
    if (!plain[k].defined()) continue;
    expect_values(recorded[k], values(plain[k]), 1e-11);
    total = F::add(total, F::sum(F::mul(recorded[k], constant_like(recorded[k], phase))));
  }
  ASSERT_TRUE(requires_grad(total));
  const auto second = grad(std::span(&total, 1), in, {}, {.allow_unused = true});
  constexpr double kStep = 1e-5;
  for (std::size_t k = 0; k < in.size(); ++k) {
    const auto at = values(in[k]);
    const auto got = second[k].defined() ? values(second[k]) : std::vector<double>(at.size(), 0.0);
    for (std::int64_t i = 0; i < in[k].numel(); ++i) {
      const double before = at[static_cast<std::size_t>(i)];
      const auto moved = [&](double by) {
        NoGradGuard no_grad;
        test::set_element(in[k], i, before + by);
        EnableGradGuard again;
        return weighted_gradients(f, in);
      };
      const double above = moved(kStep), below = moved(-kStep);
      test::set_element(in[k], i, before);
      const double want = (above - below) / (2 * kStep);
      EXPECT_NEAR(got[static_cast<std::size_t>(i)], want, tolerance * std::max(1.0, std::abs(want)))
          << "input " << k << ", element " << i;
    }
  }
}

Function unary(Tensor (*op)(const Tensor&)) {
  return [op](const Inputs& in) { return op(in[0]); };
}

TEST(SecondOrder, Elementwise) {
  const std::map<std::string, Function> ops = {
      {"abs", unary(F::abs)},
      {"exp", unary(F::exp)},
      {"square", unary(F::square)},
      {"tanh", unary(F::tanh)},
      {"sigmoid", unary(F::sigmoid)},
      {"relu", unary(F::relu)},
      {"erf", unary(F::erf)},
      {"gelu", [](const Inputs& in) { return F::gelu(in[0]); }},
      {"gelu tanh", [](const Inputs& in) { return F::gelu(in[0], F::GeluForm::tanh); }},
      {"silu", unary(F::silu)},
      {"leaky_relu", [](const Inputs& in) { return F::leaky_relu(in[0], 0.2); }},
      {"elu", [](const Inputs& in) { return F::elu(in[0], 1.5); }},
      {"softplus", [](const Inputs& in) { return F::softplus(in[0], 2.0, 1.0); }},
      {"clamp", [](const Inputs& in) { return F::clamp(in[0], -0.75, 0.3); }},
      {"hardtanh", [](const Inputs& in) { return F::hardtanh(in[0], -0.75, 0.3); }},
      {"log_sigmoid", unary(F::log_sigmoid)},
      {"relu of a square", [](const Inputs& in) { return F::relu(F::scale(F::square(in[0]), 1.0, -0.5)); }},
      {"dropout",
       [](const Inputs& in) {
         Generator g{3, 1};
         return F::square(F::dropout(in[0], 0.4, true, g));
       }},
  };
  for (const auto& [name, f] : ops) {
    SCOPED_TRACE(name);
    check_second(f, {wave({3, 5}, 0, 1.9)});
    check_second(f, {views::transpose(wave({2, 3}, 1, 1.9), 0, 1)});
  }
}

TEST(SecondOrder, Shapes) {
  check_second([](const Inputs& in) { return F::square(F::narrow(in[0], 1, 1, 2)); }, {wave({2, 4, 2})});
  check_second([](const Inputs& in) { return F::square(F::mean(in[0], {0, 2})); }, {wave({2, 3, 2})});
  check_second(
      [](const Inputs& in) {
        return F::square(F::sum(F::permute(in[0], {2, 0, 1}), {1}));
      },
      {wave({2, 3, 2})});
  check_second([](const Inputs& in) { return F::maximum(F::square(in[0]), in[1]); }, {wave({2, 3}), wave({3}, 1)});
}

TEST(SecondOrder, SoftmaxAndLosses) {
  for (const int dim : {0, 1}) {
    check_second([=](const Inputs& in) { return F::softmax(in[0], dim); }, {wave({3, 4})});
    check_second([=](const Inputs& in) { return F::log_softmax(in[0], dim); }, {wave({3, 4})});
  }
  const Tensor labels = test::from_values<std::int64_t>({3}, {2, -100, 0}), w = wave({4}, 3, 0.4, 1.0);
  for (const auto reduction : {F::Reduction::none, F::Reduction::mean, F::Reduction::sum}) {
    SCOPED_TRACE(static_cast<int>(reduction));
    for (const double smoothing : {0.0, 0.2})
      check_second(
          [=](const Inputs& in) {
            return F::cross_entropy(in[0], labels, {.label_smoothing = smoothing, .reduction = reduction});
          },
          {wave({3, 4}, 0, 1.5)});
    check_second(
        [=](const Inputs& in) { return F::nll_loss(F::square(in[0]), labels, {.weight = w, .reduction = reduction}); },
        {wave({3, 4}, 0, 1.5)});
    const auto two = [&](const char* name, const auto& op, const Tensor& x, const Tensor& t) {
      SCOPED_TRACE(name);
      check_second([=](const Inputs& in) { return op(in[0], in[1], reduction); }, {x, t});
    };
    const Tensor x = wave({2, 4}, 0, 1.5), t = wave({2, 4}, 1), unit = wave({2, 4}, 0, 0.35, 0.5),
                 share = wave({2, 4}, 1, 0.4, 0.5);
    using R = F::Reduction;
    two(
        "mse", [](const Tensor& a, const Tensor& b, R r) { return F::mse_loss(a, b, r); }, x, t);
    two(
        "l1", [](const Tensor& a, const Tensor& b, R r) { return F::l1_loss(a, b, r); }, x, t);
    two(
        "smooth_l1", [](const Tensor& a, const Tensor& b, R r) { return F::smooth_l1_loss(a, b, 0.7, r); }, x, t);
    two(
        "huber", [](const Tensor& a, const Tensor& b, R r) { return F::huber_loss(a, b, 0.7, r); }, x, t);
    two(
        "bce",
        [&](const Tensor& a, const Tensor& b, R r) {
          return F::binary_cross_entropy(a, b, {.weight = w, .reduction = r});
        },
        unit, share);
    two(
        "bce with logits",
        [&](const Tensor& a, const Tensor& b, R r) {
          return F::binary_cross_entropy_with_logits(a, b, {.weight = w, .pos_weight = w, .reduction = r});
        },
        x, share);
    two(
        "kl_div", [](const Tensor& a, const Tensor& b, R r) { return F::kl_div(a, b, {.reduction = r}); }, x, share);
    two(
        "kl_div of logarithms",
        [](const Tensor& a, const Tensor& b, R r) { return F::kl_div(a, b, {.log_target = true, .reduction = r}); }, x,
        t);
  }
}

TEST(SecondOrder, LayersAndPools) {
  const auto line = [](const Inputs& in) { return F::linear(in[0], in[1], in.size() > 2 ? in[2] : Tensor()); };
  check_second(line, {wave({3, 4}), wave({2, 4}, 1), wave({2}, 2)});
  check_second(line, {wave({2, 2, 4}), wave({3, 4}, 1)});
  check_second([](const Inputs& in) { return F::matmul(in[0], in[1]); }, {wave({2, 3}), wave({3, 2}, 1)});
  for (const auto format : {MemoryFormat::contiguous, kLast}) {
    const auto conv = [](F::Conv2dOptions o) {
      return [o](const Inputs& in) { return F::conv2d(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), o); };
    };
    const auto x = [&](const Dims& sizes) { return wave(sizes, 0, 1, 0, DType::f64, format); };
    check_second(conv({.stride = {2, 1}, .padding = {1, 0}}), {x({2, 2, 4, 3}), wave({3, 2, 2, 2}, 1), wave({3}, 2)});
    check_second(conv({.dilation = {1, 2}, .groups = 2}), {x({1, 4, 3, 4}), wave({2, 2, 2, 2}, 1)});
    check_second(
        [](const Inputs& in) {
          return F::square(F::avg_pool2d(in[0], {.kernel = {2, 2}, .stride = {1, 2}}));
        },
        {x({1, 2, 3, 4})});
    check_second([](const Inputs& in) { return F::square(F::adaptive_avg_pool2d(in[0], {2, 1})); }, {x({1, 2, 3, 4})});
  }
  // A strided image is copied for the kernel; its gradient still leads to it.
  check_second([](const Inputs& in) { return F::conv2d(F::transpose(in[0], 2, 3), in[1]); },
               {wave({1, 2, 3, 2}), wave({1, 2, 2, 2}, 1)});
}

TEST(SecondOrder, ThirdDerivatives) {
  const auto third = [](const auto& op, double at) {
    const Tensor x = leaf(test::vector_of({at}, DType::f64));
    const Tensor first = grad(op(x), x, {}, {.create_graph = true});
    const Tensor second = grad(first, x, {}, {.create_graph = true});
    return std::pair{second.item(), grad(second, x).item()};
  };
  for (const auto& op : {+[](const Tensor& x) { return F::gelu(x); }, +[](const Tensor& x) { return F::silu(x); },
                         +[](const Tensor& x) { return F::softplus(x); }, +[](const Tensor& x) { return F::exp(x); }}) {
    const double h = 1e-4, want = (third(op, 0.6 + h).first - third(op, 0.6 - h).first) / (2 * h);
    EXPECT_NEAR(third(op, 0.6).second, want, 1e-6);
  }
}

TEST(SecondOrder, OpsThatCannotSaySo) {
  const Tensor x = leaf(wave({2, 2, 4, 4}));
  const Tensor y = F::max_pool2d(F::batch_norm(x, {}), {});
  const Tensor first = grad(F::sum(F::square(y)), x, {}, {.create_graph = true});
  expect_error(Kind::unsupported, "'batch_norm' is not twice differentiable",
               [&] { grad(F::sum(F::square(first)), x); });
  const Tensor pooled = F::sum(F::square(F::max_pool2d(x, {})));
  const Tensor g = grad(pooled, x, {}, {.create_graph = true});
  expect_error(Kind::unsupported, "'max_pool2d' is not twice differentiable", [&] { backward(F::sum(F::square(g))); });
}

TEST(SecondOrder, SixteenBitGradientsWithAndWithoutAGraph) {
  for (const auto dtype : {DType::f16, DType::bf16, DType::f32}) {
    const Tensor x = leaf(wave({4, 6}, 0, 1.5, 0, dtype)), w = leaf(wave({3, 6}, 1, 1, 0, dtype));
    const Tensor labels = test::from_values<std::int64_t>({4}, {2, 0, 1, 2});
    const auto loss = [&] { return F::cross_entropy(F::gelu(F::linear(x, w)), labels); };
    const Tensor plain = grad(loss(), x), recorded = grad(loss(), x, {}, {.create_graph = true});
    EXPECT_EQ(recorded.dtype(), dtype);
    const double unit = dtype == DType::f32 ? 1e-6 : dtype == DType::f16 ? 0x1p-9 : 0x1p-6;
    expect_values(recorded, values(plain), unit);
  }
}

TEST(Grad, GivesGradientsAndTouchesNone) {
  const Tensor x = leaf(wave({3})), w = leaf(wave({3}, 1)), other = leaf(wave({3}, 2));
  int hooks = 0, looked = 0;
  add_post_accumulate_hook(x, [&](const Tensor&) { ++hooks; });
  add_grad_hook(x, [&](const Tensor& g) {
    ++looked;
    return F::scale(g, 2.0);
  });
  const Tensor middle = F::mul(x, w), y = F::sum(F::square(middle));
  const Tensor all[] = {x, w, middle, x};
  const auto g = grad(std::span(&y, 1), all, {}, {.retain_graph = true});
  const auto xs = values(x), ws = values(w);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(values(g[0])[i], 2 * 2 * xs[i] * ws[i] * ws[i], 1e-14);  // doubled by the hook
    EXPECT_NEAR(values(g[1])[i], 2 * xs[i] * xs[i] * ws[i], 1e-14);
    EXPECT_NEAR(values(g[2])[i], 2 * xs[i] * ws[i], 1e-14);
  }
  EXPECT_EQ(values(g[3]), values(g[0]));
  EXPECT_EQ(hooks, 0);
  EXPECT_EQ(looked, 1);
  EXPECT_FALSE(grad(x).defined());
  EXPECT_FALSE(grad(w).defined());
  // An output as its own input, and a gradient for it.
  const Tensor dy = test::full({}, 3.0, DType::f64);
  expect_values(grad(y, y, dy, {.retain_graph = true}), {3}, 0);
  expect_error(Kind::state, "no output depends on input 0", [&] { grad(y, other, {}, {.retain_graph = true}); });
  EXPECT_FALSE(grad(y, other, {}, {.retain_graph = true, .allow_unused = true}).defined());
  expect_error(Kind::state, "input 0 requires no gradient", [&] { grad(y, wave({3})); });
  expect_error(Kind::argument, "2 gradients for 1 outputs", [&] {
    const Tensor two[] = {dy, dy};
    grad(std::span(&y, 1), all, two);
  });
}

TEST(Grad, RunsOnlyWhatLiesBetween) {
  const Tensor x = leaf(wave({2})), w = leaf(wave({2}, 1));
  const Tensor early = F::exp(x), middle = F::mul(early, w), y = F::sum(middle);
  int early_gradients = 0;
  add_grad_hook(early, [&](const Tensor&) {
    ++early_gradients;
    return Tensor();
  });
  grad(y, middle, {}, {.retain_graph = true});
  grad(y, w, {}, {.retain_graph = true});
  EXPECT_EQ(early_gradients, 0);
  grad(y, x);
  EXPECT_EQ(early_gradients, 1);
  expect_error(Kind::state, "released by an earlier backward", [&] { grad(y, x); });
}

TEST(Grad, SeveralOutputsAreSummed) {
  const Tensor x = leaf(wave({3}));
  const Tensor outputs[] = {F::square(x), F::exp(x)};
  const Tensor gradients[] = {test::full({3}, 2.0, DType::f64), test::full({3}, -1.0, DType::f64)};
  const auto g = grad(outputs, std::span(&x, 1), gradients);
  const auto xs = values(x);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(values(g[0])[i], 4 * xs[i] - std::exp(xs[i]), 1e-14);
}

/// A critic and the penalty of Gulrajani et al. 2017 (arXiv:1704.00028): 10 mean (|d critic / d x| - 1)^2.
struct Critic {
  std::vector<Tensor> parameters;
  bool image;

  explicit Critic(bool of_images) : image(of_images) {
    if (image)
      parameters = {wave({4, 2, 3, 3}, 0, 0.4), wave({4}, 1, 0.1), wave({1, 4 * 4 * 4}, 2, 0.3)};
    else
      parameters = {wave({5, 6}, 0, 0.6), wave({5}, 1, 0.1), wave({1, 5}, 2, 0.5)};
    for (const Tensor& p : parameters) leaf(p);
  }
  Dims sizes() const { return image ? Dims{3, 2, 4, 4} : Dims{3, 6}; }
  Tensor score(const Tensor& x) const {
    const Tensor hidden = image ? F::flatten(F::conv2d(x, parameters[0], parameters[1], {.padding = {1, 1}}), 1)
                                : F::linear(x, parameters[0], parameters[1]);
    return F::linear(F::leaky_relu(hidden, 0.2), parameters[2]);
  }
  Tensor loss() const {
    const Tensor real = wave(sizes(), 5), fake = wave(sizes(), 9, 0.5);
    const Tensor between = leaf(F::add(F::scale(real, 0.3), F::scale(fake, 0.7)).detach());
    const Tensor slope = F::flatten(grad(F::sum(score(between)), between, {}, {.create_graph = true}), 1);
    const Tensor norm = F::sqrt(F::sum(F::square(slope), {1}));
    const Tensor penalty = F::mean(F::square(F::scale(norm, 1.0, -1.0)));
    return F::add(F::sub(F::mean(score(fake)), F::mean(score(real))), F::scale(penalty, 10.0));
  }
};

TEST(GradientPenalty, ATrainingStepMatchesDifferences) {
  for (const bool image : {false, true}) {
    SCOPED_TRACE(image);
    Critic critic(image);
    backward(critic.loss());
    for (const Tensor& p : critic.parameters) {
      const auto at = values(p);
      const auto got = values(grad(p));
      for (std::int64_t i = 0; i < p.numel(); i += 3) {
        const double before = at[static_cast<std::size_t>(i)], h = 1e-6;
        test::set_element(p, i, before + h);
        const double above = critic.loss().item();
        test::set_element(p, i, before - h);
        const double below = critic.loss().item();
        test::set_element(p, i, before);
        EXPECT_NEAR(got[static_cast<std::size_t>(i)], (above - below) / (2 * h), 1e-6) << i;
      }
    }
  }
}

TEST(GradientPenalty, TrainingLowersTheLossAndKeepsNoMemory) {
  for (const bool image : {false, true}) {
    Critic critic(image);
    double first = 0, last = 0;
    std::weak_ptr<Storage> inner;
    std::size_t live = 0;
    for (int step = 0; step < 12; ++step) {
      {
        const Tensor loss = critic.loss();
        inner = loss.storage();
        backward(loss);
        (step == 0 ? first : last) = loss.item();
      }
      EXPECT_TRUE(inner.expired()) << "something still holds the loss";
      {
        NoGradGuard no_grad;
        for (const Tensor& p : critic.parameters) {
          add_(p, grad(p), -0.01);
          zero_(grad(p));
        }
      }
      if (step == 1) live = host_pool::stats().live;
    }
    EXPECT_LT(last, first);
    EXPECT_TRUE(test::on_cuda() || host_pool::stats().live == live) << "memory of a step is left";
  }
}

TEST(GradientPenalty, AllIsFreedWithTheLastHandle) {
  std::vector<std::weak_ptr<Storage>> all;
  const Tensor w = leaf(wave({3, 3}));
  const auto before = host_pool::stats().live;
  {
    const Tensor x = leaf(wave({2, 3}, 1));
    const Tensor y = F::tanh(F::linear(x, w)), first = grad(F::sum(y), x, {}, {.create_graph = true}),
                 norm = F::sum(F::square(first)), second = grad(norm, w, {}, {.create_graph = true}),
                 third = grad(F::sum(F::square(second)), w, {}, {.create_graph = true});
    for (const Tensor& t : {x, y, first, norm, second, third}) all.push_back(t.storage());
  }
  for (const auto& storage : all) EXPECT_TRUE(storage.expired());
  EXPECT_TRUE(test::on_cuda() || host_pool::stats().live == before);
  EXPECT_FALSE(grad(w).defined());
}

TEST(GradientPenalty, GradientsOfBackwardWithAGraphAreFreedWhenTheyAreDropped) {
  std::weak_ptr<Storage> held;
  {
    const Tensor x = leaf(wave({3}));
    backward(F::sum(F::exp(x)), {}, {.create_graph = true});
    held = grad(x).storage();
    set_grad(x, {});  // a gradient that leads back to its leaf is a cycle until then
  }
  EXPECT_TRUE(held.expired());
}

}  // namespace
}  // namespace apex
