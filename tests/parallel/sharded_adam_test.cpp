// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// DistributedFusedAdam on 1 to 4 processes: the numbers of spec/optimizers.md 10, and equality with FusedAdam.
#include <gtest/gtest.h>

#include <cmath>

#include "apex/amp/loss_scaler.hpp"
#include "apex/optimizers/fused_adam.hpp"
#include "sharded.hpp"

namespace apex {
namespace {

using optimizers::FusedAdam;
using optimizers::StepScaling;
using test::device;
using test::f32_gradient;
using test::give_gradients;
using test::gradient_at;
using test::mean_at;
using test::some_parameters;
using test::world;

// Buckets of some hundred elements, so that small parameters make several.
constexpr double kSmallCap = 1024.0 / 1048576;

Tensor one_number(double value) { return full({1}, value, DType::f32, device()); }

// ---- OPT-10.A39 ----

struct Variation {
  std::string name;
  std::function<void(test::ShardingOptions&)> change;
  bool micro_batches = false, grid = false;
  int params = 1;
};
void PrintTo(const Variation& v, std::ostream* out) { *out << v.name; }

class TwoRankNumbers : public ::testing::TestWithParam<Variation> {};

TEST_P(TwoRankNumbers, AreReproduced) {
  const Variation& v = GetParam();
  const int ranks = world().size(), rank = world().rank();
  if (v.grid && ranks != 4) GTEST_SKIP() << "needs 4 ranks";
  for (const bool decoupled : {true, false}) {
    test::DistributedFusedAdamOptions options{
        .lr = 0.1, .beta1 = 0.1, .beta2 = 0.2, .eps = 0.25, .adam_w_mode = decoupled, .weight_decay = 0.1};
    v.change(options.sharding);
    if (v.grid) {
      options.sharding.distributed_group = world().partition(2, "shards");
      options.sharding.redundant_group = world().split(rank % 2, rank, "copies");
    }
    std::vector<Tensor> params;
    for (int i = 0; i < v.params; ++i)
      params.push_back(test::parameter({v.params == 1 ? 1 : 7}, [](auto) { return 2.0; }));
    test::DistributedFusedAdam optimizer(params, options);
    // Averages 2, -0.5 and 1: two ranks as recorded; an odd last rank has the average itself.
    const double given[3][3] = {{1, 3, 2}, {0, -1, -0.5}, {2, 0, 1}};
    const int which = rank == ranks - 1 && ranks % 2 == 1 ? 2 : rank % 2;
    const double want[2][3] = {{1.910204, 1.9169936, 1.8407453}, {1.8911111, 1.8952069, 1.8056576}};
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const auto run = [&](double share) {
        std::vector<std::pair<Tensor, Tensor>> grads;
        for (const Tensor& p : params)
          grads.emplace_back(p, test::gradient_of(p, [&](auto) { return share * given[step][which]; }));
        test::run_backward(grads);
      };
      if (v.micro_batches) {
        {
          const auto no_sync = optimizer.no_sync();
          run(0.5);
          run(0.25);
        }
        run(0.25);
      } else {
        run(1.0);
      }
      optimizer.step();
      optimizer.param_sync();
      for (const Tensor& p : params)
        for (const double got : test::to_f64(p))
          EXPECT_NEAR(got, want[decoupled][step], 4e-7 + 2e-6 * std::abs(got)) << "step " << step;
    }
    for (const Tensor& p : params) EXPECT_TRUE(test::same_everywhere(p));
  }
}

std::vector<Variation> variations() {
  using S = contrib::optimizers::ShardingOptions;
  return {
      {"as_it_is", [](S&) {}},
      {"no_overlap", [](S& s) { s.overlap_grad_sync = false; }},
      {"no_overlap_micro_batches", [](S& s) { s.overlap_grad_sync = false; }, true},
      {"overlapped_params", [](S& s) { s.overlap_param_sync = true; }},
      {"contiguous", [](S& s) { s.contiguous_grad_buffer = s.contiguous_param_buffer = true; }},
      {"contiguous_micro_batches", [](S& s) { s.contiguous_grad_buffer = true; }, true},
      {"params_not_stored", [](S& s) { s.store_params = false; }},
      {"params_not_stored_contiguous", [](S& s) { s.store_params = false, s.contiguous_param_buffer = true; }},
      {"micro_batches", [](S&) {}, true},
      {"eleven_params", [](S& s) { s.bucket_cap_mb = 71.0 / 4194304; }, false, false, 11},
      {"eleven_params_overlapped", [](S& s) { s.bucket_cap_mb = 71.0 / 4194304, s.overlap_param_sync = true; }, true,
       false, 11},
      {"eleven_params_contiguous",
       [](S& s) { s.bucket_cap_mb = 71.0 / 4194304, s.contiguous_param_buffer = s.contiguous_grad_buffer = true; },
       true, false, 11},
      {"grid", [](S&) {}, false, true},
      {"grid_of_small_buckets", [](S& s) { s.bucket_cap_mb = 71.0 / 4194304; }, true, true, 11},
  };
}
INSTANTIATE_TEST_SUITE_P(Sharded, TwoRankNumbers, ::testing::ValuesIn(variations()),
                         [](const auto& tested) { return tested.param.name; });

// ---- equality with FusedAdam ----

struct Case {
  std::string name;
  DType model = DType::f32;
  std::function<void(test::ShardingOptions&)> change = [](test::ShardingOptions&) {};
  bool parameters_alike = true;  ///< not with ties away from zero
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class LikeFusedAdam : public ::testing::TestWithParam<Case> {};

/// `ours` groups: the second half of the parameters has another weight decay and learning rate.
std::vector<optimizers::ParamGroup> in_groups(const std::vector<Tensor>& params) {
  std::vector<optimizers::ParamGroup> groups(2);
  groups[1].hyper = {{"weight_decay", 0.0}, {"lr", 0.02}};
  for (std::size_t k = 0; k < params.size(); ++k) groups[k < 3 ? 0 : 1].params.push_back(params[k]);
  return groups;
}

TEST_P(LikeFusedAdam, BitForBit) {
  const Case& c = GetParam();
  const auto params = some_parameters(c.model), plain_params = some_parameters(c.model);
  test::DistributedFusedAdamOptions options{.lr = 0.01, .weight_decay = 0.1};
  options.sharding.bucket_cap_mb = kSmallCap;
  c.change(options.sharding);
  test::DistributedFusedAdam optimizer(in_groups(params), options);
  EXPECT_GT(optimizer.layout().buckets(), 1);
  FusedAdam plain(in_groups(plain_params), {.lr = 0.01, .weight_decay = 0.1, .master_weights = true});
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    give_gradients(params, step);
    optimizer.step();
    for (std::size_t k = 0; k < plain_params.size(); ++k)
      set_grad(plain_params[k], f32_gradient(plain_params[k], [&](auto i) { return mean_at(i, k, step); }));
    plain.step();
  }
  optimizer.param_sync();
  for (std::size_t k = 0; k < params.size(); ++k) {
    EXPECT_TRUE(test::same_everywhere(params[k])) << k;
    if (c.parameters_alike) {
      EXPECT_EQ(test::to_f64(params[k]), test::to_f64(plain_params[k])) << "parameter " << k;
    }
    EXPECT_FALSE(grad(params[k]).defined());
  }
  const auto ours = optimizer.state_dict(), theirs = plain.state_dict();
  ASSERT_EQ(ours.state.size(), theirs.state.size());
  EXPECT_EQ(ours.type, theirs.type);
  for (std::size_t k = 0; k < ours.state.size(); ++k) {
    ASSERT_EQ(ours.state[k].size(), theirs.state[k].size()) << k;
    for (const auto& [key, value] : theirs.state[k])
      EXPECT_EQ(test::to_f64(ours.state[k].at(key)), test::to_f64(value)) << key << " of " << k;
  }
}

std::vector<Case> cases() {
  using S = test::ShardingOptions;
  return {
      {"f32"},
      {"bf16_model", DType::bf16},
      {"f16_model", DType::f16},
      {"bf16_model_bf16_wire", DType::bf16, [](S& s) { s.param_sync_dtype = DType::bf16; }},
      {"f32_contiguous", DType::f32, [](S& s) { s.contiguous_grad_buffer = s.contiguous_param_buffer = true; }},
      {"bf16_contiguous", DType::bf16,
       [](S& s) { s.param_sync_dtype = DType::bf16, s.contiguous_param_buffer = true; }},
      {"f32_overlapped", DType::f32, [](S& s) { s.overlap_param_sync = true; }},
      {"one_bucket_at_a_time", DType::f32, [](S& s) { s.pipeline_size = 1; }},
      {"remainders", DType::bf16,
       [](S& s) { s.param_sync_dtype = DType::bf16, s.store_params = false, s.store_param_remainders = true; }, false},
      {"remainders_contiguous", DType::bf16,
       [](S& s) {
         s.param_sync_dtype = DType::bf16, s.store_params = false, s.store_param_remainders = true;
         s.contiguous_param_buffer = true;
       },
       false}};
}
INSTANTIATE_TEST_SUITE_P(Sharded, LikeFusedAdam, ::testing::ValuesIn(cases()),
                         [](const auto& tested) { return tested.param.name; });

TEST(Sharded, SixteenBitGradientsOnTheWire) {
  const auto params = some_parameters(DType::bf16);
  test::DistributedFusedAdamOptions options{.lr = 0.01};
  options.sharding.bucket_cap_mb = kSmallCap;
  options.sharding.grad_sync_dtype = options.sharding.param_sync_dtype = DType::bf16;
  test::DistributedFusedAdam optimizer(params, options);
  const auto before = test::to_f64(params[3]);
  give_gradients(params, 0);
  optimizer.step();
  // The first step of Adam moves every element with a gradient by lr.
  const auto after = test::to_f64(params[3]);
  for (std::size_t i = 0; i < after.size(); ++i) {
    const double g = mean_at(static_cast<std::int64_t>(i), 3, 0);
    if (std::abs(g) > 1e-3) {
      EXPECT_NEAR(after[i], before[i] - std::copysign(0.01, g), 4e-3) << i;
    }
  }
}

TEST(Sharded, StateOfSixteenBits) {
  const auto params = some_parameters(DType::f32), wide_params = some_parameters(DType::f32);
  test::DistributedFusedAdamOptions options{.lr = 0.01};
  options.sharding.bucket_cap_mb = kSmallCap;
  test::DistributedFusedAdam wide(wide_params, options);
  options.sharding.dtype = options.sharding.grad_sync_dtype.emplace(DType::bf16);
  test::DistributedFusedAdam optimizer(params, options);
  for (int step = 0; step < 3; ++step) {
    for (auto* o : {&optimizer, &wide}) {
      o->zero_grad();
      give_gradients(o == &wide ? wide_params : params, step);
      o->step();
    }
  }
  for (std::size_t k = 0; k < params.size(); ++k) {
    const auto a = test::to_f64(params[k]), b = test::to_f64(wide_params[k]);
    for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 0.02) << k << ',' << i;
  }
}

