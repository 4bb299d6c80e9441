// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/multi_tensor_optimizers.hpp"

#include <bit>
#include <functional>
#include <tuple>

#include "apex/kernels/copy.hpp"
#include "support/on_device.hpp"

namespace apex {
namespace {

using kernels::AdagradOptions;
using kernels::AdamMode;
using kernels::AdamOptions;
using kernels::LambOptions;
using kernels::NormType;
using kernels::NovoGradOptions;
using test::make;
using test::throws;
using test::values;

/// Tensors and their views, as the ops take them.
struct List {
  std::vector<Tensor> tensors;
  std::vector<View> views;
  std::vector<ConstView> const_views;

  List() = default;
  List(std::initializer_list<Tensor> t) {
    for (const auto& x : t) add(x);
  }
  void add(const Tensor& t) {
    tensors.push_back(t);
    views.push_back(t.view());
    const_views.emplace_back(t.view());
  }
  std::vector<double> joined() const {
    std::vector<double> out;
    for (const auto& t : tensors)
      for (const double v : test::to_f64(t)) out.push_back(v);
    return out;
  }
};

// The data of the acceptance cases.
const std::vector<double> kP = {1, -2, 0.5, 3}, kQ = {0.2, -0.1};
const std::vector<double> kG[] = {{0.1, -0.2, 0.3, -0.4}, {0.05, 0.1, -0.15, 0.2}, {-0.3, 0, 0.6, 0.01}};
const std::vector<double> kH[] = {{2, -1}, {0.5, 0.5}, {0, -0.2}};

/// `all` as one tensor or as one-element tensors, aligned or not.
List parts_of(const std::vector<double>& all, DType dtype, bool split, bool odd) {
  List out;
  const std::size_t length = split ? 1 : all.size();
  for (std::size_t at = 0; at < all.size(); at += length) {
    const auto from = all.begin() + static_cast<std::ptrdiff_t>(at);
    const Tensor t =
        test::from_list({static_cast<std::int64_t>(length)}, dtype, {from, from + static_cast<std::ptrdiff_t>(length)});
    out.add(odd ? test::misaligned(t) : t);
  }
  return out;
}
Tensor zeros(const Dims& sizes, DType dtype = DType::f32) {
  return test::from_function(sizes, dtype, test::device(), [](std::int64_t) { return 0.0; });
}
List zeros_like(const List& like, DType dtype) {
  List out;
  for (const auto& t : like.tensors) out.add(zeros(t.sizes(), dtype));
  return out;
}

/// A case of section 10: an optimizer's parameters after each of some steps; no values: not looked at.
struct Acceptance {
  const char* name;
  std::vector<std::vector<double>> p;
};

/// Runs `steps` steps over the data, in every form and type, and compares.
void run_cases(const Acceptance& c, bool may_split, bool with_steps,
               const std::function<void(const List& p, const List& first, const List& second, const List& g,
                                        const List& counts, int step)>& step) {
  for (const bool split : {false, true})
    for (const bool odd : {false, true})
      for (const auto dtype : {DType::f32, DType::f64})
        for (const bool counted : {false, true}) {
          if ((split && !may_split) || (counted && !with_steps)) continue;
          const List p = parts_of(kP, dtype, split, odd), first = zeros_like(p, dtype), second = zeros_like(p, dtype);
          List counts;
          if (counted)
            for (std::size_t i = 0; i < p.tensors.size(); ++i) counts.add(values<std::int32_t>({1}, {0}));
          for (std::size_t k = 0; k < c.p.size(); ++k) {
            step(p, first, second, parts_of(kG[k], dtype, split, odd), counts, static_cast<int>(k) + 1);
            if (!c.p[k].empty()) {
              EXPECT_TRUE(test::close(p.joined(), c.p[k], test::optimizer_tolerance(DType::f32)))
                  << c.name << " step " << k + 1 << dtype << split << odd << counted;
            }
          }
          for (const auto& t : counts.tensors) EXPECT_EQ(t.item(), static_cast<double>(c.p.size()));
        }
}

void adam_case(const Acceptance& c, AdamOptions o) {
  run_cases(
      c, true, true, [&](const List& p, const List& m, const List& v, const List& g, const List& counts, int step) {
        o.step = counts.views.empty() ? step : 0;
        kernels::multi_tensor_adam(test::context(), p.views, m.views, v.views, {}, g.const_views, counts.views, o);
      });
}

TEST(MultiTensorAdam, Acceptance_OPT_10_A1_to_A3_A36) {
  adam_case({"A1",
             {{0.88999999, -1.88, 0.39500001, 3.0699999},
              {0.78788203, -1.8345664, 0.3644163, 3.0659337},
              {0.81472558, -1.7956327, 0.29496098, 3.0544279}}},
            {.lr = 0.1, .weight_decay = 0.1});
  adam_case({"A2",
             {{0.9, -1.9, 0.4, 3.0999999},
              {0.80242795, -1.8182875, 0.35840112, 3.0398622},
              {0.78914988, -1.7346373, 0.2869974, 2.9670327}}},
            {.lr = 0.1, .weight_decay = 0.1, .mode = AdamMode::l2});
  adam_case({"A3",
             {{0.96837711, -1.9683771, 0.46837705, 3.0316229},
              {0.92876315, -1.9570588, 0.45705876, 3.0429411},
              {0.94595164, -1.9468672, 0.42448047, 3.0524225}}},
            {.lr = 0.01, .bias_correction = false});
  adam_case({"A36", {{}, {}, {0.83461314, -1.8382354, 0.30428749, 3.1227458}}},
            {.lr = 0.1, .weight_decay = 0.1, .mode = AdamMode::legacy});
  adam_case({"A36 inside", {{0.89688772, -1.893688, 0.39842442, 3.0905101}}},
            {.lr = 0.1, .weight_decay = 0.1, .mode = AdamMode::legacy_eps_inside});
  adam_case({"A37 without the average", {{}, {}, {0.84150434, -1.8527783, 0.30755514, 3.145787}}},
            {.lr = 0.1, .mode = AdamMode::torch_order});
}

void lamb_case(const Acceptance& c, LambOptions o) {
  // Q is the second tensor, in its own group without decay; the norm is that of all gradients.
  for (const bool odd : {false, true})
    for (const auto dtype : {DType::f32, DType::f64})
      for (const bool counted : {false, true}) {
        const List p = parts_of(kP, dtype, false, odd), q = parts_of(kQ, dtype, false, odd), pm = zeros_like(p, dtype),
                   pv = zeros_like(p, dtype), qm = zeros_like(q, dtype), qv = zeros_like(q, dtype);
        const Tensor norm = make({1}, dtype);
        const List p_count{values<std::int32_t>({1}, {0})}, q_count{values<std::int32_t>({1}, {0})}, none;
        for (std::size_t k = 0; k < c.p.size() / 2; ++k) {
          const List g = parts_of(kG[k], dtype, false, odd), h = parts_of(kH[k], dtype, false, odd);
          const List all{g.tensors[0], h.tensors[0]};
          kernels::multi_tensor_l2norm(test::context(), {}, norm.view(), {}, all.const_views);
          o.grad_norm = norm.view();
          o.step = counted ? 0 : static_cast<std::int64_t>(k) + 1;
          LambOptions of_q = o;
          of_q.weight_decay = 0;
          kernels::multi_tensor_lamb(test::context(), p.views, pm.views, pv.views, {}, g.const_views,
                                     counted ? p_count.views : none.views, o);
          kernels::multi_tensor_lamb(test::context(), q.views, qm.views, qv.views, {}, h.const_views,
                                     counted ? q_count.views : none.views, of_q);
          const auto check = [&](const List& got, const std::vector<double>& want) {
            if (!want.empty()) {
              EXPECT_TRUE(test::close(got.joined(), want, {2e-6, 2e-7})) << c.name << " step " << k + 1 << dtype << odd;
            }
          };
          check(p, c.p[2 * k]);
          check(q, c.p[2 * k + 1]);
        }
      }
}

TEST(MultiTensorLamb, Acceptance_OPT_10_A14_to_A17) {
  lamb_case({"A14",
             {{0.98096406, -1.9807754, 0.481058, 3.0182824},
              {0.19000001, -0.09000003},
              {0.94409657, -1.9845225, 0.48535204, 3.0127122},
              {0.18048, -0.09122565},
              {0.96646452, -1.9882649, 0.45629233, 3.0052712},
              {0.173121, -0.09028471}}},
            {.lr = 0.01});
  lamb_case({"A15",
             {{},
              {0.19841887, -0.09841886},
              {},
              {0.19622214, -0.09870167},
              {0.96646452, -1.9882649, 0.45629233, 3.0052712},
              {0.1940434, -0.09842309}}},
            {.lr = 0.01, .use_nvlamb = true});
  for (const double most : {1e9, 0.0})
    lamb_case({"A16", {{}, {}, {}, {}, {0.96307409, -1.9597843, 0.43988007, 3.0344255}, {0.17527351, -0.08418421}}},
              {.lr = 0.01, .max_grad_norm = most});
  lamb_case({"A17", {{}, {}, {}, {}, {0.96440560, -1.9702629, 0.45658976, 2.9944935}, {}}},
            {.lr = 0.01, .adam_w_mode = false});
  lamb_case({"A17 not averaged", {{0.98110914, -1.9810901, 0.48111829, 3.0188158}, {}}},
            {.lr = 0.01, .grad_averaging = false});
}

void novograd_case(const Acceptance& c, const std::vector<double>& s, NovoGradOptions o) {
  Tensor kept;
  run_cases(c, false, true,
            [&](const List& p, const List& m, const List&, const List& g, const List& counts, int step) {
              if (step == 1) kept = test::fresh({1}, p.tensors[0].dtype());  // what it held must not matter
              o.step = counts.views.empty() ? step : 0;
              const List norms{kept};
              kernels::multi_tensor_novograd(test::context(), p.views, m.views, norms.views, {}, g.const_views,
                                             counts.views, o);
              const auto k = static_cast<std::size_t>(step) - 1;
              if (k < s.size()) {
                EXPECT_TRUE(test::close(kept, {s[k]}, test::optimizer_tolerance(DType::f32))) << c.name << step;
              }
            });
}

TEST(MultiTensorNovoGrad, Acceptance_OPT_10_A26_to_A28) {
  const NovoGradOptions base{.lr = 0.1, .beta1 = 0.95, .beta2 = 0.98, .weight_decay = 0.01};
  novograd_case({"A26",
                 {{0.996418, -1.992836, 0.49175403, 3.007328},
                  {0.9926995, -1.9891536, 0.48872793, 3.0077},
                  {0.9942311, -1.9858342, 0.4769091, 3.0071971}}},
                {0.54772258, 0.54359913, 0.54643577}, base);
  NovoGradOptions o = base;
  o.bias_correction = false;
  novograd_case({"A26 without correction", {{0.99808711, -1.9961742, 0.49676138, 3.0006516}}}, {}, o);
  o = base;
  o.reg_inside_moment = true;
  novograd_case({"A27 inside", {{}, {}, {0.99546778, -1.9877924, 0.47984994, 3.0032704}}}, {}, o);
  o = base;
  o.norm_type = NormType::inf;
  novograd_case({"A27 inf", {{}, {}, {0.99318928, -1.9828152, 0.46896574, 3.0131779}}}, {0.4, 0.39600003, 0.40008003},
                o);
  o = base;
  o.init_zero = true;
  novograd_case({"A27 from zero", {{0.98074257, -1.9614852, 0.44472775, 3.0700298}}}, {0.07745963}, o);
  o = {.lr = 0.1,
       .beta1 = 0.95,
       .beta2 = 0,
       .bias_correction = false,
       .grad_averaging = false,
       .reg_inside_moment = true};
  novograd_case({"A28", {{}, {}, {0.95703512, -1.9670453, 0.36113524, 3.064419}}}, {}, o);
}

TEST(MultiTensorAdagrad, Acceptance_OPT_10_A25) {
  const auto with = [](const Acceptance& c, const AdagradOptions& o) {
    run_cases(c, true, false, [&](const List& p, const List& h, const List&, const List& g, const List&, int) {
      kernels::multi_tensor_adagrad(test::context(), p.views, h.views, {}, g.const_views, o);
    });
  };
  with({"A25",
        {{0.9, -1.9, 0.4, 3.0999999},
         {0.84265375, -1.8780488, 0.42998266, 3.0018685},
         {0.90887195, -1.8364038, 0.34312642, 2.9506183}}},
       {.lr = 0.1, .weight_decay = 0.1});
  with({"A25 W", {{}, {}, {0.92171913, -1.8868622, 0.34412652, 2.9623973}}},
       {.lr = 0.1, .weight_decay = 0.1, .adagrad_w_mode = true});
}

// ---- against the formulas, one element at a time in float64 ----

/// Tensors of awkward sizes: chunk boundaries of the GPU, none, one, misaligned, channels-last.
List awkward(DType dtype, std::uint64_t seed, double low = -1, double high = 1) {
  List out;
  for (const std::int64_t n : {1500, 0, 33, 1, 4096, 4097, 9001}) {
    const Tensor t = test::uniform({n}, dtype, test::device(), seed + static_cast<std::uint64_t>(n), low, high);
    out.add(n == 33 || n == 9001 ? test::misaligned(t) : t);
  }
  out.add(test::uniform({2, 3, 4, 5}, dtype, test::device(), seed, low, high, MemoryFormat::channels_last));
  return out;
}
List fresh_like(const List& like, DType dtype) {
  List out;
  for (const auto& t : like.tensors) {
    Tensor made = test::uniform(t.sizes(), dtype, test::device(), 99, -1, 1,
                                t.sizes().size() == 4 ? MemoryFormat::channels_last : MemoryFormat::contiguous);
    out.add(test::poisoned(made));
  }
  return out;
}
using Values = std::vector<std::vector<double>>;
Values values_of(const List& l) {
  Values out;
  for (const auto& t : l.tensors) out.push_back(test::to_f64(t));
  return out;
}
::testing::AssertionResult all_close(const List& got, const Values& want, test::Tolerance t) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    const auto one = test::close(got.tensors[i], want[i], t);
    if (!one) return ::testing::AssertionFailure() << "tensor " << i << ": " << one.message();
  }
  return ::testing::AssertionSuccess();
}
/// A result that was formed in f32 and rounded to `dtype`.
test::Tolerance rounded(DType dtype) {
  const auto t = test::optimizer_tolerance(dtype);
  return dtype == DType::f64 ? test::Tolerance{1e-13, 1e-14} : test::Tolerance{t.rtol + 4e-6, t.atol + 1e-6};
}

