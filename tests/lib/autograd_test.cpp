// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <thread>

#include "apex/core/storage.hpp"
#include "apex/nn/functional.hpp"
#include "apex/tensor_ops.hpp"
#include "lib/support.hpp"

namespace apex {
namespace {

namespace F = nn::functional;
using test::expect_error;
using test::expect_values;
using test::leaf;
using test::vector_of;
using test::wave;

TEST(Autograd, LeavesAndResults) {
  const Tensor x = leaf(wave({3}));
  EXPECT_TRUE(requires_grad(x));
  EXPECT_TRUE(is_leaf(x));
  const Tensor y = F::exp(x);
  EXPECT_TRUE(requires_grad(y));
  EXPECT_FALSE(is_leaf(y));
  EXPECT_FALSE(requires_grad(y.detach()));
  EXPECT_FALSE(requires_grad(wave({2})));
  EXPECT_FALSE(grad(x).defined());
  expect_error(Kind::state, "use detach()", [&] { set_requires_grad(y, false); });
  expect_error(Kind::state, "not a leaf", [&] { set_grad(y, wave({3})); });
  expect_error(Kind::argument, "i64", [] { set_requires_grad(test::empty({2}, DType::i64)); });
  EXPECT_NO_THROW(set_requires_grad(test::empty({2}, DType::i64), false));
}

TEST(Autograd, SetGradChecksWhatItGets) {
  const Tensor x = leaf(wave({2, 3}));
  const Tensor g = wave({2, 3}, 1);
  set_grad(x, g);
  EXPECT_TRUE(grad(x).is_same(g));
  expect_error(Kind::argument, "[3, 2]", [&] { set_grad(x, wave({3, 2})); });
  expect_error(Kind::argument, "i64", [&] { set_grad(x, test::empty({2, 3}, DType::i64)); });
  set_grad(x, {});
  EXPECT_FALSE(grad(x).defined());
}

TEST(Autograd, SameTensorTwice) {
  const Tensor x = leaf(vector_of({3}, DType::f64));
  backward(F::mul(x, x));
  expect_values(grad(x), {6}, 0);
  backward(F::add(F::mul(x, x), x));  // accumulates: 6 + 6 + 1
  expect_values(grad(x), {13}, 0);
}

TEST(Autograd, DiamondSumsBothPaths) {
  const Tensor x = leaf(vector_of({2}, DType::f64));
  const Tensor a = F::scale(x, 3), b = F::mul(a, a);
  backward(F::add(F::mul(a, b), b));  // a^3 + a^2 with a = 3x: (3 a^2 + 2 a) 3
  expect_values(grad(x), {3 * (3 * 36 + 2 * 6.0)}, 0);
}

TEST(Autograd, LeafAsItsOwnRoot) {
  const Tensor x = leaf(vector_of({2}, DType::f64));
  int fired = 0;
  add_post_accumulate_hook(x, [&](const Tensor&) { ++fired; });
  backward(x);
  expect_values(grad(x), {1}, 0);
  const Tensor g = vector_of({5}, DType::f64);
  backward(x, g);
  expect_values(grad(x), {6}, 0);
  expect_values(g, {5}, 0);
  EXPECT_EQ(fired, 2);
}

TEST(Autograd, GivenGradientIsNeitherKeptNorChanged) {
  const Tensor x = leaf(wave({3}));
  const Tensor g = wave({3}, 4);
  const auto before = test::values(g);
  backward(x, g);
  EXPECT_FALSE(grad(x).storage() == g.storage());
  backward(x, g);
  expect_values(g, before, 0);
}

TEST(Autograd, RootErrors) {
  const Tensor x = leaf(wave({3}));
  expect_error(Kind::argument, "[3]", [&] { backward(F::exp(x)); });
  expect_error(Kind::state, "requires no gradient", [] { backward(wave({1})); });
  expect_error(Kind::argument, "undefined", [] { backward(Tensor()); });
  expect_error(Kind::argument, "the gradient given", [&] { backward(F::exp(x), wave({4})); });
  expect_error(Kind::argument, "the gradient given", [&] { backward(F::exp(x), wave({3}, 0, 1, 0, DType::f32)); });
  const Tensor roots[] = {F::exp(x), F::exp(x)};
  const Tensor one[] = {wave({3})};
  expect_error(Kind::argument, "1 gradients for 2 roots", [&] { backward(roots, one); });
  Tensor y;
  {
    NoGradGuard no_grad;
    y = F::sum(x);
  }
  expect_error(Kind::state, "grad mode was off", [&] { backward(y); });
}

TEST(Autograd, SeveralRootsInOnePass) {
  const Tensor x = leaf(vector_of({2}, DType::f64));
  int fired = 0;
  add_post_accumulate_hook(x, [&](const Tensor& t) {
    ++fired;
    expect_values(grad(t), {4 + 30.0}, 0);
  });
  const Tensor roots[] = {F::mul(x, x), F::scale(x, 3)};
  const Tensor gradients[] = {Tensor(), vector_of({10}, DType::f64)};
  backward(roots, gradients);
  EXPECT_EQ(fired, 1);
}

TEST(Autograd, GradModeIsThreadLocalAndNests) {
  EXPECT_TRUE(grad_mode());
  const Tensor x = leaf(wave({2}));
  {
    NoGradGuard off;
    EXPECT_FALSE(requires_grad(F::exp(x)));
    std::thread([] { EXPECT_TRUE(grad_mode()); }).join();
    {
      EnableGradGuard on;
      EXPECT_TRUE(requires_grad(F::exp(x)));
    }
    EXPECT_FALSE(grad_mode());
  }
  EXPECT_TRUE(grad_mode());
}

TEST(Autograd, HooksRunWithoutGradModeAndModeSurvivesExceptions) {
  const Tensor x = leaf(wave({2}));
  auto handle = add_post_accumulate_hook(x, [&](const Tensor& t) {
    EXPECT_FALSE(grad_mode());
    EXPECT_FALSE(requires_grad(F::exp(t)));
    throw std::runtime_error("from a hook");
  });
  EXPECT_THROW(backward(F::sum(x)), std::runtime_error);
  EXPECT_TRUE(grad_mode());
  expect_error(Kind::state, "no backward is running", [] { queue_backward_callback([] {}); });
  handle.remove();
  set_grad(x, {});
  EXPECT_NO_THROW(backward(F::sum(x)));
  expect_values(grad(x), {1, 1}, 0);
}

TEST(Autograd, LeafHooksFireOnceWhenComplete) {
  const Tensor x = leaf(vector_of({2}, DType::f64)), w = leaf(vector_of({5}, DType::f64));
  std::vector<std::string> order;
  auto first = add_post_accumulate_hook(x, [&](const Tensor& t) {
    order.push_back("x1");
    expect_values(grad(t), {5 + 1 + 4.0}, 0);  // x w + x + x^2
  });
  add_post_accumulate_hook(x, [&](const Tensor&) { order.push_back("x2"); });
  add_post_accumulate_hook(w, [&](const Tensor&) { order.push_back("w"); });
  const auto loss = [&] { return F::add(F::add(F::mul(x, w), x), F::mul(x, x)); };
  backward(loss());
  EXPECT_EQ(order, (std::vector<std::string>{"w", "x1", "x2"}));
  first.remove();
  first.remove();
  HookHandle().remove();
  order.clear();
  backward(loss());
  EXPECT_EQ(order, (std::vector<std::string>{"w", "x2"}));
  expect_error(Kind::state, "not a leaf", [&] { add_post_accumulate_hook(F::exp(x), [](const Tensor&) {}); });
  expect_error(Kind::state, "not a leaf", [] { add_post_accumulate_hook(wave({1}), [](const Tensor&) {}); });
}

TEST(Autograd, ALeafReachedWithoutGradientStillFires) {
  const Tensor x = leaf(wave({2})), z = leaf(wave({2}, 1));
  int fired = 0;
  add_post_accumulate_hook(z, [&](const Tensor& t) {
    ++fired;
    EXPECT_FALSE(grad(t).defined());
  });
  const Tensor y =
      record(F::scale(x.detach(), 2.0), {.name = "half_silent", .inputs = {x, z}, .backward = [](const Tensor& dy) {
                                           return Gradients{dy, Tensor()};
                                         }});
  backward(F::sum(y));
  EXPECT_EQ(fired, 1);
  expect_values(grad(x), {1, 1}, 0);
}

TEST(Autograd, HookMayRemoveItself) {
  const Tensor x = leaf(wave({1}));
  int fired = 0;
  HookHandle handle;
  handle = add_post_accumulate_hook(x, [&](const Tensor&) {
    ++fired;
    handle.remove();
  });
  backward(F::exp(x));
  backward(F::exp(x));
  EXPECT_EQ(fired, 1);
}

TEST(Autograd, CallbacksRunAfterTheLastHook) {
  const Tensor a = leaf(wave({1})), b = leaf(wave({1}, 1));
  std::vector<std::string> order;
  const auto thread = std::this_thread::get_id();
  add_post_accumulate_hook(b, [&](const Tensor&) {
    order.push_back("b");
    queue_backward_callback([&] {
      EXPECT_EQ(std::this_thread::get_id(), thread);
      order.push_back("first");
      queue_backward_callback([&] { order.push_back("third"); });
    });
    queue_backward_callback([&] { order.push_back("second"); });
  });
  add_post_accumulate_hook(a, [&](const Tensor&) { order.push_back("a"); });
  backward(F::mul(F::exp(a), b));
  EXPECT_EQ(order, (std::vector<std::string>{"b", "a", "first", "second", "third"}));
}

TEST(Autograd, CallbackExceptionsLeaveBackward) {
  const Tensor x = leaf(wave({1}));
  bool second = false;
  auto handle = add_post_accumulate_hook(x, [&](const Tensor&) {
    queue_backward_callback([] { throw std::runtime_error("from a callback"); });
    queue_backward_callback([&] { second = true; });
  });
  EXPECT_THROW(backward(F::exp(x)), std::runtime_error);
  EXPECT_FALSE(second);
  handle.remove();
  EXPECT_NO_THROW(backward(F::exp(x)));
  EXPECT_FALSE(second);
}

TEST(Autograd, BackwardInsideAHook) {
  const Tensor x = leaf(vector_of({1}, DType::f64)), y = leaf(vector_of({2}, DType::f64));
  std::vector<std::string> order;
  add_post_accumulate_hook(x, [&](const Tensor&) {
    queue_backward_callback([&] { order.push_back("outer"); });
    EnableGradGuard on;
    backward(F::mul(y, y));
    order.push_back("inner done");
  });
  add_post_accumulate_hook(y, [&](const Tensor&) { queue_backward_callback([&] { order.push_back("inner"); }); });
  backward(F::exp(x));
  EXPECT_EQ(order, (std::vector<std::string>{"inner", "inner done", "outer"}));
  expect_values(grad(y), {4}, 0);
}

TEST(Autograd, GradHooksSeeAndReplaceCompleteGradients) {
  const Tensor x = leaf(vector_of({2}, DType::f64));
  const Tensor y = F::scale(x, 3);
  int seen = 0;
  add_grad_hook(y, [&](const Tensor& g) {
    ++seen;
    expect_values(g, {12 + 1.0}, 0);  // y^2 + y at 6
    return F::neg(g);
  });
  auto on_leaf = add_grad_hook(x, [&](const Tensor& g) {
    expect_values(g, {-39}, 0);
    return Tensor();
  });
  backward(F::add(F::mul(y, y), y));
  EXPECT_EQ(seen, 1);
  expect_values(grad(x), {-39}, 0);
  on_leaf.remove();
  expect_error(Kind::state, "requires no gradient",
               [] { add_grad_hook(wave({1}), [](const Tensor& g) { return g; }); });
  const Tensor z = F::scale(x, 2);
  add_grad_hook(z, [](const Tensor&) { return wave({7}); });
  expect_error(Kind::argument, "gradient hook", [&] { backward(z); });
}

TEST(Autograd, SavedTensorChangedInPlaceIsNamed) {
  const Tensor x = leaf(wave({3}));
  const Tensor w = wave({3}, 2);
  Tensor y = F::mul(x, w);
  add_(w, w);
  expect_error(Kind::state, "'b' ([3]) saved by 'mul'", [&] { backward(F::sum(y)); });
  y = F::exp(x);
  fill_(y.detach(), 0.0);  // the output is what exp saves; a view shares its version
  expect_error(Kind::state, "'output' ([3]) saved by 'exp'", [&] { backward(F::sum(y)); });
  y = F::mul(x, w);
  w.set_data(wave({3}, 5));
  expect_error(Kind::state, "'b' ([3]) saved by 'mul'", [&] { backward(F::sum(y)); });
  y = F::add(x, w);  // saves nothing
  add_(w, w);
  EXPECT_NO_THROW(backward(F::sum(y)));
}

TEST(Autograd, InPlaceOpsRefuseTensorsThatRequireGradients) {
  const Tensor x = leaf(wave({3}));
  expect_error(Kind::state, "fill_", [&] { fill_(x, 0); });
  expect_error(Kind::state, "copy_", [&] { copy_(x, wave({3})); });
  expect_error(Kind::state, "add_", [&] { add_(F::exp(x), x); });
  expect_error(Kind::state, "mul_", [&] { mul_(x, 2); });
  NoGradGuard no_grad;
  const auto version = x.version();
  copy_(x, wave({3}, 1));
  add_(x, wave({3}, 2), 0.5);
  mul_(x, 2.0);
  EXPECT_EQ(x.version(), version + 3);
  const auto a = test::values(wave({3}, 1)), b = test::values(wave({3}, 2));
  expect_values(x, {2 * (a[0] + b[0] / 2), 2 * (a[1] + b[1] / 2), 2 * (a[2] + b[2] / 2)}, 1e-15);
}

TEST(Autograd, SecondBackwardNeedsRetainGraph) {
  const Tensor x = leaf(vector_of({3}, DType::f64));
  Tensor y = F::mul(x, x);
  backward(y, {}, {.retain_graph = true});
  backward(y);
  expect_values(grad(x), {12}, 0);
  expect_error(Kind::state, "'mul' saved was released", [&] { backward(y); });
}

/// Bytes in use on the device under test.
std::size_t live_bytes() {
#ifdef APEX_HAS_CUDA
  if (test::on_cuda()) return cuda::memory_stats(test::device()).live;
#endif
  return host_pool::stats().live;
}

TEST(Autograd, SavedTensorsGoAsBackwardPasses) {
  host_pool::trim();
  const auto before = live_bytes();
  const std::int64_t n = 1 << 16;
  const Tensor x = leaf(wave({n}));
  std::vector<std::size_t> live;
  Tensor y = x;
  for (int i = 0; i < 8; ++i) {
    y = F::tanh(y);
    add_grad_hook(y, [&](const Tensor&) {
      live.push_back(live_bytes());
      return Tensor();
    });
  }
  backward(F::sum(y));
  y = Tensor();
  ASSERT_EQ(live.size(), 8u);
  for (std::size_t i = 2; i < live.size(); ++i)  // each step back frees one activation; at most one gradient is new
    EXPECT_LE(live[i] + n * sizeof(double), live[i - 1]) << i;
  EXPECT_LE(live_bytes(), before + 2 * n * sizeof(double) + 4096);  // x and its gradient
}

TEST(Autograd, FirstContributionIsMovedIntoPlace) {
  const Tensor x = leaf(wave({64}));
  const void* made = nullptr;
  const Tensor y = record(wave({64}), {.name = "maker", .inputs = {x}, .backward = [&](const Tensor& dy) -> Gradients {
                                         Tensor g = clone(dy);
                                         made = g.raw_data();
                                         return {std::move(g)};
                                       }});
  backward(y, wave({64}, 3));
  EXPECT_EQ(grad(x).raw_data(), made);
  const Tensor a = leaf(wave({8})), b = leaf(wave({8}, 1));
  backward(F::add(a, b), wave({8}, 2));  // one gradient for both: it must not be shared
  EXPECT_NE(grad(a).raw_data(), grad(b).raw_data());
}

TEST(Autograd, ExistingGradientIsAddedToInPlace) {
  const Tensor x = leaf(wave({4}));
  const Tensor g = test::zeros({4}, DType::f64);
  set_grad(x, g);
  backward(F::sum(x));
  EXPECT_TRUE(grad(x).is_same(g));
  expect_values(g, {1, 1, 1, 1}, 0);
}

TEST(Autograd, GradientsFollowTheParametersStrides) {
  const Tensor w = leaf(wave({2, 3, 4, 5}, 0, 1, 0, DType::f64, MemoryFormat::channels_last));
  backward(F::sum(F::mul(w, wave({2, 3, 4, 5}, 1))));
  EXPECT_EQ(grad(w).strides(), w.strides());
  expect_values(grad(w), test::values(wave({2, 3, 4, 5}, 1)), 0);
  const Tensor t = leaf(views::transpose(wave({3, 4}), 0, 1));
  backward(F::sum(F::scale(t, 2.0)));
  EXPECT_EQ(grad(t).strides(), t.strides());
}

TEST(Autograd, BackwardMayReturnOnlyWhatFits) {
  const Tensor x = leaf(wave({3}));
  const auto with = [&](BackwardFunction f) {
    return record(wave({3}), {.name = "odd", .inputs = {x}, .backward = std::move(f)});
  };
  expect_error(Kind::argument, "input 0 of 'odd'",
               [&] { backward(F::sum(with([](const Tensor&) { return Gradients{wave({2})}; }))); });
  expect_error(Kind::argument, "f32", [&] {
    backward(F::sum(with([](const Tensor&) { return Gradients{wave({3}, 0, 1, 0, DType::f32)}; })));
  });
  expect_error(Kind::state, "returned 2 gradients for 1 inputs", [&] {
    backward(F::sum(with([](const Tensor& dy) { return Gradients{dy, dy}; })));
  });
  expect_error(Kind::state, "one of its inputs", [&] { record(x, {.name = "same", .inputs = {x}, .backward = {}}); });
}

TEST(Autograd, NeedsMaskAndSeveralOutputs) {
  const Tensor x = leaf(wave({2})), c = wave({2}, 1);
  std::vector<bool> needs;
  std::vector<bool> got;
  const auto outputs =
      record({wave({2}, 3), wave({2}, 4), test::empty({2}, DType::i64)},
             {.name = "many", .inputs = {c, x, Tensor()}, .backward = [&](BackwardCall& call) -> Gradients {
                for (const bool n : call.needs) needs.push_back(n);
                for (const Tensor& g : call.grads) got.push_back(g.defined());
                return {Tensor(), std::move(call.grads[1]), Tensor()};
              }});
  EXPECT_TRUE(requires_grad(outputs[0]));
  EXPECT_FALSE(requires_grad(outputs[2]));
  backward(F::sum(outputs[1]));
  EXPECT_EQ(needs, (std::vector<bool>{false, true, false}));
  EXPECT_EQ(got, (std::vector<bool>{false, true, false}));
  expect_values(grad(x), {1, 1}, 0);
}

TEST(Autograd, NothingIsKeptWithoutNeed) {
  auto token = std::make_shared<int>(1);
  const Tensor x = wave({2});
  const auto make = [&](const Tensor& input) {
    return record(wave({2}), {.name = "keeper", .inputs = {input}, .backward = [token](const Tensor& dy) {
                                return Gradients{dy};
                              }});
  };
  const Tensor a = make(x);
  EXPECT_EQ(token.use_count(), 1);
  leaf(x);
  const Tensor b = make(x);
  EXPECT_EQ(token.use_count(), 2);
  backward(F::sum(b));
  EXPECT_EQ(token.use_count(), 1);
}

TEST(Autograd, DeepChainsNeedNoDeepStack) {
  const Tensor x = leaf(vector_of({1}, DType::f64));
  Tensor y = x;
  for (int i = 0; i < 300000; ++i) y = F::scale(y, 1.0);
  y = Tensor();  // never differentiated
  y = x;
  for (int i = 0; i < 100000; ++i) y = F::mul(y, x);
  for (int i = 0; i < 100000; ++i) y = F::scale(y, 1.0);
  backward(y);
  expect_values(grad(x), {100001}, 0);
}

TEST(Autograd, ExpandedUpstreamGradients) {
  const Tensor x = leaf(wave({3, 4}));
  backward(F::sum(F::relu(F::exp(x))));  // sum hands on a gradient of stride 0
  const auto v = test::values(x), g = test::values(grad(x));
  for (std::size_t i = 0; i < v.size(); ++i) EXPECT_NEAR(g[i], std::exp(v[i]), 1e-14);
  const Tensor w = leaf(wave({2, 3}));
  backward(F::sum(w));  // straight into a leaf: it gets memory of its own
  EXPECT_TRUE(grad(w).is_contiguous());
  backward(F::sum(w));
  expect_values(grad(w), {2, 2, 2, 2, 2, 2}, 0);
}

TEST(Autograd, ReachableLeaves) {
  const Tensor a = leaf(wave({1})), b = leaf(wave({1})), c = leaf(wave({1})), unused = leaf(wave({1}));
  const Tensor outputs[] = {F::mul(F::exp(a), b), F::add(a, c), wave({1})};
  const auto leaves = reachable_leaves(outputs);
  EXPECT_EQ(leaves.size(), 3u);
  for (const Tensor& t : {a, b, c})
    EXPECT_EQ(std::count_if(leaves.begin(), leaves.end(), [&](const Tensor& l) { return l.is_same(t); }), 1);
  EXPECT_TRUE(reachable_leaves(std::span<const Tensor>()).empty());
}

TEST(Autograd, CreateGraphGivesSecondDerivatives) {
  const Tensor x = leaf(vector_of({0.5}, DType::f64));
  backward(F::mul(x, F::mul(x, x)), {}, {.create_graph = true});
  const Tensor first = grad(x);
  expect_values(first, {3 * 0.25}, 1e-15);
  set_grad(x, {});
  backward(first);
  expect_values(grad(x), {6 * 0.5}, 1e-15);
  set_grad(x, {});
}

TEST(Autograd, NotTwiceDifferentiable) {
  const Tensor x = leaf(wave({1, 1, 2, 2}));
  backward(F::max_pool2d(x, {}), test::ones({1, 1, 1, 1}, DType::f64), {.create_graph = true});
  const Tensor first = grad(x);
  set_grad(x, {});
  expect_values(F::sum(first), {1}, 0);
  expect_error(Kind::unsupported, "'max_pool2d' is not twice differentiable",
               [&] { backward(F::sum(F::mul(first, first))); });
}

/// A tensor that batch norm with a residual made, and what becomes of it: as in a residual network its gradient arrives
/// in parts, of which the op adds the last by itself.
struct Branching {
  std::vector<Tensor> leaves;  // x, residual, weight, bias
  Tensor y;

