// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <limits>

#include "apex/multi_tensor_apply.hpp"
#include "apex/nn/functional.hpp"
#include "apex/optimizers/fused_sgd.hpp"
#include "apex/tensor_ops.hpp"
#include "lib/optimizers_support.hpp"

namespace apex {
namespace {

using optimizers::FusedSGD;
using optimizers::ParamGroup;
using optimizers::SGDOptions;
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
using test::values;
using test::vector_of;

std::vector<double> buffers(const FusedSGD& optimizer, const std::vector<Tensor>& params) {
  std::vector<Tensor> all;
  for (const auto& p : params) all.push_back(optimizer.state_of(p).at("momentum_buffer"));
  return joined(all);
}

/// Runs the three steps and compares the parameters after those that are given.
void run_case(const SGDOptions& options, const std::map<int, std::vector<double>>& p_after,
              const std::map<int, std::vector<double>>& buffer_after) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const auto& layout : kLayouts) {
      SCOPED_TRACE(concat(layout.name, ' ', dtype));
      const auto params = parameters(layout, dtype);
      FusedSGD optimizer(params, options);
      for (int t = 0; t < 3; ++t) {
        set_gradients(params, kGrads[static_cast<std::size_t>(t)]);
        optimizer.step();
        if (const auto want = p_after.find(t + 1); want != p_after.end()) expect_close(joined(params), want->second);
        if (const auto want = buffer_after.find(t + 1); want != buffer_after.end())
          expect_close(buffers(optimizer, params), want->second);
      }
    }
  }
}

TEST(FusedSGD, OPT_10_A20_MomentumAndWeightDecay) {
  run_case({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1},
           {{1, {0.98, -1.96, 0.465, 3.01}},
            {2, {0.9472, -1.9144, 0.44385, 2.9689}},
            {3, {0.93820798, -1.854216, 0.36037651, 2.901221}}},
           {{3, {0.08991998, -0.60184, 0.834735, 0.67679}}});
}

TEST(FusedSGD, OPT_10_A21_Dampening) {
  run_case({.lr = 0.1, .momentum = 0.9, .dampening = 0.5}, {{3, {0.98315001, -1.9553, 0.40295002, 3.0889001}}},
           {{1, kGrads[0]}});
}

TEST(FusedSGD, OPT_10_A22_Nesterov) {
  run_case({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true},
           {{1, {0.96200001, -1.924, 0.43349999, 3.019}},
            {2, {0.91802204, -1.874044, 0.42541349, 2.9317391}},
            {3, {0.93115741, -1.8017929, 0.28645427, 2.8407722}}},
           {});
}

TEST(FusedSGD, OPT_10_A23_WeightDecayAfterMomentum) {
  run_case({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .wd_after_momentum = true},
           {{3, {0.96403801, -1.905876, 0.37306652, 2.979341}}}, {{3, {-0.174, -0.072, 0.708, -0.134}}});
}

TEST(FusedSGD, OPT_10_A24_FirstRunIsPerParameter) {
  for (const bool swapped : {false, true}) {
    const Tensor a = leaf(vector_of({1})), b = leaf(vector_of({1}));
    FusedSGD optimizer(swapped ? std::vector{b, a} : std::vector{a, b}, {.lr = 0.1, .momentum = 0.9, .dampening = 0.5});
    set_grad(a, test::ones({1}));
    optimizer.step();
    EXPECT_TRUE(optimizer.state_of(b).empty());
    set_grad(a, test::ones({1}));
    set_grad(b, test::ones({1}));
    optimizer.step();
    expect_values(a, {0.76}, 1e-6);
    expect_values(b, {0.9}, 1e-6);
  }
}

TEST(FusedSGD, OPT_10_A24_ASkippedFirstCallDoesNotCount) {
  for (const DType flag : {DType::f32, DType::i32}) {
    const Tensor p = leaf(vector_of({1}));
    FusedSGD optimizer({p}, {.lr = 0.1, .momentum = 0.9, .dampening = 0.5});
    set_grad(p, vector_of({2}));
    const auto version = p.version();
    optimizer.step({.found_inf = test::full({1}, 1.0, flag)});
    EXPECT_TRUE(optimizer.last_step_skipped());
    if (!test::on_cuda()) {  // on a device the host does not know that nothing was written
      EXPECT_EQ(p.version(), version);
    }
    expect_values(p, {1}, 0);
    EXPECT_TRUE(optimizer.state_of(p).empty());
    optimizer.step({.found_inf = test::full({1}, 0.0, flag), .inv_scale = test::full({1}, 0.5)});
    EXPECT_FALSE(optimizer.last_step_skipped());
    EXPECT_GT(p.version(), version);
    expect_values(optimizer.state_of(p).at("momentum_buffer"), {1}, 0);  // the gradient, not half of it
    expect_values(p, {0.9}, 1e-7);
  }
  FusedSGD optimizer({leaf(vector_of({1}))}, {.lr = 0.1});
  expect_error(Kind::argument, "found_inf is f64", [&] { optimizer.step({.found_inf = test::ones({1}, DType::f64)}); });
}