// ---- remainders and scaled states ----

TEST(Sharded, RemaindersKeepTheMasterExactly) {  // OPT-10.A42
  test::DistributedFusedAdamOptions options{.lr = 1e-3};
  options.sharding.param_sync_dtype = DType::bf16;
  options.sharding.store_params = false;
  options.sharding.store_param_remainders = true;
  const Tensor p = test::listed({1.0}, DType::bf16);
  test::DistributedFusedAdam optimizer({p}, options);
  const std::pair<std::uint16_t, int> want[] = {
      {0x3f80, -16777}, {0x3f7f, 31982}, {0x3f7f, 15205}, {0x3f7f, -1572}, {0x3f7f, -18349}};
  for (const auto& [hi, rem] : want) {
    optimizer.zero_grad();
    test::run_backward({{p, test::gradient_of(p, [](auto) { return 0.1; })}});
    optimizer.step();
    std::uint16_t bits = 0;
    std::memcpy(&bits, test::on_host(p).raw_data(), 2);
    EXPECT_EQ(bits, hi);
    const auto master = static_cast<float>(test::to_f64(optimizer.state_dict().state[0].at("master"))[0]);
    const auto joined = static_cast<std::int64_t>(std::bit_cast<std::uint32_t>(master));
    const std::int64_t expected = ((static_cast<std::int64_t>(hi) - (rem < 0)) << 16) + (rem & 0xffff);
    EXPECT_LE(std::abs(joined - expected), 2) << "rem " << rem;
  }
}

