// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <limits>

#include "apex/optimizers/fused_adam.hpp"
#include "lib/optimizers_support.hpp"

namespace apex {
namespace {

using optimizers::AdamOptions;
using optimizers::FusedAdam;
using optimizers::OptimizerState;
using optimizers::ParamGroup;
using optimizers::StepScaling;
using test::converted;
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

/// The three steps, in every layout, with steps counted on the host and on the device.
void run_case(AdamOptions options, const std::vector<std::vector<double>>& want,
              const std::map<std::string, std::vector<double>>& state_after = {}) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const auto& layout : kLayouts) {
      for (const bool capturable : {false, true}) {
        SCOPED_TRACE(concat(layout.name, ' ', dtype, capturable ? " capturable" : ""));
        options.capturable = capturable;
        const auto params = parameters(layout, dtype);
        FusedAdam optimizer(params, options);
        for (std::size_t t = 0; t < 3; ++t) {
          set_gradients(params, kGrads[t]);
          optimizer.step();
          expect_close(joined(params), want[t]);
          for (const auto& p : params) {
            EXPECT_EQ(state(optimizer, p, "step").item(), static_cast<double>(t + 1));
            EXPECT_EQ(state(optimizer, p, "step").dtype(), DType::i32);
          }
        }
        for (const auto& [key, wanted] : state_after) {
          std::vector<Tensor> all;
          for (const auto& p : params) all.push_back(state(optimizer, p, key.c_str()));
          expect_close(joined(all), wanted);
        }
      }
    }
  }
}

TEST(FusedAdam, OPT_10_A1_DecoupledDecay) {
  run_case({.lr = 0.1, .weight_decay = 0.1},
           {{0.88999999, -1.88, 0.39500001, 3.0699999},
            {0.78788203, -1.8345664, 0.3644163, 3.0659337},
            {0.81472558, -1.7956327, 0.29496098, 3.0544279}},
           {{"exp_avg", {-0.0174, -0.0072, 0.0708, -0.0134}},
            {"exp_avg_sq", {1.0247620e-4, 4.9909399e-5, 4.7229155e-4, 1.9973760e-4}}});
}

TEST(FusedAdam, OPT_10_A2_DecayInTheGradient) {
  run_case({.lr = 0.1, .adam_w_mode = false, .weight_decay = 0.1}, {{0.9, -1.9, 0.4, 3.0999999},
                                                                    {0.80242795, -1.8182875, 0.35840112, 3.0398622},
                                                                    {0.78914988, -1.7346373, 0.2869974, 2.9670327}});
}

TEST(FusedAdam, OPT_10_A3_WithoutBiasCorrection) {
  run_case({.lr = 0.01, .bias_correction = false}, {{0.96837711, -1.9683771, 0.46837705, 3.0316229},
                                                    {0.92876315, -1.9570588, 0.45705876, 3.0429411},
                                                    {0.94595164, -1.9468672, 0.42448047, 3.0524225}});
}

TEST(FusedAdam, OPT_10_A4_OtherBetasAndEps) {
  const Tensor p = leaf(vector_of({0.5}));
  FusedAdam optimizer({p}, {.lr = 0.01, .beta1 = 0.6, .beta2 = 0.9, .eps = 3e-6});
  for (const auto& [g, want] : {std::pair(1.0, 0.49000004), {0.5, 0.48116317}, {-0.25, 0.47787610}}) {
    set_grad(p, vector_of({g}));
    optimizer.step();
    expect_close(values(p), {want});
  }
}

TEST(FusedAdam, OPT_10_A5_MastersKeepWhat16BitsLose) {
  for (const bool capturable : {false, true}) {
    const Tensor without = leaf(vector_of({1}, DType::bf16)), with = leaf(vector_of({1}, DType::bf16));
    FusedAdam plain({without}, {.lr = 1e-3, .capturable = capturable}),
        masters({with}, {.lr = 1e-3, .capturable = capturable, .master_weights = true});
    for (int t = 1; t <= 5; ++t) {
      for (const auto& p : {without, with}) set_grad(p, vector_of({0.1}, DType::bf16));
      plain.step();
      masters.step();
      EXPECT_EQ(values(without), std::vector{1.0});
      expect_values(state(masters, with, "master"), {1 - 1e-3 * t}, 2e-7);
      EXPECT_EQ(values(with), std::vector{t == 1 ? 1.0 : 0.99609375}) << t;
    }
    EXPECT_FALSE(plain.state_of(without).contains("master"));
    EXPECT_EQ(state(masters, with, "exp_avg").dtype(), DType::f32);
  }
  const Tensor p = leaf(vector_of({1}));
  FusedAdam wide({p}, {.master_weights = true});
  set_grad(p, vector_of({1}));
  wide.step();
  EXPECT_FALSE(wide.state_of(p).contains("master")) << "f32 needs none";
}

