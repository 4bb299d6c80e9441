// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/train/meters.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <thread>

namespace apex::train {
namespace {

TEST(Meter, AverageIsWeighted) {
  Meter m;
  EXPECT_EQ(m.average(), 0);
  m.update(2, 1);
  m.update(5, 3);
  EXPECT_EQ(m.value(), 5);
  EXPECT_DOUBLE_EQ(m.average(), (2 + 15) / 4.0);
  m.reset();
  EXPECT_EQ(m.average(), 0);
}

TEST(CountTopK, CountsRowsWhoseLabelIsAmongTheLargest) {
  const Tensor logits = from_values<float>({3, 4}, {0.f, 3.f, 2.f, 1.f,  //
                                                    5.f, 5.f, 0.f, 0.f,  // equal: the lower class is ahead
                                                    1.f, 2.f, 3.f, 4.f});
  const Tensor labels = from_values<std::int64_t>({3}, {2, 1, 0});
  EXPECT_EQ(count_top_k(logits, labels, 1, 3), 0);
  EXPECT_EQ(count_top_k(logits, labels, 2, 3), 2);
  EXPECT_EQ(count_top_k(logits, labels, 2, 1), 1) << "rows beyond the valid ones do not count";
  EXPECT_EQ(count_top_k(logits, labels, 4, 3), 3);
  EXPECT_EQ(count_top_k(logits, labels, 9, 3), 3);
  EXPECT_EQ(count_top_k(logits, labels, 0, 3), 0);
}

TEST(CountTopK, NanIsNeverRight) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor logits = from_values<double>({2, 2}, {nan, nan, 1., nan});
  const Tensor labels = from_values<std::int64_t>({2}, {0, 0});
  EXPECT_EQ(count_top_k(logits, labels, 1, 2), 0);
}

TEST(CountTopK, StridedInputAndErrors) {
  const Tensor t = views::transpose(from_values<double>({2, 3}, {1., 0., 0., 0., 1., 1.}), 0, 1);  // [3, 2]
  EXPECT_EQ(count_top_k(t, from_values<std::int64_t>({3}, {0, 1, 1}), 1, 3), 3);
  EXPECT_THROW(count_top_k(t, from_values<std::int64_t>({2}, {0, 1}), 1, 2), Error);
  EXPECT_THROW(count_top_k(t, from_values<std::int64_t>({3}, {0, 1, 1}), 1, 4), Error);
}

TEST(PhaseClock, EveryMomentBelongsToOnePhase) {
  using namespace std::chrono_literals;
  double waited = 0;
  PhaseClock clock([&] { return waited; });
  const auto start = std::chrono::steady_clock::now();
  clock.enter(Phase::data_wait);
  std::this_thread::sleep_for(30ms);
  clock.enter(Phase::compute);
  std::this_thread::sleep_for(40ms);
  waited += 0.015;  // fifteen of the forty were spent blocked
  clock.enter(Phase::other);
  const auto split = clock.take();
  const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_NEAR(split.total(), wall, 0.002);
  EXPECT_GE(split[Phase::data_wait], 0.030);
  EXPECT_NEAR(split[Phase::communication], 0.015, 1e-9);
  EXPECT_GE(split[Phase::compute], 0.025 - 1e-9);
  EXPECT_EQ(clock.take()[Phase::data_wait], 0);
}

}  // namespace
}  // namespace apex::train
