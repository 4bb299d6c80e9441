// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/multi_tensor_optimizers.hpp"

#include <bit>

#include "kernels/multi_tensor_lists.hpp"

namespace apex {
namespace {

using kernels::AdamMode;
using kernels::AdamOptions;
using test::all_close;
using test::awkward;
using test::fresh_like;
using test::kG;
using test::kP;
using test::List;
using test::parts_of;
using test::rounded;
using test::values;
using test::Values;
using test::values_of;
using test::zeros;
using test::zeros_like;

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

}  // namespace
}  // namespace apex