TEST(FusedAdam, OPT_10_A6_ScaledGradients) {
  for (const bool write : {false, true}) {
    const Tensor p = leaf(vector_of(kP)), q = leaf(vector_of(kP));
    FusedAdam scaled({p}, {.lr = 0.1, .weight_decay = 0.1, .capturable = true, .write_unscaled_grads = write}),
        plain({q}, {.lr = 0.1, .weight_decay = 0.1});
    const StepScaling scaling{.found_inf = test::zeros({1}), .inv_scale = test::full({1}, 1.0 / 1024)};
    for (const auto& g : kGrads) {
      std::vector<double> times;
      for (const double v : g) times.push_back(1024 * v);
      set_grad(p, vector_of(times));
      set_grad(q, vector_of(g));
      const auto before = values(grad(p));
      scaled.step(scaling);
      plain.step();
      EXPECT_EQ(values(p), values(q));
      EXPECT_EQ(values(grad(p)), write ? values(grad(q)) : before);
    }
    expect_close(values(p), {0.81472558, -1.7956327, 0.29496098, 3.0544279});
  }
}

TEST(FusedAdam, SkippedStepsLeaveWrittenGradientsAlone) {
  const Tensor p = leaf(vector_of(kP));
  FusedAdam optimizer({p}, {.capturable = true, .write_unscaled_grads = true});
  for (const DType flag : {DType::f32, DType::i32}) {
    set_grad(p, vector_of(kGrads[0]));
    const auto before = values(grad(p));
    optimizer.step({.found_inf = test::ones({1}, flag), .inv_scale = test::full({1}, 0.25)});
    EXPECT_EQ(values(grad(p)), before);
    EXPECT_EQ(values(p), kP);
  }
}

TEST(FusedAdam, OPT_10_A7_OverflowInOneGroupSkipsAll) {
  for (const bool capturable : {false, true}) {
    const Tensor half = leaf(vector_of(kP, DType::f16)), full = leaf(vector_of(kP));
    FusedAdam optimizer(std::vector<ParamGroup>{{{half}}, {{full}}}, {.lr = 0.1, .capturable = capturable});
    const Tensor found_inf = test::ones({1}), inv_scale = test::full({1}, 1.0 / 8);
    set_grad(half, vector_of({std::numeric_limits<double>::infinity(), 1, 1, 1}, DType::f16));
    set_grad(full, vector_of({1, 1, 0, 1}));
    optimizer.step({.found_inf = found_inf, .inv_scale = inv_scale});
    EXPECT_TRUE(optimizer.last_step_skipped());
    for (const auto& p : {half, full}) {
      EXPECT_EQ(values(p), kP);
      if (optimizer.state_of(p).contains("step")) {
        EXPECT_EQ(state(optimizer, p, "step").item(), 0);
        EXPECT_EQ(values(state(optimizer, p, "exp_avg")), std::vector<double>(4, 0.0));
      }
    }
    fill_(found_inf, 0);
    set_grad(half, vector_of({1, 1, 0, -1}, DType::f16));
    set_grad(full, vector_of({1, 1, 0, -1}));
    optimizer.step({.found_inf = found_inf, .inv_scale = inv_scale});
    EXPECT_FALSE(optimizer.last_step_skipped());
    expect_close(values(full), {0.9, -2.1, 0.5, 3.1}, 1e-4 * 0.1, 1e-6);
    expect_close(values(half), {0.9, -2.1, 0.5, 3.1}, 1e-3, 0);
    for (const auto& p : {half, full}) EXPECT_EQ(state(optimizer, p, "step").item(), 1);
  }
}