struct AdamElement {
  double p, m, v;
  void step(double g, const AdamOptions& o, double t) {
    const bool legacy = o.mode >= AdamMode::legacy;
    if (o.maximize) g = -g;
    if (o.mode == AdamMode::l2 || o.mode == AdamMode::torch_order) g += o.weight_decay * p;
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    const double bc1 = o.bias_correction ? 1 - std::pow(o.beta1, t) : 1;
    const double bc2 = o.bias_correction ? 1 - std::pow(o.beta2, t) : 1;
    if (legacy) {
      const double below = o.mode == AdamMode::legacy ? std::sqrt(v) + o.eps : std::sqrt(v + o.eps);
      p -= o.lr * std::sqrt(bc2) / bc1 * (m / below + o.weight_decay * p);
    } else {
      double u = m / bc1 / (std::sqrt(v / bc2) + o.eps);
      if (o.mode == AdamMode::decoupled) u += o.weight_decay * p;
      p -= o.lr * u;
    }
  }
};

TEST(MultiTensorAdam, EveryTypeAndModeAgainstTheFormulas) {
  constexpr DType kTypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
  for (const auto dtype : kTypes)
    for (const auto grad_dtype : kTypes)
      for (const auto state : {accum_dtype(dtype), DType::bf16, DType::f16})
        for (int mode = 0; mode < 5; ++mode) {
          if ((dtype == DType::f64) != (grad_dtype == DType::f64)) continue;
          if (dtype == DType::f64 && state != DType::f64) continue;
          if (state != accum_dtype(dtype) && mode != 1) continue;
          const DType copy_dtype = kTypes[(static_cast<std::size_t>(mode) + static_cast<std::size_t>(dtype)) % 4];
          // Betas that f32 holds exactly, so that the reference need not round them.
          AdamOptions o{.lr = 0.05,
                        .beta1 = 0.875,
                        .beta2 = 0.96875,
                        .eps = 1e-3,
                        .weight_decay = 0.25,
                        .mode = static_cast<AdamMode>(mode),
                        .bias_correction = mode != 2 || dtype != DType::f32,
                        .maximize = grad_dtype == DType::bf16,
                        .step = 3};
          o.in.grad_scale = 0.5;
          const Tensor inv = values<float>({1}, {0.25f});
          o.in.inv_scale = inv.view();
          const List p = awkward(dtype, 1), m = awkward(state, 2), v = awkward(state, 3, 0.1, 1),
                     g = awkward(grad_dtype, 4), copies = fresh_like(p, copy_dtype);
          Values want_p = values_of(p), want_m = values_of(m), want_v = values_of(v);
          const Values gs = values_of(g);
          for (std::size_t t = 0; t < gs.size(); ++t)
            for (std::size_t i = 0; i < gs[t].size(); ++i) {
              AdamElement e{want_p[t][i], want_m[t][i], want_v[t][i]};
              e.step(gs[t][i] * 0.125, o, 3);
              want_p[t][i] = e.p, want_m[t][i] = e.m, want_v[t][i] = e.v;
            }
          kernels::multi_tensor_adam(test::context(), p.views, m.views, v.views, copies.views, g.const_views, {}, o);
          const auto label = [&] {
            return concat(dtype, ' ', grad_dtype, ' ', state, " mode ", mode, ' ', copy_dtype);
          };
          EXPECT_TRUE(all_close(p, want_p, rounded(dtype))) << label();
          EXPECT_TRUE(all_close(m, want_m, rounded(state))) << label();
          EXPECT_TRUE(all_close(v, want_v, rounded(state))) << label();
          EXPECT_TRUE(all_close(copies, want_p, rounded(copy_dtype == DType::f64 ? accum_dtype(dtype) : copy_dtype)))
              << label();
          EXPECT_TRUE(all_close(g, gs, {})) << label();
        }
}