TEST(FusedSGD, OPT_10_A24_ConstructorErrors) {
  const auto make = [](SGDOptions o) { return [o] { FusedSGD optimizer(std::vector<Tensor>{}, o); }; };
  expect_error(Kind::argument, "lr -1", make({}));
  expect_error(Kind::argument, "lr -1", make({.lr = -1}));
  expect_error(Kind::argument, "lr inf", make({.lr = std::numeric_limits<double>::infinity()}));
  expect_error(Kind::argument, "lr nan", make({.lr = std::nan("")}));
  expect_error(Kind::argument, "momentum -0.1", make({.lr = 1, .momentum = -0.1}));
  expect_error(Kind::argument, "weight_decay -1", make({.lr = 1, .weight_decay = -1}));
  expect_error(Kind::argument, "nesterov", make({.lr = 1, .momentum = 0.9, .dampening = 0.1, .nesterov = true}));
  expect_error(Kind::argument, "nesterov", make({.lr = 1, .nesterov = true}));
}

TEST(FusedSGD, OPT_10_A24_HalfGradientsWithMasters) {
  // The op itself: 16-bit gradients times 128, f32 masters, scale 1/128, a 16-bit copy written along.
  for (const DType half : {DType::f16, DType::bf16}) {
    const Tensor master = vector_of(kP), buffer = test::zeros({4}), copy = test::zeros({4}, half),
                 flag = test::zeros({1}, DType::i32);
    for (int t = 0; t < 3; ++t) {
      std::vector<double> scaled;
      for (const double g : kGrads[static_cast<std::size_t>(t)]) scaled.push_back(128 * g);
      const Tensor g = cast(vector_of(scaled), half);
      multi_tensor_apply::multi_tensor_applier(multi_tensor::sgd, flag, {{g}, {master}, {buffer}, {copy}}, 0.1, 0.9,
                                               0.0, 0.1, false, t == 0, false, 1.0 / 128);
    }
    const double tolerance = half == DType::f16 ? 5e-4 : 4e-3;
    expect_close(values(master), {0.93820798, -1.854216, 0.36037651, 2.901221}, tolerance, tolerance);
    EXPECT_EQ(values(copy), values(cast(master, half)));
  }
}

TEST(FusedSGD, MomentumStartsAfterSkippedSteps) {
  // Without dampening nobody waits to learn whether the first step counted; the outcome is the same.
  const Tensor p = leaf(vector_of({1}));
  FusedSGD optimizer({p}, {.lr = 0.5, .momentum = 0.5});
  const Tensor found_inf = test::ones({1});
  for (int step = 0; step < 4; ++step) {
    set_grad(p, vector_of({step < 2 ? std::nan("") : 2.0}));
    if (step == 2) fill_(found_inf, 0.0);
    optimizer.step({.found_inf = found_inf});
    EXPECT_EQ(optimizer.last_step_skipped(), step < 2);
    expect_values(p, {step < 2 ? 1.0 : step == 2 ? 0.0 : -1.5}, 0);
  }
  optimizer.step();
  EXPECT_FALSE(optimizer.last_step_skipped());
}

TEST(FusedSGD, LearningRateFromTheDevice) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const Tensor p = leaf(cast(vector_of(kP), dtype)), q = leaf(cast(vector_of(kP), dtype));
    FusedSGD host({p}, {.lr = 7, .momentum = 0.9, .weight_decay = 0.1}),
        device({q}, {.lr = 7, .momentum = 0.9, .weight_decay = 0.1});
    const Tensor lr = test::full({1}, 0, DType::f64);
    device.set_lr_source(lr);
    for (const double rate : {0.1, 0.037, 1.0 / 3}) {
      host.set_lr(rate);
      fill_(lr, rate);
      for (const auto& t : {p, q}) set_grad(t, cast(vector_of(kGrads[1]), dtype));
      host.step();
      device.step();
      EXPECT_EQ(values(p), values(q)) << rate;
    }
    device.set_lr_source(Tensor());
    device.set_lr(0);
    device.step();
    EXPECT_EQ(values(p), values(q));
    expect_error(Kind::argument, "one f64 element", [&] { device.set_lr_source(test::ones({1})); });
    expect_error(Kind::argument, "one f64 element", [&] { device.set_lr_source(0, test::ones({2}, DType::f64)); });
    expect_error(Kind::argument, "group 3", [&] { device.set_lr_source(3, lr); });
  }
}

