// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// DistributedFusedAdam on 1 to 4 processes: the numbers of spec/optimizers.md 10, and equality with FusedAdam.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "apex/amp/loss_scaler.hpp"
#include "apex/optimizers/fused_adam.hpp"
#include "sharded.hpp"

namespace apex {
namespace {

using optimizers::FusedAdam;
using optimizers::StepScaling;
using test::device;
using test::world;
using Clock = std::chrono::steady_clock;

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

std::vector<Tensor> some_parameters(DType dtype) {
  const auto value = [](std::int64_t seed) {
    return [seed](std::int64_t i) { return static_cast<double>((i * 37 + seed * 11) % 101 - 50) / 64.0; };
  };
  return {test::parameter({3, 5, 3, 3}, value(1), dtype, MemoryFormat::channels_last),
          test::parameter({1}, value(2), dtype), test::parameter({0, 4}, value(3), dtype),
          test::parameter({33, 29}, value(4), dtype), test::parameter({257}, value(5), dtype)};
}

/// Sums of these over four ranks are exact, so that all orders of adding give the same bits.
double gradient_at(std::int64_t i, int rank, std::size_t param, int step) {
  return static_cast<double>((i * 13 + rank * 7 + static_cast<std::int64_t>(param) * 5 + step * 3) % 31 - 15) / 16.0;
}

/// What FusedAdam is given: the average over ranks, rounded as the kernel rounds it.
double mean_at(std::int64_t i, std::size_t param, int step) {
  float sum = 0;
  for (int r = 0; r < world().size(); ++r) sum += static_cast<float>(gradient_at(i, r, param, step));
  return sum * static_cast<float>(1.0 / world().size());
}

Tensor f32_gradient(const Tensor& p, const std::function<double(std::int64_t)>& value) {
  const Tensor g = empty_like(p, DType::f32);
  copy_(g, test::from_function(p.sizes(), DType::f32, device(), value));
  return g;
}

void give_gradients(const std::vector<Tensor>& params, int step) {
  std::vector<std::pair<Tensor, Tensor>> grads;
  for (std::size_t k = 0; k < params.size(); ++k)
    grads.emplace_back(
        params[k], test::gradient_of(params[k], [&, k](auto i) { return gradient_at(i, world().rank(), k, step); }));
  test::run_backward(grads);
}

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

// ---- gradients ----

TEST(Sharded, AParameterWithoutGradientCountsAsZero) {
  const Tensor p = test::listed({1, 1, 1}), q = test::listed({1, 1}), r = test::listed({1});
  test::DistributedFusedAdamOptions options{.lr = 0.1};
  options.sharding.bucket_cap_mb = 71.0 / 4194304;
  test::DistributedFusedAdam optimizer({p, q, r}, options);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    std::vector<std::pair<Tensor, Tensor>> grads{{p, test::gradient_of(p, [](auto) { return 1.0; })}};
    if (world().rank() == 0) grads.emplace_back(q, test::gradient_of(q, [](auto) { return 1.0; }));
    test::run_backward(grads);  // nobody has one for r
    optimizer.step();
  }
  const auto state = optimizer.state_dict();
  const double w = world().size();
  EXPECT_NEAR(test::to_f64(state.state[1].at("exp_avg"))[0], 0.19 / w, 1e-7);
  EXPECT_NEAR(test::to_f64(state.state[0].at("exp_avg"))[2], 0.19, 1e-7);
  EXPECT_EQ(test::to_f64(r), std::vector<double>{1});
}

TEST(Sharded, ModelsOfSeveralTypes) {
  const auto make = [] {
    return std::vector<Tensor>{test::parameter(
                                   {40, 9}, [](auto i) { return static_cast<double>(i % 7) / 8; }, DType::bf16),
                               test::parameter({50}, [](auto i) { return static_cast<double>(i % 5) / 8; }),
                               test::parameter(
                                   {3, 3}, [](auto) { return 0.5; }, DType::f16)};
  };
  const auto params = make(), plain_params = make();
  for (const bool overlap : {false, true}) {
    test::DistributedFusedAdamOptions options{.lr = 0.01, .weight_decay = 0.1};
    options.sharding.bucket_cap_mb = kSmallCap;
    options.sharding.overlap_param_sync = overlap;
    for (std::size_t k = 0; k < params.size(); ++k) {
      NoGradGuard no_grad;
      copy_(plain_params[k], params[k]);
    }
    test::DistributedFusedAdam optimizer(params, options);
    FusedAdam plain(plain_params, {.lr = 0.01, .weight_decay = 0.1, .master_weights = true});
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      give_gradients(params, step);
      optimizer.step();
      for (std::size_t k = 0; k < plain_params.size(); ++k)
        set_grad(plain_params[k], f32_gradient(plain_params[k], [&](auto i) { return mean_at(i, k, step); }));
      plain.step();
    }
    optimizer.param_sync();
    for (std::size_t k = 0; k < params.size(); ++k)
      EXPECT_EQ(test::to_f64(params[k]), test::to_f64(plain_params[k])) << k;
  }
}