TEST(MultiTensorAdam, MastersAndSmallMoments_OPT_10_A5_A8) {
  const AdamOptions base{.lr = 1e-3};
  const List plain{test::from_list({1}, DType::bf16, {1})}, master{values<float>({1}, {1})},
      copy{test::from_list({1}, DType::bf16, {1})}, g{test::from_list({1}, DType::bf16, {0.1})};
  const List m1{zeros({1})}, v1{zeros({1})}, m2{zeros({1})}, v2{zeros({1})};
  for (int k = 1; k <= 5; ++k) {
    AdamOptions o = base;
    o.step = k;
    kernels::multi_tensor_adam(test::context(), plain.views, m1.views, v1.views, {}, g.const_views, {}, o);
    kernels::multi_tensor_adam(test::context(), master.views, m2.views, v2.views, copy.views, g.const_views, {}, o);
    EXPECT_EQ(plain.tensors[0].item(), 1.0);
    EXPECT_NEAR(master.tensors[0].item(), 1 - 1e-3 * k, 2e-7);
    EXPECT_EQ(copy.tensors[0].item(), k == 1 ? 1.0 : 0.99609375);
  }
  const List p{test::from_list({1}, DType::f16, {1})}, m{zeros({1})}, v{zeros({1})};
  const double want_v[] = {3.99995e-9, 7.9959e-9, 7.9879e-9}, want_p[] = {0.999, 0.998, 0.99723};
  for (int k = 1; k <= 3; ++k) {
    AdamOptions o = base;
    o.step = k;
    const List small{test::from_list({1}, DType::f16, {k < 3 ? 2e-3 : 0})};
    kernels::multi_tensor_adam(test::context(), p.views, m.views, v.views, {}, small.const_views, {}, o);
    EXPECT_NEAR(v.tensors[0].item(), want_v[k - 1], 1e-3 * want_v[k - 1]);
    EXPECT_NEAR(p.tensors[0].item(), want_p[k - 1], 1e-3);
  }
}

