// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/multi_tensor_optimizers.hpp"

#include <functional>

#include "kernels/multi_tensor_lists.hpp"

namespace apex {
namespace {

using kernels::AdagradOptions;
using kernels::AdamMode;
using kernels::AdamOptions;
using kernels::LambOptions;
using kernels::NormType;
using kernels::NovoGradOptions;
using test::kG;
using test::kH;
using test::kP;
using test::kQ;
using test::List;
using test::make;
using test::parts_of;
using test::values;
using test::zeros;
using test::zeros_like;

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

}  // namespace
}  // namespace apex
