// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/optimizers/fused_adagrad.hpp"
#include "apex/optimizers/fused_novograd.hpp"
#include "lib/optimizers_support.hpp"

namespace apex {
namespace {

using optimizers::AdagradOptions;
using optimizers::FusedAdagrad;
using optimizers::FusedNovoGrad;
using optimizers::NovoGradOptions;
using test::expect_close;
using test::expect_error;
using test::expect_values;
using test::joined;
using test::kGrads;
using test::kLayouts;
using test::kP;
using test::leaf;
using test::parameters;
using test::set_gradients;
using test::state;
using test::values;
using test::vector_of;

using Rows = std::vector<std::vector<double>>;

void run_adagrad(AdagradOptions options, const Rows& want) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const auto& layout : kLayouts) {
      SCOPED_TRACE(concat(layout.name, ' ', dtype));
      const auto params = parameters(layout, dtype);
      FusedAdagrad optimizer(params, options);
      for (std::size_t t = 0; t < 3; ++t) {
        set_gradients(params, kGrads[t]);
        optimizer.step();
        if (!want[t].empty()) expect_close(joined(params), want[t]);
      }
      EXPECT_FALSE(optimizer.state_of(params[0]).contains("step"));
    }
  }
}

TEST(FusedAdagrad, OPT_10_A25_BothModes) {
  run_adagrad({.lr = 0.1, .weight_decay = 0.1}, {{0.9, -1.9, 0.4, 3.0999999},
                                                 {0.84265375, -1.8780488, 0.42998266, 3.0018685},
                                                 {0.90887195, -1.8364038, 0.34312642, 2.9506183}});
  run_adagrad({.lr = 0.1, .weight_decay = 0.1, .adagrad_w_mode = true},
              {{}, {}, {0.92171913, -1.8868622, 0.34412652, 2.9623973}});
}

TEST(FusedAdagrad, SumsOfHalfParametersDoNotStandStill) {
  const Tensor p = leaf(vector_of({1}, DType::f16));
  FusedAdagrad optimizer({p}, {.lr = 1e-3, .initial_accumulator_value = 2048});
  for (int t = 0; t < 4; ++t) {
    set_grad(p, vector_of({0.70703125}, DType::f16));  // its square is 0.4999
    optimizer.step();
  }
  EXPECT_EQ(state(optimizer, p, "sum").dtype(), DType::f32);
  EXPECT_NEAR(state(optimizer, p, "sum").item(), 2048 + 4 * 0.70703125 * 0.70703125, 1e-3);
}

TEST(FusedAdagrad, RateDecaysWithTheParametersOwnSteps) {
  const Tensor a = leaf(vector_of({0})), b = leaf(vector_of({0}));
  FusedAdagrad optimizer({a, b}, {.lr = 1, .lr_decay = 0.5});
  double x = 0, sum = 0;
  for (int t = 1; t <= 3; ++t) {
    set_grad(a, vector_of({1}));
    if (t == 3) set_grad(b, vector_of({1}));
    // The second is a step that is skipped: it does not count.
    optimizer.step({.found_inf = test::full({1}, t == 2 ? 1 : 0)});
    if (t == 2) continue;
    sum += 1;
    x -= 1 / (1 + 0.5 * (sum - 1)) / std::sqrt(sum);
    expect_values(a, {x}, 1e-6);
  }
  expect_values(b, {-1}, 1e-6);
  EXPECT_EQ(state(optimizer, a, "step").item(), 2);
  EXPECT_EQ(state(optimizer, b, "step").item(), 1);
  optimizer.set_lr_source(test::full({1}, 0.5, DType::f64));
  set_grad(a, vector_of({1}));
  expect_error(Kind::unsupported, "lr_decay", [&] { optimizer.step(); });
}

TEST(FusedAdagrad, ResumeErrorsAndMasters) {
  const auto make = [](AdagradOptions o) { return [o] { FusedAdagrad optimizer(std::vector<Tensor>{}, o); }; };
  expect_error(Kind::argument, "FusedAdagrad: lr -1", make({.lr = -1}));
  expect_error(Kind::argument, "lr_decay -1", make({.lr_decay = -1}));
  expect_error(Kind::argument, "initial_accumulator_value -2", make({.initial_accumulator_value = -2}));
  expect_error(Kind::argument, "capturable", make({.lr_decay = 0.5, .capturable = true}));
  for (const double decay : {0.0, 0.25}) {
    const AdagradOptions options{.lr = 0.1, .lr_decay = decay, .master_weights = true};
    const Tensor p = leaf(vector_of(kP, DType::bf16)), q = leaf(vector_of(kP, DType::bf16));
    FusedAdagrad a({p}, options), b({q}, options);
    const auto step = [](FusedAdagrad& o, const Tensor& t, std::size_t k) {
      set_grad(t, vector_of(kGrads[k], DType::bf16));
      o.step();
    };
    step(a, p, 0);
    step(a, p, 1);
    copy_(q.detach(), p);
    b.load_state_dict(a.state_dict());
    step(a, p, 2);
    step(b, q, 2);
    EXPECT_EQ(values(p), values(q));
    EXPECT_EQ(values(state(a, p, "master")), values(state(b, q, "master")));
    EXPECT_EQ(values(state(a, p, "sum")), values(state(b, q, "sum")));
  }
}

