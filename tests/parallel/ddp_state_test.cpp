// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// The state machine of DistributedDataParallel: what it agrees on, when it records, what it refuses, when it launches.
#include <gtest/gtest.h>

#include "apex/nn/layers.hpp"
#include "toy.hpp"

namespace apex::parallel {
namespace {

using test::Fed;
using test::filled;
using test::gradient_is;
using test::step;
using test::thrown;
using test::toy;
using Code = std::vector<std::int32_t>;
using Clock = std::chrono::steady_clock;
using Options = DistributedDataParallelOptions;

int ranks() { return dist::ProcessGroup::world().size(); }
int rank() { return dist::ProcessGroup::world().rank(); }

#define EXPECT_HAS(text, words) EXPECT_NE((text).find(words), std::string::npos) << (text)

// PAR-15.8
TEST(DdpOptions, ContradictionsAreRefused) {
  const auto module = toy({{"p", 3}});
  const auto world = dist::ProcessGroup::world();
  const auto refused = [&](const Options& options) {
    return thrown([&] { DistributedDataParallel ddp(module, {}, options); }, Kind::argument);
  };
  EXPECT_HAS(refused({.delay_allreduce = true, .allreduce_trigger_params = {module->tensors[0]}}), "trigger");
  EXPECT_HAS(refused({.delay_allreduce = true, .num_allreduce_streams = 2}), "streams");
  EXPECT_HAS(refused({.shared_param = false}), "shared_param");
  EXPECT_HAS(refused({.allreduce_communicators = Options::Communicators{{world}, {nullptr}}}), "> 1");
  EXPECT_HAS(refused({.num_allreduce_streams = 2,
                      .allreduce_communicators = Options::Communicators{{world, world}, {nullptr}}}),
             "streams");
  EXPECT_HAS(refused({.gradient_predivide_factor = 0}), "predivide");
  EXPECT_HAS(refused({.gradient_predivide_factor = -1}), "predivide");
  EXPECT_HAS(refused({.gradient_predivide_factor = std::nan("")}), "predivide");
  EXPECT_HAS(refused({.gradient_average_split_factor = 2.0}), "gradient_predivide_factor");
  EXPECT_HAS(refused({.message_size = 5, .bucket_cap_mb = 25.0}), "not both");
  EXPECT_HAS(refused({.message_size = 0}), "message_size");
  EXPECT_HAS(refused({.num_allreduce_streams = 0}), "num_allreduce_streams");
  EXPECT_HAS(refused({.bucket_cap_mb = 0.0}), "bucket_cap_mb");
  EXPECT_HAS(refused({.bucket_cap_mb = 1.0, .first_bucket_kb = -1}), "first_bucket_kb");
  EXPECT_HAS(refused({.allreduce_trigger_params = {filled({1}, 1.0)}}), "not a parameter");
  EXPECT_HAS(thrown([&] { DistributedDataParallel ddp(nullptr); }, Kind::argument), "null");
  const auto twin = world.dup("twin");  // the wanted combination works
  DistributedDataParallel ddp(module, {},
                              {.message_size = 1,
                               .num_allreduce_streams = 2,
                               .allreduce_communicators = Options::Communicators{{world, twin}, {nullptr, nullptr}}});
  for (int i = 0; i < 2; ++i) {
    ddp.zero_grad();
    step(ddp, {{module->tensors[0], double(rank())}});
  }
  EXPECT_TRUE(gradient_is(module->tensors[0], (ranks() - 1) / 2.0, 1e-6));
}

// PAR-15.9
TEST(DdpConstruction, EveryRankGetsRankZerosValues) {
  const auto make = [] {
    const auto module = toy({{"w", 1000, DType::f32}, {"h", 3, DType::f16}, {"d", 2, DType::f64}}, 1.0 / (rank() + 3));
    module->buffer("running_mean", filled({4}, rank() + 0.5));
    module->buffer("num_batches_tracked", filled({}, rank() + 7, DType::i64));
    return module;
  };
  const auto module = make();
  DistributedDataParallel ddp(module);
  EXPECT_EQ(test::to_f64(module->tensors[0])[999], double(float(1.0 / 3)));
  EXPECT_EQ(test::to_f64(module->tensors[1])[2], double(float(float16(1.0 / 3))));
  EXPECT_EQ(test::to_f64(module->tensors[2])[1], 1.0 / 3);
  EXPECT_EQ(test::to_f64(module->buffers()[0])[3], 0.5);
  EXPECT_EQ(module->buffers()[1].item(), 7);
  EXPECT_EQ(ddp.named_parameters()[0].name, "module.w");

  const auto kept = make();
  DistributedDataParallel never(kept, {}, {.broadcast_buffers = BroadcastBuffers::never});
  EXPECT_EQ(test::to_f64(kept->buffers()[0])[3], rank() + 0.5);
  EXPECT_EQ(test::to_f64(kept->tensors[2])[1], 1.0 / 3);
}

TEST(DdpConstruction, DifferentModelsAreNamedOnAllRanks) {
  if (ranks() == 1) GTEST_SKIP();
  const int odd = ranks() - 1;
  const auto name_in = [&](const std::vector<test::Toy::Parameter>& common,
                           const std::vector<test::Toy::Parameter>& other) {
    const auto module = toy(rank() == odd ? other : common);
    return thrown([&] { DistributedDataParallel ddp(module); }, Kind::argument);
  };
  std::string said = name_in({{"a", 2}, {"b", 3}}, {{"a", 2}, {"b", 4}});
  EXPECT_HAS(said, "'b: f32 [4]");
  EXPECT_HAS(said, "'b: f32 [3]");
  EXPECT_HAS(said, concat("rank ", odd, ":"));
  EXPECT_HAS(name_in({{"a", 2}}, {{"a", 2, DType::f64}}), "f64");
  EXPECT_HAS(name_in({{"a", 2}}, {{"z", 2}}), "'z:");
  EXPECT_HAS(name_in({{"a", 2}, {"b", 2}}, {{"a", 2}}), "no further parameter");
  const auto module = toy({{"a", 2}});
  if (rank() == odd) set_requires_grad(module->tensors[0], false);
  EXPECT_HAS(thrown([&] { DistributedDataParallel ddp(module); }, Kind::argument), "frozen");
}

// PAR-15.2, through real hooks
TEST(DdpPlan, IsRecordedFromTheOrderOfArrival) {
  const auto m = toy({{"f2", 1, DType::f32}, {"h2", 2, DType::f16}, {"f1", 9, DType::f32}, {"h1", 3, DType::f16}});
  const auto &f2 = m->tensors[0], &h2 = m->tensors[1], &f1 = m->tensors[2], &h1 = m->tensors[3];
  DistributedDataParallel ddp(m, {}, {.message_size = 8});
  EXPECT_TRUE(ddp.bucket_plan().empty());
  step(ddp, {{h1, 1}, {f1, 1}, {h2, 1}, {f2, 1}});
  EXPECT_EQ(ddp.bucket_plan().encode(), (Code{3, 1, 2, 1, 2, 3, 1, 0}));
}

// PAR-15.4
TEST(DdpPlan, RankZerosOrderWins) {
  const auto m = toy({{"a", 4}, {"b", 4}, {"c", 4}, {"d", 4}});
  DistributedDataParallel ddp(m, {}, {.message_size = 1});
  std::vector<Fed> fed;
  for (const std::size_t i : {2, 0, 3, 1}) fed.push_back({m->tensors[i], double(i + 1) * (rank() + 1)});
  if (rank() == 1) std::reverse(fed.begin(), fed.end());
  for (int iteration = 0; iteration < 4; ++iteration) {
    ddp.zero_grad();
    step(ddp, fed);
    EXPECT_EQ(ddp.bucket_plan().encode(), (Code{4, 1, 1, 1, 1, 2, 0, 3, 1}));
    if (iteration > 0) {
      ASSERT_EQ(ddp.last_timings().size(), 4u);
      for (int b = 0; b < 4; ++b)
        EXPECT_EQ(ddp.last_timings()[static_cast<std::size_t>(b)].bucket, b) << "launched in the plan's order";
    }
    for (std::size_t i = 0; i < 4; ++i)
      EXPECT_TRUE(gradient_is(m->tensors[i], double(i + 1) * (ranks() + 1) / 2, 1e-6)) << iteration << ' ' << i;
  }
}

// The overlap that the whole machine is for: with 20 ms of work behind each gradient, the first bucket has been reduced
// before the last gradient is there.
TEST(DdpPlan, TheFirstBucketIsReducedBeforeTheLastGradientArrives) {
  const auto m = toy({{"a", 1000}, {"b", 1000}, {"c", 1000}, {"d", 1000}, {"e", 1000}, {"f", 1000}});
  DistributedDataParallel ddp(m, {}, {.message_size = 1000});
  std::vector<Fed> fed;
  for (std::size_t i = 6; i-- > 0;) fed.push_back({m->tensors[i], 1.0});
  step(ddp, fed);
  Clock::time_point last_gradient;
  const HookHandle hook = add_post_accumulate_hook(m->tensors[0], [&](const Tensor&) { last_gradient = Clock::now(); });
  const char* mode = std::getenv("APEX_TEST_SESSION");
  const bool threaded = mode == nullptr || std::string(mode).find("funneled") == std::string::npos;
  for (int i = 0; i < 3; ++i) {
    dist::ProcessGroup::world().barrier();
    step(ddp, fed, std::chrono::milliseconds(20));
    ASSERT_EQ(ddp.last_timings().size(), 6u);
    EXPECT_TRUE(ddp.last_timings()[0].finished < last_gradient || !threaded);
    int before = 0;
    for (const auto& timing : ddp.last_timings()) before += timing.launched < last_gradient;
    EXPECT_GE(before, 5) << "all but the last gradient's bucket";
    ASSERT_TRUE(ddp.last_exposed_s().has_value());
    EXPECT_LT(*ddp.last_exposed_s(), 0.1);
  }
}

TEST(DdpPlan, IsExportedAndRestored) {
  const std::vector<test::Toy::Parameter> list{{"a", 4}, {"b", 4}, {"c", 4, DType::f64}};
  const auto first = toy(list);
  DistributedDataParallel ddp(first, {}, {.message_size = 4});
  step(ddp, {{first->tensors[1], 1}, {first->tensors[2], 1}, {first->tensors[0], 1}});
  const BucketPlan plan = ddp.bucket_plan();
  EXPECT_EQ(plan.encode(), (Code{3, 1, 1, 1, 1, 2, 0}));

  const auto second = toy(list);
  DistributedDataParallel resumed(second, {}, {.message_size = 4});
  EXPECT_FALSE(resumed.restore_bucket_plan({}));
  EXPECT_FALSE(resumed.restore_bucket_plan({{{0}, {1}}})) << "a parameter is missing";
  EXPECT_FALSE(resumed.restore_bucket_plan({{{0}, {1}, {3}}})) << "there is no fourth";
  EXPECT_FALSE(resumed.restore_bucket_plan({{{0, 0}, {1}, {2}}})) << "one is there twice";
  EXPECT_FALSE(resumed.restore_bucket_plan({{{0, 2}, {1}}})) << "dtypes are mixed";
  EXPECT_TRUE(resumed.bucket_plan().empty());
  ASSERT_TRUE(resumed.restore_bucket_plan(BucketPlan::decode(plan.encode())));
  // The first backward of the resumed run follows the plan at once, whatever order its gradients come in.
  step(resumed, {{second->tensors[0], 1}, {second->tensors[1], 1.0 + rank()}, {second->tensors[2], 1}});
  EXPECT_EQ(resumed.bucket_plan(), plan);
  ASSERT_EQ(resumed.last_timings().size(), 3u);
  EXPECT_TRUE(gradient_is(second->tensors[1], (ranks() + 1) / 2.0, 1e-6));

  resumed.rebuild_buckets();
  resumed.zero_grad();
  step(resumed, {{second->tensors[0], 1}, {second->tensors[1], 1}, {second->tensors[2], 1}});
  EXPECT_EQ(resumed.bucket_plan().encode(), (Code{3, 1, 1, 1, 0, 1, 2}));
}

// PAR-15.10
TEST(DdpUnused, AMissingGradientIsNamed) {
  const auto m = toy({{"used", 2}, {"head_weight", 2}});
  DistributedDataParallel ddp(m, {}, {.message_size = 1});
  step(ddp, {{m->tensors[0], 1}, {m->tensors[1], 1}});
  ddp.zero_grad();
  EXPECT_HAS(thrown([&] { step(ddp, {{m->tensors[0], 1}}); }, Kind::state), "head_weight");
  ddp.zero_grad();  // and the next full iteration is fine again
  step(ddp, {{m->tensors[0], 1}, {m->tensors[1], double(rank())}});
  EXPECT_TRUE(gradient_is(m->tensors[1], (ranks() - 1) / 2.0, 1e-6));

  const auto late = toy({{"a", 2}, {"late", 2}});
  DistributedDataParallel other(late);
  step(other, {{late->tensors[0], 1}});
  other.zero_grad();
  EXPECT_HAS(thrown([&] { step(other, {{late->tensors[0], 1}, {late->tensors[1], 1}}); }, Kind::state), "'late'");
}

TEST(DdpUnused, RanksThatDisagreeAreToldSo) {
  if (ranks() == 1) GTEST_SKIP();
  for (const bool delay : {false, true}) {
    const auto m = toy({{"a", 2}, {"only on rank 0", 2}});
    DistributedDataParallel ddp(m, {}, {.delay_allreduce = delay});
    std::vector<Fed> fed{{m->tensors[0], 1}};
    if (rank() == 0) fed.push_back({m->tensors[1], 1});
    const std::string said = thrown([&] { step(ddp, fed); }, Kind::state);
    EXPECT_HAS(said, "only on rank 0");
    EXPECT_HAS(said, "rank 1:");
  }
}

// PAR-15.11
TEST(DdpUnused, FindUnusedParameters) {
  for (const bool delay : {false, true}) {
    const auto m = toy({{"always", 2}, {"p", 2}, {"q", 2}});
    const auto &always = m->tensors[0], &p = m->tensors[1], &q = m->tensors[2];
    DistributedDataParallel ddp(m, {}, {.message_size = 1, .delay_allreduce = delay, .find_unused_parameters = true});
    for (int i = 0; i < 3; ++i) {
      ddp.zero_grad();
      std::vector<Fed> fed{{always, 1}};
      if (rank() == 0) fed.push_back({p, 6});
      step(ddp, fed);
      EXPECT_TRUE(gradient_is(always, 1, 1e-6));
      EXPECT_TRUE(gradient_is(p, 6.0 / ranks(), 1e-6)) << i;
      EXPECT_FALSE(grad(q).defined()) << "used nowhere";
    }
    // Used only in the first, unsynchronised of two micro-batches: still reduced.
    ddp.zero_grad();
    {
      const auto guard = ddp.no_sync();
      step(ddp, {{always, 1}, {p, 2.0 * (rank() + 1)}});
    }
    step(ddp, {{always, 1}});
    EXPECT_TRUE(gradient_is(p, ranks() + 1, 1e-5));
    EXPECT_TRUE(gradient_is(always, 2, 1e-6));
    EXPECT_FALSE(grad(q).defined());
    // A gradient that nobody has this time keeps its value.
    set_grad(q, filled({2}, 42.0));
    step(ddp, {{always, 1}, {p, 1}});
    EXPECT_TRUE(gradient_is(q, 42));
  }
}

// PAR-15.12, for two ranks 8, 3 then 8, 6 then 22, 16
TEST(DdpAccumulation, NoSync) {
  const double first = 4.0 * rank() + 1, second = 4.0 * rank() + 3;  // 1, 3 and 5, 7
  const double mean_first = 2.0 * (ranks() - 1) + 1, mean_second = mean_first + 2;
  const auto run = [&](bool average, bool guarded, int warm_up) {
    const auto m = toy({{"p", 3, DType::f64}});
    DistributedDataParallel ddp(m, {}, {.gradient_average = average});
    for (int i = 0; i < warm_up; ++i) step(ddp, {{m->tensors[0], 1}});
    ddp.zero_grad();
    double between = 0;
    {
      std::optional<DistributedDataParallel::NoSync> guard;
      if (guarded) guard.emplace(ddp.no_sync());
      step(ddp, {{m->tensors[0], first}});
      between = test::to_f64(grad(m->tensors[0]))[0];
    }
    step(ddp, {{m->tensors[0], second}});
    return std::pair(between, test::to_f64(grad(m->tensors[0]))[0]);
  };
  const double w = ranks();
  for (const int warm_up : {0, 1, 2}) {  // also before the plan is there
    const auto [local, both] = run(true, true, warm_up);
    EXPECT_DOUBLE_EQ(local, first) << "only accumulated";
    EXPECT_DOUBLE_EQ(both, mean_first + mean_second);
    const auto [reduced, again] = run(true, false, warm_up);
    EXPECT_DOUBLE_EQ(reduced, mean_first);
    EXPECT_DOUBLE_EQ(again, mean_first + mean_second);
    const auto [sum, twice] = run(false, false, warm_up);
    EXPECT_DOUBLE_EQ(sum, w * mean_first);
    EXPECT_DOUBLE_EQ(twice, w * w * mean_first + w * mean_second) << "counts the first twice, as documented";
    EXPECT_DOUBLE_EQ(run(false, true, warm_up).second, w * (mean_first + mean_second));
  }
}

TEST(DdpAccumulation, TheFlagIsTakenAtForward) {
  const auto m = toy({{"p", 1, DType::f64}});
  DistributedDataParallel ddp(m);
  const auto forward = [&](double g) {
    return ddp.run([&] { return std::vector<Tensor>{test::loss_of({{m->tensors[0], g}})}; }).front();
  };
  backward(forward(1));
  ddp.zero_grad();
  Tensor inside;
  {
    const auto guard = ddp.no_sync();
    inside = forward(rank() + 1.0);
  }
  backward(inside);  // outside the guard, and does not communicate
  EXPECT_TRUE(gradient_is(m->tensors[0], rank() + 1.0));
  const Tensor outside = forward(1);
  const auto guard = ddp.no_sync();
  backward(outside);  // and the reverse does
  EXPECT_TRUE(gradient_is(m->tensors[0], (ranks() + 1) / 2.0 + 1, 1e-12));
}

TEST(DdpAccumulation, FourMicroBatchesOverSeveralSteps) {
  const auto m = toy({{"p", 5, DType::f64}, {"q", 2, DType::f64}});
  DistributedDataParallel ddp(m, {}, {.message_size = 1});
  for (int s = 0; s < 3; ++s) {
    ddp.zero_grad();
    for (int micro = 0; micro < 4; ++micro) {
      std::optional<DistributedDataParallel::NoSync> guard;
      if (micro < 3) guard.emplace(ddp.no_sync());
      step(ddp, {{m->tensors[1], micro + rank()}, {m->tensors[0], 1}});
    }
    EXPECT_TRUE(gradient_is(m->tensors[0], 4, 1e-12));
    EXPECT_TRUE(gradient_is(m->tensors[1], 6 + 4 * (ranks() - 1) / 2.0, 1e-12)) << s;
  }
}

// PAR-15.13
TEST(DdpRefresh, FreezingRecordsOnce) {
  const auto m = toy({{"a", 2, DType::f64}, {"b", 2, DType::f64}, {"c", 2, DType::f64}});
  DistributedDataParallel ddp(m, {}, {.message_size = 1});
  bool frozen = false;
  int recorded = 0;
  for (int i = 1; i <= 10; ++i) {
    if (i == 4 || i == 7) {
      frozen = i == 4;
      set_requires_grad(m->tensors[1], !frozen);
    }
    ddp.zero_grad();
    std::vector<Fed> fed{{m->tensors[2], 3}, {m->tensors[0], double(rank())}};
    if (!frozen) fed.push_back({m->tensors[1], 2});
    step(ddp, fed);
    const bool recording = ddp.last_timings().empty();
    recorded += recording;
    EXPECT_EQ(recording, i == 1 || i == 4 || i == 7) << i;
    EXPECT_TRUE(gradient_is(m->tensors[0], (ranks() - 1) / 2.0, 1e-12)) << i;
    EXPECT_TRUE(gradient_is(m->tensors[2], 3, 1e-12)) << i;
    EXPECT_EQ(grad(m->tensors[1]).defined(), !frozen);
    EXPECT_EQ(ddp.bucket_plan().buckets.size(), frozen ? 2u : 3u);
  }
  EXPECT_EQ(recorded, 3);
  m->to(DType::f32);  // another dtype is another plan too
  ddp.zero_grad();
  step(ddp, {{m->tensors[2], 3}, {m->tensors[0], 1}, {m->tensors[1], double(rank())}});
  EXPECT_TRUE(ddp.last_timings().empty());
  EXPECT_TRUE(gradient_is(m->tensors[1], (ranks() - 1) / 2.0, 1e-6));
}

TEST(DdpCalls, OneBackwardForEachForward) {
  const auto m = toy({{"p", 2, DType::f64}});
  const auto forward = [&](DistributedDataParallel& ddp) {
    return ddp.run([&] { return std::vector<Tensor>{test::loss_of({{m->tensors[0], rank() + 1.0}})}; }).front();
  };
  {
    DistributedDataParallel ddp(m);
    EXPECT_HAS(thrown([&] { backward(test::loss_of({{m->tensors[0], 1}})); }, Kind::state), "forward was not called");
    for (int i = 0; i < 2; ++i) {  // recording and after
      ddp.zero_grad();
      const Tensor loss = forward(ddp);
      backward(loss, {}, {.retain_graph = true});
      EXPECT_HAS(thrown([&] { backward(loss); }, Kind::state), "no_sync");
    }
    ddp.zero_grad();  // two forwards and one backward are fine
    (void)forward(ddp);
    backward(forward(ddp));
    EXPECT_TRUE(gradient_is(m->tensors[0], (ranks() + 1) / 2.0, 1e-12));
    {
      const NoGradGuard guard;  // evaluation between does not count
      (void)forward(ddp);
    }
  }
  DistributedDataParallel delayed(m, {}, {.delay_allreduce = true});
  delayed.zero_grad();
  const Tensor loss = forward(delayed);
  backward(loss, {}, {.retain_graph = true});
  backward(loss);  // reduces again at its end
  EXPECT_TRUE(gradient_is(m->tensors[0], ranks() + 1, 1e-12));
}

TEST(DdpCalls, HooksGoAwayWithIt) {
  const auto m = toy({{"p", 2, DType::f64}});
  { DistributedDataParallel ddp(m); }
  backward(test::loss_of({{m->tensors[0], 5}}));
  EXPECT_TRUE(gradient_is(m->tensors[0], 5));
}

TEST(DdpBuffers, EachForward) {
  const auto m = toy({{"p", 2, DType::f64}});
  const Tensor mean = m->buffer("mean", filled({3}, 0.0));
  DistributedDataParallel ddp(m, {}, {.broadcast_buffers = BroadcastBuffers::each_forward});
  const auto run = [&] { (void)ddp.run([&] { return std::vector<Tensor>{test::loss_of({{m->tensors[0], 1}})}; }); };
  fill_(mean, rank() + 1.0);
  const auto version = mean.version();
  run();
  EXPECT_EQ(test::to_f64(mean)[2], 1.0);
  EXPECT_EQ(mean.version(), version) << "saved tensors stay valid";
  fill_(mean, rank() + 1.0);
  {
    const auto guard = ddp.no_sync();
    run();
  }
  EXPECT_EQ(test::to_f64(mean)[2], rank() + 1.0) << "not under no_sync";
  m->eval();
  run();
  EXPECT_EQ(test::to_f64(mean)[2], rank() + 1.0) << "not in evaluation";
}

// PAR-15.16, the half about retained buffers
TEST(DdpRetain, GradientsAreViewsOfTheBuffers) {
  const auto m = toy({{"a", 3}, {"b", 4}, {"h", 2, DType::f16}});
  DistributedDataParallel ddp(m, {},
                              {.message_size = 1, .retain_allreduce_buffers = true, .allreduce_always_fp32 = true});
  const std::vector<Fed> fed{{m->tensors[2], double(rank())}, {m->tensors[1], 1}, {m->tensors[0], 2}};
  for (int i = 0; i < 3; ++i) {
    ddp.zero_grad();
    step(ddp, fed);
    EXPECT_EQ(ddp.allreduce_buffers().size(), i == 0 ? 2u : 3u);
    for (const Tensor& p : m->tensors) {
      int inside = 0;
      for (const Tensor& flat : ddp.allreduce_buffers()) inside += flat.storage() == grad(p).storage();
      EXPECT_EQ(inside, 1);
      EXPECT_EQ(grad(p).dtype(), p.dtype());
    }
    EXPECT_TRUE(gradient_is(m->tensors[2], (ranks() - 1) / 2.0, 1e-3));
  }
  EXPECT_HAS(thrown([&] { step(ddp, fed); }, Kind::state), "zero_grad");
}

}  // namespace
}  // namespace apex::parallel