TEST(MultiTensorAdam, AverageOfWeights_OPT_10_A37) {
  const std::vector<double> averages[] = {{0.9, -1.9, 0.4, 3.0999999},
                                          {0.89067817, -1.8973366, 0.39733663, 3.1026633},
                                          {0.88576078, -1.8928808, 0.38835847, 3.1069756}};
  for (const auto dtype : {DType::f32, DType::f64})
    for (const bool odd : {false, true}) {
      const List p = parts_of(kP, dtype, false, odd), m = zeros_like(p, dtype), v = zeros_like(p, dtype),
                 swa{test::fresh_like(p.tensors[0])}, copies{test::fresh({4}, DType::bf16)};
      for (std::size_t k = 0; k < 3; ++k) {
        const List g = parts_of(kG[k], dtype, false, odd);
        kernels::multi_tensor_adam_swa(
            test::context(), p.views, m.views, v.views, copies.views, swa.views, g.const_views, {},
            {.lr = 0.1, .mode = AdamMode::torch_order, .step = static_cast<std::int64_t>(k) + 1}, 0.9,
            static_cast<std::int64_t>(k));
        EXPECT_TRUE(test::close(swa.joined(), averages[k], {2e-6, 2e-7})) << k << dtype << odd;
        EXPECT_TRUE(test::close(copies.joined(), p.joined(), test::optimizer_tolerance(DType::bf16)));
      }
      EXPECT_TRUE(test::close(p.joined(), {0.84150434, -1.8527783, 0.30755514, 3.145787}, {2e-6, 2e-7}));
    }
  for (const auto dtype : {DType::f32, DType::f16, DType::bf16}) {  // awkward sizes, 16-bit weights
    const List p = awkward(dtype, 1), m = awkward(DType::f32, 2), v = awkward(DType::f32, 3, 0.1, 1),
               swa = awkward(dtype, 5), g = awkward(DType::bf16, 4);
    Values ps = values_of(p), ms = values_of(m), vs = values_of(v), ss = values_of(swa);
    const Values gs = values_of(g);
    const AdamOptions o{.lr = 0.05, .beta1 = 0.875, .beta2 = 0.96875, .eps = 1e-3, .step = 2};
    for (std::size_t t = 0; t < ps.size(); ++t)
      for (std::size_t i = 0; i < ps[t].size(); ++i) {
        AdamElement e{ps[t][i], ms[t][i], vs[t][i]};
        e.step(gs[t][i], o, 2);
        ps[t][i] = e.p;
        ss[t][i] += 0.25 * (e.p - ss[t][i]);
      }
    kernels::multi_tensor_adam_swa(test::context(), p.views, m.views, v.views, {}, swa.views, g.const_views, {}, o,
                                   0.75, 7);
    EXPECT_TRUE(all_close(p, ps, rounded(dtype))) << dtype;
    EXPECT_TRUE(all_close(swa, ss, rounded(dtype))) << dtype;
  }
}

/// f32 values in two halves, as multi_tensor_adam_remainders keeps them.
std::pair<Tensor, Tensor> halves_of(const std::vector<double>& x) {
  std::vector<double> high;
  std::vector<std::uint8_t> low;
  for (const double v : x) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(v));
    const std::uint32_t upper = (bits >> 16) + ((bits >> 15) & 1u);
    high.push_back(static_cast<double>(std::bit_cast<float>(upper << 16)));
    low.push_back(static_cast<std::uint8_t>(bits & 0xffu));
    low.push_back(static_cast<std::uint8_t>((bits >> 8) & 0xffu));
  }
  const auto n = static_cast<std::int64_t>(x.size());
  return {test::from_list({n}, DType::bf16, high),
          test::from_function({2 * n}, DType::u8, test::device(),
                              [&](std::int64_t i) { return static_cast<double>(low[static_cast<std::size_t>(i)]); })};
}
std::vector<double> joined_halves(const Tensor& high, const Tensor& low) {
  const auto hs = test::to_f64(high), ls = test::to_f64(low);
  std::vector<double> out;
  for (std::size_t i = 0; i < hs.size(); ++i) {
    const auto rem = static_cast<std::int16_t>(static_cast<int>(ls[2 * i]) | static_cast<int>(ls[2 * i + 1]) << 8);
    std::uint32_t upper = std::bit_cast<std::uint32_t>(static_cast<float>(hs[i])) >> 16;
    if (rem < 0) --upper;
    out.push_back(static_cast<double>(std::bit_cast<float>(upper << 16 | static_cast<std::uint16_t>(rem))));
  }
  return out;
}

TEST(MultiTensorAdamRemainders, BitsOfF32Weights_OPT_10_A42) {
  for (const bool odd : {false, true}) {
    const auto start = test::to_f64(test::uniform({5003}, DType::f32, test::device(), 1));
    auto [high, low] = halves_of(start);
    if (odd) high = test::misaligned(high), low = test::misaligned(low);
    EXPECT_TRUE(test::close(joined_halves(high, low), start, {}));
    const List wide{test::from_list({5003}, DType::f32, start)}, h{high}, l{low},
        copies{test::fresh({5003}, DType::bf16)};
    const List m1{zeros({5003})}, v1{zeros({5003})}, m2{zeros({5003})}, v2{zeros({5003})};
    for (int k = 1; k <= 4; ++k) {
      const List g{test::uniform({5003}, k % 2 == 0 ? DType::bf16 : DType::f32, test::device(),
                                 7 + static_cast<std::uint64_t>(k))};
      const AdamOptions o{.lr = 0.01, .weight_decay = 0.1, .step = k};
      kernels::multi_tensor_adam(test::context(), wide.views, m1.views, v1.views, {}, g.const_views, {}, o);
      kernels::multi_tensor_adam_remainders(test::context(), h.views, l.views, m2.views, v2.views, copies.views,
                                            g.const_views, {}, o);
      EXPECT_TRUE(test::close(joined_halves(high, low), wide.joined(), {})) << "step " << k << odd;
      EXPECT_TRUE(test::equal(m2.tensors[0], m1.joined()));
      EXPECT_TRUE(test::equal(copies.tensors[0], test::to_f64(high)));
    }
  }
  const auto bits = [](std::uint32_t b) { return static_cast<double>(std::bit_cast<float>(b)); };
  const AdamOptions still{.lr = 0, .step = 1};
  const List g{zeros({6})}, m{zeros({6})}, v{zeros({6})};
  const std::vector<double> edge = {bits(0x3F808000), bits(0x3F807FFF), bits(0xBF808000), bits(0x3F80C000), 1.0,
                                    bits(0x7FFFFFFF)};
  auto [high, low] = halves_of({edge[0], edge[1], edge[2], edge[3], edge[4], 0});
  test::assign(high, [&, was = test::to_f64(high)](std::int64_t i) {
    return i == 5 ? std::nan("") : was[static_cast<std::size_t>(i)];
  });
  const List h{high}, l{low};
  kernels::multi_tensor_adam_remainders(test::context(), h.views, l.views, m.views, v.views, {}, g.const_views, {},
                                        still);
  const auto after = joined_halves(high, low);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(after[i], edge[i]) << i;
  EXPECT_TRUE(std::isnan(test::to_f64(high)[5])) << "a NaN must not become -0";
  EXPECT_EQ(test::to_f64(high)[0], bits(0x3F810000));
  EXPECT_EQ(test::to_f64(high)[1], bits(0x3F800000));
  EXPECT_EQ(test::to_f64(high)[2], bits(0xBF810000));
  // p = 1, g = 0.1: the remainders of five steps.
  auto [one, rest] = halves_of({1.0});
  const List oh{one}, ol{rest}, og{test::from_list({1}, DType::bf16, {0.1})}, om{zeros({1})}, ov{zeros({1})};
  const int want[] = {-16777, 31982, 15205, -1572, -18349};
  for (int k = 0; k < 5; ++k) {
    kernels::multi_tensor_adam_remainders(test::context(), oh.views, ol.views, om.views, ov.views, {}, og.const_views,
                                          {}, {.lr = 1e-3, .step = k + 1});
    const auto bytes = test::to_f64(rest);
    const auto rem = static_cast<std::int16_t>(static_cast<int>(bytes[0]) | static_cast<int>(bytes[1]) << 8);
    EXPECT_NEAR(rem, want[k], 2) << k;
    EXPECT_EQ(one.item(), k == 0 ? 1.0 : bits(0x3F7F0000));
  }
}

