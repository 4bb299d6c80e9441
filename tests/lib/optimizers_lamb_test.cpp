// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/optimizers/fused_lamb.hpp"

#include <limits>

#include "lib/optimizers_support.hpp"

namespace apex {
namespace {

using optimizers::FusedLAMB;
using optimizers::FusedMixedPrecisionLamb;
using optimizers::LambOptions;
using optimizers::MixedPrecisionLambOptions;
using optimizers::ParamGroup;
using test::converted;
using test::expect_close;
using test::expect_error;
using test::kGrads;
using test::kP;
using test::leaf;
using test::state;
using test::values;
using test::vector_of;

const std::vector<double> kQ = {0.2, -0.1};
const std::vector<std::vector<double>> kH = {{2, -1}, {0.5, 0.5}, {0, -0.2}};

/// P with decay 0.01 and Q without, as in the cases.
struct Pair {
  explicit Pair(const LambOptions& options, DType dtype = DType::f32, bool misaligned = false)
      : p(misaligned ? test::parameters({"", true, false}, dtype)[0] : leaf(vector_of(kP, dtype))),
        q(leaf(vector_of(kQ, dtype))),
        optimizer(std::vector<ParamGroup>{{{p}, {{"weight_decay", 0.01}}}, {{q}, {{"weight_decay", 0.0}}}}, options) {}
  void step(std::size_t t) {
    set_grad(p, vector_of(kGrads[t], p.dtype()));
    set_grad(q, vector_of(kH[t], q.dtype()));
    optimizer.step();
  }
  Tensor p, q;
  FusedLAMB optimizer;
};

using Rows = std::vector<std::vector<double>>;

/// Rows that are empty are not compared.
void run_case(const LambOptions& options, const Rows& p, const Rows& q, const std::vector<double>& norms = {}) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const bool misaligned : {false, true}) {
      SCOPED_TRACE(concat(dtype, misaligned));
      Pair pair(options, dtype, misaligned);
      for (std::size_t t = 0; t < 3; ++t) {
        pair.step(t);
        if (!norms.empty()) {
          EXPECT_NEAR(pair.optimizer.last_grad_norm().item(), norms[t], 1e-6 * norms[t]);
        }
        if (!p[t].empty()) expect_close(values(pair.p), p[t]);
        if (!q[t].empty()) expect_close(values(pair.q), q[t]);
      }
      EXPECT_EQ(state(pair.optimizer, pair.q, "step").item(), 3);
    }
  }
}

const LambOptions kBase{.lr = 0.01};
const Rows kP14 = {{0.98096406, -1.9807754, 0.481058, 3.0182824},
                   {0.94409657, -1.9845225, 0.48535204, 3.0127122},
                   {0.96646452, -1.9882649, 0.45629233, 3.0052712}};

TEST(FusedLAMB, OPT_10_A14_Defaults) {
  run_case(kBase, kP14, {{0.19000001, -0.09000003}, {0.18048, -0.09122565}, {0.173121, -0.09028471}},
           {2.3021729, 0.75828755, 0.70007139});
}

TEST(FusedLAMB, OPT_10_A15_TrustRatioWithoutDecay) {
  auto options = kBase;
  options.use_nvlamb = true;
  run_case(options, kP14, {{0.19841887, -0.09841886}, {0.19622214, -0.09870167}, {0.1940434, -0.09842309}});
}

TEST(FusedLAMB, OPT_10_A16_NoClipping) {
  for (const double most : {1e9, 0.0, -1.0}) {
    auto options = kBase;
    options.max_grad_norm = most;
    run_case(options, {{}, {}, {0.96307409, -1.9597843, 0.43988007, 3.0344255}}, {{}, {}, {0.17527351, -0.08418421}});
  }
}

