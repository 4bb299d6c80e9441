// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// The rules of sharded optimizers on 1 to 4 processes: gradients, parameters, errors.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "apex/optimizers/fused_adam.hpp"
#include "apex/parallel/larc.hpp"
#include "sharded.hpp"

namespace apex {
namespace {

using optimizers::FusedAdam;
using test::device;
using test::f32_gradient;
using test::give_gradients;
using test::gradient_at;
using test::mean_at;
using test::some_parameters;
using test::world;
using Clock = std::chrono::steady_clock;

// Buckets of some hundred elements, so that small parameters make several.
constexpr double kSmallCap = 1024.0 / 1048576;

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

TEST(Sharded, LarcNeedsWholeParameters) {  // spec/parallel.md 7
  const Tensor p = test::listed({1, 2});
  test::DistributedFusedAdam optimizer({p}, {.lr = 0.1});
  EXPECT_NE(test::error_of([&] { parallel::LARC larc(optimizer); }, Kind::unsupported).find("shards its parameters"),
            std::string::npos);
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