TEST(MultiTensorAdagrad, EveryTypeAgainstTheFormulas) {
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const auto grad_dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
      for (const bool decoupled : {false, true}) {
        if ((dtype == DType::f64) != (grad_dtype == DType::f64)) continue;
        AdagradOptions o{.lr = 0.05, .eps = 1e-3, .weight_decay = 0.25, .adagrad_w_mode = decoupled};
        o.in.grad_scale = 0.5;
        const List p = awkward(dtype, 1), h = awkward(accum_dtype(dtype), 2, 0.1, 1), g = awkward(grad_dtype, 3),
                   copies = fresh_like(p, DType::bf16);
        Values ps = values_of(p), hs = values_of(h);
        const Values gs = values_of(g);
        for (std::size_t t = 0; t < ps.size(); ++t)
          for (std::size_t i = 0; i < ps[t].size(); ++i) {
            double x = gs[t][i] * 0.5 + (decoupled ? 0 : 0.25 * ps[t][i]);
            hs[t][i] += x * x;
            x = x / (std::sqrt(hs[t][i]) + 1e-3) + (decoupled ? 0.25 * ps[t][i] : 0);
            ps[t][i] -= 0.05 * x;
          }
        kernels::multi_tensor_adagrad(test::context(), p.views, h.views, copies.views, g.const_views, o);
        EXPECT_TRUE(all_close(p, ps, rounded(dtype))) << dtype << grad_dtype;
        EXPECT_TRUE(all_close(h, hs, rounded(accum_dtype(dtype)))) << dtype << grad_dtype;
        EXPECT_TRUE(all_close(copies, ps, rounded(DType::bf16))) << dtype << grad_dtype;
      }
}

TEST(MultiTensorNovoGrad, EveryTypeAgainstTheFormulas) {
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const auto grad_dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
      for (const bool inside : {false, true})
        for (const auto type : {NormType::l2, NormType::inf}) {
          if ((dtype == DType::f64) != (grad_dtype == DType::f64)) continue;
          NovoGradOptions o{.lr = 0.05,
                            .beta1 = 0.875,
                            .beta2 = 0.96875,
                            .eps = 1e-3,
                            .weight_decay = 0.25,
                            .norm_type = type,
                            .grad_averaging = inside,
                            .reg_inside_moment = inside,
                            .step = 2};
          o.in.grad_scale = 0.5;
          const List p = awkward(dtype, 1), m = awkward(accum_dtype(dtype), 2), g = awkward(grad_dtype, 3),
                     copies = fresh_like(p, DType::f16);
          List norms;
          for (std::size_t i = 0; i < p.tensors.size(); ++i)
            norms.add(test::from_list({1}, accum_dtype(dtype), {static_cast<double>(i) + 1}));
          Values ps = values_of(p), ms = values_of(m), kept = values_of(norms);
          const Values gs = values_of(g);
          for (std::size_t t = 0; t < ps.size(); ++t) {
            double sum = 0, most = 0;
            for (const double v : gs[t]) sum += v * v * 0.25, most = std::max(most, std::abs(v) * 0.5);
            double& s = kept[t][0];
            s = type == NormType::l2 ? std::sqrt(0.96875 * s * s + 0.03125 * sum) : 0.96875 * s + 0.03125 * most;
            const double d = s / std::sqrt(1 - 0.96875 * 0.96875) + 1e-3, bc1 = 1 - 0.875 * 0.875;
            for (std::size_t i = 0; i < ps[t].size(); ++i) {
              const double x = gs[t][i] * 0.5, b3 = inside ? 0.125 : 1;
              double& mm = ms[t][i];
              mm = 0.875 * mm + b3 * (inside ? x / d + 0.25 * ps[t][i] : x);
              ps[t][i] -= 0.05 * (inside ? mm / bc1 : mm / bc1 / d + 0.25 * ps[t][i]);
            }
          }
          kernels::multi_tensor_novograd(test::context(), p.views, m.views, norms.views, copies.views, g.const_views,
                                         {}, o);
          EXPECT_TRUE(all_close(norms, kept, rounded(accum_dtype(dtype)))) << dtype << grad_dtype;
          EXPECT_TRUE(all_close(p, ps, rounded(dtype))) << dtype << grad_dtype << inside;
          EXPECT_TRUE(all_close(m, ms, rounded(accum_dtype(dtype)))) << dtype << grad_dtype << inside;
          EXPECT_TRUE(all_close(copies, ps, rounded(DType::f16))) << dtype << grad_dtype << inside;
        }
}