TEST(FusedSGD, MastersKeepWhat16BitsLose) {
  for (const DType half : {DType::f16, DType::bf16}) {
    SCOPED_TRACE(name_of(half));
    const Tensor p = leaf(cast(vector_of({1, -2, 3, 4}), half)), wide = leaf(vector_of({1, -2, 3, 4}));
    const SGDOptions options{.lr = 1e-4, .momentum = 0.5, .master_weights = true};
    FusedSGD narrow({p, leaf(vector_of({5}))}, options), reference({wide}, options);
    for (int step = 0; step < 50; ++step) {
      set_grad(p, cast(vector_of({1, 1, -1, 0.5}), half));
      set_grad(wide, vector_of({1, 1, -1, 0.5}));
      narrow.step();
      reference.step();
    }
    const auto& state = narrow.state_of(p);
    EXPECT_EQ(state.at("master").dtype(), DType::f32);
    EXPECT_EQ(state.at("momentum_buffer").dtype(), DType::f32);
    EXPECT_EQ(values(state.at("master")), values(wide));  // every step alone is below a 16-bit unit
    EXPECT_EQ(values(p), values(cast(wide, half)));
    EXPECT_FALSE(reference.state_of(wide).contains("master"));
  }
}

TEST(FusedSGD, MaterializeMasterGradsChangesNoNumber) {
  for (const DType half : {DType::f16, DType::bf16}) {
    const Tensor p = leaf(vector_of(kP, half)), q = leaf(vector_of(kP, half)), r = leaf(vector_of(kP));
    const auto options = [](bool materialize) {
      return SGDOptions{.lr = 0.1,
                        .momentum = 0.9,
                        .weight_decay = 0.1,
                        .materialize_master_grads = materialize,
                        .master_weights = true};
    };
    FusedSGD on({p}, options(true)), off({q}, options(false)), wide({r}, options(true));
    for (const auto& g : kGrads) {
      std::vector<double> scaled;
      for (const double v : g) scaled.push_back(128 * v);
      const Tensor gradient = vector_of(scaled, half);
      for (const auto& [o, t] : {std::pair(&on, p), {&off, q}}) {
        set_grad(t, clone(gradient));
        o->step({.inv_scale = test::full({1}, 1.0 / 128)});
        EXPECT_EQ(values(grad(t)), values(gradient));
      }
      // What Apex materializes: the unscaled gradient in f32.
      std::vector<double> unscaled;
      for (const double v : values(gradient)) unscaled.push_back(v / 128);
      set_grad(r, vector_of(unscaled));
      wide.step();
    }
    EXPECT_EQ(values(p), values(q));
    EXPECT_EQ(values(on.state_of(p).at("master")), values(off.state_of(q).at("master")));
    expect_close(values(on.state_of(p).at("master")), values(r));
    EXPECT_EQ(on.state_of(p).size(), 2u) << "master and momentum, nothing else";
    EXPECT_NE(to_string(on).find("materialize_master_grads true"), std::string::npos);
    EXPECT_NE(to_string(off).find("materialize_master_grads false"), std::string::npos);
  }
}

TEST(FusedSGD, MastersResumeBitIdentical) {
  const SGDOptions options{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .master_weights = true};
  const auto make = [] { return leaf(cast(vector_of(kP), DType::bf16)); };
  const auto step = [](FusedSGD& o, const Tensor& p, int t) {
    set_grad(p, cast(vector_of(kGrads[static_cast<std::size_t>(t)]), DType::bf16));
    o.step();
  };
  const Tensor p = make(), q = make();
  FusedSGD a({p}, options), b({q}, options);
  step(a, p, 0);
  step(a, p, 1);
  b.load_state_dict(a.state_dict());
  copy_(q.detach(), p);
  EXPECT_NE(a.state_of(p).at("master").storage(), b.state_of(q).at("master").storage());
  step(a, p, 2);
  step(b, q, 2);
  EXPECT_EQ(values(p), values(q));
  EXPECT_EQ(values(a.state_of(p).at("master")), values(b.state_of(q).at("master")));
  FusedSGD without({make()}, {.lr = 0.1, .momentum = 0.9});
  expect_error(Kind::data, "no state 'master'", [&] { without.load_state_dict(a.state_dict()); });
}

TEST(FusedSGD, MomentumZeroKeepsNoState) {
  const Tensor p = leaf(vector_of({1, 2}));
  FusedSGD optimizer({p}, {.lr = 0.5});
  set_grad(p, vector_of({1, -1}));
  optimizer.step();
  expect_values(p, {0.5, 2.5}, 0);
  EXPECT_TRUE(optimizer.state_of(p).empty());
}

TEST(FusedSGD, MixedDTypesInOneGroup) {
  std::vector<Tensor> params;
  for (const DType d : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::f32})
    params.push_back(leaf(cast(vector_of({1, -2}), d)));
  const Tensor bf_with_f32_grad = leaf(cast(vector_of({1, -2}), DType::bf16));
  params.push_back(bf_with_f32_grad);
  FusedSGD optimizer(params, {.lr = 0.25, .momentum = 0.5});
  for (int t = 0; t < 2; ++t) {
    for (const auto& p : params) set_grad(p, cast(vector_of({1, -0.5}), p.dtype()));
    set_grad(bf_with_f32_grad, vector_of({1, -0.5}));
    optimizer.step();
  }
  for (const auto& p : params) {
    expect_values(p, {1 - 0.25 - 0.375, -2 + 0.125 + 0.1875}, 0);
    EXPECT_EQ(optimizer.state_of(p).at("momentum_buffer").dtype(), p.dtype());
  }
}