TEST(FusedAdam, OPT_10_A8_MomentsOfHalfParametersAreF32) {
  const Tensor p = leaf(vector_of({1}, DType::f16));
  FusedAdam optimizer({p}, {.lr = 1e-3, .capturable = true});
  const double g = test::to_f64(vector_of({2e-3}, DType::f16))[0];
  double m = 0, v = 0;
  for (int t = 1; t <= 3; ++t) {
    set_grad(p, vector_of({t < 3 ? 2e-3 : 0}, DType::f16));
    optimizer.step();
    const double now = t < 3 ? g : 0;
    m = 0.9 * m + 0.1 * now;
    v = 0.999 * v + 0.001 * now * now;
    EXPECT_NEAR(state(optimizer, p, "exp_avg").item(), m, 1e-4 * m);
    EXPECT_NEAR(state(optimizer, p, "exp_avg_sq").item(), v, 1e-4 * v) << "an f16 v would be 0";
  }
  EXPECT_NEAR(v, 7.9879e-9, 1e-11 * 7.9879);
  EXPECT_NEAR(values(p)[0], 0.997, 1e-3);
}

TEST(FusedAdam, OPT_10_A11_ResumeIsBitIdentical) {
  struct Form {
    DType dtype;
    bool masters;
  };
  for (const auto& [dtype, masters] :
       {Form{DType::f32, false}, {DType::bf16, false}, {DType::bf16, true}, {DType::f16, true}, {DType::f64, false}}) {
    for (const bool capturable : {false, true}) {
      SCOPED_TRACE(concat(dtype, masters, capturable));
      const auto make = [&, dtype = dtype] { return leaf(vector_of(kP, dtype)); };
      const AdamOptions options{.lr = 0.1, .weight_decay = 0.1, .capturable = capturable, .master_weights = masters};
      const Tensor p = make(), q = make();
      FusedAdam a({p}, options), b({q}, options);
      const auto step = [&, dtype = dtype](FusedAdam& o, const Tensor& t, std::size_t k) {
        set_grad(t, vector_of(kGrads[k], dtype));
        o.step();
      };
      step(a, p, 0);
      step(a, p, 1);
      copy_(q.detach(), p);
      b.load_state_dict(a.state_dict());
      EXPECT_NE(state(a, p, "exp_avg").storage(), state(b, q, "exp_avg").storage());
      EXPECT_EQ(state(b, q, "exp_avg").dtype(), dtype == DType::f64 ? DType::f64 : DType::f32);
      EXPECT_EQ(state(b, q, "step").item(), 2);
      step(a, p, 2);
      step(b, q, 2);
      EXPECT_EQ(values(p), values(q));
      for (const auto& [key, value] : a.state_of(p)) EXPECT_EQ(values(value), values(b.state_of(q).at(key))) << key;
      EXPECT_EQ(state(b, q, "step").item(), 3);
      EXPECT_EQ(a.state_of(p).contains("master"), masters);
    }
  }
}

TEST(FusedAdam, OPT_10_A11_LoadRefusesWhatDoesNotFitAndTakesDefaults) {
  const Tensor p = leaf(vector_of(kP));
  FusedAdam optimizer({p}, {.lr = 0.1});
  EXPECT_NO_THROW(optimizer.load_state_dict(optimizer.state_dict())) << "one that has not stepped";
  set_gradients({p}, kGrads[0]);
  optimizer.step();
  const auto saved = optimizer.state_dict();
  const auto refuse = [&](const char* text, const std::function<void(OptimizerState&)>& change) {
    auto bad = saved;
    change(bad);
    const auto before = values(state(optimizer, p, "exp_avg"));
    expect_error(Kind::data, text, [&] { optimizer.load_state_dict(bad); });
    EXPECT_EQ(values(state(optimizer, p, "exp_avg")), before);
  };
  refuse("2 parameter groups", [](auto& s) { s.groups.push_back(s.groups[0]); });
  refuse("FusedLAMB", [](auto& s) { s.type = "FusedLAMB"; });
  refuse("no state 'master'", [](auto& s) { s.state[0]["master"] = test::ones({4}); });
  refuse("'step' of parameter 0", [](auto& s) { s.state[0]["step"] = test::ones({4}, DType::i32); });
  refuse("step -5", [](auto& s) { s.state[0]["step"] = test::full({1}, -5.0); });
  refuse("step 1.5", [](auto& s) { s.state[0]["step"] = test::full({1}, 1.5); });
  refuse("step nan", [](auto& s) { s.state[0]["step"] = test::full({1}, std::nan("")); });
  refuse("lacks 'exp_avg_sq'", [](auto& s) { s.state[0].erase("exp_avg_sq"); });
  refuse("names parameter 1, which", [](auto& s) { s.groups[0].params[0] = 1; });
  refuse("names parameter -1, which", [](auto& s) { s.groups[0].params[0] = -1; });
  refuse("amsgrad", [](auto& s) { s.groups[0].hyper["amsgrad"] = true; });
  auto without = saved;
  without.groups[0].hyper.erase("bias_correction");
  EXPECT_NO_THROW(optimizer.load_state_dict(without));
  EXPECT_TRUE(optimizer.groups()[0].flag("bias_correction"));
}