TEST(MultiTensorLamb, EveryTypeAgainstTheFormulas) {
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const auto grad_dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
      for (const bool decoupled : {false, true}) {
        if ((dtype == DType::f64) != (grad_dtype == DType::f64)) continue;
        const Tensor gn = test::from_list({1}, grad_dtype == DType::bf16 ? DType::f64 : DType::f32, {3});
        LambOptions o{.lr = 0.05,
                      .beta1 = 0.875,
                      .beta2 = 0.96875,
                      .eps = 1e-3,
                      .weight_decay = 0.25,
                      .adam_w_mode = decoupled,
                      .grad_averaging = decoupled,
                      .max_grad_norm = 2,
                      .step = 2};
        o.grad_norm = gn.view();
        o.in.grad_scale = 0.5;
        const List p = awkward(dtype, 1), m = awkward(accum_dtype(dtype), 2),
                   v = awkward(accum_dtype(dtype), 3, 0.1, 1), g = awkward(grad_dtype, 4),
                   copies = fresh_like(p, DType::bf16);
        Values ps = values_of(p), ms = values_of(m), vs = values_of(v);
        const Values gs = values_of(g);
        for (std::size_t t = 0; t < ps.size(); ++t) {
          double pp = 0, uu = 0;
          std::vector<double> u(ps[t].size());
          for (std::size_t i = 0; i < ps[t].size(); ++i) {
            const double p0 = ps[t][i], x = gs[t][i] * 0.5 / 1.5 + (decoupled ? 0 : 0.25 * p0);
            ms[t][i] = 0.875 * ms[t][i] + (decoupled ? 0.125 : 1) * x;
            vs[t][i] = 0.96875 * vs[t][i] + 0.03125 * x * x;
            u[i] = ms[t][i] / (1 - 0.875 * 0.875) / (std::sqrt(vs[t][i] / (1 - 0.96875 * 0.96875)) + 1e-3) +
                   (decoupled ? 0.25 * p0 : 0);
            pp += p0 * p0, uu += u[i] * u[i];
          }
          const double r = pp != 0 && uu != 0 ? 0.05 * std::sqrt(pp / uu) : 0.05;
          for (std::size_t i = 0; i < ps[t].size(); ++i) ps[t][i] -= r * u[i];
        }
        kernels::multi_tensor_lamb(test::context(), p.views, m.views, v.views, copies.views, g.const_views, {}, o);
        EXPECT_TRUE(all_close(p, ps, rounded(dtype))) << dtype << grad_dtype;
        EXPECT_TRUE(all_close(m, ms, rounded(accum_dtype(dtype)))) << dtype << grad_dtype;
        EXPECT_TRUE(all_close(v, vs, rounded(accum_dtype(dtype)))) << dtype << grad_dtype;
        EXPECT_TRUE(all_close(copies, ps, rounded(DType::bf16))) << dtype << grad_dtype;
        EXPECT_TRUE(all_close(g, gs, {}));
      }
}

TEST(MultiTensorLamb, ZeroWeightsAndBadNorms_OPT_10_A18) {
  const List p{zeros({2})}, m{zeros({2})}, v{zeros({2})}, g{values<float>({2}, {0.1f, 0.1f})};
  LambOptions o{.lr = 0.01, .max_grad_norm = 0, .step = 1};
  kernels::multi_tensor_lamb(test::context(), p.views, m.views, v.views, {}, g.const_views, {}, o);
  EXPECT_TRUE(test::close(p.joined(), {-0.0099999, -0.0099999}, {2e-6, 2e-7}));
  EXPECT_TRUE(test::equal(g.tensors[0], test::to_f64(values<float>({2}, {0.1f, 0.1f}))));
}

TEST(MultiTensorLamb, MastersWithScaledGradients_OPT_10_A19) {
  const List p{test::from_list({4}, DType::f32, kP)}, m{zeros({4})}, v{zeros({4})}, copy{test::fresh({4}, DType::f16)};
  const Tensor norm = make({1}), inv = values<float>({1}, {1.0f / 128});
  const List count{values<std::int32_t>({1}, {0})};
  const std::vector<double> want[] = {{0.98096395, -1.9807754, 0.48105803, 3.0182824},
                                      {0.94706374, -1.9704776, 0.47129992, 3.0267811},
                                      {0.96307886, -1.959785, 0.43988204, 3.0344248}};
  for (std::size_t k = 0; k < 3; ++k) {
    auto scaled = kG[k];
    for (auto& x : scaled) x *= 128;
    const List g{test::from_list({4}, DType::f16, scaled)};
    LambOptions o{.lr = 0.01};
    o.in.inv_scale = inv.view();
    o.grad_norm = norm.view();
    kernels::multi_tensor_unscale_l2norm(test::context(), {}, norm.view(), {}, g.const_views, inv.view());
    kernels::multi_tensor_lamb(test::context(), p.views, m.views, v.views, copy.views, g.const_views, count.views, o);
    EXPECT_TRUE(test::close(p.joined(), want[k], {2e-5, 2e-5})) << k;
    EXPECT_TRUE(test::equal(copy.tensors[0], test::to_f64(test::from_list({4}, DType::f16, p.joined()))));
  }
}

TEST(MultiTensorLamb, InTwoHalvesAndInTwoStages) {
  const List p1 = awkward(DType::f32, 1), p2 = awkward(DType::f32, 1), p3 = awkward(DType::f32, 1);
  const auto zeroed = [&] {
    const List l = fresh_like(p1, DType::f32);
    for (const auto& t : l.tensors) test::assign(t, [](std::int64_t) { return 0.0; });
    return l;
  };
  const List a1 = zeroed(), b1 = zeroed(), m2 = zeroed(), v2 = zeroed(), a3 = zeroed(), b3 = zeroed(),
             u = fresh_like(p1, DType::f32);
  const auto n = static_cast<std::int64_t>(p1.tensors.size());
  const Tensor squares = test::fresh({n, 2}, DType::f64), gn = values<float>({1}, {4}), param_norms = make({n}),
               update_norms = make({n}), all = make({1});
  LambOptions o{.lr = 0.05, .weight_decay = 0.125};
  o.grad_norm = gn.view();
  for (int k = 1; k <= 2; ++k) {
    const List g = awkward(DType::bf16, 10 + static_cast<std::uint64_t>(k));
    o.step = k;
    kernels::multi_tensor_lamb(test::context(), p1.views, a1.views, b1.views, {}, g.const_views, {}, o);
    kernels::multi_tensor_lamb_moments(test::context(), squares.view(), p2.const_views, m2.views, v2.views,
                                       g.const_views, {}, o);
    kernels::multi_tensor_lamb_apply(test::context(), p2.views, {}, m2.const_views, v2.const_views, {}, {},
                                     squares.view(), o);
    EXPECT_TRUE(all_close(p2, values_of(p1), {})) << "the halves are the whole";
    kernels::multi_tensor_lamb_stage1(test::context(), p3.const_views, a3.views, b3.views, u.views, g.const_views,
                                      std::vector<double>(static_cast<std::size_t>(n), 0.125), gn.view(), 1.0, k - 1,
                                      o.beta1, o.beta2, o.eps);
    kernels::multi_tensor_l2norm(test::context(), {}, all.view(), param_norms.view(), p3.const_views);
    kernels::multi_tensor_l2norm(test::context(), {}, all.view(), update_norms.view(), u.const_views);
    kernels::multi_tensor_lamb_stage2(test::context(), p3.views, u.const_views, param_norms.view(), update_norms.view(),
                                      o.lr, 0.125, false);
    EXPECT_TRUE(all_close(p3, values_of(p1), {4e-6, 4e-7}));
    EXPECT_TRUE(all_close(a3, values_of(a1), test::optimizer_tolerance(DType::f32)));
  }
  // A decay of its own for each tensor, more of them than one launch carries.
  List p, mm, vv, uu, g;
  std::vector<double> decays;
  for (int i = 0; i < 70; ++i) {
    p.add(values<float>({2}, {1, 2})), mm.add(zeros({2})), vv.add(zeros({2})), uu.add(test::fresh({2}, DType::f32));
    g.add(zeros({2}));
    decays.push_back(i % 50);
  }
  kernels::multi_tensor_lamb_stage1(test::context(), p.const_views, mm.views, vv.views, uu.views, g.const_views, decays,
                                    {}, 0, 0, 0.9, 0.999, 1e-6);
  for (std::size_t i = 0; i < 70; ++i) EXPECT_TRUE(test::equal(uu.tensors[i], {decays[i], 2 * decays[i]})) << i;
}