TEST(Sharded, FrozenParametersAreLeftAlone) {
  using S = test::ShardingOptions;
  for (const auto& change : std::vector<std::function<void(S&)>>{[](S&) {}, [](S& s) { s.store_params = false; },
                                                                 [](S& s) { s.contiguous_param_buffer = true; },
                                                                 [](S& s) { s.param_sync_dtype = DType::bf16; }}) {
    const Tensor p = test::parameter({70}, [](auto) { return 1.0; }),
                 frozen = test::parameter({70}, [](auto) { return 2.001; });
    test::DistributedFusedAdamOptions options{.lr = 0.125, .weight_decay = 0.5};
    change(options.sharding);
    test::DistributedFusedAdam optimizer({frozen, p}, options);
    set_requires_grad(frozen, false);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      test::run_backward({{p, test::gradient_of(p, [](auto) { return 1.0; })}});
      optimizer.step();
    }
    EXPECT_EQ(test::floats(frozen), std::vector<float>(70, 2.001F)) << "not even rounded";
    EXPECT_LT(test::to_f64(p)[69], 0.8);
    EXPECT_EQ(optimizer.state_dict().state[0].size(), 0u);
    set_requires_grad(frozen);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      test::run_backward({{p, test::gradient_of(p, [](auto) { return 1.0; })},
                          {frozen, test::gradient_of(frozen, [](auto) { return 1.0; })}});
      optimizer.step();
    }
    EXPECT_LT(test::to_f64(frozen)[69], 1.8);
  }
}

TEST(Sharded, ARankWithoutAnyGradientTakesPart) {
  const Tensor p = test::listed({1, 1, 1});
  test::DistributedFusedAdam optimizer({p}, {.lr = 0.1});
  if (world().rank() == 0) test::run_backward({{p, test::gradient_of(p, [](auto) { return 1.0; })}});
  optimizer.step();
  EXPECT_NEAR(test::to_f64(p)[0], 0.9, 1e-6);
  EXPECT_TRUE(test::same_everywhere(p));
}

TEST(Sharded, AShardMayBeEmpty) {
  const Tensor p = test::listed({5});
  test::DistributedFusedAdam optimizer({p}, {.lr = 0.5});
  test::run_backward({{p, test::gradient_of(p, [](auto) { return 3.0; })}});
  EXPECT_EQ(optimizer.grad_norm().item(), 3.0);
  optimizer.step();
  EXPECT_NEAR(test::to_f64(p)[0], 4.5, 1e-6);
}

TEST(Sharded, BackwardsAddUpUntilZeroGrad) {
  const Tensor p = test::listed({0, 0});
  for (const bool contiguous : {false, true}) {
    test::DistributedFusedAdamOptions options;
    options.sharding.contiguous_grad_buffer = contiguous;
    test::DistributedFusedAdam optimizer({p}, options);
    for (const double g : {3.0, 1.0})
      test::run_backward({{p, test::gradient_of(p, [&](auto i) { return i == 0 ? g : 3.0 / 2; })}});
    EXPECT_EQ(optimizer.grad_norm().item(), 5.0);
    test::run_backward({{p, test::gradient_of(p, [](auto i) { return i == 0 ? -4.0 : 0.0; })}});
    EXPECT_EQ(optimizer.grad_norm().item(), 3.0) << "the norm is made anew";
    optimizer.zero_grad();
    EXPECT_EQ(grad(p).defined(), contiguous);
    test::run_backward({{p, test::gradient_of(p, [](auto) { return 0.0; })}});
    EXPECT_EQ(optimizer.grad_norm().item(), 0.0);
  }
}

TEST(Sharded, TheSumInsteadOfTheAverage) {
  const Tensor p = test::listed({0});
  test::DistributedFusedAdamOptions options;
  options.sharding.average_grad_sync = false;
  test::DistributedFusedAdam optimizer({p}, options);
  test::run_backward({{p, test::gradient_of(p, [](auto) { return 2.0; })}});
  EXPECT_EQ(optimizer.grad_norm().item(), 2.0 * world().size());
}

