// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/parallel/larc.hpp"

#include <limits>

#include "apex/optimizers/fused_sgd.hpp"
#include "lib/optimizers_support.hpp"

namespace apex {
namespace {

using optimizers::FusedSGD;
using optimizers::ParamGroup;
using parallel::LARC;
using parallel::LARCOptions;
using test::expect_close;
using test::expect_error;
using test::kGrads;
using test::kP;
using test::leaf;
using test::values;
using test::vector_of;

double norm(const std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += x * x;
  return std::sqrt(sum);
}

/// The rule of the specification in double: the gradient that the optimizer sees.
std::vector<double> adapted(const std::vector<double>& p, const std::vector<double>& g, double lr, double wd,
                            const LARCOptions& o) {
  const double pn = norm(p), gn = norm(g);
  std::vector<double> out = g;
  if (pn == 0 || gn == 0) return out;
  double a = o.trust_coefficient * pn / (gn + wd * pn + o.eps);
  if (o.clip) a = std::min(a / lr, 1.0);
  for (std::size_t i = 0; i < g.size(); ++i) out[i] = (g[i] + wd * p[i]) * a;
  return out;
}

TEST(LARC, PAR_7_ARateOfZeroLeavesTheGradient) {  // also where trust is 0: 0 / 0 is 1
  for (const double trust : {0.0, 0.02}) {
    const Tensor p = leaf(vector_of(kP));
    FusedSGD sgd({p}, {.lr = 0});
    LARC larc(sgd, {.trust_coefficient = trust});
    set_grad(p, vector_of(kGrads[0]));
    larc.step();
    EXPECT_EQ(values(p), kP);
    expect_close(values(grad(p)), kGrads[0]);
  }
}

struct Tried {
  DType dtype;
  double tolerance;
};

TEST(LARC, PAR_7_FollowsItsRule) {
  for (const auto& [dtype, tolerance] :
       {Tried{DType::f32, 1e-6}, {DType::f64, 1e-9}, {DType::bf16, 2e-2}, {DType::f16, 3e-3}}) {
    for (const bool clip : {true, false}) {
      for (const double lr : {0.1, 1e-4, 4.0}) {
        SCOPED_TRACE(concat(dtype, clip, ' ', lr));
        const LARCOptions o{.trust_coefficient = 0.02, .clip = clip};
        const Tensor p = leaf(vector_of(kP, dtype)), q = leaf(vector_of({0.2, -0.1}, dtype));
        FusedSGD sgd(std::vector<ParamGroup>{{{p}, {{"weight_decay", 0.1}}}, {{q}, {{"weight_decay", 0.0}}}},
                     {.lr = lr, .momentum = 0.9});
        LARC larc(sgd, o);
        std::vector<double> pv = values(p), qv = values(q), pb(4, 0), qb(2, 0);
        for (std::size_t t = 0; t < 3; ++t) {
          set_grad(p, vector_of(kGrads[t], dtype));
          set_grad(q, vector_of({2 - double(t), 0.5}, dtype));
          const auto gp = adapted(pv, values(grad(p)), lr, 0.1, o), gq = adapted(qv, values(grad(q)), lr, 0, o);
          larc.step();
          expect_close(values(grad(p)), gp, tolerance, tolerance);
          for (std::size_t i = 0; i < 4; ++i) pv[i] -= lr * (pb[i] = 0.9 * pb[i] + gp[i]);
          for (std::size_t i = 0; i < 2; ++i) qv[i] -= lr * (qb[i] = 0.9 * qb[i] + gq[i]);
          expect_close(values(p), pv, tolerance, 3 * tolerance);
          expect_close(values(q), qv, tolerance, 3 * tolerance);
          pv = values(p);  // 16-bit parameters are rounded each step
          qv = values(q);
        }
        EXPECT_EQ(sgd.groups()[0].number("weight_decay"), 0.1);
        EXPECT_EQ(larc.groups()[1].number("weight_decay"), 0.0);
      }
    }
  }
}

TEST(LARC, PAR_7_ZeroNormsLeaveTheParameterAlone) {
  const Tensor zero = leaf(test::zeros({3})), still = leaf(vector_of({1, 2, 3})), none = leaf(vector_of({5}));
  FusedSGD sgd({zero, still, none}, {.lr = 0.5, .weight_decay = 0.25});
  LARC larc(sgd);
  set_grad(zero, vector_of({1, 1, 1}));
  set_grad(still, test::zeros({3}));
  larc.step();
  EXPECT_EQ(values(zero), (std::vector<double>{-0.5, -0.5, -0.5}));
  EXPECT_EQ(values(still), (std::vector<double>{1, 2, 3})) << "no decay either";
  EXPECT_EQ(values(none), (std::vector<double>{5}));
}

TEST(LARC, PAR_7_RateZeroAndRateOnTheDevice) {
  const Tensor p = leaf(vector_of(kP)), q = leaf(vector_of(kP));
  FusedSGD host({p}, {.lr = 0}), device({q}, {.lr = 7});
  LARC a(host), b(device);
  set_grad(p, vector_of(kGrads[0]));
  a.step();
  expect_close(values(grad(p)), kGrads[0]);
  EXPECT_EQ(values(p), kP);
  const Tensor rate = test::full({1}, 0.1, DType::f64);
  device.set_lr_source(rate);
  host.set_lr(0.1);
  for (const auto& g : kGrads) {
    for (const auto& t : {p, q}) set_grad(t, vector_of(g));
    a.step();
    b.step();
    expect_close(values(p), values(q));
  }
}

TEST(LARC, PAR_7_DecayComesBackWhenTheStepThrows) {
  const Tensor p = leaf(vector_of(kP));
  FusedSGD sgd({p}, {.lr = 0.1, .weight_decay = 0.25});
  LARC larc(sgd);
  set_grad(p, vector_of(kGrads[0]));
  expect_error(Kind::argument, "found_inf", [&] { larc.step({.found_inf = test::zeros({1}, DType::f64)}); });
  EXPECT_EQ(sgd.groups()[0].number("weight_decay"), 0.25);
  expect_error(Kind::argument, "trust_coefficient -1", [&] { LARC bad(sgd, {.trust_coefficient = -1}); });
  expect_error(Kind::argument, "eps inf", [&] { LARC bad(sgd, {.eps = std::numeric_limits<double>::infinity()}); });
}

TEST(LARC, TheOptimizerKnowsItsWrapper) {
  FusedSGD sgd({leaf(vector_of(kP))}, {.lr = 0.1});
  EXPECT_EQ(sgd.wrapper(), "");
  {
    const LARC larc(sgd);
    EXPECT_EQ(sgd.wrapper(), "LARC");
  }
  EXPECT_EQ(sgd.wrapper(), "");
}

TEST(LARC, ScaledGradientsStayScaled) {
  const Tensor p = leaf(vector_of(kP)), q = leaf(vector_of(kP));
  FusedSGD scaled({p}, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1}),
      plain({q}, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1});
  LARC a(scaled), b(plain);
  const Tensor inv_scale = test::full({1}, 1.0 / 512), found_inf = test::zeros({1});
  for (std::size_t t = 0; t < 3; ++t) {
    std::vector<double> times;
    for (const double v : kGrads[t]) times.push_back(512 * v);
    set_grad(p, vector_of(times));
    if (t == 1) {
      fill_(found_inf, 1);
      a.step({.found_inf = found_inf, .inv_scale = inv_scale});
      EXPECT_EQ(values(grad(p)), values(vector_of(times))) << "a skipped step touches nothing";
      EXPECT_TRUE(a.last_step_skipped());
      fill_(found_inf, 0);
    }
    a.step({.found_inf = found_inf, .inv_scale = inv_scale});
    set_grad(q, vector_of(kGrads[t]));
    b.step();
    expect_close(values(p), values(q));
  }
}

}  // namespace
}  // namespace apex