// ---- skips, counts, replay ----

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

// ---- norms, casts, loss scale ----

TEST(MultiTensorNorms, Acceptance_OPT_10_A31) {
  const Tensor flag = values<std::int32_t>({1}, {0}), norm = test::fresh({1}, DType::f32),
               per = test::fresh({2}, DType::f32), quarter = values<float>({1}, {0.25f});
  const List x{values<float>({2}, {3, 4}), values<float>({2}, {0, 12})},
      out{make({2}, DType::f16), make({2}, DType::f16)};
  kernels::multi_tensor_l2norm_mp(test::context(), flag.view(), norm.view(), per.view(), x.const_views);
  EXPECT_EQ(norm.item(), 13);
  EXPECT_TRUE(test::equal(per, {5, 12}));
  const List y{values<float>({2}, {12, 16})};
  kernels::multi_tensor_unscale_l2norm(test::context(), flag.view(), norm.view(), {}, y.const_views, quarter.view());
  EXPECT_EQ(norm.item(), 5);
  EXPECT_TRUE(test::equal(y.tensors[0], {12, 16}));
  kernels::multi_tensor_l2norm_scale(test::context(), flag.view(), norm.view(), per.view(), out.views, x.const_views,
                                     2);
  EXPECT_EQ(norm.item(), 13);
  EXPECT_TRUE(test::equal(per, {5, 12}));
  EXPECT_EQ(out.joined(), (std::vector<double>{6, 8, 0, 24}));
  EXPECT_EQ(flag.item(), 0);
  kernels::multi_tensor_max_norm(test::context(), flag.view(), norm.view(), per.view(), x.const_views);
  EXPECT_EQ(norm.item(), 12);
  EXPECT_TRUE(test::equal(per, {4, 12}));
  EXPECT_EQ(flag.item(), 0);
  const auto flagged = [&](const std::function<void(View)>& op) {
    const Tensor f = values<std::int32_t>({1}, {0});
    op(f.view());
    return f.item();
  };
  const List nan{values<float>({2}, {1, NAN}), values<float>({1}, {7})}, large{values<float>({1}, {2e19f})},
      half{make({1}, DType::f16)};
  EXPECT_EQ(flagged([&](View f) {
              kernels::multi_tensor_max_norm(test::context(), f, norm.view(), per.view(), nan.const_views);
            }),
            1);
  EXPECT_TRUE(std::isnan(norm.item()));
  EXPECT_TRUE(std::isnan(test::to_f64(per)[0]));
  EXPECT_EQ(test::to_f64(per)[1], 7);
  EXPECT_EQ(
      flagged([&](View f) { kernels::multi_tensor_l2norm_mp(test::context(), f, norm.view(), {}, large.const_views); }),
      1);
  EXPECT_EQ(
      flagged([&](View f) { kernels::multi_tensor_max_norm(test::context(), f, norm.view(), {}, large.const_views); }),
      0);
  EXPECT_EQ(flagged([&](View f) {
              kernels::multi_tensor_l2norm_scale(test::context(), f, norm.view(), {}, half.views,
                                                 List{values<float>({1}, {1e5f})}.const_views, 1);
            }),
            1)
      << "a result beyond f16";
  const Tensor set = values<std::int32_t>({1}, {5});
  kernels::multi_tensor_l2norm_mp(test::context(), set.view(), norm.view(), per.view(), nan.const_views);
  EXPECT_EQ(norm.item(), 0);
  EXPECT_TRUE(test::equal(per, {0, 0}));
  EXPECT_EQ(set.item(), 5);
  for (const auto dtype : {DType::f32, DType::f64}) {
    const Tensor none = test::fresh({1}, dtype);
    kernels::multi_tensor_max_norm(test::context(), {}, none.view(), {}, {});
    EXPECT_EQ(none.item(), 0) << "of nothing";
  }
}

TEST(MultiTensorNorms, EveryTypeAgainstTheFormulas) {
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const List x = awkward(dtype, 5);
    const auto n = static_cast<std::int64_t>(x.tensors.size());
    std::vector<double> l2, most, scaled_l2, blend_l2, blend_max;
    double sum = 0, largest = 0;
    for (const auto& values : values_of(x)) {
      double s = 0, m = 0;
      for (const double v : values) s += v * v, m = std::max(m, std::abs(v));
      l2.push_back(std::sqrt(s)), scaled_l2.push_back(0.25 * std::sqrt(s)), most.push_back(m);
      blend_l2.push_back(std::sqrt(0.75 * 4 + 0.25 * s)), blend_max.push_back(0.75 * 2 + 0.25 * m);
      sum += s, largest = std::max(largest, m);
    }
    const DType wide = accum_dtype(dtype);
    const Tensor norm = test::fresh({1}, wide), per = test::fresh({n}, wide), quarter = values<float>({1}, {0.25f});
    kernels::multi_tensor_l2norm_mp(test::context(), {}, norm.view(), per.view(), x.const_views);
    EXPECT_TRUE(test::close(norm, {std::sqrt(sum)}, test::kNormTolerance)) << dtype;
    EXPECT_TRUE(test::close(per, l2, test::kNormTolerance)) << dtype;
    kernels::multi_tensor_unscale_l2norm(test::context(), {}, norm.view(), per.view(), x.const_views, quarter.view());
    EXPECT_TRUE(test::close(per, scaled_l2, test::kNormTolerance)) << dtype;
    kernels::multi_tensor_max_norm(test::context(), {}, norm.view(), per.view(), x.const_views);
    EXPECT_TRUE(test::equal(per, most)) << dtype;
    EXPECT_EQ(norm.item(), largest);
    for (const auto type : {NormType::l2, NormType::inf}) {
      const Tensor kept = test::from_function({n}, wide, test::device(), [](std::int64_t) { return 2.0; });
      kernels::multi_tensor_norm_out(test::context(), {}, kept.view(), x.const_views, 0.75, 0.25, type);
      EXPECT_TRUE(test::close(kept, type == NormType::l2 ? blend_l2 : blend_max, test::kNormTolerance)) << dtype;
    }
    const List out = fresh_like(x, dtype == DType::f64 ? DType::f64 : DType::f32);
    kernels::multi_tensor_l2norm_scale(test::context(), {}, norm.view(), per.view(), out.views, x.const_views, 0.5);
    EXPECT_TRUE(test::close(per, l2, test::kNormTolerance)) << dtype;
    Values halved = values_of(x);
    for (auto& t : halved)
      for (auto& v : t) v *= 0.5;
    EXPECT_TRUE(all_close(out, halved, {})) << dtype;
  }
}

