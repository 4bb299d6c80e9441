// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/schedules.hpp"

#include "apex/optimizers/fused_sgd.hpp"
#include "lib/support.hpp"

namespace apex {
namespace {

using schedules::Position;
using test::expect_error;

TEST(Schedules, StepFollowsMainAmp) {
  const auto lr = schedules::step(0.4);
  const auto at = [&](std::int64_t epoch, std::int64_t i) {
    return lr({.step = epoch * 100 + i - 1, .steps_per_epoch = 100, .epochs = 90});
  };
  EXPECT_DOUBLE_EQ(at(0, 1), 0.4 * 2 / 500);
  EXPECT_DOUBLE_EQ(at(0, 100), 0.4 * 101 / 500);
  EXPECT_DOUBLE_EQ(at(1, 1), 0.4 * 102 / 500);
  EXPECT_DOUBLE_EQ(at(4, 100), 0.4 * 501 / 500);  // a hair above base, as there
  EXPECT_DOUBLE_EQ(at(5, 1), 0.4);
  EXPECT_DOUBLE_EQ(at(29, 100), 0.4);
  EXPECT_NEAR(at(30, 1), 0.04, 1e-17);
  EXPECT_NEAR(at(60, 1), 0.004, 1e-17);
  EXPECT_NEAR(at(79, 100), 0.004, 1e-17);
  EXPECT_NEAR(at(80, 1), 0.0004, 1e-17);
}

TEST(Schedules, Cosine) {
  const auto lr = schedules::cosine(1.0, 0.2);
  EXPECT_DOUBLE_EQ(lr({0, 10, 4}), 1.0);
  EXPECT_NEAR(lr({10, 10, 4}), 0.2 + 0.8 * (1 + std::sqrt(0.5)) / 2, 1e-15);
  EXPECT_NEAR(lr({20, 10, 4}), 0.6, 1e-15);
  EXPECT_NEAR(lr({40, 10, 4}), 0.2, 1e-15);
  EXPECT_NEAR(lr({99, 10, 4}), 0.2, 1e-15);
}

TEST(Schedules, OneCycle) {
  const auto lr = schedules::one_cycle(0.1, {.warm_fraction = 0.3, .start_divisor = 25, .final_divisor = 1e4});
  const auto at = [&](std::int64_t step) { return lr({step, 10, 10}); };
  EXPECT_DOUBLE_EQ(at(0), 0.004);
  EXPECT_NEAR(at(29), 0.1, 1e-15);
  EXPECT_NEAR(at(99), 4e-7, 1e-18);
  EXPECT_NEAR(at(100), 4e-7, 1e-18);
  EXPECT_NEAR(at(64), 4e-7 + (0.1 - 4e-7) / 2, 1e-12);  // half way down
  for (std::int64_t s = 1; s < 29; ++s) EXPECT_GT(at(s), at(s - 1));
  for (std::int64_t s = 30; s < 100; ++s) EXPECT_LT(at(s), at(s - 1));
  EXPECT_GT(schedules::one_cycle(0.1)({0, 1, 1}), 0);  // a single step
}

TEST(Schedules, WarmUpComposes) {
  const auto lr = schedules::warm_up(schedules::constant(2.0), 4, 0.2);
  EXPECT_DOUBLE_EQ(lr({0, 10, 1}), 2 * (0.2 + 0.8 / 4));
  EXPECT_DOUBLE_EQ(lr({2, 10, 1}), 2 * (0.2 + 0.8 * 3 / 4));
  EXPECT_DOUBLE_EQ(lr({3, 10, 1}), 2.0);
  EXPECT_DOUBLE_EQ(lr({9, 10, 1}), 2.0);
  const auto epochs = schedules::warm_up_epochs(schedules::cosine(1.0), 0.5);
  EXPECT_DOUBLE_EQ(epochs({0, 8, 2}), 0.25);
  EXPECT_DOUBLE_EQ(epochs({8, 8, 2}), schedules::cosine(1.0)({8, 8, 2}));
  EXPECT_EQ(epochs.name(), "cosine");
  EXPECT_EQ(epochs.parameters().at("warm_up_epochs"), 0.5);
}

TEST(Schedules, RegistryErrorsAndApply) {
  EXPECT_EQ(schedules::list(), (std::vector<std::string>{"constant", "cosine", "one-cycle", "step"}));
  for (const auto& name : schedules::list()) {
    const auto schedule = schedules::create(name, 0.1);
    EXPECT_EQ(schedule.name(), name);
    EXPECT_EQ(schedule.parameters().at("lr"), 0.1);
    EXPECT_EQ(schedule({3, 10, 2}), schedule({3, 10, 2}));
  }
  expect_error(Kind::argument, "known are constant", [] { schedules::create("triangle", 1); });
  expect_error(Kind::argument, "learning rate -1", [] { schedules::create("step", -1); });
  expect_error(Kind::argument, "warm fraction 2", [] { schedules::one_cycle(1, {.warm_fraction = 2}); });
  expect_error(Kind::argument, "start factor 2", [] { schedules::warm_up(schedules::constant(1), 3, 2); });
  expect_error(Kind::argument, "warm-up over -3 steps", [] { schedules::warm_up(schedules::constant(1), -3); });
  expect_error(Kind::argument, "step -1", [] { schedules::constant(1)({-1, 1, 1}); });
  expect_error(Kind::argument, "0 steps an epoch", [] { schedules::constant(1)({0, 0, 1}); });

  const Tensor p = test::leaf(test::vector_of({1}));
  optimizers::FusedSGD optimizer({p}, {.lr = 9});
  EXPECT_DOUBLE_EQ(schedules::apply(schedules::constant(0.3), {0, 1, 1}, optimizer), 0.3);
  EXPECT_EQ(optimizer.groups()[0].number("lr"), 0.3);
}

}  // namespace
}  // namespace apex