TEST(Sharded, TheContiguousBufferIsWhereBackwardWrites) {
  const auto params = some_parameters(DType::f32);
  test::DistributedFusedAdamOptions options;
  options.sharding.contiguous_grad_buffer = true;
  options.sharding.bucket_cap_mb = kSmallCap;
  test::DistributedFusedAdam optimizer(params, options);
  optimizer.zero_grad();
  for (const Tensor& p : params) {
    ASSERT_TRUE(grad(p).defined());
    if (p.numel() > 0) {
      EXPECT_EQ(grad(p).raw_data(), optimizer.grad_buffer_view(p).raw_data());
    }
  }
  EXPECT_EQ(optimizer.grad_buffer_view(params[3]).storage(), optimizer.grad_buffer_view(params[0]).storage());
  {
    const auto no_sync = optimizer.no_sync();
    give_gradients(params, 0);
  }
  const auto held = test::to_f64(optimizer.grad_buffer_view(params[3]));
  for (std::size_t i = 0; i < held.size(); ++i)
    ASSERT_EQ(held[i], gradient_at(static_cast<std::int64_t>(i), world().rank(), 3, 0));
  optimizer.zero_grad(true);
  EXPECT_FALSE(grad(params[0]).defined());
}

/// Eight parameters fill a bucket of the cap and the ninth needs another: both are made smaller, not one left empty.
TEST(Sharded, BucketsOfOneSizeLeaveNoStateInVain) {
  constexpr std::int64_t count = 4096;
  std::vector<Tensor> params;
  for (int i = 0; i < 9; ++i) params.push_back(test::parameter({count}, [](auto) { return 1.0; }));
  test::DistributedFusedAdamOptions options;
  options.sharding.bucket_cap_mb = 8 * count * 4 / 1048576.0;
  options.sharding.store_params = false;
  const test::DistributedFusedAdam optimizer(params, options);
  EXPECT_EQ(optimizer.layout().buckets(), 2);
  const std::int64_t part = 9 * count / world().size(), rounding = 2 * contrib::optimizers::shard_alignment(DType::f32);
  EXPECT_GE(optimizer.state_bytes(), 8 * part);
  EXPECT_LE(optimizer.state_bytes(), 8 * (part + rounding));
}

TEST(Sharded, ReducingStartsBeforeBackwardEnds) {
  std::vector<Tensor> params;
  for (int i = 0; i < 4; ++i) params.push_back(test::parameter({1000}, [](auto) { return 1.0; }));
  test::DistributedFusedAdamOptions options;
  options.sharding.bucket_cap_mb = 4000.0 / 1048576;
  test::DistributedFusedAdam optimizer(params, options);
  ASSERT_GE(optimizer.layout().buckets(), 4);
  Clock::time_point last;
  Tensor loss = full({1}, 0.0, DType::f64, device());
  for (std::size_t i = 0; i < params.size(); ++i)
    loss = nn::functional::add(loss,
                               test::hand(params[i], test::gradient_of(params[i], [](auto) { return 1.0; }), [&last] {
                                 std::this_thread::sleep_for(std::chrono::milliseconds(30));
                                 last = Clock::now();
                               }));
  backward(loss);
  optimizer.grad_sync();
  const auto timings = optimizer.last_timings();
  ASSERT_EQ(static_cast<std::int64_t>(timings.size()), optimizer.layout().buckets());
  for (std::size_t b = 0; b < timings.size(); ++b) EXPECT_EQ(timings[b].bucket, static_cast<int>(b));
  EXPECT_LT(timings[0].launched, last) << "the first bucket waited for the last leaf";
  EXPECT_LT(timings[1].launched, last);
}

// ---- parameters ----

TEST(Sharded, OpsSeeParametersThatWereUnderWay) {
  const auto params = some_parameters(DType::f32), waiting_params = some_parameters(DType::f32);
  test::DistributedFusedAdamOptions options{.lr = 0.1};
  options.sharding.bucket_cap_mb = kSmallCap;
  test::DistributedFusedAdam waiting(waiting_params, options);
  options.sharding.overlap_param_sync = true;
  test::DistributedFusedAdam optimizer(params, options);
  for (int step = 0; step < 3; ++step) {
    waiting.zero_grad();
    give_gradients(waiting_params, step);
    waiting.step();
    optimizer.zero_grad();
    give_gradients(params, step);
    optimizer.step();
    // In an order of its own; nothing but ops looks at them.
    for (const std::size_t k : {4u, 0u, 3u, 1u}) {
      NoGradGuard no_grad;
      EXPECT_EQ(test::to_f64(nn::functional::scale(params[k], 2.0)),
                test::to_f64(nn::functional::scale(waiting_params[k], 2.0)))
          << k;
    }
  }
  optimizer.synchronize();
  for (std::size_t k = 0; k < params.size(); ++k) EXPECT_EQ(test::to_f64(params[k]), test::to_f64(waiting_params[k]));
}