TEST(Sharded, RemaindersOfLoadedMastersRoundTiesAwayFromZero) {  // OPT-10.A42
  test::DistributedFusedAdamOptions options;
  options.sharding.param_sync_dtype = DType::bf16;
  options.sharding.store_params = false;
  options.sharding.store_param_remainders = true;
  const std::vector<std::uint32_t> bits = {0x3f808000, 0x3f807fff, 0xbf808000, 0x3f80c000, 0x7fffffff, 0x7f7fffff};
  const std::vector<std::uint16_t> want = {0x3f81, 0x3f80, 0xbf81, 0x3f81, 0x7fff, 0x7f80};
  const Tensor p = test::listed(std::vector<double>(bits.size(), 0.0), DType::bf16);
  test::DistributedFusedAdam optimizer({p}, options);
  auto state = optimizer.state_dict();
  Tensor master = empty({static_cast<std::int64_t>(bits.size())});
  std::memcpy(master.raw_data(), bits.data(), bits.size() * 4);
  state.state[0] = {{"master", master},
                    {"exp_avg", zeros(master.sizes())},
                    {"exp_avg_sq", zeros(master.sizes())},
                    {"step", from_values<std::int32_t>({1}, {3})}};
  optimizer.load_state_dict(state);
  std::vector<std::uint16_t> got(bits.size());
  std::memcpy(got.data(), test::on_host(p).raw_data(), bits.size() * 2);
  EXPECT_EQ(got, want) << "of every rank";
  const auto back = test::floats(optimizer.state_dict().state[0].at("master"));
  for (std::size_t i = 0; i < bits.size(); ++i) {
    if (i == 4)
      EXPECT_TRUE(std::isnan(back[i])) << "never hidden";
    else
      EXPECT_EQ(std::bit_cast<std::uint32_t>(back[i]), bits[i]) << i;
  }
}