struct NovoWant {
  std::vector<double> norms;  ///< after each step; empty: not compared
  Rows p;
};

void run_novograd(NovoGradOptions options, const NovoWant& want) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const bool misaligned : {false, true}) {
      for (const bool capturable : {false, true}) {
        SCOPED_TRACE(concat(dtype, misaligned, capturable));
        options.capturable = capturable;
        const auto params = parameters({"", misaligned, false}, dtype);
        FusedNovoGrad optimizer(params, options);
        for (std::size_t t = 0; t < 3; ++t) {
          set_gradients(params, kGrads[t]);
          optimizer.step();
          if (t < want.norms.size()) expect_close(values(state(optimizer, params[0], "norm")), {want.norms[t]});
          if (!want.p[t].empty()) expect_close(values(params[0]), want.p[t]);
        }
        EXPECT_EQ(state(optimizer, params[0], "norm").numel(), 1);
        EXPECT_EQ(state(optimizer, params[0], "step").item(), 3);
      }
    }
  }
}

const NovoGradOptions kNovo{.lr = 0.1, .beta1 = 0.95, .beta2 = 0.98, .weight_decay = 0.01};

TEST(FusedNovoGrad, OPT_10_A26_DefaultsAndNoBiasCorrection) {
  run_novograd(kNovo, {{0.54772258, 0.54359913, 0.54643577},
                       {{0.996418, -1.992836, 0.49175403, 3.007328},
                        {0.9926995, -1.9891536, 0.48872793, 3.0077},
                        {0.9942311, -1.9858342, 0.4769091, 3.0071971}}});
  auto options = kNovo;
  options.bias_correction = false;
  run_novograd(options, {{}, {{0.99808711, -1.9961742, 0.49676138, 3.0006516}, {}, {}}});
}

TEST(FusedNovoGrad, OPT_10_A27_DecayInsideLargestNormAndZeroStart) {
  auto options = kNovo;
  options.reg_inside_moment = true;
  run_novograd(options, {{}, {{}, {}, {0.99546778, -1.9877924, 0.47984994, 3.0032704}}});
  options = kNovo;
  options.norm_type = 0;
  run_novograd(options, {{0.4, 0.39600003, 0.40008003}, {{}, {}, {0.99318928, -1.9828152, 0.46896574, 3.0131779}}});
  options = kNovo;
  options.init_zero = true;
  run_novograd(options, {{0.07745963}, {{0.98074257, -1.9614852, 0.44472775, 3.0700298}, {}, {}}});
}

TEST(FusedNovoGrad, OPT_10_A28_FormOfThePaper) {
  run_novograd({.lr = 0.1,
                .bias_correction = false,
                .beta1 = 0.95,
                .beta2 = 0,
                .reg_inside_moment = true,
                .grad_averaging = false},
               {{}, {{}, {}, {0.95703512, -1.9670453, 0.36113524, 3.064419}}});
}

TEST(FusedNovoGrad, NormsAreOfTheParameterAndLoadAnyTime) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const auto make = [&] { return std::vector{leaf(vector_of(kP, dtype)), leaf(vector_of({1, 2}, dtype))}; };
    const auto p = make(), q = make();
    const NovoGradOptions options{.lr = 0.1, .master_weights = true};
    FusedNovoGrad a(p, options), b(q, options);
    const auto step = [&](FusedNovoGrad& o, const std::vector<Tensor>& t, std::size_t k) {
      set_grad(t[0], vector_of(kGrads[k], dtype));
      if (k > 0) set_grad(t[1], vector_of({3, 4}, dtype));  // the set of gradients changes
      o.step();
    };
    step(a, p, 0);
    step(a, p, 1);
    expect_close(values(state(a, p[1], "norm")), {5});
    EXPECT_EQ(state(a, p[1], "step").item(), 1);
    for (std::size_t i = 0; i < 2; ++i) copy_(q[i].detach(), p[i]);
    b.load_state_dict(a.state_dict());  // before its first step
    step(a, p, 2);
    step(b, q, 2);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(values(p[i]), values(q[i]));
      EXPECT_EQ(values(state(a, p[i], "norm")), values(state(b, q[i], "norm")));
    }
  }
}