TEST(FusedSGD, GradientsOfOtherStridesAreRelaidOut) {
  const Tensor p = leaf(test::wave({2, 3, 2, 2}, 0, 1, 0, DType::f32, MemoryFormat::channels_last));
  const Tensor g = test::wave({2, 3, 2, 2}, 1, 1, 0, DType::f32);
  const auto before = values(p), gs = values(g);
  FusedSGD optimizer({p}, {.lr = 0.5, .momentum = 0.9});
  set_grad(p, g);
  optimizer.step();
  const auto after = values(p);
  for (std::size_t i = 0; i < after.size(); ++i) EXPECT_NEAR(after[i], before[i] - 0.5 * gs[i], 1e-6);
  EXPECT_EQ(optimizer.state_of(p).at("momentum_buffer").strides(), p.strides());
}

TEST(FusedSGD, GroupsHaveTheirOwnHyperParameters) {
  const Tensor a = leaf(vector_of({1})), b = leaf(vector_of({1}));
  FusedSGD optimizer(std::vector<ParamGroup>{{{a}, {{"weight_decay", 0.5}}}, {{b}, {{"lr", 1.0}}}}, {.lr = 0.1});
  for (const auto& p : {a, b}) set_grad(p, test::ones({1}));
  optimizer.step();
  expect_values(a, {1 - 0.1 * 1.5}, 1e-7);
  expect_values(b, {0}, 1e-7);
  optimizer.set_lr(0.5);
  EXPECT_EQ(optimizer.groups()[1].number("lr"), 0.5);
  optimizer.set_hyper(0, "weight_decay", std::int64_t{0});
  EXPECT_EQ(optimizer.groups()[0].number("weight_decay"), 0.0);
  expect_error(Kind::argument, "no hyper-parameter 'beta'", [&] { optimizer.set_hyper(0, "beta", 1.0); });
  expect_error(Kind::argument, "group 7", [&] { optimizer.set_hyper(7, "lr", 1.0); });
  expect_error(Kind::argument, "lr -2", [&] { optimizer.set_lr(-2); });
  EXPECT_EQ(optimizer.groups()[0].number("lr"), 0.5);
  EXPECT_NE(to_string(optimizer).find("group 1: 1 parameters, dampening 0, lr 0.5"), std::string::npos)
      << to_string(optimizer);
}

TEST(FusedSGD, OPT_10_A12_GroupsAddedLater) {
  const Tensor a = leaf(vector_of({1})), b = leaf(vector_of({1}));
  FusedSGD optimizer({a}, {.lr = 0.5, .momentum = 0.9});
  optimizer.add_param_group({});
  optimizer.add_param_group({{b}, {}});
  for (const auto& p : {a, b}) set_grad(p, test::ones({1}));
  optimizer.step();
  expect_values(b, {0.5}, 0);
  expect_error(Kind::argument, "already held", [&] { optimizer.add_param_group({{b}, {}}); });
  const Tensor c = leaf(vector_of({1}));
  expect_error(Kind::argument, "parameter 1 of the new group is already held", [&] {
    optimizer.add_param_group({{c, c}, {}});
  });
  expect_error(Kind::argument, "not a leaf", [&] { optimizer.add_param_group({{scale(c, 2.0)}, {}}); });
  expect_error(Kind::argument, "not floating", [&] {
    optimizer.add_param_group({{test::empty({1}, DType::i64)}, {}});
  });
  expect_error(Kind::argument, "undefined", [&] { optimizer.add_param_group({{Tensor()}, {}}); });
  expect_error(Kind::argument, "gaps", [&] {
    optimizer.add_param_group({{views::as_strided(test::empty({8}), {4}, {2}, 0)}, {}});
  });
  expect_error(Kind::argument, "'betas'", [&] { optimizer.add_param_group({{c}, {{"betas", 1.0}}}); });
  EXPECT_EQ(optimizer.groups().size(), 3u);
}

TEST(FusedSGD, ClosureRunsFirstWithGradients) {
  const Tensor p = leaf(vector_of({2}));
  FusedSGD optimizer({p}, {.lr = 0.25});
  NoGradGuard no_grad;
  const Tensor loss = optimizer.step([&] {
    EXPECT_TRUE(grad_mode());
    const Tensor l = mul(p, p);
    backward(l);
    return l;
  });
  expect_values(loss, {4}, 0);
  expect_values(p, {1}, 0);
  EXPECT_FALSE(optimizer.step().defined());
}