TEST(Sharded, ScaledStatesKeepSmallValues) {  // OPT-10.A43
  test::DistributedFusedAdamOptions options{.lr = 0.01};
  auto& s = options.sharding;
  s.dtype = DType::f16;
  s.grad_sync_dtype = DType::f32;
  s.with_scaled_states = true;
  s.bucket_cap_mb = kSmallCap;
  const Tensor p = test::listed({1, 2, 3}, DType::f16);
  test::DistributedFusedAdam optimizer({p}, options);
  const Tensor small = from_values<float>({3}, {1e-9f, -4e-9f, 2e-9f});
  optimizer.set_state(p, "exp_avg", small);
  optimizer.set_state(p, "step", from_values<std::int32_t>({1}, {1}));
  const auto back = test::to_f64(optimizer.state_dict().state[0].at("exp_avg"));
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(back[static_cast<std::size_t>(i)], small.data<float>()[i], 4e-12);
}

TEST(Sharded, ScaledStatesTrainLikeWideOnes) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const auto params = some_parameters(dtype), plain_params = some_parameters(dtype);
    test::DistributedFusedAdamOptions options{.lr = 0.01, .weight_decay = 0.1};
    auto& s = options.sharding;
    s.bucket_cap_mb = kSmallCap;
    s.param_sync_dtype = dtype;
    test::DistributedFusedAdam wide(plain_params, options);
    s.dtype = dtype;
    s.grad_sync_dtype = DType::f32;
    s.with_scaled_states = true;
    test::DistributedFusedAdam optimizer(params, options);
    if (world().size() == 1) {
      EXPECT_LT(optimizer.state_bytes(), wide.state_bytes() * 0.6);
    }
    for (int step = 0; step < 4; ++step) {
      for (auto* o : {&optimizer, &wide}) {
        o->zero_grad();
        give_gradients(o == &wide ? plain_params : params, step);
        o->step();
      }
    }
    const double tolerance = dtype == DType::f16 ? 3e-3 : 2e-2;
    for (std::size_t k = 0; k < params.size(); ++k) {
      EXPECT_TRUE(test::same_everywhere(params[k]));
      const auto a = test::to_f64(params[k]), b = test::to_f64(plain_params[k]);
      for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << k << ',' << i;
    }
  }
}

// ---- norm, clipping, unscaling, skipping ----

