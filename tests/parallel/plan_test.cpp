// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <vector>

#include "apex/parallel/bucket_plan.hpp"
#include "apex/parallel/flatten.hpp"
#include "support/tensors.hpp"

namespace apex::parallel {
namespace {

using Plan = std::vector<std::vector<std::int32_t>>;
using Code = std::vector<std::int32_t>;
using Values = std::vector<double>;

struct Arrival {
  std::int32_t index;
  DType dtype;
  std::int64_t numel;
  bool trigger = false;
};

BucketPlan plan_of(const BucketRule& rule, const std::vector<Arrival>& arrivals) {
  BucketRecorder recorder(rule);
  for (const auto& a : arrivals) recorder.add(a.index, a.dtype, a.numel, a.trigger);
  return recorder.finish();
}

// PAR-15.1
TEST(Flatten, ConcatenatesAndViews) {
  const std::vector<Tensor> list{from_values<double>({2, 2}, {1, 2, 3, 4}), from_values<double>({1}, {5})};
  const Tensor flat = flatten(list);
  EXPECT_EQ(test::to_f64(flat), (Values{1, 2, 3, 4, 5}));
  const auto views = unflatten(flat, list);
  views[0].data<double>()[1] = 9;
  EXPECT_EQ(flat.data<double>()[1], 9);
  EXPECT_EQ(list[0].data<double>()[1], 2) << "a fresh buffer";
  EXPECT_EQ(views[0].sizes(), (Dims{2, 2}));
  EXPECT_THROW((void)unflatten(flat, std::vector<Tensor>{list[0]}), Error);
  EXPECT_THROW((void)flatten(std::vector<Tensor>{list[0], from_values<float>({1}, {5})}), Error);
}

TEST(Flatten, OneTensorIsStillCopied) {
  const std::vector<Tensor> one{from_values<float>({3}, {1, 2, 3})};
  const Tensor flat = flatten(one);
  EXPECT_NE(flat.raw_data(), one[0].raw_data());
  EXPECT_EQ(test::to_f64(flat), (Values{1, 2, 3}));
}

TEST(Flatten, LogicalOrderWhateverTheStrides) {
  const Tensor image = empty({1, 2, 2, 2}, DType::f32, kCpu, MemoryFormat::channels_last);
  test::assign(image, [](std::int64_t i) { return double(i); });
  const Tensor matrix = views::transpose(from_values<float>({2, 3}, {1, 2, 3, 4, 5, 6}), 0, 1);
  const std::vector<Tensor> list{image, matrix};
  EXPECT_EQ(test::to_f64(flatten(list)), (Values{0, 1, 2, 3, 4, 5, 6, 7, 1, 4, 2, 5, 3, 6}));
}

TEST(Flatten, EmptyTensorsAndEveryDType) {
  for (const DType dtype :
       {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8, DType::boolean}) {
    const std::vector<Tensor> list{empty({0, 3}, dtype), empty({2}, dtype), empty({0}, dtype)};
    test::assign(list[1], [](std::int64_t) { return 1.0; });
    const Tensor flat = flatten(list);
    EXPECT_EQ(test::to_f64(flat), (Values{1, 1})) << name_of(dtype);
    const auto views = unflatten(flat, list);
    EXPECT_EQ(views[0].sizes(), (Dims{0, 3}));
    EXPECT_EQ(views[2].numel(), 0);
  }
}

TEST(Flatten, BadArguments) {
  const std::vector<Tensor> list{from_values<float>({2}, {1, 2})};
  EXPECT_THROW((void)flatten(std::vector<Tensor>{}), Error);
  EXPECT_THROW((void)flatten(std::vector<Tensor>{Tensor()}), Error);
  EXPECT_THROW((void)unflatten(Tensor(), list), Error);
  EXPECT_THROW((void)unflatten(from_values<float>({1, 2}, {1, 2}), list), Error) << "two dimensions";
  EXPECT_THROW((void)unflatten(views::as_strided(from_values<float>({4}, {1, 2, 3, 4}), {2}, {2}, 0), list), Error)
      << "gaps";
}

// PAR-15.2
TEST(BucketPlan, OneOpenBucketPerDType) {
  const auto plan =
      plan_of({.message_size = 8}, {{3, DType::f16, 3}, {2, DType::f32, 9}, {1, DType::f16, 2}, {0, DType::f32, 1}});
  EXPECT_EQ(plan.buckets, (Plan{{2}, {3, 1}, {0}}));
  EXPECT_EQ(plan.encode(), (Code{3, 1, 2, 1, 2, 3, 1, 0}));
  EXPECT_EQ(BucketPlan::decode(plan.encode()), plan);
}

// PAR-15.3, with A..D numbered 0..3
TEST(BucketPlan, Closing) {
  const auto arrivals = [](bool trigger) {
    return std::vector<Arrival>{
        {3, DType::f32, 3}, {2, DType::f32, 5}, {1, DType::f32, 6, trigger}, {0, DType::f32, 4}};
  };
  EXPECT_EQ(plan_of({.message_size = 8}, arrivals(false)).buckets, (Plan{{3, 2}, {1, 0}}));
  EXPECT_EQ(plan_of({.message_size = 9}, arrivals(false)).buckets, (Plan{{3, 2, 1}, {0}}));
  EXPECT_EQ(plan_of({.message_size = 1}, arrivals(false)).buckets, (Plan{{3}, {2}, {1}, {0}}));
  for (const std::int64_t size : {1, 8, 9, 1000})
    EXPECT_EQ(plan_of({.message_size = size, .triggers = true}, arrivals(true)).buckets, (Plan{{3, 2, 1}, {0}}))
        << size;
}

TEST(BucketPlan, ATriggerClosesItsDTypeOnly) {
  EXPECT_EQ(plan_of({.triggers = true},
                    {{0, DType::f16, 1}, {1, DType::f32, 1}, {2, DType::f32, 1, true}, {3, DType::f16, 1}})
                .buckets,
            (Plan{{1, 2}, {0, 3}}));
}

TEST(BucketPlan, CapsAreUpperBounds) {
  const std::vector<Arrival> arrivals{{0, DType::f32, 10}, {1, DType::f32, 10},  {2, DType::f32, 60},
                                      {3, DType::f32, 20}, {4, DType::f32, 300}, {5, DType::f32, 10}};
  // First bucket 80 bytes, then 400.
  EXPECT_EQ(plan_of({.cap_bytes = 400, .first_cap_bytes = 80}, arrivals).buckets, (Plan{{0, 1}, {2, 3}, {4}, {5}}));
  EXPECT_EQ(plan_of({.cap_bytes = 400}, arrivals).buckets, (Plan{{0, 1, 2, 3}, {4}, {5}}));
}

TEST(BucketPlan, LeftoversInDTypeOrder) {
  EXPECT_EQ(plan_of({}, {{0, DType::f64, 1}, {1, DType::f32, 1}, {2, DType::bf16, 1}, {3, DType::f16, 1}}).buckets,
            (Plan{{3}, {2}, {1}, {0}}));
  EXPECT_TRUE(plan_of({}, {}).empty());
  EXPECT_EQ(BucketPlan{}.encode(), Code{0});
  EXPECT_EQ(BucketPlan::decode(Code{0}), BucketPlan{});
}

TEST(BucketPlan, DamagedCodesAreRefused) {
  for (const Code& code : {Code{}, Code{-1}, Code{1}, Code{1, 2, 0}, Code{1, 1, 0, 0}, Code{1, 0}, Code{2, 1, 0},
                           Code{1, 1, -3}, Code{5, 1, 1}})
    EXPECT_THROW((void)BucketPlan::decode(code), Error);
}

}  // namespace
}  // namespace apex::parallel