/// The state as Apex has it: norms and the step with the group.
optimizers::OptimizerState apex_form(const FusedNovoGrad& optimizer, bool masters_last) {
  auto out = optimizer.state_dict();
  auto& group = out.groups[0];
  std::vector<double> narrow, wide;
  for (std::size_t i = 0; i < out.state.size(); ++i) {
    auto& own = out.state[i];
    if (own.empty()) continue;
    const bool first = !masters_last && is_16bit(optimizer.groups()[0].params[i].dtype());
    (first ? narrow : wide).push_back(own.at("norm").item());
    group.hyper["step"] = static_cast<std::int64_t>(own.at("step").item());
    own.erase("norm");
    own.erase("step");
  }
  group.hyper["norm_type"] = std::int64_t{2};
  group.hyper["init_zero"] = false;
  group.arrays["exp_avg_sq"] = {vector_of(narrow), vector_of(wide)};
  return out;
}

TEST(FusedNovoGrad, TakesNormsInApexsForm) {
  for (const bool masters : {false, true}) {
    for (const bool unused : {false, true}) {
      SCOPED_TRACE(concat(masters, unused));
      const auto make = [&] {
        return std::vector{leaf(vector_of(kP)), leaf(vector_of({1, 2}, DType::f16)), leaf(vector_of({5})),
                           leaf(vector_of({3, 1, 2}, DType::f16)), leaf(vector_of({2, 4}))};
      };
      const auto p = make(), q = make();
      const NovoGradOptions options{.lr = 0.1, .weight_decay = 0.01, .master_weights = masters};
      FusedNovoGrad a(p, options), b(q, options);
      const auto step = [&](FusedNovoGrad& o, const std::vector<Tensor>& t, double k) {
        set_grad(t[0], vector_of({k, 2, 3, 4}));
        set_grad(t[1], vector_of({3 * k, 4}, DType::f16));
        if (!unused) set_grad(t[2], vector_of({k}));
        set_grad(t[3], vector_of({k, 2, 2}, DType::f16));
        set_grad(t[4], vector_of({6, 8 * k}));
        o.step();
      };
      step(a, p, 1);
      step(a, p, 2);
      for (std::size_t i = 0; i < p.size(); ++i) copy_(q[i].detach(), p[i]);
      b.load_state_dict(apex_form(a, masters));
      for (std::size_t i = 0; i < p.size(); ++i) {
        ASSERT_EQ(a.state_of(p[i]).size(), b.state_of(q[i]).size());
        for (const auto& [key, value] : a.state_of(p[i])) EXPECT_EQ(values(value), values(state(b, q[i], key.c_str())));
      }
      step(a, p, 3);
      step(b, q, 3);
      for (std::size_t i = 0; i < p.size(); ++i) EXPECT_EQ(values(p[i]), values(q[i])) << i;

      const auto before = values(state(b, q[0], "norm"));
      const auto refused = [&](const char* words, auto change) {
        auto bad = apex_form(a, masters);
        change(bad);
        expect_error(Kind::data, words, [&] { b.load_state_dict(bad); });
        EXPECT_EQ(values(state(b, q[0], "norm")), before);
      };
      refused("group 0 of the state has exp_avg_sq of", [](auto& s) {
        s.groups[0].arrays["exp_avg_sq"][1] = vector_of({1, 2, 3, 4, 5, 6, 7});
      });
      refused("has norm_type 0, this optimizer 2", [](auto& s) { s.groups[0].hyper["norm_type"] = std::int64_t{0}; });
      refused("arrays 'exp_avgs'", [](auto& s) { s.groups[0].arrays["exp_avgs"] = {}; });
      refused("names parameter 9", [](auto& s) { s.groups[0].params[1] = 9; });
    }
  }
}

TEST(FusedNovoGrad, ErrorsAndSkippedFirstStep) {
  const auto make = [](NovoGradOptions o) { return [o] { FusedNovoGrad optimizer(std::vector<Tensor>{}, o); }; };
  expect_error(Kind::argument, "norm_type 1", make({.norm_type = 1}));
  expect_error(Kind::argument, "beta2 1 ", make({.beta2 = 1}));
  expect_error(Kind::unsupported, "amsgrad", make({.amsgrad = true}));
  const Tensor p = leaf(vector_of({1, 1}));
  FusedNovoGrad optimizer({p}, {.lr = 0.1, .capturable = true});
  set_grad(p, vector_of({30, 40}));
  optimizer.step({.found_inf = test::ones({1})});
  EXPECT_EQ(values(p), (std::vector<double>{1, 1}));
  set_grad(p, vector_of({3, 4}));
  optimizer.step({.found_inf = test::zeros({1})});
  expect_close(values(state(optimizer, p, "norm")), {5});
}

}  // namespace
}  // namespace apex