TEST(Sharded, UnscaleThenClip) {  // OPT-10.A41
  const Tensor p = test::listed({1, 1}), other = test::listed({0, 0, 0});
  test::DistributedFusedAdamOptions options{.lr = 0.1};
  test::DistributedFusedAdam optimizer({p, other}, options);
  test::run_backward({{p, test::gradient_of(p, [](auto i) { return i == 0 ? 12.0 : 16.0; })}});
  EXPECT_EQ(optimizer.grad_norm().item(), 20.0);
  EXPECT_EQ(optimizer.unscale_grads(one_number(0.25)).item(), 0.0);
  EXPECT_EQ(optimizer.grad_norm().item(), 5.0);
  EXPECT_EQ(optimizer.grad_norm({p}).item(), 5.0);
  EXPECT_EQ(optimizer.grad_norm({other}).item(), 0.0);
  EXPECT_EQ(optimizer.clip_grad_norm(1.0).item(), 5.0);
  EXPECT_NEAR(optimizer.grad_scale().item(), 0.05, 1e-7);
  test::error_of([&] { optimizer.unscale_grads(one_number(0.25)); }, Kind::state);
  optimizer.step(StepScaling{.inv_scale = one_number(0.25)});  // unscaled already: not once more
  const auto m = test::to_f64(optimizer.state_dict().state[0].at("exp_avg"));
  EXPECT_NEAR(m[0], 0.1 * 12 * 0.05, 1e-7);
  test::error_of([&] { optimizer.unscale_grads(one_number(0.25)); }, Kind::state);
  optimizer.zero_grad();
  EXPECT_EQ(optimizer.grad_scale().item(), 1.0);
  EXPECT_EQ(optimizer.grad_norm().item(), 0.0);
}

TEST(Sharded, OneRanksInfinitySkipsOnAll) {  // OPT-10.A41
  for (const bool overlap : {false, true}) {
    const Tensor p = test::listed({1, -2, 3}), q = test::listed({4});
    test::DistributedFusedAdamOptions options{.lr = 0.1};
    options.sharding.overlap_param_sync = overlap;
    test::DistributedFusedAdam optimizer({p, q}, options);
    const auto run = [&](double value, const StepScaling& scaling) {
      optimizer.zero_grad();
      test::run_backward({{p, test::gradient_of(p, [&](auto i) { return i == 1 ? value : 4.0; })},
                          {q, test::gradient_of(q, [](auto) { return 4.0; })}});
      optimizer.step(scaling);
      optimizer.param_sync();
    };
    const StepScaling scaled{.inv_scale = one_number(0.25)};
    run(world().rank() == world().size() - 1 ? INFINITY : 1.0, scaled);
    EXPECT_TRUE(optimizer.last_step_skipped());
    EXPECT_EQ(test::to_f64(p), (std::vector<double>{1, -2, 3}));
    EXPECT_TRUE(optimizer.state_dict().state[0].empty()) << "no step was made";
    run(4.0, scaled);
    EXPECT_FALSE(optimizer.last_step_skipped());
    EXPECT_NEAR(test::to_f64(p)[0], 0.9, 1e-6) << "the first step moves by lr";
    const auto before = test::to_f64(p);
    run(4.0, StepScaling{.found_inf = one_number(world().rank() == 0 ? 1.0 : 0.0)});
    EXPECT_TRUE(optimizer.last_step_skipped()) << "said on rank 0 alone";
    EXPECT_EQ(test::to_f64(p), before);
    EXPECT_EQ(optimizer.state_dict().state[0].at("step").item(), 1.0);
  }
}

TEST(Sharded, ALossScalerIsToldByTheNorm) {
  const Tensor p = test::listed({1, -2, 3});
  test::DistributedFusedAdam optimizer({p}, {.lr = 0.1});
  amp::LossScaler scaler({.init_scale = 1024}, device());
  const auto run = [&](double value) {
    optimizer.zero_grad();
    test::run_backward({{p, test::gradient_of(p, [&](auto) { return value * scaler.loss_scale(); })}});
    scaler.check({optimizer.grad_norm()});
    optimizer.step(scaler.scaling());
    scaler.update();
  };
  run(world().rank() == 0 ? INFINITY : 1.0);
  EXPECT_TRUE(scaler.last_overflow()) << "on every rank";
  EXPECT_EQ(scaler.loss_scale(), 512.0);
  EXPECT_EQ(test::to_f64(p), (std::vector<double>{1, -2, 3}));
  run(0.5);
  EXPECT_FALSE(scaler.last_overflow());
  EXPECT_NEAR(test::to_f64(p)[0], 0.9, 1e-6);
  EXPECT_NEAR(test::to_f64(optimizer.state_dict().state[0].at("exp_avg"))[0], 0.05, 1e-7) << "unscaled once";
}

}  // namespace
}  // namespace apex