TEST(FusedLAMB, AGradientThatIsNotFiniteSkipsWithoutClippingToo) {
  const Tensor p = leaf(vector_of({1, 2}));
  FusedLAMB optimizer({p}, {.lr = 0.1, .max_grad_norm = 0});
  set_grad(p, vector_of({1, std::numeric_limits<double>::infinity()}));
  optimizer.step();
  EXPECT_TRUE(optimizer.last_step_skipped());
  EXPECT_NE(optimizer.skip_sign().item(), 0.0);
  EXPECT_EQ(values(p), (std::vector<double>{1, 2}));
  EXPECT_EQ(values(state(optimizer, p, "exp_avg")), (std::vector<double>{0, 0}));
  set_grad(p, vector_of({1, 1}));
  optimizer.step();
  EXPECT_FALSE(optimizer.last_step_skipped());
  EXPECT_EQ(optimizer.skip_sign().item(), 0.0);
  EXPECT_EQ(state(optimizer, p, "step").item(), 1);
}

TEST(FusedLAMB, OPT_10_A17_L2AndAveraging) {
  auto options = kBase;
  options.adam_w_mode = false;
  run_case(options, {{}, {}, {0.96440560, -1.9702629, 0.45658976, 2.9944935}}, {{}, {}, {}});
  options = kBase;
  options.grad_averaging = false;
  run_case(options, {{0.98110914, -1.9810901, 0.48111829, 3.0188158}, {}, {}}, {{}, {}, {}});
}

TEST(FusedLAMB, OPT_10_A18_ZeroWeightsAndGradientsThatAreNotFinite) {
  const Tensor p = leaf(test::zeros({2}));
  FusedLAMB optimizer({p}, {.lr = 0.01, .weight_decay = 0.01});
  set_grad(p, vector_of({0.1, 0.1}));
  const auto g = values(grad(p));
  optimizer.step();
  expect_close(values(p), {-0.0099999, -0.0099999}, 0, 2e-7);
  EXPECT_EQ(values(grad(p)), g);
  EXPECT_FALSE(optimizer.last_step_skipped());
  const auto before = values(p), m = values(state(optimizer, p, "exp_avg"));
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    set_grad(p, vector_of({bad, 0.1}));
    optimizer.step();
    EXPECT_TRUE(optimizer.last_step_skipped());
    EXPECT_EQ(values(p), before);
    EXPECT_EQ(values(state(optimizer, p, "exp_avg")), m);
    EXPECT_EQ(state(optimizer, p, "step").item(), 1);
  }
  set_grad(p, vector_of({0.1, 0.1}));
  optimizer.step();
  EXPECT_FALSE(optimizer.last_step_skipped());
  EXPECT_EQ(state(optimizer, p, "step").item(), 2);
}

TEST(FusedLAMB, TheNormIsThatOfAllTypesTogether) {
  const Tensor a = leaf(vector_of({1, 1})), b = leaf(vector_of({1}, DType::f16)), c = leaf(vector_of({1}, DType::f64));
  FusedLAMB optimizer(std::vector<ParamGroup>{{{a}}, {{b, c}}}, {});
  set_grad(a, vector_of({3, 4}));
  set_grad(b, vector_of({12}, DType::f16));
  set_grad(c, vector_of({84}, DType::f64));
  optimizer.step();
  EXPECT_NEAR(optimizer.last_grad_norm().item(), 85, 1e-5);
  set_grad(a, vector_of({3, 4}));
  set_grad(b, {});
  set_grad(c, {});
  optimizer.step({.inv_scale = test::full({1}, 0.5), .grad_scale = 4});
  EXPECT_NEAR(optimizer.last_grad_norm().item(), 10, 1e-5);
}

