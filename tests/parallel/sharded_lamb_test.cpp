// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// DistributedFusedLAMB on 1 to 4 processes: the numbers of spec/optimizers.md 10, and equality with FusedLAMB.
#include <gtest/gtest.h>

#include <cmath>

#include "apex/optimizers/fused_lamb.hpp"
#include "sharded.hpp"

namespace apex {
namespace {

using optimizers::FusedLAMB;
using optimizers::StepScaling;
using test::device;
using test::DistributedFusedLAMBOptions;
using test::world;

constexpr double kSmallestCap = 128.0 / 1048576;  // a bucket of one unit of alignment for each rank

const std::vector<std::vector<double>> kP = {{0.1, -0.2, 0.3, -0.4}, {0.05, 0.1, -0.15, 0.2}, {-0.3, 0, 0.6, 0.01}};
const std::vector<std::vector<double>> kQ = {{2, -1}, {0.5, 0.5}, {0, -0.2}};

/// Rank r gives the gradient times a share; the shares' average is 1.
double share() {
  const int ranks = world().size(), rank = world().rank();
  if (ranks == 1) return 1.0;
  return rank == 0 ? 0.5 : rank == 1 ? 1.5 : 1.0;
}

void give(const Tensor& p, const std::vector<double>& values, std::vector<std::pair<Tensor, Tensor>>& to,
          double scale = 1.0) {
  to.emplace_back(p,
                  test::gradient_of(p, [&](auto i) { return scale * share() * values[static_cast<std::size_t>(i)]; }));
}

void expect_close(const Tensor& got, const std::vector<double>& want, double rtol = 1e-5) {
  const auto values = test::to_f64(got);
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(values[i], want[i], rtol * std::abs(want[i]) + 1e-7) << i;
}

class RecordedLamb : public ::testing::TestWithParam<int> {};

TEST_P(RecordedLamb, ThreeSteps) {  // OPT-10.A45, A14
  DistributedFusedLAMBOptions options{.lr = 0.01, .eps = 1e-6, .weight_decay = 0.01, .max_grad_norm = 1.0};
  double scale = 1.0;
  switch (GetParam()) {
    case 1: options.full_ar = true; break;
    case 2: options.sharding.overlap_param_sync = true; break;
    case 3: options.sharding.contiguous_param_buffer = options.sharding.contiguous_grad_buffer = true; break;
    case 4: scale = 33554432.0; break;  // a scaled norm beyond 2^24
    case 5: options.sharding.store_params = false; break;
    case 6: options.full_ar = options.sharding.contiguous_grad_buffer = true; break;
    default: break;
  }
  const Tensor p = test::listed({1, -2, 0.5, 3}), q = test::listed({0.2, -0.1});
  std::vector<optimizers::ParamGroup> groups(2);
  groups[0].params = {p};
  groups[1].params = {q};
  groups[1].hyper = {{"weight_decay", 0.0}};
  test::DistributedFusedLAMB optimizer(std::move(groups), options);
  const std::vector<std::vector<double>> want_p = {{0.98096406, -1.9807754, 0.481058, 3.0182824},
                                                   {0.94409657, -1.9845225, 0.48535204, 3.0127122},
                                                   {0.96646452, -1.9882649, 0.45629233, 3.0052712}};
  const std::vector<std::vector<double>> want_q = {
      {0.19000001, -0.09000003}, {0.18048, -0.09122565}, {0.173121, -0.09028471}};
  const double norms[] = {2.3021729, 0.75828755, 0.70007139};
  for (std::size_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    std::vector<std::pair<Tensor, Tensor>> grads;
    give(p, kP[step], grads, scale);
    give(q, kQ[step], grads, scale);
    test::run_backward(grads);
    StepScaling scaling;
    if (scale != 1.0) scaling.inv_scale = full({1}, 1.0 / scale, DType::f32, device());
    optimizer.step(scaling);
    optimizer.param_sync();
    EXPECT_FALSE(optimizer.last_step_skipped());
    EXPECT_NEAR(optimizer.grad_norm().item(), norms[step], 2e-6);
    expect_close(p, want_p[step]);
    expect_close(q, want_q[step]);
  }
}
INSTANTIATE_TEST_SUITE_P(Sharded, RecordedLamb, ::testing::Range(0, 7));

/// A parameter of many fragments beside short ones; gradients from a formula.
struct Model {
  std::vector<Tensor> params;
  explicit Model(DType dtype = DType::f32)
      : params{test::parameter(
                   {7, 5}, [](auto i) { return 0.1 * static_cast<double>(i % 9) - 0.3; }, dtype),
               test::parameter(
                   {600}, [](auto i) { return 0.01 * static_cast<double>(i % 83) - 0.4; }, dtype),
               test::parameter(
                   {3}, [](auto) { return 0.0; }, dtype)} {}
  void backward(std::size_t step, double factor = 1.0) const {
    std::vector<std::pair<Tensor, Tensor>> grads;
    for (std::size_t k = 0; k < params.size(); ++k)
      grads.emplace_back(params[k],
                         test::gradient_of(params[k], [&, k](auto i) { return factor * share() * value(i, k, step); }));
    test::run_backward(grads);
  }
  void set_mean(std::size_t step) const {
    for (std::size_t k = 0; k < params.size(); ++k) {
      const Tensor g = empty_like(params[k], DType::f32);
      copy_(g, test::from_function(params[k].sizes(), DType::f32, device(), [&](auto i) { return value(i, k, step); }));
      set_grad(params[k], g);
    }
  }
  static double value(std::int64_t i, std::size_t k, std::size_t step) {
    return static_cast<double>((i * 7 + static_cast<std::int64_t>(k * 3 + step * 5)) % 17 - 8) / 8.0;
  }
};

TEST(ShardedLamb, EqualsFusedLambOnManyFragments) {  // OPT-10.A45
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Model ours(dtype), theirs(dtype);
    DistributedFusedLAMBOptions options{.lr = 0.01, .eps = 1e-6, .weight_decay = 0.01, .max_grad_norm = 1.0};
    options.sharding.bucket_cap_mb = kSmallestCap;
    test::DistributedFusedLAMB optimizer(ours.params, options);
    EXPECT_GE(optimizer.layout().of_param(1).size(), 3u);
    FusedLAMB plain(theirs.params,
                    {.lr = 0.01, .eps = 1e-6, .weight_decay = 0.01, .max_grad_norm = 1.0, .master_weights = true});
    for (std::size_t step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      ours.backward(step);
      optimizer.step();
      theirs.set_mean(step);
      plain.step();
    }
    const auto a = optimizer.state_dict(), b = plain.state_dict();
    EXPECT_EQ(a.type, b.type);
    for (std::size_t k = 0; k < ours.params.size(); ++k) {
      EXPECT_TRUE(test::same_everywhere(ours.params[k]));
      expect_close(ours.params[k], test::to_f64(theirs.params[k]), dtype == DType::f32 ? 1e-5 : 8e-3);
      for (const auto& [key, value] : b.state[k]) expect_close(a.state[k].at(key), test::to_f64(value), 2e-5);
    }
  }
}

TEST(ShardedLamb, NotFiniteSkipsOnAllRanks) {
  const Model model;
  test::DistributedFusedLAMB optimizer(model.params, {.lr = 0.1});
  const auto before = test::to_f64(model.params[1]);
  model.backward(0, world().rank() == 0 ? INFINITY : 1.0);
  optimizer.step();
  EXPECT_TRUE(optimizer.last_step_skipped());
  EXPECT_EQ(test::to_f64(model.params[1]), before);
}

TEST(ShardedLamb, ClippingBeforeTheSum) {
  // Each rank clips to 1 by itself, so that the average is that of unit vectors.
  const Tensor p = test::listed({1, 1});
  test::DistributedFusedLAMB optimizer({p}, {.max_grad_norm = 1.0, .clip_after_ar = false});
  const double length = 4.0 * (1 + world().rank());
  test::run_backward({{p, test::gradient_of(p, [&](auto i) { return i == 0 ? length : 0.0; })}});
  optimizer.step();
  EXPECT_NEAR(optimizer.grad_norm().item(), 1.0, 1e-5);
}

TEST(ShardedLamb, ParametersTravelAsE5m2) {
  const Model ours, theirs;
  DistributedFusedLAMBOptions options{.lr = 0.01, .weight_decay = 0.01};
  options.sharding.bucket_cap_mb = kSmallestCap;
  test::DistributedFusedLAMB plain(theirs.params, options);
  options.e5m2_allgather = true;
  test::DistributedFusedLAMB optimizer(ours.params, options);
  for (std::size_t step = 0; step < 2; ++step)
    for (auto* o : {&optimizer, &plain}) {
      o->zero_grad();
      (o == &plain ? theirs : ours).backward(step);
      o->step();
    }
  const auto got = test::to_f64(ours.params[1]), exact = test::to_f64(theirs.params[1]);
  for (std::size_t i = 0; i < got.size(); ++i) {
    // Two bits behind the point: at most an eighth off, and shards go on in f32.
    EXPECT_NEAR(got[i], exact[i], 0.126 * std::abs(exact[i]) + 1e-6) << i;
    const double mantissa = std::frexp(got[i], std::array<int, 1>{}.data()) * 8;
    EXPECT_EQ(mantissa, std::round(mantissa)) << got[i];
  }
}

TEST(ShardedLamb, GatheringOnDemand) {
  const Model ours, theirs;
  test::DistributedFusedLAMB plain(theirs.params, {.lr = 0.01});
  test::DistributedFusedLAMB optimizer(ours.params, {.lr = 0.01, .skip_allgather = true});
  const auto before = test::to_f64(ours.params[1]);
  for (std::size_t step = 0; step < 2; ++step)
    for (auto* o : {&optimizer, &plain}) {
      o->zero_grad();
      (o == &plain ? theirs : ours).backward(step);
      o->step();
    }
  EXPECT_EQ(test::to_f64(ours.params[1]), before);
  optimizer.param_sync();
  EXPECT_EQ(test::to_f64(ours.params[1]), test::to_f64(theirs.params[1]));
}

TEST(ShardedLamb, OptionsThatContradictEachOther) {
  const Tensor p = test::listed({1});
  const auto refused = [&](const std::function<void(DistributedFusedLAMBOptions&)>& change,
                           Kind kind = Kind::argument) {
    DistributedFusedLAMBOptions options;
    change(options);
    return test::error_of([&] { test::DistributedFusedLAMB optimizer({p}, options); }, kind);
  };
  using O = DistributedFusedLAMBOptions;
  EXPECT_NE(refused([](O& o) { o.sharding.dtype = DType::bf16; }).find("dtype must be f32"), std::string::npos);
  EXPECT_NE(refused([](O& o) { o.sharding.store_param_remainders = true; }).find("remainders"), std::string::npos);
  EXPECT_NE(refused([](O& o) { o.sharding.with_scaled_states = true; }).find("with_scaled_states"), std::string::npos);
  EXPECT_NE(refused([](O& o) { o.e5m2_allgather = true, o.sharding.store_params = false; }).find("store_params"),
            std::string::npos);
  EXPECT_NE(refused([](O& o) { o.skip_allgather = o.sharding.overlap_param_sync = true; }).find("skip_allgather"),
            std::string::npos);
  EXPECT_NE(refused([](O& o) { o.max_grad_norm = std::nan(""); }).find("max_grad_norm"), std::string::npos);
  EXPECT_NE(refused([](O& o) { o.amsgrad = true; }, Kind::unsupported).find("amsgrad"), std::string::npos);
}

}  // namespace
}  // namespace apex