TEST(FusedSGD, ZeroGrad) {
  const Tensor p = leaf(vector_of({2}));
  FusedSGD keeps({p}, {.lr = 1});
  set_grad(p, test::ones({1}));
  const Tensor g = grad(p);
  keeps.zero_grad();
  EXPECT_TRUE(grad(p).is_same(g));
  expect_values(g, {0}, 0);
  keeps.zero_grad(true);
  EXPECT_FALSE(grad(p).defined());
  FusedSGD drops({p}, {.lr = 1, .set_grad_none = true});
  set_grad(p, g);
  drops.zero_grad();
  EXPECT_FALSE(grad(p).defined());
}

TEST(FusedSGD, AStepIsNoticedByTheTape) {
  const Tensor p = leaf(vector_of({2})), x = leaf(vector_of({3}));
  const Tensor y = mul(p, x);
  FusedSGD optimizer({p}, {.lr = 1});
  set_grad(p, test::ones({1}));
  optimizer.step();
  expect_error(Kind::state, "saved by 'mul'", [&] { backward(y); });
}

TEST(FusedSGD, OPT_10_A11_ResumeIsBitIdentical) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const auto make = [&] { return leaf(cast(vector_of(kP), dtype)); };
    const SGDOptions options{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1};
    const auto step = [&](FusedSGD& o, const Tensor& p, int t) {
      set_grad(p, cast(vector_of(kGrads[static_cast<std::size_t>(t)]), dtype));
      o.step();
    };
    const Tensor p = make(), q = make();
    FusedSGD a({p}, options), b({q}, {.lr = 7});
    step(a, p, 0);
    step(a, p, 1);
    copy_(q.detach(), p);
    b.load_state_dict(a.state_dict());
    EXPECT_NE(a.state_of(p).at("momentum_buffer").storage(), b.state_of(q).at("momentum_buffer").storage());
    EXPECT_EQ(b.groups()[0].number("lr"), 0.1);
    step(a, p, 2);
    step(b, q, 2);
    EXPECT_EQ(values(p), values(q));
    EXPECT_EQ(values(a.state_of(p).at("momentum_buffer")), values(b.state_of(q).at("momentum_buffer")));
  }
}

TEST(FusedSGD, LoadRefusesWhatDoesNotFit) {
  const Tensor p = leaf(vector_of(kP)), q = leaf(vector_of({1}));
  FusedSGD optimizer({p}, {.lr = 0.1, .momentum = 0.9});
  auto fresh = optimizer.state_dict();
  EXPECT_NO_THROW(optimizer.load_state_dict(fresh));  // one that has not stepped
  set_gradients({p}, kGrads[0]);
  optimizer.step();
  const auto state = optimizer.state_dict();
  const auto refuse = [&](const char* text, const std::function<void(optimizers::OptimizerState&)>& change) {
    auto bad = state;
    change(bad);
    expect_error(Kind::data, text, [&] { optimizer.load_state_dict(bad); });
    EXPECT_EQ(values(optimizer.state_of(p).at("momentum_buffer")), values(state.state[0].at("momentum_buffer")));
  };
  refuse("FusedAdam", [](auto& s) { s.type = "FusedAdam"; });
  refuse("2 parameter groups", [](auto& s) { s.groups.push_back(s.groups[0]); });
  refuse("group 0 of the state has 2 parameters", [](auto& s) { s.groups[0].params.push_back(0); });
  refuse("parameter 3", [](auto& s) { s.groups[0].params[0] = 3; });
  refuse("'momentum_buffer' of parameter 0 in group 0 is [2]",
         [](auto& s) { s.state[0]["momentum_buffer"] = test::ones({2}); });
  refuse("no state 'exp_avg'", [](auto& s) { s.state[0]["exp_avg"] = test::ones({4}); });
  refuse("'beta'", [](auto& s) { s.groups[0].hyper["beta"] = 0.5; });
  auto without = state;
  without.groups[0].hyper.erase("nesterov");  // takes the default
  EXPECT_NO_THROW(optimizer.load_state_dict(without));
  FusedSGD two({p, q}, {.lr = 0.1});
  expect_error(Kind::data, "the optimizer's 2", [&] { two.load_state_dict(state); });
}

TEST(FusedSGD, StateByKey) {
  const Tensor p = leaf(test::wave({2, 3, 2, 2}, 0, 1, 0, DType::f32, MemoryFormat::channels_last));
  FusedSGD optimizer({p}, {.lr = 0.1, .momentum = 0.9});
  const Tensor buffer = test::wave({2, 3, 2, 2}, 5);  // f64, row-major
  optimizer.set_state(p, "momentum_buffer", buffer);
  int seen = 0;
  optimizer.for_each_state([&](const Tensor& param, const std::string& key, const Tensor& value) {
    ++seen;
    EXPECT_TRUE(param.is_same(p));
    EXPECT_EQ(key, "momentum_buffer");
    EXPECT_EQ(value.strides(), p.strides());
    EXPECT_EQ(value.dtype(), DType::f32);
    expect_values(value, values(buffer), 1e-7);
  });
  EXPECT_EQ(seen, 1);
  expect_error(Kind::argument, "no state 'sum'", [&] { optimizer.set_state(p, "sum", buffer); });
  expect_error(Kind::argument, "no parameter", [&] { optimizer.set_state(buffer, "momentum_buffer", buffer); });
  expect_error(Kind::data, "[2]", [&] { optimizer.set_state(p, "momentum_buffer", test::ones({2})); });
}