TEST(FusedAdam, LoadRefusesAParameterNamedTwice) {
  const Tensor p = leaf(vector_of(kP)), q = leaf(vector_of(kP));
  FusedAdam optimizer({p, q}, {.lr = 0.1});
  auto state = optimizer.state_dict();
  state.groups[0].params = {0, 0};
  expect_error(Kind::data, "names parameter 0 a second time", [&] { optimizer.load_state_dict(state); });
}

TEST(FusedAdam, AGradientScaleThatIsNoNumberIsRefused) {
  const Tensor p = leaf(vector_of(kP));
  FusedAdam optimizer({p}, {.lr = 0.1});
  set_gradients({p}, kGrads[0]);
  expect_error(Kind::argument, "grad_scale nan", [&] { optimizer.step({.grad_scale = std::nan("")}); });
  EXPECT_EQ(values(p), kP);
}

TEST(FusedAdam, LoadsTheFormsOfTorchAndApex) {
  // torch: a floating step with each parameter, and keys that mean nothing here. Apex: one step in the group.
  for (const bool torch : {true, false}) {
    const Tensor p = leaf(vector_of(kP)), q = leaf(vector_of(kP));
    FusedAdam source({p}, {.lr = 0.1}), target({q}, {.lr = 5});
    set_gradients({p}, kGrads[0]);
    source.step();
    auto form = source.state_dict();
    form.state[0]["step"] = test::full({1}, 1.0);
    if (torch) {
      form.type = "AdamW";
      form.state[0]["step"] = apex::full({}, 1.0);
      form.groups[0].hyper = {{"lr", 0.1}, {"amsgrad", false}, {"foreach", false}, {"maximize", false}};
    } else {
      form.state[0].erase("step");
      form.groups[0].hyper["step"] = std::int64_t{1};
    }
    target.load_state_dict(form);
    copy_(q.detach(), p);
    EXPECT_EQ(state(target, q, "step").item(), 1);
    for (const auto& [o, t] : {std::pair(&source, p), std::pair(&target, q)}) {
      set_grad(t, vector_of(kGrads[1]));
      o->step();
    }
    EXPECT_EQ(values(p), values(q));
  }
}

TEST(FusedAdam, MastersThatAStateLacksAreMadeAgain) {
  const Tensor p = leaf(vector_of(kP, DType::bf16));
  FusedAdam optimizer({p}, {.lr = 0.1, .master_weights = true});
  set_grad(p, vector_of(kGrads[0], DType::bf16));
  optimizer.step();
  auto saved = optimizer.state_dict();
  saved.state[0].erase("master");
  ::testing::internal::CaptureStderr();
  optimizer.load_state_dict(saved);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("no masters for 1 parameters"), std::string::npos) << said;
  EXPECT_FALSE(optimizer.state_of(p).contains("master"));
  fill_(p.detach(), 2);
  set_grad(p, vector_of({0, 0, 0, 0}, DType::bf16));
  optimizer.step();
  EXPECT_NEAR(state(optimizer, p, "master").dtype() == DType::f32 ? values(state(optimizer, p, "master"))[0] : 0, 2,
              0.2);
  fill_(p.detach(), 5);
  optimizer.refresh_masters();
  EXPECT_EQ(values(state(optimizer, p, "master")), std::vector<double>(4, 5.0));
}

TEST(FusedAdam, LoadsIntoTheTensorsThereAre) {
  const Tensor p = leaf(vector_of(kP));
  FusedAdam optimizer({p}, {.capturable = true});
  optimizer.init_state();
  const Tensor m = state(optimizer, p, "exp_avg"), step = state(optimizer, p, "step");
  EXPECT_EQ(values(m), std::vector<double>(4, 0.0));
  FusedAdam other({p}, {.capturable = true});
  set_gradients({p}, kGrads[0]);
  other.step();
  optimizer.load_state_dict(other.state_dict());
  EXPECT_TRUE(m.is_same(state(optimizer, p, "exp_avg")));
  EXPECT_TRUE(step.is_same(state(optimizer, p, "step")));
  EXPECT_EQ(step.item(), 1);
  EXPECT_EQ(values(m), values(state(other, p, "exp_avg")));
}