TEST(FusedLAMB, OverwrittenGradientsAreTheUpdate) {
  struct Case {
    DType dtype;
    bool adam_w_mode, masters;
    double decay;
  };
  for (const auto& [dtype, adam_w_mode, masters, decay] : {Case{DType::f32, true, false, 0.1},
                                                           {DType::f32, false, false, 0.1},
                                                           {DType::f64, true, false, 0},
                                                           {DType::bf16, true, true, 0.1},
                                                           {DType::f16, true, false, 0.1}}) {
    SCOPED_TRACE(concat(dtype, adam_w_mode, masters, decay));
    LambOptions options{.lr = 0.01,
                        .weight_decay = decay,
                        .adam_w_mode = adam_w_mode,
                        .max_grad_norm = 0.25,
                        .master_weights = masters};
    const auto matrix = [&](double factor) {  // a gradient of other strides than its parameter
      const Tensor t = test::empty({3, 2}, dtype);
      for (int i = 0; i < 6; ++i) test::set_element(t, i, factor * (i - 2.5));
      return t;
    };
    const Tensor p = leaf(vector_of(kP, dtype)), q = leaf(vector_of(kP, dtype)), none = leaf(vector_of({}, dtype)),
                 a = leaf(matrix(1)), b = leaf(matrix(1));
    FusedLAMB plain({p, a}, options);
    options.apex_overwrite_grad = true;
    FusedLAMB over({q, none, b}, options);
    for (std::size_t t = 0; t < 3; ++t) {
      const std::vector<double> before = values(masters && t > 0 ? state(over, q, "master") : q);
      const Tensor across = test::empty({2, 3}, dtype);
      for (int i = 0; i < 6; ++i) test::set_element(across, i, 0.1 * i - 0.2 * static_cast<double>(t));
      for (const auto& x : {p, q}) set_grad(x, vector_of(kGrads[t], dtype));
      for (const auto& x : {a, b}) set_grad(x, views::transpose(clone(across), 0, 1));
      set_grad(none, vector_of({}, dtype));
      plain.step();
      over.step();
      EXPECT_EQ(values(p), values(q)) << "the step itself is the same";
      EXPECT_EQ(values(a), values(b));
      EXPECT_EQ(values(grad(p)), values(vector_of(kGrads[t], dtype)));
      const double c1 = 1 - std::pow(0.9, t + 1.0), c2 = 1 - std::pow(0.999, t + 1.0);
      const auto m = values(state(over, q, "exp_avg")), v = values(state(over, q, "exp_avg_sq"));
      std::vector<double> want;
      for (std::size_t i = 0; i < 4; ++i)
        want.push_back(m[i] / c1 / (std::sqrt(v[i] / c2) + 1e-6) + (adam_w_mode ? decay * before[i] : 0.0));
      const double tolerance = dtype == DType::bf16 ? 4e-3 : dtype == DType::f16 ? 5e-4 : 2e-5;  // N2: betas in f32
      expect_close(values(grad(q)), want, tolerance, 1e-6);
      EXPECT_EQ(grad(q).dtype(), dtype);
      const auto mb = values(state(over, b, "exp_avg")), vb = values(state(over, b, "exp_avg_sq"));
      if (decay == 0.0) {
        for (std::size_t i = 0; i < 6; ++i)
          EXPECT_NEAR(values(grad(b))[i], mb[i] / c1 / (std::sqrt(vb[i] / c2) + 1e-6), 1e-4) << i;
      }
    }
    // Skipped steps leave gradients alone, whether told so or found out.
    const auto bits = values(q);
    for (const bool found : {true, false}) {
      const std::vector<double> g = {1, 2, 3, found ? 4 : std::numeric_limits<double>::infinity()};
      set_grad(q, vector_of(g, dtype));
      over.step({.found_inf = test::full({1}, found ? 1 : 0)});
      if (found || options.max_grad_norm > 0) {
        EXPECT_EQ(values(grad(q)), g);
      }
      EXPECT_EQ(values(q), bits);
    }
  }
}

TEST(FusedLAMB, OPT_10_A11_ResumeIsBitIdentical) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const LambOptions options{.lr = 0.01, .master_weights = true};
    Pair a(options, dtype), b(options, dtype);
    a.step(0);
    a.step(1);
    copy_(b.p.detach(), a.p);
    copy_(b.q.detach(), a.q);
    b.optimizer.load_state_dict(a.optimizer.state_dict());
    a.step(2);
    b.step(2);
    EXPECT_EQ(values(a.p), values(b.p));
    EXPECT_EQ(values(a.q), values(b.q));
    for (const auto& [key, value] : a.optimizer.state_of(a.p))
      EXPECT_EQ(values(value), values(b.optimizer.state_of(b.p).at(key))) << key;
    EXPECT_EQ(a.optimizer.state_of(a.p).contains("master"), dtype == DType::bf16);
  }
}