  Branching(DType dtype, MemoryFormat format) {
    const Dims sizes{3, 16, 5, 7};
    for (const int k : {0, 1}) leaves.push_back(leaf(wave(sizes, k, 1.0, 0.1, dtype, format)));
    for (const int k : {2, 3}) leaves.push_back(leaf(wave({16}, k, 0.5, 1.0, accum_dtype(dtype))));
    y = F::batch_norm_add_relu(leaves[0], leaves[1], {.weight = leaves[2], .bias = leaves[3]});
  }
  std::vector<std::vector<double>> gradients() const {
    std::vector<std::vector<double>> all;
    for (const auto& t : leaves) all.push_back(test::values(grad(t)));
    return all;
  }
};

TEST(Autograd, PartsOfAGradientMeetInBatchNormWithTheBitsOfTheirSum) {
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
      for (const int consumers : {2, 3}) {
        SCOPED_TRACE(concat(dtype, format == MemoryFormat::channels_last, consumers));
        // Products with constants: the gradients that arrive are known, in the reverse of the order of the forward
        // pass.
        const auto factor = [&](int k) { return wave({3, 16, 5, 7}, 10 + k, 1.0, 0.3, dtype, format); };
        const auto products = [&](const Branching& b) {
          std::vector<Tensor> roots;
          for (int k = 0; k < consumers; ++k) roots.push_back(F::mul(b.y, factor(k)));
          return roots;
        };
        const auto run = [&](const Branching& b, const BackwardOptions& options = {}) {
          const auto roots = products(b);
          const std::vector<Tensor> grads(roots.size(), factor(20));
          backward(roots, grads, options);
        };
        const Branching parts(dtype, format);
        Tensor whole;
        {
          const NoGradGuard no_grad;
          for (int k = consumers - 1; k >= 0; --k) {
            const Tensor term = F::mul(factor(20), factor(k));
            whole = whole.defined() ? F::add(whole, term) : term;
          }
        }
        const Branching summed(dtype, format);
        backward(summed.y, whole);
        const auto want = summed.gradients();

        run(parts);
        EXPECT_EQ(parts.gradients(), want);

        const Branching hooked(dtype, format);
        std::vector<double> seen;
        add_grad_hook(hooked.y, [&](const Tensor& g) {
          seen = test::values(g);
          return Tensor();
        });
        run(hooked);
        EXPECT_EQ(seen, test::values(whole)) << "a hook sees the whole";
        EXPECT_EQ(hooked.gradients(), want);

        const Branching twice(dtype, format);
        const auto roots = products(twice);
        const std::vector<Tensor> grads(roots.size(), factor(20));
        for (const bool retain : {true, false}) {
          backward(roots, grads, {.retain_graph = retain});
          EXPECT_EQ(twice.gradients(), want) << retain;
          for (const auto& t : twice.leaves) set_grad(t, {});
        }

        const Branching differentiable(dtype, format);
        run(differentiable, {.create_graph = true});
        EXPECT_EQ(differentiable.gradients(), want);
        for (const auto& t : differentiable.leaves) set_grad(t, {});
      }
}

TEST(Autograd, LeafConvertedBetweenPassesIsAnError) {
  const Tensor x = leaf(wave({2}));
  const Tensor y = F::add(x, wave({2}, 1));
  x.set_data(F::cast(x.detach(), DType::f32));
  expect_error(Kind::argument, "converted since the forward pass", [&] { backward(F::sum(y)); });
}

TEST(Autograd, HooksAndGradientSurviveSetData) {
  const Tensor x = leaf(wave({2}));
  int fired = 0;
  add_post_accumulate_hook(x, [&](const Tensor&) { ++fired; });
  x.set_data(F::cast(x.detach(), DType::f32));
  backward(F::sum(x));
  EXPECT_EQ(fired, 1);
  EXPECT_EQ(grad(x).dtype(), DType::f32);
}

TEST(Autograd, BackwardOnAnotherThread) {
  const Tensor x = leaf(vector_of({3}, DType::f64));
  const Tensor y = F::mul(x, x);
  std::thread([&] { backward(y); }).join();
  expect_values(grad(x), {6}, 0);
}

TEST(TensorOps, CopyTakesASourceThatSharesMemory) {
  const Tensor x = test::from_values<double>({2, 2}, {1., 2., 3., 4.});
  copy_(x, views::expand(views::narrow(x, 0, 0, 1), {2, 2}));
  EXPECT_EQ(test::values(x), (std::vector<double>{1, 2, 1, 2}));
  const Tensor z = test::from_values<double>({2, 2}, {1., 2., 3., 4.});
  copy_(z, views::transpose(z, 0, 1));
  EXPECT_EQ(test::values(z), (std::vector<double>{1, 3, 2, 4}));
  copy_(z, z);
  EXPECT_EQ(test::values(z), (std::vector<double>{1, 3, 2, 4}));
}

}  // namespace
}  // namespace apex