TEST(Sharded, StepsRaiseVersions) {
  const Tensor p = test::listed({1, 2});
  test::DistributedFusedAdam optimizer({p}, {.lr = 0.1});
  const auto before = p.version();
  test::run_backward({{p, test::gradient_of(p, [](auto) { return 1.0; })}});
  optimizer.step();
  EXPECT_GT(p.version(), before);
}

TEST(Sharded, ConstructionGivesAllTheFirstRanksParameters) {
  const Tensor p = test::parameter({5}, [](auto i) { return static_cast<double>(i) + 100.0 * world().rank(); });
  test::DistributedFusedAdam optimizer({p}, {});
  EXPECT_EQ(test::to_f64(p), (std::vector<double>{0, 1, 2, 3, 4}));
}

TEST(Sharded, AGroupAddedLaterIsStepped) {
  const Tensor p = test::listed({1, 1}), late = test::listed({2, 2, 2});
  test::DistributedFusedAdam optimizer({p}, {.lr = 0.1});
  const auto run = [&] {
    optimizer.zero_grad();
    test::run_backward({{p, test::gradient_of(p, [](auto) { return 1.0; })},
                        {late, test::gradient_of(late, [](auto) { return 1.0; })}});
    optimizer.step();
  };
  test::run_backward({{p, test::gradient_of(p, [](auto) { return 1.0; })}});
  optimizer.step();
  optimizer.add_param_group({});
  optimizer.add_param_group({.params = {late}, .hyper = {{"lr", 0.5}}});
  run();
  EXPECT_NEAR(test::to_f64(late)[0], 1.5, 1e-6) << "its own first step";
  EXPECT_NEAR(test::to_f64(p)[0], 0.8, 1e-5);
  run();
  EXPECT_NEAR(test::to_f64(late)[2], 1.0, 1e-5);
  EXPECT_EQ(optimizer.state_dict().state[1].at("step").item(), 2.0);
  EXPECT_EQ(optimizer.state_dict().state[0].at("step").item(), 3.0);
}