TEST(FusedAdam, OPT_10_A12_GroupsAddedLater) {
  for (const bool capturable : {false, true}) {
    const Tensor a = leaf(vector_of({1})), b = leaf(vector_of({1}, DType::bf16));
    FusedAdam optimizer({a}, {.lr = 0.5, .capturable = capturable, .master_weights = true});
    set_grad(a, test::ones({1}));
    optimizer.step();
    optimizer.add_param_group({});
    optimizer.add_param_group({{b}, {{"lr", 0.25}}});
    set_grad(b, test::ones({1}, DType::bf16));
    optimizer.step();
    expect_values(a, {0}, 1e-6);
    expect_values(b, {0.75}, 0);
    EXPECT_EQ(state(optimizer, b, "master").dtype(), DType::f32);
    optimizer.set_lr(0);
    optimizer.step();
    expect_values(b, {0.75}, 0);
  }
  expect_error(Kind::unsupported, "amsgrad", [] { FusedAdam o(std::vector<Tensor>{}, {.amsgrad = true}); });
}

TEST(FusedAdam, OPT_10_A13_StepsAreThoseOfTheParameterOrOfTheGroup) {
  for (const bool group_step : {false, true}) {
    for (const bool capturable : {false, true}) {
      SCOPED_TRACE(concat(group_step, capturable));
      const Tensor first = leaf(vector_of({1})), late = leaf(vector_of({1}));
      FusedAdam optimizer({late, first}, {.lr = 0.1, .capturable = capturable, .group_step = group_step});
      set_grad(first, test::ones({1}));
      optimizer.step();
      set_grad(late, test::ones({1}));
      optimizer.step();
      const double moved = group_step ? 0.744132 * 0.1 : 0.1;
      expect_values(late, {1 - moved}, 1e-6);
      expect_values(first, {0.8}, 1e-6);
      EXPECT_EQ(state(optimizer, late, "step").item(), group_step ? 2 : 1);
      EXPECT_EQ(state(optimizer, first, "step").item(), 2);
    }
  }
}

TEST(FusedAdam, ErrorsNameTheValue) {
  const auto make = [](AdamOptions o) { return [o] { FusedAdam optimizer(std::vector<Tensor>{}, o); }; };
  expect_error(Kind::argument, "FusedAdam: lr -1", make({.lr = -1}));
  expect_error(Kind::argument, "lr nan", make({.lr = std::nan("")}));
  expect_error(Kind::argument, "eps -1", make({.eps = -1}));
  expect_error(Kind::argument, "weight_decay inf", make({.weight_decay = std::numeric_limits<double>::infinity()}));
  expect_error(Kind::argument, "beta1 1 ", make({.beta1 = 1}));
  expect_error(Kind::argument, "beta2 -0.5", make({.beta2 = -0.5}));
  expect_error(Kind::argument, "moment_dtype f64", make({.moment_dtype = DType::f64}));
  FusedAdam optimizer(std::vector<Tensor>{}, {});
  expect_error(Kind::argument, "beta2 2", [&] { optimizer.add_param_group({{}, {{"beta2", 2.0}}}); });
}

TEST(FusedAdam, MomentsIn16Bits) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor p = leaf(vector_of(kP)), q = leaf(vector_of(kP));
    FusedAdam narrow({p}, {.lr = 0.1, .moment_dtype = dtype}), wide({q}, {.lr = 0.1});
    for (const auto& g : kGrads) {
      for (const auto& t : {p, q}) set_grad(t, vector_of(g));
      narrow.step();
      wide.step();
    }
    EXPECT_EQ(state(narrow, p, "exp_avg").dtype(), dtype);
    EXPECT_EQ(state(narrow, p, "exp_avg_sq").dtype(), dtype);
    expect_close(values(p), values(q), 0, 5e-3);
    EXPECT_NE(values(p), values(q));
  }
}

TEST(FusedAdam, MaximizeIsTheNegatedGradient) {
  const Tensor p = leaf(vector_of(kP)), q = leaf(vector_of(kP));
  FusedAdam up({p}, {.lr = 0.1, .weight_decay = 0.1, .maximize = true}), down({q}, {.lr = 0.1, .weight_decay = 0.1});
  for (const auto& g : kGrads) {
    std::vector<double> negated;
    for (const double v : g) negated.push_back(-v);
    set_grad(p, vector_of(g));
    set_grad(q, vector_of(negated));
    up.step();
    down.step();
  }
  EXPECT_EQ(values(p), values(q));
}

