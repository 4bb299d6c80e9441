// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/multi_tensor_optimizers.hpp"

#include "kernels/multi_tensor_lists.hpp"

namespace apex {
namespace {

using kernels::AdagradOptions;
using kernels::LambOptions;
using kernels::NormType;
using kernels::NovoGradOptions;
using test::all_close;
using test::awkward;
using test::fresh_like;
using test::List;
using test::make;
using test::rounded;
using test::values;
using test::Values;
using test::values_of;
using test::zeros;
using test::zeros_like;

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

}  // namespace
}  // namespace apex
