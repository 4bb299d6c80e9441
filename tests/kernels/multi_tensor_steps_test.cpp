// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/multi_tensor_optimizers.hpp"

#include <functional>
#include <tuple>

#include "apex/kernels/copy.hpp"
#include "kernels/multi_tensor_lists.hpp"

namespace apex {
namespace {

using kernels::AdamMode;
using kernels::AdamOptions;
using kernels::LambOptions;
using kernels::NormType;
using test::awkward;
using test::kG;
using test::kP;
using test::List;
using test::make;
using test::parts_of;
using test::throws;
using test::values;
using test::zeros;
using test::zeros_like;

/// What one op works on, and how it is called; `counts` empty: the step is the host's.
struct Subject {
  const char* name;
  std::vector<List> lists;
  List counts;
  std::function<void(const Subject&, const kernels::StepInputs&, std::int64_t step)> run;

  std::vector<double> state() const {
    std::vector<double> out;
    for (const auto& l : lists)
      for (const double v : l.joined()) out.push_back(v);
    for (const double v : counts.joined()) out.push_back(v);
    return out;
  }
};

/// Every optimizer; the last list holds the gradients.
std::vector<Subject> subjects(bool counted, std::uint64_t seed = 1) {
  const auto list = [&](std::uint64_t by, double low = -1) { return awkward(DType::f32, seed + by, low); };
  const auto counts = [&](std::size_t n) {
    List out;
    if (counted)
      for (std::size_t i = 0; i < n; ++i) out.add(values<std::int32_t>({1}, {3}));
    return out;
  };
  std::vector<Subject> out;
  using In = kernels::StepInputs;
  out.push_back({"adam",
                 {list(1), list(2), list(3, 0.1), list(4)},
                 counts(8),
                 [](const Subject& s, const In& in, std::int64_t step) {
                   const auto& l = s.lists;
                   kernels::multi_tensor_adam(test::context(), l[0].views, l[1].views, l[2].views, {}, l[3].const_views,
                                              s.counts.views, {.in = in, .lr = 0.1, .step = step});
                 }});
  out.push_back({"adam with one count",
                 {list(1), list(2), list(3, 0.1), awkward(DType::bf16, 9), list(4)},
                 counts(1),
                 [](const Subject& s, const In& in, std::int64_t step) {
                   const auto& l = s.lists;
                   kernels::multi_tensor_adam(test::context(), l[0].views, l[1].views, l[2].views, l[3].views,
                                              l[4].const_views, s.counts.views,
                                              {.in = in, .lr = 0.1, .mode = AdamMode::legacy, .step = step});
                 }});
  out.push_back({"adam with an average",
                 {list(1), list(2), list(3, 0.1), list(5), list(4)},
                 counts(8),
                 [](const Subject& s, const In& in, std::int64_t step) {
                   const auto& l = s.lists;
                   kernels::multi_tensor_adam_swa(
                       test::context(), l[0].views, l[1].views, l[2].views, {}, l[3].views, l[4].const_views,
                       s.counts.views, {.in = in, .lr = 0.1, .mode = AdamMode::torch_order, .step = step}, 0.9, 1);
                 }});
  out.push_back({"lamb",
                 {list(1), list(2), list(3, 0.1), list(4)},
                 counts(8),
                 [](const Subject& s, const In& in, std::int64_t step) {
                   const auto& l = s.lists;
                   kernels::multi_tensor_lamb(test::context(), l[0].views, l[1].views, l[2].views, {}, l[3].const_views,
                                              s.counts.views, {.in = in, .lr = 0.1, .max_grad_norm = 0, .step = step});
                 }});
  List norms;
  for (int i = 0; i < 8; ++i) norms.add(values<float>({1}, {0.5f}));
  out.push_back({"novograd",
                 {list(1), list(2), norms, list(4)},
                 counts(8),
                 [](const Subject& s, const In& in, std::int64_t step) {
                   const auto& l = s.lists;
                   kernels::multi_tensor_novograd(test::context(), l[0].views, l[1].views, l[2].views, {},
                                                  l[3].const_views, s.counts.views,
                                                  {.in = in, .lr = 0.1, .beta2 = 0.98, .step = step});
                 }});
  out.push_back({"adagrad", {list(1), list(2, 0.1), list(4)}, {}, [](const Subject& s, const In& in, std::int64_t) {
                   const auto& l = s.lists;
                   kernels::multi_tensor_adagrad(test::context(), l[0].views, l[1].views, {}, l[2].const_views,
                                                 {.in = in, .lr = 0.1});
                 }});
  return out;
}
std::int64_t host_step(const Subject& s, std::int64_t step) { return s.counts.views.empty() ? step : 0; }

TEST(MultiTensorSteps, SkipsWithoutATrace) {
  const Tensor zero = values<float>({1}, {0}), one = values<float>({1}, {1}), raised = values<std::int32_t>({1}, {-7}),
               clear = values<std::int32_t>({1}, {0}), infinite = values<float>({1}, {INFINITY}),
               none = values<double>({1}, {NAN});
  for (const bool counted : {false, true}) {
    for (const auto& [flag, found, skips] : {std::tuple{raised, zero, true},
                                             {clear, one, true},
                                             {Tensor(), one, true},
                                             {raised, Tensor(), true},
                                             {clear, zero, false}}) {
      for (const auto& s : subjects(counted)) {
        test::assign(s.lists.back().tensors[0], [](std::int64_t i) { return i == 3 ? INFINITY : 0.5; });
        const auto before = s.state();
        kernels::StepInputs in;
        in.flag = flag.view(), in.found_inf = found.view();
        s.run(s, in, host_step(s, 4));
        EXPECT_EQ(test::close(s.state(), before, {}) == true, skips) << s.name << counted;
      }
    }
    for (const Tensor& norm : {infinite, none}) {  // LAMB looks at its norm
      Subject s = subjects(counted)[3];
      const auto& l = s.lists;
      const auto before = s.state();
      LambOptions o{.lr = 0.1, .step = host_step(s, 4)};
      o.grad_norm = norm.view();
      kernels::multi_tensor_lamb(test::context(), l[0].views, l[1].views, l[2].views, {}, l[3].const_views,
                                 s.counts.views, o);
      EXPECT_TRUE(test::close(s.state(), before, {})) << "a norm of " << norm.item();
    }
  }
}

TEST(MultiTensorSteps, CountsOnTheDeviceGiveTheSameBits) {
  const auto on_host = subjects(false), on_device = subjects(true);
  for (std::size_t k = 0; k < on_host.size(); ++k) {
    for (int step = 4; step < 8; ++step) {
      on_host[k].run(on_host[k], {}, step);
      on_device[k].run(on_device[k], {}, host_step(on_device[k], step));
    }
    for (std::size_t l = 0; l < on_host[k].lists.size(); ++l)
      EXPECT_TRUE(test::close(on_device[k].lists[l].joined(), on_host[k].lists[l].joined(), {}))
          << on_host[k].name << l;
    for (const double c : on_device[k].counts.joined()) EXPECT_EQ(c, 7);
  }
}

TEST(MultiTensorSteps, BiasCorrectionIsExact) {
  for (const std::int64_t step : {1, 2, 3, 1000, 123457, 2000000000}) {
    const List p{test::from_list({1}, DType::f64, {0})}, m{test::from_list({1}, DType::f64, {0})},
        v{test::from_list({1}, DType::f64, {1})}, g{test::from_list({1}, DType::f64, {1})};
    // u = m / bc1 / (sqrt(v / bc2) + 0), m = 1 - b1, v = b2 + (1 - b2) = 1.
    kernels::multi_tensor_adam(test::context(), p.views, m.views, v.views, {}, g.const_views, {},
                               {.lr = 1, .beta1 = 0.9, .beta2 = 0.999, .eps = 0, .step = step});
    const auto bc = [&](double b) { return static_cast<double>(1 - std::pow(static_cast<long double>(b), step)); };
    EXPECT_NEAR(p.tensors[0].item(), -(1 - 0.9) / bc(0.9) * std::sqrt(bc(0.999)), 4e-16) << step;
  }
}

TEST(MultiTensorSteps, SameBitsEveryTime) {
  const auto once = [] {
    std::vector<std::vector<double>> out;
    for (const auto& s : subjects(true)) {
      s.run(s, {}, 0);
      out.push_back(s.state());
    }
    return out;
  };
  const auto first = once();
  for (int run = 0; run < 2; ++run) EXPECT_EQ(once(), first);
}

/// Work that is queued again and again: on CUDA as a graph captured once.
class Replayed {
 public:
  explicit Replayed(std::function<void()> work) : work_(std::move(work)) {
#ifdef APEX_HAS_CUDA
    if (!test::on_cuda()) return;
    const auto stream = cuda::stream_of(test::context());
    cudaGraph_t graph = nullptr;
    APEX_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    work_();
    APEX_CHECK(cudaStreamEndCapture(stream, &graph));
    std::size_t count = 0;
    APEX_CHECK(cudaGraphGetNodes(graph, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    APEX_CHECK(cudaGraphGetNodes(graph, nodes.data(), &count));
    for (const auto node : nodes) {
      cudaGraphNodeType type{};
      APEX_CHECK(cudaGraphNodeGetType(node, &type));
      kernels_ += type == cudaGraphNodeTypeKernel ? 1 : 0;
    }
    APEX_CHECK(cudaGraphInstantiate(&executable_, graph, 0));
    APEX_CHECK(cudaGraphDestroy(graph));
#endif
  }
  Replayed(const Replayed&) = delete;
  Replayed& operator=(const Replayed&) = delete;
  ~Replayed() {
#ifdef APEX_HAS_CUDA
    if (executable_ != nullptr) {
      cuda::synchronize(test::context());
      cudaGraphExecDestroy(executable_);
    }
#endif
  }
  void operator()() const {
#ifdef APEX_HAS_CUDA
    if (executable_ != nullptr) {
      APEX_CHECK(cudaGraphLaunch(executable_, cuda::stream_of(test::context())));
      return;
    }
#endif
    work_();
  }
  /// Kernels in the graph; 0 on the CPU.
  int kernels() const { return kernels_; }

 private:
  std::function<void()> work_;
  int kernels_ = 0;
#ifdef APEX_HAS_CUDA
  cudaGraphExec_t executable_ = nullptr;
#endif
};

TEST(MultiTensorSteps, ReplayReadsWhatTheDeviceHolds_OPT_10_A10) {
  const List p = parts_of(kP, DType::f32, false, false), m = zeros_like(p, DType::f32), v = zeros_like(p, DType::f32),
             g{zeros({4})}, count{values<std::int32_t>({1}, {0})};
  const Tensor lr = values<double>({1}, {0.1}), found = values<float>({1}, {0}), inv = values<float>({1}, {1});
  AdamOptions o;
  o.in.lr_on_device = lr.view(), o.in.found_inf = found.view(), o.in.inv_scale = inv.view();
  const auto work = [&] {
    kernels::multi_tensor_adam(test::context(), p.views, m.views, v.views, {}, g.const_views, count.views, o);
  };
  test::assign(found, [](std::int64_t) { return 1.0; });
  work();  // loads the kernels; a capture may not
  const Replayed replay(work);
  const auto set = [](const Tensor& t, const std::vector<double>& x) {
    test::assign(t, [&](std::int64_t i) { return x[static_cast<std::size_t>(i)]; });
  };
  const auto step = [&](const std::vector<double>& gradient, double rate, double scale, double inf) {
    auto scaled = gradient;
    for (auto& x : scaled) x *= scale;
    set(g.tensors[0], scaled), set(lr, {rate}), set(inv, {1 / scale}), set(found, {inf});
    replay();
    return p.joined();
  };
  EXPECT_TRUE(test::close(step(kG[0], 0.1, 1, 0), {0.9, -1.9, 0.4, 3.0999999}, {2e-6, 2e-7}));
  const auto before = p.joined();
  EXPECT_EQ(step(kG[2], 0.1, 1, 1), before) << "skipped";
  EXPECT_TRUE(test::close(step(kG[1], 0.1, 4, 0), {0.80678201, -1.8733662, 0.3733663, 3.1266336}, {2e-6, 2e-7}));
  EXPECT_TRUE(test::close(step(kG[2], 0.05, 0.5, 0), {0.82414317, -1.8630723, 0.34046072, 3.1362104}, {2e-6, 2e-7}));
  EXPECT_EQ(count.tensors[0].item(), 3);
}

TEST(MultiTensorSteps, FewLaunchesForManyTensors_OPT_10_A32) {
  List p, m, v, g, counts, norms;
  for (int i = 0; i < 398; ++i) {
    const Dims n{i % 9 == 4 ? 0 : 1 + i % 5};
    p.add(test::uniform(n, DType::f32, test::device(), 1)), m.add(zeros(n)), v.add(zeros(n));
    g.add(test::uniform(n, DType::f32, test::device(), 2)), counts.add(values<std::int32_t>({1}, {0}));
    norms.add(zeros({1}));
  }
  const auto launches = [](const std::function<void()>& work) {
    work();
    const Replayed r(work);
    r();
    return r.kernels();
  };
  const auto adam = [&](bool counted) {
    kernels::multi_tensor_adam(test::context(), p.views, m.views, v.views, {}, g.const_views,
                               counted ? std::span<const View>(counts.views) : std::span<const View>{},
                               {.step = counted ? 0 : 1});
  };
  const int most = test::on_cuda() ? 1 : 0;
  EXPECT_EQ(launches([&] { adam(false); }), 1 * most);
  EXPECT_EQ(launches([&] { adam(true); }), 2 * most);
  for (const auto& c : counts.tensors) EXPECT_EQ(c.item(), 2);
  EXPECT_EQ(launches([&] {
              kernels::multi_tensor_lamb(test::context(), p.views, m.views, v.views, {}, g.const_views, {},
                                         {.max_grad_norm = 0, .step = 1});
            }),
            3 * most);
  EXPECT_EQ(launches([&] {
              kernels::multi_tensor_novograd(test::context(), p.views, m.views, norms.views, {}, g.const_views, {},
                                             {.step = 1});
            }),
            3 * most);
  EXPECT_EQ(launches([&] { kernels::multi_tensor_adagrad(test::context(), p.views, v.views, {}, g.const_views, {}); }),
            1 * most);
}

TEST(MultiTensorSteps, MoreTensorsThanOneLaunchTakes) {
  List p, m, v, g, norms, counts;
  for (std::int64_t i = 0; i < 2000; ++i) {
    const Dims n{i % 7 == 3 ? 0 : i % 5 + 1};
    const auto filled = [&](double x) {
      return test::from_function(n, DType::f32, test::device(), [=](std::int64_t) { return x; });
    };
    p.add(filled(static_cast<double>(i))), m.add(filled(0)), v.add(filled(0)),
        g.add(filled(static_cast<double>(i % 3) - 1));
    norms.add(zeros({1})), counts.add(values<std::int32_t>({1}, {static_cast<std::int32_t>(i % 2)}));
  }
  kernels::multi_tensor_adam(test::context(), p.views, m.views, v.views, {}, g.const_views, counts.views,
                             {.lr = 1, .beta1 = 0.5, .beta2 = 0.75, .eps = 0});
  const Tensor squares = test::fresh({2000, 2}, DType::f64);
  for (std::size_t i = 0; i < 2000; ++i) {
    const double t = static_cast<double>(i % 2) + 1, sign = static_cast<double>(i % 3) - 1;
    const double bc1 = 1 - std::pow(0.5, t), bc2 = 1 - std::pow(0.75, t);
    const double u = 0.5 / bc1 / std::sqrt(0.25 / bc2) * sign;
    EXPECT_EQ(counts.tensors[i].item(), t);
    for (const double x : test::to_f64(p.tensors[i]))
      EXPECT_TRUE(sign == 0 ? std::isnan(x) : std::abs(x - (static_cast<double>(i) - u)) < 4e-4) << i;
  }
  kernels::multi_tensor_lamb_moments(test::context(), squares.view(), g.const_views, m.views, v.views, g.const_views,
                                     counts.views, {.weight_decay = 0, .max_grad_norm = 0});
  const auto sums = test::to_f64(squares);
  for (std::size_t i = 0; i < 2000; ++i) {
    const double n = static_cast<double>(g.tensors[i].numel());
    EXPECT_EQ(sums[2 * i], i % 3 == 1 ? 0 : n) << i;
    EXPECT_EQ(sums[2 * i + 1] != 0, n != 0 && i % 3 != 1) << i;
  }
  kernels::multi_tensor_novograd(test::context(), p.views, m.views, norms.views, {}, g.const_views, {}, {.step = 1});
  for (std::size_t i = 0; i < 2000; ++i)
    EXPECT_NEAR(norms.tensors[i].item(), i % 3 == 1 ? 0 : std::sqrt(static_cast<double>(g.tensors[i].numel())), 1e-6);
}

TEST(MultiTensorSteps, ElementsBeyondTwoToThe31_OPT_10_A33) {
  constexpr std::int64_t n = 2359332864;
#ifdef APEX_HAS_CUDA
  std::size_t available = 0, all = 0;
  if (test::on_cuda()) APEX_CHECK(cudaMemGetInfo(&available, &all));
  if (available > 9 * static_cast<std::size_t>(n)) {
    const List p{make({n}, DType::f16)}, m{make({n}, DType::bf16)}, v{make({n}, DType::bf16)}, g{make({n}, DType::f16)};
    for (const auto& [list, value] : {std::pair{&p, 1.0}, {&m, 0.0}, {&v, 0.0}, {&g, 0.5}})
      kernels::fill(test::context(), list->views[0], value);
    kernels::multi_tensor_adam(test::context(), p.views, m.views, v.views, {}, g.const_views, {},
                               {.lr = 0.25, .step = 1});
    for (const std::int64_t at : {std::int64_t{0}, std::int64_t{1} << 31, n - 1}) {
      EXPECT_EQ(test::to_f64(views::narrow(p.tensors[0], 0, at, 1))[0], 0.75) << at;
      EXPECT_NEAR(test::to_f64(views::narrow(m.tensors[0], 0, at, 1))[0], 0.05, 4e-4) << at;
    }
    return;
  }
#endif
  GTEST_SKIP() << "needs a GPU with " << 9 * n / 1000000000 << " GB";
}

TEST(MultiTensorSteps, ErrorsNameOpListAndTensor) {
  const Tensor a = make({3}), b = make({3}), d = make({3}, DType::f64), h = make({3}, DType::bf16),
               i = make({3}, DType::i64), count = values<std::int32_t>({1}, {0});
  const List two{a, b}, one{a}, wide{d, d}, halves{h, h}, longer{a, make({4})}, integers{a, i}, none,
      gaps{a, test::spread_out(b)}, counts{count, values<std::int32_t>({1}, {0})}, three{count, count, count},
      floats{a, a};
  const auto adam = [&](const List& p, const List& m, const List& v, const List& g, const List& steps = {},
                        AdamOptions o = {.step = 1}, const List& copies = {}) {
    kernels::multi_tensor_adam(test::context(), p.views, m.views, v.views, copies.views, g.const_views, steps.views, o);
  };
  EXPECT_NO_THROW(adam(none, none, none, none, none, {}));
  EXPECT_TRUE(throws(Kind::argument, "multi_tensor_adam: 1 exp_avg and 2 params", [&] { adam(two, one, two, two); }));
  EXPECT_TRUE(throws(Kind::argument, "multi_tensor_adam: exp_avg_sq[1] has sizes [4], params[1] has [3]",
                     [&] { adam(two, two, longer, two); }));
  EXPECT_TRUE(throws(Kind::unsupported, "multi_tensor_adam: params[1] is i64", [&] { adam(integers, two, two, two); }));
  EXPECT_TRUE(
      throws(Kind::argument, "grads[1] of sizes [3] and strides [2] is not dense", [&] { adam(two, two, two, gaps); }));
  EXPECT_TRUE(throws(Kind::argument, "f64 goes with f64", [&] { adam(two, two, two, wide); }));
  EXPECT_TRUE(throws(Kind::argument, "exp_avg[0] is f64", [&] { adam(two, wide, two, two); }));
  EXPECT_TRUE(throws(Kind::argument, "exp_avg are bf16, exp_avg_sq f32", [&] { adam(two, halves, two, two); }));
  EXPECT_TRUE(
      throws(Kind::argument, "1 copies and 2 params", [&] { adam(two, two, two, two, none, {.step = 1}, one); }));
  EXPECT_TRUE(throws(Kind::argument, "step is 0 and no steps", [&] { adam(two, two, two, two, none, {}); }));
  EXPECT_TRUE(throws(Kind::argument, "both steps and step 1", [&] { adam(two, two, two, two, counts); }));
  EXPECT_TRUE(throws(Kind::argument, "3 steps and 2 params", [&] { adam(two, two, two, two, three, {}); }));
  EXPECT_TRUE(throws(Kind::argument, "steps[0] is f32 of sizes [3]", [&] { adam(two, two, two, two, floats, {}); }));
  AdamOptions o{.step = 1};
  o.in.found_inf = d.view();
  EXPECT_TRUE(throws(Kind::argument, "found_inf is f64", [&] { adam(two, two, two, two, none, o); }));
  const List bytes{make({6}, DType::u8), make({6}, DType::u8)}, few{make({6}, DType::u8), make({5}, DType::u8)};
  const auto remainders = [&](const List& p, const List& r) {
    kernels::multi_tensor_adam_remainders(test::context(), p.views, r.views, two.views, two.views, {}, two.const_views,
                                          {}, {.step = 1});
  };
  EXPECT_TRUE(throws(Kind::argument, "params[0] is f32, wanted bf16", [&] { remainders(two, bytes); }));
  EXPECT_TRUE(throws(Kind::argument, "multi_tensor_adam_remainders: remainders[1] has sizes [5]",
                     [&] { remainders(halves, few); }));
  EXPECT_TRUE(throws(Kind::argument, "remainders[0] is bf16, wanted u8", [&] { remainders(halves, halves); }));
  const auto swa = [&](const List& s, AdamMode mode) {
    kernels::multi_tensor_adam_swa(test::context(), two.views, two.views, two.views, {}, s.views, two.const_views, {},
                                   {.mode = mode, .step = 1}, 0.9, 0);
  };
  EXPECT_TRUE(throws(Kind::argument, "swa[0] is bf16, wanted f32", [&] { swa(halves, AdamMode::l2); }));
  EXPECT_TRUE(throws(Kind::argument, "legacy modes", [&] { swa(two, AdamMode::legacy); }));
  const auto lamb = [&](LambOptions l) {
    kernels::multi_tensor_lamb(test::context(), two.views, two.views, two.views, {}, two.const_views, {}, l);
  };
  EXPECT_TRUE(throws(Kind::argument, "multi_tensor_lamb: grad_norm is not given", [&] { lamb({.step = 1}); }));
  LambOptions l{.step = 1};
  l.grad_norm = a.view();
  EXPECT_TRUE(throws(Kind::argument, "grad_norm has sizes [3]", [&] { lamb(l); }));
  EXPECT_TRUE(throws(Kind::argument, "squares has sizes [3]", [&] {
    kernels::multi_tensor_lamb_moments(test::context(), d.view(), two.const_views, two.views, two.views,
                                       two.const_views, {}, {.max_grad_norm = 0, .step = 1});
  }));
  EXPECT_TRUE(throws(Kind::argument, "1 weight decays and 2 params", [&] {
    kernels::multi_tensor_lamb_stage1(test::context(), two.const_views, two.views, two.views, two.views,
                                      two.const_views, std::vector<double>{0}, {}, 0, 0, 0.9, 0.999, 1e-6);
  }));
  EXPECT_TRUE(throws(Kind::argument, "param_norms has sizes [3]", [&] {
    kernels::multi_tensor_lamb_stage2(test::context(), two.views, two.const_views, a.view(), a.view(), 1, 0, false);
  }));
  EXPECT_TRUE(throws(Kind::argument, "multi_tensor_novograd: norms[1] has sizes [3]", [&] {
    const List norms{make({1}), a};
    kernels::multi_tensor_novograd(test::context(), two.views, two.views, norms.views, {}, two.const_views, {},
                                   {.step = 1});
  }));
  EXPECT_TRUE(throws(Kind::argument, "multi_tensor_adagrad: sums[0] is bf16, wanted f32", [&] {
    kernels::multi_tensor_adagrad(test::context(), two.views, halves.views, {}, two.const_views, {});
  }));
  EXPECT_TRUE(throws(Kind::argument, "multi_tensor_unscale_l2norm: inv_scale is not given", [&] {
    kernels::multi_tensor_unscale_l2norm(test::context(), {}, make({1}).view(), {}, two.const_views, {});
  }));
  EXPECT_TRUE(throws(Kind::argument, "multi_tensor_norm_out: norms is not given", [&] {
    kernels::multi_tensor_norm_out(test::context(), {}, {}, two.const_views, 1, 1, NormType::l2);
  }));
  EXPECT_TRUE(throws(Kind::argument, "max_norm is -1",
                     [&] { kernels::multi_tensor_clip(test::context(), two.views, make({1}).view(), -1); }));
  EXPECT_TRUE(throws(Kind::argument, "interval is 0", [&] {
    const Tensor f = make({1});
    kernels::update_scale_hysteresis(test::context(), f.view(), count.view(), count.view(), f.view(), 2, 0.5, 0, 1);
  }));
  EXPECT_TRUE(throws(Kind::unsupported, "multi_tensor_maybe_cast: in[1] is i64",
                     [&] { kernels::multi_tensor_maybe_cast(test::context(), {}, two.views, integers.const_views); }));
}

}  // namespace
}  // namespace apex