TEST(Sharded, TwoRunsAreBitwiseEqual) {
  std::vector<std::vector<double>> results;
  for (int run = 0; run < 2; ++run) {
    const auto params = some_parameters(DType::f32);
    test::DistributedFusedAdamOptions options{.lr = 0.01};
    options.sharding.bucket_cap_mb = kSmallCap;
    options.sharding.overlap_param_sync = run == 1;
    test::DistributedFusedAdam optimizer(params, options);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      std::vector<std::pair<Tensor, Tensor>> grads;
      for (std::size_t k = 0; k < params.size(); ++k)
        grads.emplace_back(params[k], test::uniform(params[k].sizes(), DType::f32, device(),
                                                    static_cast<std::uint64_t>(step) * 100 + k * 10 +
                                                        static_cast<std::uint64_t>(world().rank())));
      test::run_backward(grads);
      optimizer.clip_grad_norm(1.0);
      optimizer.step();
    }
    optimizer.param_sync();
    auto& all = results.emplace_back();
    for (const Tensor& p : params) {
      const auto values = test::to_f64(p);
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  EXPECT_EQ(results[0], results[1]);
}

// ---- errors ----

TEST(Sharded, OptionsThatContradictEachOther) {
  const Tensor p = test::listed({1});
  using S = test::ShardingOptions;
  const auto refused = [&](const std::function<void(S&)>& change, Kind kind = Kind::argument) {
    test::DistributedFusedAdamOptions options;
    change(options.sharding);
    return test::error_of([&] { test::DistributedFusedAdam optimizer({p}, options); }, kind);
  };
  EXPECT_NE(refused([](S& s) { s.dtype = DType::f64; }).find("dtype f64"), std::string::npos);
  EXPECT_NE(refused([](S& s) { s.grad_sync_dtype = DType::i32; }).find("grad_sync_dtype"), std::string::npos);
  EXPECT_NE(refused([](S& s) { s.param_sync_dtype = DType::u8; }).find("param_sync_dtype"), std::string::npos);
  EXPECT_NE(refused([](S& s) { s.bucket_cap_mb = -1; }).find("bucket_cap_mb -1"), std::string::npos);
  EXPECT_NE(refused([](S& s) { s.pipeline_size = 0; }).find("pipeline_size 0"), std::string::npos);
  EXPECT_NE(refused([](S& s) { s.store_param_remainders = true; }).find("store_params"), std::string::npos);
  EXPECT_NE(refused([](S& s) { s.store_param_remainders = true, s.store_params = false; }).find("bf16"),
            std::string::npos);
  EXPECT_NE(refused([](S& s) { s.with_scaled_states = true; }).find("with_scaled_states"), std::string::npos);
  EXPECT_NE(refused([](S& s) {
              s.with_scaled_states = true, s.dtype = DType::f16, s.param_sync_dtype = DType::f32;
            }).find("param_sync_dtype"),
            std::string::npos);
  EXPECT_NE(refused([](S& s) { s.nccl_ub = true; }).find("contiguous_grad_buffer"), std::string::npos);
  EXPECT_NE(refused([](S& s) { s.nccl_ub = s.contiguous_grad_buffer = true; }, Kind::unsupported).find("nccl_ub"),
            std::string::npos);
  EXPECT_NE(refused([](S& s) {
              s.store_params = false, s.store_param_remainders = true, s.param_sync_dtype = DType::bf16;
            }).find("parameter 0 is f32"),
            std::string::npos);
  EXPECT_NE(refused([](S& s) {
              s.contiguous_param_buffer = true, s.param_sync_dtype = DType::bf16;
            }).find("contiguous_param_buffer"),
            std::string::npos);
}

TEST(Sharded, HyperParametersOutOfRange) {
  const Tensor p = test::listed({1});
  const auto refused = [&](const test::DistributedFusedAdamOptions& options, Kind kind = Kind::argument) {
    return test::error_of([&] { test::DistributedFusedAdam optimizer({p}, options); }, kind);
  };
  EXPECT_NE(refused({.lr = -1}).find("lr -1"), std::string::npos);
  EXPECT_NE(refused({.beta1 = 1}).find("beta1 1"), std::string::npos);
  EXPECT_NE(refused({.eps = -1}).find("eps -1"), std::string::npos);
  EXPECT_NE(refused({.weight_decay = INFINITY}).find("weight_decay"), std::string::npos);
  EXPECT_NE(refused({.amsgrad = true}, Kind::unsupported).find("amsgrad"), std::string::npos);
  EXPECT_NE(test::error_of(
                [&] {
                  const Tensor wide = test::listed({1}, DType::f64);
                  test::DistributedFusedAdam optimizer({wide}, {});
                },
                Kind::argument)
                .find("f64"),
            std::string::npos);
}

TEST(Sharded, GroupsAndRanksMustFit) {
  const Tensor p = test::listed({1});
  if (world().size() > 1) {
    test::DistributedFusedAdamOptions options;
    options.sharding.distributed_group = world().split(world().rank(), 0, "alone");
    EXPECT_NE(test::error_of([&] { test::DistributedFusedAdam optimizer({p}, options); }, Kind::argument)
                  .find("the product must be the first"),
              std::string::npos);
    const auto text = test::error_of(
        [&] {
          const Tensor q = test::parameter({world().rank() + 1}, [](auto) { return 1.0; });
          test::DistributedFusedAdam optimizer({p, q}, {});
        },
        Kind::argument);
    EXPECT_NE(text.find("parameter 1"), std::string::npos) << text;
    const auto cap = test::error_of(
        [&] {
          test::DistributedFusedAdamOptions differing;
          differing.sharding.bucket_cap_mb = 1.0 + world().rank();
          test::DistributedFusedAdam optimizer({p}, differing);
        },
        Kind::argument);
    EXPECT_NE(cap.find("cap 2 MiB"), std::string::npos) << cap;
  }
}

TEST(Sharded, CallsAtTheWrongTime) {
  const Tensor p = test::listed({1, 2}), stranger = test::listed({1});
  test::DistributedFusedAdam optimizer({p}, {});
  test::error_of([&] { optimizer.clip_grad_norm(0); }, Kind::argument);
  test::error_of([&] { optimizer.unscale_grads(full({1}, 1.0, DType::f64, device())); }, Kind::argument);
  test::error_of([&] { optimizer.grad_buffer_view(p); }, Kind::state);
  test::error_of([&] { optimizer.grad_norm({stranger}); }, Kind::argument);
  p.set_data(test::parameter(
      {2}, [](auto) { return 1.0; }, DType::bf16));
  EXPECT_NE(test::error_of([&] { optimizer.step(); }, Kind::state).find("parameter 0 was cast"), std::string::npos);
}

}  // namespace
}  // namespace apex
