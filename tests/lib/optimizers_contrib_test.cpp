// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <limits>

#include "apex/amp/loss_scaler.hpp"
#include "apex/contrib/openfold_triton/fused_adam_swa.hpp"
#include "apex/contrib/optimizers/fp16_optimizer.hpp"
#include "apex/contrib/optimizers/fused_lamb.hpp"
#include "apex/nn/functional.hpp"
#include "apex/optimizers/fused_adam.hpp"
#include "apex/optimizers/fused_lamb.hpp"
#include "lib/optimizers_support.hpp"

namespace apex {
namespace {

namespace contrib_optim = contrib::optimizers;
using amp::LossScaler;
using contrib::openfold_triton::AdamMathType;
using contrib::openfold_triton::AdamSWAOptions;
using contrib::openfold_triton::FusedAdamSWA;
using contrib_optim::FP16_Optimizer;
using contrib_optim::StepArguments;
using optimizers::ParamGroup;
using test::converted;
using test::expect_close;
using test::expect_error;
using test::expect_values;
using test::kGrads;
using test::kP;
using test::leaf;
using test::state;
using test::values;
using test::vector_of;

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(ContribFusedAdam, OPT_10_A36_StepsAndEpsInside) {
  const Tensor p = leaf(vector_of(kP)), q = leaf(vector_of(kP));
  contrib_optim::FusedAdam adam({p}, {.lr = 0.1, .weight_decay = 0.1}),
      inside({q}, {.lr = 0.1, .eps_inside_sqrt = true, .weight_decay = 0.1});
  for (const auto& g : kGrads) {
    for (const auto& t : {p, q}) set_grad(t, vector_of(g));
    adam.step();
    if (&g == &kGrads[0]) {
      inside.step();
      expect_close(values(q), {0.89688772, -1.893688, 0.39842442, 3.0905101});
    }
  }
  expect_close(values(p), {0.83461314, -1.8382354, 0.30428749, 3.1227458});
  // The step sizes: with a moment of 1 and a v of 1 (eps 0, no decay) that is how far p goes.
  const Tensor one = leaf(vector_of({0}));
  contrib_optim::FusedAdam unit({one}, {.lr = 0.1, .eps = 0});
  double at = 0;
  for (const auto& [t, size] : {std::pair(0, 0.031622566), {1, 0.023531517}, {2, 0.020200925}}) {
    unit.set_state(one, "exp_avg", test::ones({1}));
    unit.set_state(one, "exp_avg_sq", test::ones({1}));
    unit.set_state(one, "step", test::full({1}, t));
    set_grad(one, test::ones({1}));
    unit.step();
    at -= size;
    expect_values(one, {at}, 1e-6);
  }
}

TEST(ContribFusedAdam, ScaleClippingAndCopies) {
  const Tensor p = leaf(vector_of(kP)), q = leaf(vector_of(kP)), copy = vector_of(kP, DType::f16);
  contrib_optim::FusedAdam handed({p}, {.lr = 0.1, .max_grad_norm = 0.25}), plain({q}, {.lr = 0.1});
  for (const auto& g : kGrads) {
    double sum = 0;
    std::vector<double> scaled;
    for (const double v : g) sum += v * v;
    for (const double v : g) scaled.push_back(64 * v);
    const double norm = std::sqrt(sum), clip = std::max(1.0, (norm + 1e-6) / 0.25);
    handed.step({.grads = {{vector_of(scaled)}}, .output_params = {{copy}}, .scale = 64, .grad_norms = {64 * norm}});
    std::vector<double> clipped;
    for (const double v : g) clipped.push_back(v / clip);
    set_grad(q, vector_of(clipped));
    plain.step();
    expect_close(values(p), values(q));
    EXPECT_EQ(values(copy), values(converted(p, DType::f16)));
  }
  EXPECT_FALSE(grad(p).defined());
  expect_error(Kind::argument, "grad_norms for 0 of 1", [&] { handed.step(StepArguments{.grads = {{copy}}}); });
  expect_error(Kind::argument, "grads for 2 of 1", [&] { plain.step(StepArguments{.grads = {{}, {}}}); });
  expect_error(Kind::argument, "0 grads for the 1", [&] { plain.step(StepArguments{.grads = {{}}}); });
  expect_error(Kind::argument, "scale 0", [&] { plain.step(StepArguments{.scale = 0}); });
  expect_error(Kind::unsupported, "amsgrad",
               [] { contrib_optim::FusedAdam o(std::vector<Tensor>{}, {.amsgrad = true}); });
}

TEST(ContribFusedAdam, OneCountForAGroupAndOneDevice) {
  for (const bool mt : {false, true}) {
    const Tensor last = leaf(vector_of({0})), late = leaf(vector_of({0}));
    contrib_optim::FusedAdam adam({late, last}, {.lr = 0.1, .eps = 0, .use_mt = mt});
    for (int t = 0; t < 3; ++t) {
      set_grad(last, test::ones({1}));
      if (t == 2) set_grad(late, test::ones({1}));
      adam.step();
    }
    EXPECT_EQ(state(adam, late, "step").item(), mt ? 3 : 1);
    EXPECT_EQ(state(adam, last, "step").item(), 3);
    // m = 0.1 and v = 0.001 after one gradient; the step size goes with the count.
    const double t = mt ? 3 : 1, size = 0.1 * std::sqrt(1 - std::pow(0.999, t)) / (1 - std::pow(0.9, t));
    expect_values(late, {-size * 0.1 / std::sqrt(0.001)}, 1e-5);
    expect_values(last, {-0.3}, 1e-5);
  }
  EXPECT_NE(to_string(contrib_optim::FusedAdam(std::vector<Tensor>{}, {.use_mt = true})).find("use_mt true"),
            std::string::npos);
  if (!test::on_cuda()) return;
  const Tensor far = leaf(full({1}, 0.0, DType::f32, kCpu)), near = leaf(vector_of({0}));
  contrib_optim::FusedAdam mixed({near, far}, {.use_mt = true});
  expect_error(Kind::argument, "make a group for each device", [&] { mixed.step(); });
}

TEST(ContribFusedAdam, AmpScaleAdjustment) {
  const Tensor p = leaf(vector_of(kP)), q = leaf(vector_of(kP)), r = leaf(vector_of(kP));
  // A large eps: the size of the gradients shows.
  contrib_optim::FusedAdam adjusted({p}, {.lr = 0.1, .eps = 1, .amp_scale_adjustment = 4}),
      plain({q}, {.lr = 0.1, .eps = 1}), handed({r}, {.lr = 0.1, .eps = 1, .amp_scale_adjustment = 4});
  for (const auto& g : kGrads) {
    std::vector<double> scaled, quarter;
    for (const double v : g) {
      scaled.push_back(64 * v);
      quarter.push_back(v / 4);
    }
    set_grad(p, vector_of(scaled));
    adjusted.step({.inv_scale = test::full({1}, 1.0 / 64)});
    set_grad(q, vector_of(quarter));
    plain.step();
    handed.step({.grads = {{vector_of(quarter)}}});
    expect_close(values(p), values(q));
    EXPECT_EQ(values(r), values(q)) << "a scale that is handed over is not adjusted";
  }
  for (const double bad : {0.0, -1.0, kInf})
    expect_error(Kind::argument, concat("amp_scale_adjustment ", bad),
                 [&] { contrib_optim::FusedAdam o(std::vector<Tensor>{}, {.amp_scale_adjustment = bad}); });
}

TEST(ContribFusedLAMB, IsLambWithoutNvlamb) {
  const Tensor p = leaf(vector_of(kP)), q = leaf(vector_of(kP));
  contrib_optim::FusedLAMB a({p}, {.lr = 0.01});
  optimizers::FusedLAMB b({q}, {.lr = 0.01});
  for (const auto& g : kGrads) {
    for (const auto& t : {p, q}) set_grad(t, vector_of(g));
    a.step();
    b.step();
  }
  EXPECT_EQ(values(p), values(q));
  EXPECT_EQ(a.type(), "contrib.FusedLAMB");
}

/// A model of one f16 parameter: loss = sum of p * g, so that its gradient is g.
void backward_of(FP16_Optimizer& optimizer, const Tensor& p, const std::vector<double>& g) {
  const Tensor product = mul(p, vector_of(g, p.dtype()));
  optimizer.backward(nn::functional::sum(product));
}

TEST(FP16Optimizer, OPT_10_A36_ScaleDoublesAt999And1999) {
  const Tensor p = leaf(vector_of({1}, DType::f16));
  contrib_optim::FusedAdam adam({p}, {.lr = 1e-6});
  FP16_Optimizer optimizer(adam, {.dynamic_loss_scale = true});
  for (int i = 0; i < 2001; ++i) {
    EXPECT_EQ(optimizer.loss_scale(), i <= 999 ? 65536 : i <= 1999 ? 131072 : 262144) << i;
    set_grad(p, vector_of({1}, DType::f16));
    optimizer.step();
  }
  for (const double want : {131072.0, 65536.0}) {
    set_grad(p, vector_of({kInf}, DType::f16));
    const auto before = values(p);
    optimizer.step();
    EXPECT_TRUE(optimizer.overflow());
    EXPECT_EQ(optimizer.loss_scale(), want);
    EXPECT_EQ(values(p), before);
  }
}

TEST(FP16Optimizer, TrainsThroughMastersAndResumes) {
  for (const bool sgd : {false, true}) {
    const auto make = [&](const Tensor& p, const Tensor& never) -> std::unique_ptr<contrib_optim::WithArguments> {
      const std::vector<ParamGroup> groups = {{.params = {p, never}}};
      if (sgd)
        return std::make_unique<contrib_optim::FusedSGD>(
            groups, contrib_optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1});
      return std::make_unique<contrib_optim::FusedAdam>(groups, contrib_optim::AdamOptions{.lr = 0.1});
    };
    const Tensor p = leaf(vector_of(kP, DType::f16)), q = leaf(vector_of(kP, DType::f16));
    const Tensor never = leaf(vector_of({5}, DType::f16)), nor = leaf(vector_of({5}, DType::f16));
    const auto inner = make(p, never), other = make(q, nor);
    FP16_Optimizer a(*inner, {.static_loss_scale = 128}), b(*other, {.static_loss_scale = 2});
    const Tensor master = inner->groups()[0].params[0];
    EXPECT_EQ(master.dtype(), DType::f32);
    for (std::size_t t = 0; t < 2; ++t) {
      backward_of(a, p, kGrads[t]);
      a.step();
      a.zero_grad();
      EXPECT_FALSE(grad(p).defined());
      EXPECT_EQ(values(p), values(converted(master, DType::f16)));
    }
    if (sgd) expect_close(values(master), {0.9472, -1.9144, 0.44385, 2.9689}, 5e-4, 5e-4);
    EXPECT_EQ(values(never), std::vector<double>{5});
    b.load_state_dict(a.state_dict());
    EXPECT_EQ(b.loss_scale(), 128);
    for (const auto& [o, t] : {std::pair(&a, p), std::pair(&b, q)}) {
      backward_of(*o, t, kGrads[2]);
      o->step();
    }
    EXPECT_EQ(values(p), values(q));
    EXPECT_EQ(values(master), values(other->groups()[0].params[0]));
    auto bad = a.state_dict();
    bad.fp32_groups[0].pop_back();
    expect_error(Kind::data, "1 masters", [&] { b.load_state_dict(bad); });
    if (sgd) {
      expect_error(Kind::state, "needs grads", [&] { inner->step(StepArguments{}); });
      expect_error(Kind::state, "needs output_params", [&] { inner->step(StepArguments{.grads = {{p, p}}}); });
    }
  }
  contrib_optim::FusedAdam adam(std::vector<Tensor>{}, {});
  expect_error(Kind::argument, "static_loss_scale 0", [&] { FP16_Optimizer o(adam, {.static_loss_scale = 0}); });
}

TEST(MaybeCast, OPT_10_A38_E5m2) {
  const std::vector<double> in = {1.1, 1.125, 1.375, -3.3, 57344, 61440}, want = {0x3C, 0x3D, 0x3E, 0xC3, 0x7B, 0x7C};
  const Tensor flag = test::zeros({1}, DType::i32), bytes = test::empty({6}, DType::u8), back = test::empty({6});
  contrib_optim::maybe_cast(flag, {vector_of(in)}, {bytes});
  EXPECT_EQ(values(bytes), want);
  contrib_optim::maybe_cast(flag, {bytes}, {back});
  EXPECT_EQ(values(back), (std::vector<double>{1, 1.25, 1.5, -3.5, 57344, kInf}));
  fill_(flag, 1);
  contrib_optim::maybe_cast(flag, {test::zeros({6})}, {bytes});
  EXPECT_EQ(values(bytes), want) << "nothing is cast when the flag is set";
}

struct Swa {
  explicit Swa(AdamSWAOptions options)
      : p(leaf(vector_of(kP))),
        compute(leaf(vector_of(kP, DType::bf16))),
        swa(test::full({4}, 99)),
        optimizer({p}, {compute}, {swa}, options) {}
  Tensor p, compute, swa;
  FusedAdamSWA optimizer;
};

TEST(FusedAdamSWA, OPT_10_A37_WeightsAndTheirAverage) {
  const Tensor p = leaf(vector_of(kP)), compute = leaf(vector_of(kP)), swa = test::full({4}, 99);
  FusedAdamSWA optimizer({p}, {compute}, {swa}, {.swa_decay_rate = 0.9, .lr = 0.1});
  const std::vector<std::vector<double>> want = {{0.9, -1.9, 0.4, 3.0999999},
                                                 {0.89067817, -1.8973366, 0.39733663, 3.1026633},
                                                 {0.88576078, -1.8928808, 0.38835847, 3.1069756}};
  for (std::size_t t = 0; t < 3; ++t) {
    set_grad(compute, vector_of(kGrads[t]));
    optimizer.step();
    expect_close(values(swa), want[t]);
    EXPECT_EQ(values(compute), values(p));
    EXPECT_EQ(optimizer.n_averaged(), static_cast<std::int64_t>(t + 1));
  }
  expect_close(values(p), {0.84150434, -1.8527783, 0.30755514, 3.145787});
}

TEST(FusedAdamSWA, ModesCopiesScaleAndAbsentGradients) {
  for (const auto mode : {AdamMathType::apex_adam, AdamMathType::apex_adam_w}) {
    Swa swa({.swa_decay_rate = 0.5, .lr = 0.1, .adam_math_mode = mode, .weight_decay = 0.1});
    const Tensor q = leaf(vector_of(kP));
    optimizers::FusedAdam adam({q}, {.lr = 0.1, .adam_w_mode = mode == AdamMathType::apex_adam_w, .weight_decay = 0.1});
    swa.optimizer.step();
    EXPECT_EQ(swa.optimizer.n_averaged(), 0) << "no gradient, no step";
    for (const auto& g : kGrads) {
      set_grad(swa.compute, vector_of(g, DType::bf16));
      set_grad(q, vector_of(g, DType::bf16));
      swa.optimizer.step({.grad_scale = 0.5});
      adam.step({.grad_scale = 0.5});
      EXPECT_EQ(values(swa.p), values(q));
      EXPECT_EQ(values(swa.compute), values(converted(swa.p, DType::bf16)));
    }
  }
}

TEST(FusedAdamSWA, TakesOverAnAdamAndResumes) {
  const Tensor p = leaf(vector_of(kP));
  optimizers::FusedAdam adam({p}, {.lr = 0.1, .weight_decay = 0.1});
  for (std::size_t t = 0; t < 2; ++t) {
    set_grad(p, vector_of(kGrads[t]));
    adam.step();
  }
  const Tensor q = leaf(clone(p.detach())), compute = leaf(vector_of(values(p), DType::bf16)),
               average = test::empty({4});
  const auto swa = FusedAdamSWA::from_optim(adam, {q}, {compute}, {average}, 0.9);
  EXPECT_EQ(state(*swa, q, "step").item(), 2);
  set_grad(p, vector_of(kGrads[2]));
  set_grad(compute, vector_of(kGrads[2]));
  adam.step();
  swa->step();
  EXPECT_EQ(values(p), values(q));
  EXPECT_EQ(values(average), values(q));
  const Tensor again = leaf(clone(q.detach()));
  FusedAdamSWA resumed({again}, {leaf(vector_of(kP))}, {clone(average)}, {.swa_decay_rate = 0.5});
  resumed.load_state_dict(swa->state_dict());
  EXPECT_EQ(resumed.n_averaged(), 1);
  EXPECT_EQ(resumed.groups()[0].number("swa_decay_rate"), 0.9);

  const Tensor late = leaf(vector_of({1}));
  optimizers::FusedAdam uneven({p, late}, {});
  set_grad(p, vector_of(kGrads[2]));
  uneven.step();
  expect_error(Kind::argument, "has made 0 steps, the first 1", [&] {
    FusedAdamSWA::from_optim(uneven, {q, late}, {compute, vector_of({1})}, {average, vector_of({1})}, 0.9);
  });
}

TEST(FusedAdamSWA, Errors) {
  const Tensor p = leaf(vector_of(kP)), c = leaf(vector_of(kP)), s = vector_of(kP);
  const AdamSWAOptions good{.swa_decay_rate = 0.9};
  const auto make = [&](std::vector<Tensor> params, std::vector<Tensor> compute, std::vector<Tensor> swa,
                        AdamSWAOptions o) { return [=] { FusedAdamSWA optimizer(params, compute, swa, o); }; };
  expect_error(Kind::argument, "compute_params is empty", make({p}, {}, {s}, good));
  expect_error(Kind::argument, "swa_params is empty", make({p}, {c}, {}, good));
  expect_error(Kind::argument, "2 compute_params for 1", make({p}, {c, c}, {s}, good));
  expect_error(Kind::argument, "swa_params[0] is [2]", make({p}, {c}, {vector_of({1, 2})}, good));
  expect_error(Kind::argument, "swa_params[0] is bf16", make({p}, {c}, {vector_of(kP, DType::bf16)}, good));
  expect_error(Kind::argument, "not contiguous",
               make({p}, {views::as_strided(test::zeros({8}), {4}, {2}, 0)}, {s}, good));
  expect_error(Kind::argument, "swa_decay_rate -1", make({p}, {c}, {s}, {}));
  expect_error(Kind::unsupported, "capturable", make({p}, {c}, {s}, {.swa_decay_rate = 0.9, .capturable = true}));
  expect_error(Kind::unsupported, "master_weights",
               make({p}, {c}, {s}, {.swa_decay_rate = 0.9, .master_weights = true}));
  expect_error(Kind::unsupported, "amsgrad", make({p}, {c}, {s}, {.swa_decay_rate = 0.9, .amsgrad = true}));
  expect_error(Kind::argument, "adam_math_mode 7",
               make({p}, {c}, {s}, {.swa_decay_rate = 0.9, .adam_math_mode = static_cast<AdamMathType>(7)}));
  FusedAdamSWA optimizer({p}, {c}, {s}, good);
  expect_error(Kind::unsupported, "one group", [&] { optimizer.add_param_group({}); });
}

TEST(Optimizer, ReplacedParameters) {
  const Tensor p = leaf(vector_of(kP)), q = leaf(vector_of(kP)), r = leaf(vector_of({1}));
  optimizers::FusedAdam adam(std::vector<ParamGroup>{{{p}}, {{r}}}, {});
  set_grad(p, vector_of(kGrads[0]));
  adam.step();
  expect_error(Kind::argument, "already held", [&] { adam.replace_params(0, {r}); });
  expect_error(Kind::argument, "2 tensors for the 1", [&] { adam.replace_params(0, {q, q}); });
  expect_error(Kind::argument, "group 9", [&] { adam.replace_params(9, {}); });
  EXPECT_FALSE(adam.state_of(p).empty());
  adam.replace_params(0, {q});
  EXPECT_TRUE(adam.groups()[0].params[0].is_same(q));
  EXPECT_TRUE(adam.state_of(p).empty());
}

// --- the loss scale ---

TEST(LossScaler, AMP_7_1_DynamicScale) {
  LossScaler scaler({.init_scale = 16, .scale_window = 3, .min_loss_scale = 1}, test::device());
  EXPECT_TRUE(scaler.dynamic());
  // Overflow or not, and the scale and count after it.
  struct Row {
    int overflow;
    double scale;
    std::int64_t unskipped;
  };
  for (const auto& [overflow, scale, unskipped] : {Row{0, 16, 1},
                                                   {0, 16, 2},
                                                   {0, 32, 0},
                                                   {0, 32, 1},
                                                   {1, 16, 0},
                                                   {0, 16, 1},
                                                   {1, 8, 0},
                                                   {1, 4, 0},
                                                   {1, 2, 0},
                                                   {1, 1, 0},
                                                   {1, 1, 0},
                                                   {0, 1, 1},
                                                   {0, 1, 2},
                                                   {0, 2, 0}}) {
    scaler.check({vector_of({1, overflow ? kInf : 2}), Tensor(), vector_of({1}, DType::f16)});
    EXPECT_EQ(scaler.scaling().found_inf.item(), overflow);
    EXPECT_EQ(scaler.scaling().inv_scale.item(), 1 / scaler.loss_scale());
    scaler.update();
    EXPECT_EQ(scaler.last_overflow(), overflow != 0);
    EXPECT_EQ(scaler.loss_scale(), scale);
    EXPECT_EQ(scaler.unskipped(), unskipped);
    EXPECT_EQ(scaler.scaling().found_inf.item(), 0);
  }
}

TEST(LossScaler, AMP_7_1_LimitsFactorAndStaticScale) {
  EXPECT_EQ(LossScaler({.max_loss_scale = 1024}, test::device()).loss_scale(), 1024) << "starts within its limits";
  EXPECT_EQ(LossScaler({.init_scale = 2, .min_loss_scale = 8}, test::device()).loss_scale(), 8);
  LossScaler grows({.init_scale = 16, .scale_factor = 4, .scale_window = 1, .max_loss_scale = 100}, test::device());
  for (const double want : {64, 100, 100}) {
    grows.update();
    EXPECT_EQ(grows.loss_scale(), want);
  }
  LossScaler floor({.init_scale = 0x1p-125}, test::device());
  for (int i = 0; i < 3; ++i) {
    floor.check({vector_of({std::nan("")})});
    floor.update();
    EXPECT_EQ(floor.loss_scale(), 0x1p-126);
    EXPECT_TRUE(std::isfinite(floor.scaling().inv_scale.item()));
  }
  LossScaler fixed({.loss_scale = 128}, test::device());
  fixed.check({vector_of({kInf})});
  EXPECT_FALSE(fixed.scaling().found_inf.defined());
  fixed.update();
  EXPECT_EQ(fixed.loss_scale(), 128);
  EXPECT_EQ(fixed.unskipped(), 1);
  fixed.set_loss_scale(64);
  EXPECT_EQ(fixed.scaling().inv_scale.item(), 1.0 / 64);
}

TEST(LossScaler, OPT_10_A35_Hysteresis) {
  LossScaler scaler({.init_scale = 65536, .scale_window = 3, .hysteresis = 2}, test::device());
  const std::vector<int> found = {1, 0, 1, 1, 1, 0, 0, 0, 0};
  const std::vector<double> want = {65536, 65536, 65536, 32768, 16384, 16384, 16384, 32768, 32768};
  for (std::size_t i = 0; i < found.size(); ++i) {
    scaler.check({vector_of({found[i] ? kInf : 1})});
    scaler.update();
    EXPECT_EQ(scaler.loss_scale(), want[i]) << i;
  }
}

TEST(LossScaler, ALossBackwardAndSkippedSteps) {
  const Tensor p = leaf(vector_of({1, 2}, DType::f16));
  optimizers::FusedAdam optimizer({p}, {.lr = 0.25, .capturable = true, .master_weights = true});
  LossScaler scaler({.init_scale = 1024, .scale_window = 2}, test::device());
  for (const double scale : {1024.0, 512.0}) {
    EXPECT_EQ(scaler.loss_scale(), scale);
    const double factor = scale == 1024 ? 100 : 1;  // 102400 is beyond f16
    const Tensor loss = nn::functional::sum(nn::functional::scale(p, factor));
    const Tensor scaled = scaler.scale(loss);
    EXPECT_EQ(scaled.dtype(), DType::f32);
    EXPECT_EQ(scaled.dim(), loss.dim());
    backward(scaled);
    scaler.check({grad(p)});
    optimizer.step(scaler.scaling());
    scaler.update();
    EXPECT_EQ(optimizer.last_step_skipped(), scale == 1024);
    expect_values(p, scale == 1024 ? std::vector<double>{1, 2} : std::vector<double>{0.75, 1.75}, 1e-3);
    optimizer.zero_grad();
  }
  EXPECT_EQ(state(optimizer, p, "step").item(), 1);
  const auto saved = scaler.state_dict();
  EXPECT_EQ(saved.loss_scale, 512);
  EXPECT_EQ(saved.unskipped, 1);
  LossScaler other({.scale_window = 2}, test::device());
  other.load_state_dict(saved);
  other.update();
  EXPECT_EQ(other.loss_scale(), 1024);
  expect_error(Kind::data, "loss_scale -1", [&] { other.load_state_dict({.loss_scale = -1}); });
  expect_error(Kind::data, "unskipped -1", [&] { other.load_state_dict({.unskipped = -1}); });
}

TEST(LossScaler, AMP_7_1_WarnsOnceWhenNoScaleHelps) {
  LossScaler scaler({.min_loss_scale = 1}, test::device());
  const auto run = [&](int steps, bool overflow) {
    ::testing::internal::CaptureStderr();
    for (int i = 0; i < steps; ++i) {
      scaler.check({vector_of({overflow ? kInf : 1})});
      scaler.update();
      static_cast<void>(scaler.loss_scale());  // waits, so that the count has arrived
    }
    scaler.warn_of_skips();
    const std::string text = ::testing::internal::GetCapturedStderr();
    int warnings = 0;
    for (std::size_t at = 0; (at = text.find("not finite whatever the scale", at)) != text.npos; ++at) ++warnings;
    return warnings;
  };
  EXPECT_EQ(run(49, true), 0);
  EXPECT_EQ(run(1, true), 1);
  EXPECT_EQ(run(60, true), 0) << "the same skips still";
  EXPECT_EQ(run(1, false), 0);
  EXPECT_EQ(run(49, true), 0);
  scaler.set_loss_scale(1024);  // a new try
  EXPECT_EQ(run(49, true), 0);
  EXPECT_EQ(run(3, true), 1);
  LossScaler fixed({.loss_scale = 2}, test::device());
  for (int i = 0; i < 60; ++i) {
    fixed.check({vector_of({kInf})});
    fixed.update();
  }
  ::testing::internal::CaptureStderr();
  fixed.update();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(LossScaler, Errors) {
  using amp::LossScalerOptions;
  const auto make = [](LossScalerOptions o) { return [o] { LossScaler scaler(o); }; };
  expect_error(Kind::argument, "loss_scale 0", make({.loss_scale = 0}));
  expect_error(Kind::argument, "init_scale inf", make({.init_scale = kInf}));
  expect_error(Kind::argument, "scale_factor 1 ", make({.scale_factor = 1}));
  expect_error(Kind::argument, "scale_window 0", make({.scale_window = 0}));
  expect_error(Kind::argument, "hysteresis 0", make({.hysteresis = 0}));
  expect_error(Kind::argument, "min_loss_scale 8 is above", make({.min_loss_scale = 8, .max_loss_scale = 4}));
}

}  // namespace
}  // namespace apex
