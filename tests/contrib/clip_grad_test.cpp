// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/contrib/clip_grad.hpp"

#include <limits>

#include "apex/kernels/multi_tensor.hpp"
#include "apex/optimizers/fused_adam.hpp"
#include "lib/optimizers_support.hpp"

namespace apex {
namespace {

using contrib::clip_grad::clip_grad_norm_;
using test::expect_close;
using test::expect_error;
using test::kGrads;
using test::kP;
using test::leaf;
using test::values;
using test::vector_of;

constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<Tensor> params_with(const std::vector<std::vector<double>>& grads, const std::vector<DType>& dtypes) {
  std::vector<Tensor> params;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const DType dtype = dtypes[i % dtypes.size()];
    params.push_back(leaf(vector_of(std::vector<double>(grads[i].size(), 7), dtype)));
    set_grad(params.back(), vector_of(grads[i], dtype));
  }
  return params;
}

TEST(ClipGrad, OPT_10_A34_TheCases) {
  struct Case {
    double max_norm;
    std::vector<double> a, b;
  };
  for (const auto& [max_norm, a, b] :
       {Case{1, {3 * 0.0769230723, 4 * 0.0769230723}, {12 * 0.0769230723}},
        Case{6.5, {1.4999999, 1.9999999}, {5.9999995}}, Case{13, {3 * 0.99999994, 4 * 0.99999994}, {12 * 0.99999994}},
        Case{20, {3, 4}, {12}}}) {
    const auto p = params_with({{3, 4}, {12}}, {DType::f32});
    const Tensor norm = clip_grad_norm_(p, max_norm);
    EXPECT_EQ(norm.dim(), 0);
    EXPECT_EQ(norm.device(), test::device());
    EXPECT_NEAR(norm.item(), 13, 13e-6);
    expect_close(values(grad(p[0])), a, 2e-7, 0);
    expect_close(values(grad(p[1])), b, 2e-7, 0);
    EXPECT_EQ(values(p[0]), (std::vector<double>{7, 7}));
  }
}

TEST(ClipGrad, OPT_10_A34_TypesAndNorms) {
  const std::vector<std::vector<double>> g = {{3, -4, 0}, {}, {12}, {-0.5, 0.25, 8, 1, -1}};
  const std::vector<std::vector<DType>> mixes = {
      {DType::f32}, {DType::f16}, {DType::bf16}, {DType::f64}, {DType::f32, DType::f64, DType::bf16, DType::f16}};
  for (const auto& dtypes : mixes) {
    for (const double p : {1.0, 2.0, 3.0, 0.5, kInf}) {
      SCOPED_TRACE(concat(dtypes.size(), ' ', dtypes[0], ' ', p));
      double sum = 0;
      for (const auto& list : g)
        for (const double v : list) sum = std::isinf(p) ? std::max(sum, std::abs(v)) : sum + std::pow(std::abs(v), p);
      const double want = std::isinf(p) ? sum : std::pow(sum, 1 / p), coefficient = std::min(1.0, 5 / (want + 1e-6));
      const auto params = params_with(g, dtypes);
      const Tensor norm = clip_grad_norm_(params, 5, {.norm_type = p});
      EXPECT_NEAR(norm.item(), want, 3e-6 * want);
      for (std::size_t i = 0; i < g.size(); ++i) {
        const DType dtype = params[i].dtype();
        const double tolerance = dtype == DType::f64   ? 3e-6
                                 : dtype == DType::f32 ? 3e-6
                                 : dtype == DType::f16 ? 1e-3
                                                       : 8e-3;
        const auto got = values(grad(params[i]));
        for (std::size_t k = 0; k < got.size(); ++k)
          EXPECT_NEAR(got[k], coefficient * g[i][k], tolerance * std::abs(g[i][k]));
        EXPECT_EQ(grad(params[i]).dtype(), dtype);
      }
    }
  }
}

TEST(ClipGrad, OPT_10_A34_NothingAndNotFinite) {
  const Tensor without = leaf(vector_of({1}));
  EXPECT_EQ(clip_grad_norm_(without, 1).item(), 0);
  EXPECT_EQ(clip_grad_norm_(std::vector<Tensor>{}, 1).item(), 0);
  for (const double p : {2.0, 1.0, 3.0, kInf}) {
    for (const double bad : {kInf, std::nan("")}) {
      auto params = params_with({{1, bad}, {2}}, {DType::f32});
      expect_error(Kind::numerical, concat("order ", p),
                   [&] { clip_grad_norm_(params, 1, {.norm_type = p, .error_if_nonfinite = true}); });
      EXPECT_EQ(values(grad(params[0]))[0], 1) << "nothing was changed";
      clip_grad_norm_(params, 1, {.norm_type = p});
      const double finite = values(grad(params[1]))[0];
      if (std::isnan(bad)) {
        EXPECT_TRUE(std::isnan(finite));
      } else {
        EXPECT_EQ(finite, 0);
      }
      EXPECT_TRUE(std::isnan(values(grad(params[0]))[1]));
    }
  }
  const auto p = params_with({{1}}, {DType::f32});
  expect_error(Kind::argument, "max_norm -1", [&] { clip_grad_norm_(p, -1); });
  expect_error(Kind::argument, "max_norm nan", [&] { clip_grad_norm_(p, std::nan("")); });
  expect_error(Kind::argument, "norm_type 0", [&] { clip_grad_norm_(p, 1, {.norm_type = 0}); });
}

TEST(ClipGrad, StridesAndVersions) {
  const Tensor p = leaf(test::wave({2, 3, 2, 2}, 0, 1, 0, DType::f32, MemoryFormat::channels_last));
  set_grad(p, test::wave({2, 3, 2, 2}, 1, 1, 0, DType::f32, MemoryFormat::channels_last));
  const Tensor g = grad(p);
  const auto before = values(g);
  const auto version = g.version();
  for (const double type : {2.0, 3.0}) clip_grad_norm_(p, 1e-3, {.norm_type = type});
  EXPECT_GT(g.version(), version);
  EXPECT_TRUE(grad(p).is_same(g));
  const auto after = values(g);
  for (std::size_t i = 1; i < after.size(); ++i) EXPECT_NEAR(after[i] / after[0], before[i] / before[0], 1e-4);
}

TEST(ClipGrad, OPT_10_A9_UnscaledOnceThenClipped) {
  const Tensor p = leaf(vector_of(kP)), q = leaf(vector_of(kP));
  optimizers::FusedAdam scaled({p}, {.lr = 0.1, .weight_decay = 0.1, .capturable = true}),
      plain({q}, {.lr = 0.1, .weight_decay = 0.1});
  const Tensor found_inf = test::zeros({1});
  for (const auto& g : kGrads) {
    std::vector<double> times;
    for (const double v : g) times.push_back(1024 * v);
    set_grad(p, vector_of(times));
    set_grad(q, vector_of(g));
    const Tensor flag = test::zeros({1}, DType::i32);
    const std::vector<View> out{grad(p).view()};
    const std::vector<ConstView> in{grad(p).view()};
    kernels::multi_tensor_scale(test::context(), flag.view(), out, in, 1.0 / 1024);
    for (const auto& t : {p, q}) clip_grad_norm_(t, 0.25);
    scaled.step({.found_inf = found_inf});  // the user has unscaled: no inv_scale
    plain.step();
    EXPECT_EQ(values(p), values(q));
  }
}

}  // namespace
}  // namespace apex
