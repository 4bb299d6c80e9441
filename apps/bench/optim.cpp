// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// The optimizer step over the tensors of ResNet-50 and of BERT-large.
#include <algorithm>
#include <cmath>

#include "apex/core/error.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/kernels/multi_tensor.hpp"
#include "apex/kernels/multi_tensor_optimizers.hpp"
#include "apex/kernels/random.hpp"
#include "apex/models/resnet.hpp"
#include "apex/tensor_ops.hpp"
#include "ops.hpp"
#include "optim.hpp"

namespace bench {

using apex::DType;
using apex::Tensor;
namespace kernels = apex::kernels;

Sizes resnet50() {
  Sizes s{"resnet50", {}};
  for (const Tensor& p : apex::models::resnet50({})->parameters()) s.counts.push_back(p.numel());
  return s;
}

Sizes bert_large() {
  constexpr std::int64_t width = 1024, inner = 4096, words = 30522, positions = 512;
  Sizes s{"bert-large", {words * width, positions * width, 2 * width, width, width}};
  for (int layer = 0; layer < 24; ++layer) {
    for (int i = 0; i < 4; ++i) s.counts.insert(s.counts.end(), {width * width, width});  // query, key, value, output
    s.counts.insert(s.counts.end(), {width, width, inner * width, inner, width * inner, width, width, width});
  }
  return s;
}

std::vector<Tensor> tensors(const Sizes& sizes, DType dtype, apex::Device device) {
  std::vector<Tensor> out;
  for (const std::int64_t n : sizes.counts) out.push_back(apex::empty({n}, dtype, device));
  return out;
}

void refill(const std::vector<Tensor>& list, std::uint64_t seed, double low) {
  for (std::size_t i = 0; i < list.size(); ++i)
    kernels::uniform(list[i].context(), list[i].view(), low, 1, {.seed = seed, .offset = i});
}

namespace {

using apex::ConstView;
using apex::View;

constexpr double kLr = 0.1, kMomentum = 0.9, kDecay = 1e-4;
constexpr double kAdamLr = 1e-3, kAdamDecay = 0.01;

void refill_positive(const std::vector<Tensor>& list, std::uint64_t seed) { refill(list, seed, 0.01); }
template <class V>
std::vector<V> views_of(const std::vector<Tensor>& list) {
  std::vector<V> out;
  for (const Tensor& t : list) out.push_back(V(t.view()));
  return out;
}
void sgd_row(Suite& suite, const Sizes& sizes, DType grads_dtype) {
  const bool masters = grads_dtype != DType::f32;
  const std::string title = apex::concat("SGD momentum ", sizes.name, masters ? " f32 masters, " : " ", grads_dtype,
                                         ", ", sizes.counts.size(), " tensors");
  const std::string peer = masters ? "" : apex::concat("sgd ", sizes.name);
  suite.row(title, peer, [&] {
    const auto params = tensors(sizes, DType::f32, suite.device()),
               momenta = tensors(sizes, DType::f32, suite.device());
    const auto grads = tensors(sizes, grads_dtype, suite.device());
    const auto copies = masters ? tensors(sizes, grads_dtype, suite.device()) : std::vector<Tensor>{};
    refill(params, 60), refill(momenta, 61), refill(grads, 62);
    const auto run = [=, p = views_of<View>(params), m = views_of<View>(momenta), c = views_of<View>(copies),
                      g = views_of<ConstView>(grads), first = std::vector<std::uint8_t>(params.size(), 0)] {
      kernels::multi_tensor_sgd(params.front().context(), {}, p, m, c, g, first,
                                {.lr = kLr, .momentum = kMomentum, .weight_decay = kDecay});
    };
    return Work{Unit::bytes, 20.0 * static_cast<double>(sizes.total()), run, [=](Check& check) {
                  refill(params, 63), refill(momenta, 64);
                  std::vector<double> want_p, want_m;
                  sample(params, [&](std::size_t t, std::int64_t i) {
                    const double p = one(params[t], i);
                    const double m = kMomentum * one(momenta[t], i) + one(grads[t], i) + kDecay * p;
                    want_m.push_back(m);
                    want_p.push_back(p - kLr * m);
                  });
                  run();
                  std::size_t k = 0;
                  sample(params, [&](std::size_t t, std::int64_t i) {
                    check.near("param", i, one(params[t], i), want_p[k], 1e-6, 1e-6);
                    check.near("momentum", i, one(momenta[t], i), want_m[k], 1e-6, 1e-6);
                    if (masters) check.near("copy", i, one(copies[t], i), want_p[k], rounding_of(grads_dtype), 1e-6);
                    ++k;
                  });
                }};
  });
}

/// AdamW's second step, so that both corrections count; masters: bf16 weights and gradients beside f32 masters.
void adam_row(Suite& suite, const Sizes& sizes, bool masters) {
  const std::string title =
      apex::concat("AdamW ", sizes.name, masters ? " f32 masters, bf16, " : " f32, ", sizes.counts.size(), " tensors");
  suite.row(title, masters ? "" : apex::concat("adam ", sizes.name), [&] {
    const DType narrow = masters ? DType::bf16 : DType::f32;
    const auto params = tensors(sizes, DType::f32, suite.device()), m = tensors(sizes, DType::f32, suite.device()),
               v = tensors(sizes, DType::f32, suite.device()), grads = tensors(sizes, narrow, suite.device());
    const auto copies = masters ? tensors(sizes, narrow, suite.device()) : std::vector<Tensor>{};
    refill(params, 70), refill(m, 71), refill_positive(v, 72), refill(grads, 73);
    const auto run = [=, pv = views_of<View>(params), mv = views_of<View>(m), vv = views_of<View>(v),
                      c = views_of<View>(copies), g = views_of<ConstView>(grads)] {
      kernels::multi_tensor_adam(params.front().context(), pv, mv, vv, c, g, {},
                                 {.lr = kAdamLr, .weight_decay = kAdamDecay, .step = 2});
    };
    const apex::Device device = suite.device();
    const int launches = suite.on_cuda() ? 1 : 0;
    return Work{Unit::bytes, 28.0 * static_cast<double>(sizes.total()), run, [=](Check& check) {
                  check.near("kernels", 0, kernels_queued(device, run), launches, 0, 0);
                  refill(params, 74), refill(m, 75), refill_positive(v, 76);
                  std::vector<double> want_p, want_m, want_v;
                  sample(params, [&](std::size_t t, std::int64_t i) {
                    const double p = one(params[t], i), g = one(grads[t], i);
                    want_m.push_back(0.9 * one(m[t], i) + 0.1 * g);
                    want_v.push_back(0.999 * one(v[t], i) + 0.001 * g * g);
                    const double u =
                        want_m.back() / (1 - 0.9 * 0.9) / (std::sqrt(want_v.back() / (1 - 0.999 * 0.999)) + 1e-8);
                    want_p.push_back(p - kAdamLr * (u + kAdamDecay * p));
                  });
                  run();
                  std::size_t k = 0;
                  sample(params, [&](std::size_t t, std::int64_t i) {
                    check.near("param", i, one(params[t], i), want_p[k], 1e-6, 1e-6);
                    check.near("exp_avg", i, one(m[t], i), want_m[k], 1e-6, 1e-6);
                    check.near("exp_avg_sq", i, one(v[t], i), want_v[k], 2e-5, 1e-6);
                    if (masters) check.near("copy", i, one(copies[t], i), want_p[k], rounding_of(narrow), 1e-6);
                    ++k;
                  });
                }};
  });
}

/// LAMB's moments and application, without the norm of the gradients.
void lamb_row(Suite& suite, const Sizes& sizes) {
  suite.row(apex::concat("LAMB ", sizes.name, " f32, ", sizes.counts.size(), " tensors"), "", [&] {
    const auto params = tensors(sizes, DType::f32, suite.device()), m = tensors(sizes, DType::f32, suite.device()),
               v = tensors(sizes, DType::f32, suite.device()), grads = tensors(sizes, DType::f32, suite.device());
    refill(params, 80), refill(m, 81), refill_positive(v, 82), refill(grads, 83);
    const auto run = [=, pv = views_of<View>(params), mv = views_of<View>(m), vv = views_of<View>(v),
                      g = views_of<ConstView>(grads)] {
      kernels::multi_tensor_lamb(params.front().context(), pv, mv, vv, {}, g, {},
                                 {.lr = kAdamLr, .weight_decay = kAdamDecay, .max_grad_norm = 0, .step = 2});
    };
    const apex::Device device = suite.device();
    const int launches = suite.on_cuda() ? 3 : 0;
    return Work{Unit::bytes, 40.0 * static_cast<double>(sizes.total()), run, [=](Check& check) {
                  check.near("kernels", 0, kernels_queued(device, run), launches, 0, 0);
                  refill(params, 84), refill(m, 85), refill_positive(v, 86);
                  // Whole tensors are needed for their norms: the second and the last one.
                  for (const std::size_t t : {std::size_t{1}, params.size() - 1}) {
                    const auto p = values_of(params[t]), ms = values_of(m[t]), vs = values_of(v[t]),
                               g = values_of(grads[t]);
                    std::vector<double> u(p.size());
                    double pp = 0, uu = 0;
                    for (std::size_t i = 0; i < p.size(); ++i) {
                      const double mm = 0.9 * ms[i] + 0.1 * g[i], vv = 0.999 * vs[i] + 0.001 * g[i] * g[i];
                      u[i] = mm / (1 - 0.9 * 0.9) / (std::sqrt(vv / (1 - 0.999 * 0.999)) + 1e-6) + kAdamDecay * p[i];
                      pp += p[i] * p[i], uu += u[i] * u[i];
                    }
                    refill(params, 84), refill(m, 85), refill_positive(v, 86);
                    run();
                    const auto got = values_of(params[t]);
                    for (std::size_t i = 0; i < p.size(); i += 1 + p.size() / 64)
                      check.near("param", static_cast<std::int64_t>(i), got[i],
                                 p[i] - kAdamLr * std::sqrt(pp / uu) * u[i], 2e-6, 2e-6);
                    refill(params, 84), refill(m, 85), refill_positive(v, 86);
                  }
                }};
  });
}

void norm_row(Suite& suite, const Sizes& sizes) {
  suite.row(apex::concat("L2 norm ", sizes.name, " f32, ", sizes.counts.size(), " tensors"),
            apex::concat("l2norm ", sizes.name), [&] {
              const auto grads = tensors(sizes, DType::f32, suite.device());
              refill(grads, 65);
              const Tensor norm = apex::empty({1}, DType::f32, suite.device());
              const Tensor flag = apex::zeros({1}, DType::i32, suite.device());
              return Work{Unit::bytes, 4.0 * static_cast<double>(sizes.total()),
                          [=, g = views_of<ConstView>(grads)] {
                            kernels::multi_tensor_l2norm(norm.context(), flag.view(), norm.view(), {}, g);
                          },
                          [=](Check& check) {
                            double sum = 0;
                            for (const Tensor& g : grads)
                              for (const double v : values_of(g)) sum += v * v;
                            check.near("norm", 0, one(norm, 0), std::sqrt(sum), 1e-5, 0);
                          }};
            });
}

void flatten_row(Suite& suite, const Sizes& sizes) {
  suite.row(apex::concat("flatten ", sizes.name, " f32, ", sizes.counts.size(), " tensors"), "", [&] {
    const auto grads = tensors(sizes, DType::f32, suite.device());
    refill(grads, 66);
    const Tensor flat = apex::empty({sizes.total()}, DType::f32, suite.device());
    return Work{Unit::bytes, 8.0 * static_cast<double>(sizes.total()),
                [=, g = views_of<ConstView>(grads)] { kernels::flatten(flat.context(), flat.view(), g, 0.5); },
                [=](Check& check) {
                  std::int64_t start = 0;
                  std::size_t t = 0;
                  for (const Tensor& g : grads) {
                    if (t++ % 11 == 0)
                      for (const std::int64_t i : {std::int64_t{0}, g.numel() - 1})
                        check.near("flat", start + i, one(flat, start + i), 0.5 * one(g, i), 0, 0);
                    start += g.numel();
                  }
                }};
  });
}

}  // namespace

void optimizer_rows(Suite& suite) {
  std::vector<Sizes> models{resnet50()};
  if (suite.on_cuda()) models.push_back(bert_large());
  for (const Sizes& model : models) {
    sgd_row(suite, model, DType::f32);
    if (suite.on_cuda()) sgd_row(suite, model, DType::f16);
    adam_row(suite, model, false);
    if (suite.on_cuda()) adam_row(suite, model, true);
    lamb_row(suite, model);
    norm_row(suite, model);
    flatten_row(suite, model);
  }
}

}  // namespace bench