TEST(FusedSGD, KeepsTheParameterThroughSetData) {
  const Tensor p = leaf(vector_of({1, 2}));
  FusedSGD optimizer({p}, {.lr = 0.5});
  p.set_data(cast(p.detach(), DType::f64));
  set_grad(p, test::ones({2}, DType::f64));
  optimizer.step();
  expect_values(p, {0.5, 1.5}, 0);
}

TEST(FusedSGD, MomentumFollowsAConvertedParameter) {
  const auto run = [](bool convert) {
    const Tensor p = leaf(test::wave({2, 3, 2, 2}, 0));
    FusedSGD optimizer({p}, {.lr = 0.5, .momentum = 0.9});
    set_grad(p, test::wave({2, 3, 2, 2}, 1));
    optimizer.step();
    if (convert) p.set_data(to_format(cast(p.detach(), DType::f32), MemoryFormat::channels_last));
    set_grad(p, cast(test::wave({2, 3, 2, 2}, 2), p.dtype()));
    optimizer.step();
    EXPECT_EQ(optimizer.state_of(p).at("momentum_buffer").dtype(), p.dtype());
    return values(p);
  };
  expect_close(run(true), run(false));
}

// --- the applier and the elementary ops through it; the kernels' own tests go deeper ---

TEST(MultiTensorApply, OPT_10_A29_A30_A31) {
  const multi_tensor_apply::MultiTensorApply applier(333);
  EXPECT_EQ(applier.chunk_size(), 333);
  EXPECT_EQ(multi_tensor_apply::multi_tensor_applier.chunk_size(), 65536);
  const Tensor flag = test::zeros({1}, DType::i32);
  const Tensor x = test::full({777}, 4.0), y = test::empty({777}, DType::f16);
  applier(multi_tensor::scale, flag, {{x}, {y}}, 0.25);
  for (const double v : values(y)) EXPECT_EQ(v, 1.0);
  EXPECT_EQ(flag.item(), 0);
  applier(multi_tensor::axpby, flag, {{test::ones({5})}, {test::full({5}, 2.0)}, {views::narrow(x, 0, 0, 5)}}, 2.0, 3.0,
          -1);
  expect_values(views::narrow(x, 0, 0, 5), {8, 8, 8, 8, 8}, 0);
  const auto [norm, each] = applier(multi_tensor::l2norm, flag, {{vector_of({3, 4}), vector_of({0, 12})}}, true);
  expect_values(norm, {13}, 1e-6);
  expect_values(each, {5, 12}, 1e-6);
  EXPECT_EQ(flag.item(), 0);
  applier(multi_tensor::scale, flag, {{test::full({3}, 1e5)}, {test::empty({3}, DType::f16)}}, 1.0);
  EXPECT_EQ(flag.item(), 1);
  fill_(flag, 0);
  const Tensor nan = test::full({2}, std::nan("")), out = test::empty({2});
  applier(multi_tensor::axpby, flag, {{test::ones({2})}, {nan}, {out}}, 1.0, 1.0, 0);
  EXPECT_EQ(flag.item(), 0);
  applier(multi_tensor::axpby, flag, {{test::ones({2})}, {nan}, {out}}, 1.0, 1.0, 1);
  EXPECT_EQ(flag.item(), 1);
}

TEST(MultiTensorApply, Norms_OPT_10_A31) {
  using multi_tensor_apply::multi_tensor_applier;
  const Tensor flag = test::zeros({1}, DType::i32), x = vector_of({12, 16}), out = test::empty({2});
  const auto [norm, each] =
      multi_tensor_applier(multi_tensor::unscale_l2norm, flag, {{x}}, test::full({1}, 0.25), true);
  expect_values(norm, {5}, 1e-6);
  expect_values(each, {5}, 1e-6);
  expect_values(x, {12, 16}, 0);
  const auto version = out.version();
  const auto [unscaled, none] =
      multi_tensor_applier(multi_tensor::l2norm_scale, flag, {{vector_of({3, 4})}, {out}}, 2.0, false);
  expect_values(unscaled, {5}, 1e-6);
  expect_values(out, {6, 8}, 0);
  EXPECT_FALSE(none.defined());
  EXPECT_GT(out.version(), version);
  EXPECT_EQ(flag.item(), 0);
  expect_values(multi_tensor_applier(multi_tensor::l2norm_mp, flag, {{x}}, false).first, {20}, 1e-6);
  fill_(flag, 1);
  expect_values(multi_tensor_applier(multi_tensor::l2norm_mp, flag, {{x}}, true).second, {0}, 0);
  expect_values(multi_tensor_applier(multi_tensor::l2norm_mp, flag, {{}}, false).first, {0}, 0);
}