TEST(FusedAdam, MixedTypesStridesAndEmptyTensors) {
  std::vector<Tensor> params;
  for (const DType d : {DType::f32, DType::f64, DType::f16, DType::bf16}) params.push_back(leaf(vector_of({1, -2}, d)));
  params.push_back(leaf(test::empty({0, 3})));
  params.push_back(leaf(vector_of({1, -2}, DType::bf16)));  // with an f32 gradient
  const Tensor last = leaf(test::wave({2, 3, 2, 2}, 0, 1, 0, DType::f32, MemoryFormat::channels_last));
  const auto before = values(last);
  params.push_back(last);
  FusedAdam optimizer(params, {.lr = 0.25});
  const Tensor g = test::wave({2, 3, 2, 2}, 1, 1, 0, DType::f32);
  for (const auto& p : params)
    set_grad(p, p.is_same(last) ? g : p.numel() == 0 ? test::empty({0, 3}) : vector_of({1, -1}, p.dtype()));
  set_grad(params[5], vector_of({1, -1}));
  optimizer.step();
  for (const auto& p : params) {
    EXPECT_EQ(state(optimizer, p, "step").item(), 1);
    if (p.is_same(last)) {
      const auto after = values(p), gs = values(g);
      for (std::size_t i = 0; i < after.size(); ++i)
        EXPECT_NEAR(after[i], before[i] - (gs[i] > 0 ? 0.25 : -0.25), 1e-5);
      EXPECT_EQ(state(optimizer, p, "exp_avg").strides(), p.strides());
    } else if (p.numel() > 0) {
      expect_values(p, {0.75, -1.75}, 1e-6);
    }
  }
}

TEST(FusedAdam, StateFollowsACastParameter) {
  const Tensor p = leaf(vector_of(kP));
  FusedAdam optimizer({p}, {.lr = 0.1, .master_weights = true});
  set_grad(p, vector_of(kGrads[0]));
  optimizer.step();
  const auto m = values(state(optimizer, p, "exp_avg"));
  p.set_data(converted(p.detach(), DType::f64));
  set_grad(p, vector_of({0, 0, 0, 0}, DType::f64));
  optimizer.set_hyper(0, "beta1", 0.5);
  optimizer.step();
  EXPECT_EQ(state(optimizer, p, "exp_avg").dtype(), DType::f64);
  for (std::size_t i = 0; i < m.size(); ++i) EXPECT_EQ(values(state(optimizer, p, "exp_avg"))[i], m[i] / 2);
  EXPECT_EQ(state(optimizer, p, "step").item(), 2);
  p.set_data(converted(p.detach(), DType::bf16));
  set_grad(p, vector_of({1, 1, 1, 1}, DType::bf16));
  optimizer.step();
  EXPECT_EQ(state(optimizer, p, "exp_avg").dtype(), DType::f32);
  EXPECT_EQ(values(p), values(converted(state(optimizer, p, "master"), DType::bf16)));
}

TEST(FusedAdam, ScalarStateByKeyAndPrinting) {
  const Tensor p = leaf(vector_of(kP));
  FusedAdam optimizer({p}, {.lr = 0.1});
  optimizer.set_state(p, "step", test::full({1}, 41));
  set_grad(p, vector_of(kGrads[0]));
  optimizer.step();
  EXPECT_EQ(state(optimizer, p, "step").item(), 42);
  expect_error(Kind::data, "'step' of sizes [4]", [&] { optimizer.set_state(p, "step", test::ones({4})); });
  const std::string text = to_string(optimizer);
  for (const char* words : {"FusedAdam (capturable false", "group_step false", "adam_w_mode true", "beta2 0.999",
                            "eps 1e-08", "master_weights false"})
    EXPECT_NE(text.find(words), std::string::npos) << words << " in " << text;
}

TEST(FusedAdam, CountsMoveToTheDeviceOnceItMaySkip) {
  const Tensor p = leaf(vector_of(kP)), q = leaf(vector_of(kP));
  FusedAdam mixed({p}, {.lr = 0.1}), plain({q}, {.lr = 0.1});
  const Tensor no = test::zeros({1});
  for (std::size_t t = 0; t < 3; ++t) {
    for (const auto& x : {p, q}) set_grad(x, vector_of(kGrads[t]));
    if (t == 1)
      mixed.step({.found_inf = no});
    else
      mixed.step();
    plain.step();
  }
  EXPECT_EQ(values(p), values(q));
  EXPECT_EQ(state(mixed, p, "step").item(), 3);
}

}  // namespace
}  // namespace apex