TEST(MultiTensorClip, Coefficients_OPT_10_A34) {
  const auto clipped = [](double most, double norm_value, const std::vector<double>& x, DType dtype = DType::f32,
                          DType norm_dtype = DType::f32) {
    const List l{test::from_list({static_cast<std::int64_t>(x.size())}, dtype, x)};
    const Tensor norm = test::from_list({1}, norm_dtype, {norm_value});
    kernels::multi_tensor_clip(test::context(), l.views, norm.view(), most);
    return l.joined();
  };
  EXPECT_TRUE(test::close(clipped(1, 13, {3, 4}), {3 * 0.0769230723, 4 * 0.0769230723}, {1e-6, 0}));
  EXPECT_TRUE(test::close(clipped(6.5, 13, {3, 4, 12}), {1.4999999, 1.9999999, 5.9999995}, {2e-7, 0}));
  EXPECT_TRUE(test::close(clipped(13, 13, {3, 4}), {3 * 0.99999994, 4 * 0.99999994}, {1e-7, 0}));
  EXPECT_EQ(clipped(20, 13, {3, 4}), (std::vector<double>{3, 4}));
  const auto of_inf = clipped(1, INFINITY, {3, INFINITY});
  EXPECT_EQ(of_inf[0], 0);
  EXPECT_TRUE(std::isnan(of_inf[1]));
  EXPECT_TRUE(std::isnan(clipped(1, NAN, {3})[0]));
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const auto norm_dtype : {DType::f32, DType::f64})
      EXPECT_TRUE(test::close(clipped(2, 4, {1, -2, 3}, dtype, norm_dtype), {0.5, -1, 1.5}, {0x1p-7, 0})) << dtype;
}

TEST(MultiTensorMaybeCast, TypesAndBytes_OPT_10_A38) {
  const List x{test::from_list({6}, DType::f32, {1.1, 1.125, 1.375, -3.3, 57344, 61440})}, bytes{make({6}, DType::u8)},
      back{make({6}, DType::f16)}, special{values<float>({3}, {NAN, -INFINITY, 0})}, codes{make({3}, DType::u8)},
      again{make({3}, DType::f32)};
  kernels::multi_tensor_maybe_cast(test::context(), {}, bytes.views, x.const_views);
  EXPECT_EQ(bytes.joined(), (std::vector<double>{0x3C, 0x3D, 0x3E, 0xC3, 0x7B, 0x7C}));
  kernels::multi_tensor_maybe_cast(test::context(), {}, back.views, bytes.const_views);
  EXPECT_EQ(back.joined(), (std::vector<double>{1, 1.25, 1.5, -3.5, 57344, INFINITY}));
  kernels::multi_tensor_maybe_cast(test::context(), {}, codes.views, special.const_views);
  kernels::multi_tensor_maybe_cast(test::context(), {}, again.views, codes.const_views);
  EXPECT_TRUE(test::equal(again.tensors[0], {NAN, -INFINITY, 0}));
  constexpr DType kTypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
  for (const auto from : kTypes)
    for (const auto to : kTypes) {
      const List in = awkward(from, 1), out = fresh_like(in, to);
      kernels::multi_tensor_maybe_cast(test::context(), {}, out.views, in.const_views);
      const auto want = values_of(in);
      EXPECT_TRUE(all_close(out, want,
                            size_of(to) >= size_of(from) && from != DType::f16 && from == to
                                ? test::Tolerance{}
                                : test::optimizer_tolerance(to == DType::f64 ? from : to)))
          << from << to;
    }
  const Tensor set = values<std::int32_t>({1}, {1}), clear = values<std::int32_t>({1}, {0});
  const List from{values<float>({1}, {2})}, to{values<float>({1}, {9})};
  kernels::multi_tensor_maybe_cast(test::context(), set.view(), to.views, from.const_views);
  EXPECT_EQ(to.tensors[0].item(), 9);
  kernels::multi_tensor_maybe_cast(test::context(), clear.view(), to.views, from.const_views);
  EXPECT_EQ(to.tensors[0].item(), 2);
}

TEST(UpdateScaleHysteresis, Sequence_OPT_10_A35) {
  const Tensor scale = values<float>({1}, {65536}), growth = values<std::int32_t>({1}, {0}),
               hysteresis = values<std::int32_t>({1}, {2});
  const auto update = [&](double found, double least = 0.0, double most = 3.4028234663852886e38) {
    const Tensor inf = test::from_list({1}, DType::f32, {found});
    kernels::update_scale_hysteresis(test::context(), scale.view(), growth.view(), hysteresis.view(), inf.view(), 2,
                                     0.5, 3, 2, least, most);
  };
  const int found[] = {1, 0, 1, 1, 1, 0, 0, 0, 0};
  const double scales[] = {65536, 65536, 65536, 32768, 16384, 16384, 16384, 32768, 32768};
  const int grown[] = {0, 1, 0, 0, 0, 1, 2, 0, 1}, held[] = {1, 2, 1, 0, -1, 2, 2, 2, 2};
  for (int i = 0; i < 9; ++i) {
    update(found[i]);
    EXPECT_EQ(scale.item(), scales[i]) << i;
    EXPECT_EQ(growth.item(), grown[i]) << i;
    EXPECT_EQ(hysteresis.item(), held[i]) << i;
  }
  const auto set = [](const Tensor& t, double x) { test::assign(t, [=](std::int64_t) { return x; }); };
  set(scale, 3e38), set(growth, 2);
  update(0);
  EXPECT_EQ(scale.item(), static_cast<double>(3e38f)) << "never infinite";
  EXPECT_EQ(growth.item(), 0);
  set(scale, 1024), set(growth, 2);
  update(0, 0, 1500);
  EXPECT_EQ(scale.item(), 1500);
  set(hysteresis, 1);
  update(1, 1000, 1500);
  EXPECT_EQ(scale.item(), 1000);
  set(scale, 1e-45), set(hysteresis, 1);
  update(NAN);
  EXPECT_EQ(scale.item(), 0) << "it may underflow";
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