/// One step of an op over the data of the acceptance cases, with state in as many lists as it needs.
struct OneTensor {
  Tensor p = vector_of(kP), m = test::zeros({4}), v = test::zeros({4});
  Tensor flag = test::zeros({1}, DType::i32);
  static Tensor g(std::size_t k, DType dtype = DType::f32) { return vector_of(kGrads[k], dtype); }
};

TEST(MultiTensorApply, Adam_OPT_10_A1_A10) {
  using multi_tensor_apply::multi_tensor_applier;
  OneTensor host, device, master;
  const Tensor lr = test::full({1}, 0.1), step = test::zeros({1}, DType::i32), inv = test::full({1}, 1.0 / 128),
               steps = test::zeros({1}, DType::i32), copy = test::empty({4}, DType::bf16);
  const std::vector<std::vector<double>> want = {{0.88999999, -1.88, 0.39500001, 3.0699999},
                                                 {0.78788203, -1.8345664, 0.3644163, 3.0659337},
                                                 {0.81472558, -1.7956327, 0.29496098, 3.0544279}};
  for (std::size_t k = 0; k < 3; ++k) {
    multi_tensor_applier(multi_tensor::adam, host.flag, {{host.g(k)}, {host.p}, {host.m}, {host.v}}, 0.1, 0.9, 0.999,
                         1e-8, static_cast<std::int64_t>(k) + 1, 1, true, 0.1);
    expect_values(host.p, want[k], 6e-6);
    auto scaled = kGrads[k];
    for (auto& x : scaled) x *= 128;
    multi_tensor_applier(multi_tensor::adam_capturable, device.flag,
                         {{vector_of(scaled)}, {device.p}, {device.m}, {device.v}}, lr, 0.9, 0.999, 1e-8, step, 1, true,
                         0.1, inv);
    expect_values(device.p, want[k], 6e-6);
    const auto version = copy.version();
    multi_tensor_applier(multi_tensor::adam_capturable_master, master.flag,
                         {{host.g(k)}, {copy}, {master.m}, {master.v}, {master.p}}, lr, 0.9, 0.999, 1e-8, steps, 1,
                         true, 0.1, Tensor());
    EXPECT_EQ(values(master.p), values(host.p));
    EXPECT_GT(copy.version(), version);
    const Tensor rounded = test::empty({4}, DType::bf16);
    copy_(rounded, master.p);
    EXPECT_EQ(values(copy), values(rounded));
  }
  EXPECT_EQ(step.item(), 3);
  fill_(device.flag, 1);
  const auto before = values(device.p);
  multi_tensor_applier(multi_tensor::adam_capturable, device.flag, {{device.g(0)}, {device.p}, {device.m}, {device.v}},
                       lr, 0.9, 0.999, 1e-8, step, 1, true, 0.1, inv);
  EXPECT_EQ(values(device.p), before);
  EXPECT_EQ(step.item(), 3) << "a skipped step does not count";
  expect_error(Kind::argument, "mode 2 is not 0 or 1", [&] {
    multi_tensor_applier(multi_tensor::adam, host.flag, {{host.g(0)}, {host.p}, {host.m}, {host.v}}, 0.1, 0.9, 0.999,
                         1e-8, 1, 2, true, 0.1);
  });
}

TEST(MultiTensorApply, AdagradAndNovoGrad_OPT_10_A25_A26) {
  using multi_tensor_apply::multi_tensor_applier;
  OneTensor a, n;
  const Tensor norms = test::full({1}, std::sqrt(0.3));  // that of the first gradient, as the caller of Apex gives it
  for (std::size_t k = 0; k < 3; ++k) {
    multi_tensor_applier(multi_tensor::adagrad, a.flag, {{a.g(k)}, {a.p}, {a.m}}, 0.1, 1e-10, 0, 0.1);
    multi_tensor_applier(multi_tensor::novograd, n.flag, {{n.g(k)}, {n.p}, {n.m}}, norms, 0.1, 0.95, 0.98, 1e-8,
                         static_cast<std::int64_t>(k) + 1, true, 0.01, true, 1, 2);
  }
  expect_values(a.p, {0.90887195, -1.8364038, 0.34312642, 2.9506183}, 6e-6);
  expect_values(n.p, {0.9942311, -1.9858342, 0.4769091, 3.0071971}, 6e-6);
  expect_values(norms, {0.54643577}, 2e-6);
  expect_error(Kind::argument, "grad_norms of 1", [&] {
    multi_tensor_applier(multi_tensor::novograd, n.flag, {{n.g(0)}, {n.p}, {n.m}}, test::zeros({2}), 0.1, 0.95, 0.98,
                         1e-8, 1, true, 0.01, true, 1, 2);
  });
}