TEST(FusedLAMB, Errors) {
  const auto make = [](LambOptions o) { return [o] { FusedLAMB optimizer(std::vector<Tensor>{}, o); }; };
  expect_error(Kind::argument, "FusedLAMB: lr -1", make({.lr = -1}));
  expect_error(Kind::argument, "beta1 1.5", make({.beta1 = 1.5}));
  expect_error(Kind::argument, "max_grad_norm nan", make({.max_grad_norm = std::nan("")}));
  expect_error(Kind::unsupported, "amsgrad", make({.amsgrad = true}));
  expect_error(Kind::argument, "FusedMixedPrecisionLamb: eps -1",
               [] { FusedMixedPrecisionLamb o(std::vector<Tensor>{}, {.eps = -1}); });
  expect_error(Kind::argument, "reduced_precision_dtype f32",
               [] { FusedMixedPrecisionLamb o(std::vector<Tensor>{}, {.reduced_precision_dtype = DType::f32}); });
  expect_error(Kind::argument, "step -1", [] { FusedMixedPrecisionLamb o(std::vector<Tensor>{}, {.step = -1}); });
}

TEST(FusedMixedPrecisionLamb, OPT_10_A19_ScaledHalfGradients) {
  const Tensor p = leaf(vector_of(kP, DType::f16));
  FusedMixedPrecisionLamb optimizer({p}, {.lr = 0.01, .reduced_precision_dtype = DType::f16});
  EXPECT_EQ(optimizer.type(), "FusedMixedPrecisionLamb");
  const std::vector<double> norms = {70.09993, 35.049965, 85.88853};
  const Rows want = {{0.98096395, -1.9807754, 0.48105803, 3.0182824},
                     {0.94706374, -1.9704776, 0.47129992, 3.0267811},
                     {0.96307886, -1.959785, 0.43988204, 3.0344248}};
  const Tensor found_inf = test::zeros({1}), inv_scale = test::full({1}, 1.0 / 128);
  const auto scaled = [&](std::size_t t) {
    std::vector<double> g;
    for (const double v : kGrads[t]) g.push_back(128 * v);
    set_grad(p, vector_of(g, DType::f16));
  };
  for (std::size_t t = 0; t < 3; ++t) {
    scaled(t);
    optimizer.step({.found_inf = found_inf, .inv_scale = inv_scale});
    EXPECT_NEAR(128 * optimizer.last_grad_norm().item(), norms[t], 1e-5 * norms[t]);
    expect_close(values(state(optimizer, p, "master")), want[t], 2e-5, 2e-5);
    EXPECT_EQ(values(p), values(converted(state(optimizer, p, "master"), DType::f16)));
  }
  const auto before = values(state(optimizer, p, "master"));
  fill_(found_inf, 1);
  optimizer.step({.found_inf = found_inf, .inv_scale = inv_scale});
  EXPECT_TRUE(optimizer.last_step_skipped());
  EXPECT_EQ(values(state(optimizer, p, "master")), before);
  EXPECT_EQ(state(optimizer, p, "step").item(), 3);
}

TEST(FusedMixedPrecisionLamb, MixedGroupsAndTheGroupsOwnRate) {
  const Tensor half = leaf(vector_of({1, 2}, DType::bf16)), full = leaf(vector_of({1, 2}));
  FusedMixedPrecisionLamb optimizer(std::vector<ParamGroup>{{{half, full}, {{"lr", 0.5}, {"weight_decay", 0.0}}}},
                                    {.step = 7, .reduced_precision_dtype = DType::bf16});
  for (const auto& p : {half, full}) set_grad(p, vector_of({1, 1}, p.dtype()));
  optimizer.step();
  EXPECT_EQ(state(optimizer, half, "step").item(), 8);
  EXPECT_TRUE(optimizer.state_of(half).contains("master"));
  EXPECT_FALSE(optimizer.state_of(full).contains("master"));
  EXPECT_EQ(optimizer.groups()[0].number("lr"), 0.5);
  EXPECT_EQ(values(half), values(converted(state(optimizer, half, "master"), DType::bf16)));
  expect_close(values(state(optimizer, half, "master")), values(full));
  EXPECT_LT(values(full)[0], 1);
}

}  // namespace
}  // namespace apex