TEST(MultiTensorApply, Lamb_OPT_10_A14_A16) {
  using multi_tensor_apply::multi_tensor_applier;
  OneTensor one, mixed, staged;
  const Tensor lr = test::full({1}, 0.01), step = test::zeros({1}, DType::i32), inv = test::full({1}, 1.0 / 128),
               copy = test::empty({4}, DType::f16), u = test::empty({4});
  const double norms[] = {2.3021729, 0.75828755, 0.70007139};  // with the second tensor's gradients
  for (std::size_t k = 0; k < 3; ++k) {
    const Tensor norm = test::full({1}, norms[k]), scaled_norm = test::full({1}, 128 * norms[k]);
    multi_tensor_applier(multi_tensor::lamb, one.flag, {{one.g(k)}, {one.p}, {one.m}, {one.v}}, 0.01, 0.9, 0.999, 1e-6,
                         static_cast<std::int64_t>(k) + 1, true, 0.01, true, 1, norm, 1.0, false);
    auto scaled = kGrads[k];
    for (auto& x : scaled) x *= 128;
    multi_tensor_applier(multi_tensor::lamb_mp, mixed.flag,
                         {{vector_of(scaled)}, {mixed.p}, {mixed.m}, {mixed.v}, {copy}}, lr, 0.9, 0.999, 1e-6, step,
                         true, 0.01, true, 1, scaled_norm, 1.0, false, Tensor(), inv);
    multi_tensor_applier(multi_tensor::lamb_stage1, staged.flag,
                         {{staged.g(k)}, {staged.p}, {staged.m}, {staged.v}, {u}}, std::vector<double>{0.01},
                         static_cast<std::int64_t>(k), 0.9, 0.999, 1e-6, norm, 1.0);
    const auto [all, p_norm] = multi_tensor_applier(multi_tensor::l2norm, staged.flag, {{staged.p}}, true);
    const auto [none, u_norm] = multi_tensor_applier(multi_tensor::l2norm, staged.flag, {{u}}, true);
    multi_tensor_applier(multi_tensor::lamb_stage2, staged.flag, {{staged.p}, {u}}, p_norm, u_norm, 0.01, 0.01, false);
  }
  const std::vector<double> want = {0.96646452, -1.9882649, 0.45629233, 3.0052712};
  expect_values(one.p, want, 6e-6);
  expect_values(mixed.p, want, 6e-6);
  expect_values(staged.p, want, 6e-6);
  EXPECT_EQ(step.item(), 3);
  const auto before = values(mixed.p);
  multi_tensor_applier(multi_tensor::lamb_mp, mixed.flag, {{mixed.g(0)}, {mixed.p}, {mixed.m}, {mixed.v}, {copy}}, lr,
                       0.9, 0.999, 1e-6, step, true, 0.01, true, 1, lr, 1.0, false, test::full({1}, 1.0), inv);
  EXPECT_EQ(values(mixed.p), before);
  EXPECT_EQ(step.item(), 3);
}

TEST(MultiTensorApply, ScaleHysteresis_OPT_10_A35) {
  const Tensor scale = test::full({1}, 65536.0), growth = test::zeros({1}, DType::i32),
               hysteresis = test::full({1}, 2.0, DType::i32);
  const double found[] = {1, 0, 1, 1, 1, 0, 0, 0, 0},
               want[] = {65536, 65536, 65536, 32768, 16384, 16384, 16384, 32768, 32768};
  for (int i = 0; i < 9; ++i) {
    const auto version = scale.version();
    const Tensor back =
        multi_tensor::update_scale_hysteresis(scale, growth, hysteresis, test::full({1}, found[i]), 2.0, 0.5, 3, 2);
    EXPECT_TRUE(back.is_same(scale));
    EXPECT_EQ(scale.item(), want[i]) << i;
    EXPECT_GT(scale.version(), version);
  }
  EXPECT_EQ(hysteresis.item(), 2);
}

TEST(MultiTensorApply, ListErrorsNameTheList) {
  const Tensor flag = test::zeros({1}, DType::i32), a = test::ones({2});
  using multi_tensor_apply::multi_tensor_applier;
  EXPECT_NO_THROW(multi_tensor_applier(multi_tensor::scale, flag, {{}, {}}, 1.0));
  expect_error(Kind::argument, "1 lists", [&] { multi_tensor_applier(multi_tensor::scale, flag, {{a}}, 1.0); });
  expect_error(Kind::argument, "list 1 has 0", [&] {
    multi_tensor_applier(multi_tensor::scale, flag, {{a}, {}}, 1.0);
  });
  expect_error(Kind::argument, "tensor 0 of list 1", [&] {
    multi_tensor_applier(multi_tensor::scale, flag, {{a}, {Tensor()}}, 1.0);
  });
  expect_error(Kind::argument, "chunk size 0", [] { multi_tensor_apply::MultiTensorApply zero(0); });
  expect_error(Kind::argument, "check 2", [&] {
    multi_tensor_applier(multi_tensor::axpby, flag, {{a}, {a}, {a}}, 1.0, 1.0, 2);
  });
}

}  // namespace
}  // namespace apex
