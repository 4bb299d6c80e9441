// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <thread>

#include "apex/core/cpu.hpp"
#include "apex/core/philox.hpp"
#include "apex/core/simd.hpp"
#include "apex/core/size_arithmetic.hpp"
#include "support/tensors.hpp"

namespace apex {
namespace {

using test::throws;

// ---- 16-bit types -------------------------------------------------------------------------------------------------

/// The value of a 16-bit pattern, from the definition of the format.
double value_of(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1), bias = (1 << (exponent_bits - 1)) - 1;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

template <class H>
void check_all_patterns(int exponent_bits, int mantissa_bits) {
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    H h;
    h.bits = static_cast<std::uint16_t>(i);
    const double want = value_of(h.bits, exponent_bits, mantissa_bits), got = static_cast<float>(h);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << i;
      ASSERT_TRUE(std::isnan(static_cast<float>(H(static_cast<float>(h))))) << i;
    } else {
      ASSERT_EQ(got, want) << i;
      ASSERT_EQ(H(static_cast<float>(h)).bits, h.bits) << i;
    }
  }
}

/// Rounding between every two neighbours: below, at and above half way, in f32.
template <class H>
void check_all_roundings() {
  for (std::uint32_t i = 0; i + 1 < 0x8000; ++i) {
    H low, high;
    low.bits = static_cast<std::uint16_t>(i);
    high.bits = static_cast<std::uint16_t>(i + 1);
    const float a = static_cast<float>(low), b = static_cast<float>(high);
    if (!std::isfinite(a) || !std::isfinite(b)) continue;
    const auto middle = static_cast<float>((static_cast<double>(a) + static_cast<double>(b)) / 2);  // exact: spare bits
    const H even = i % 2 == 0 ? low : high;
    ASSERT_EQ(H(middle).bits, even.bits) << i;
    ASSERT_EQ(H(std::nextafter(middle, 0.0f)).bits, low.bits) << i;
    ASSERT_EQ(H(std::nextafter(middle, INFINITY)).bits, high.bits) << i;
    ASSERT_EQ(H(-middle).bits, even.bits | 0x8000) << i;
  }
}

TEST(Half, EveryPatternOfFloat16) { check_all_patterns<float16>(5, 10); }
TEST(Half, EveryPatternOfBfloat16) { check_all_patterns<bfloat16>(8, 7); }
TEST(Half, RoundsToNearestEvenEverywhere) {
  check_all_roundings<float16>();
  check_all_roundings<bfloat16>();
}
TEST(Half, OverflowAndNaN) {
  EXPECT_EQ(float16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(float16(65519.996f).bits, 0x7bff);
  EXPECT_EQ(float16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(float16(-1e9f).bits, 0xfc00);
  EXPECT_EQ(bfloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(float16(0x1p-25f).bits, 0);  // half of the smallest subnormal: to even
  EXPECT_EQ(float16(std::nextafter(0x1p-25f, 1.0f)).bits, 1);
  EXPECT_TRUE(std::isnan(static_cast<float>(bfloat16(std::numeric_limits<float>::quiet_NaN()))));
  const std::uint32_t signalling = 0x7f800001u;  // must not become infinity when the low bits go
  EXPECT_TRUE(std::isnan(static_cast<float>(bfloat16(std::bit_cast<float>(signalling)))));
  EXPECT_TRUE(std::isnan(static_cast<float>(float16(std::bit_cast<float>(signalling)))));
}

// ---- dtypes, devices, errors --------------------------------------------------------------------------------------

TEST(DType, NamesRoundTrip) {
  for (const auto d :
       {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8, DType::boolean})
    EXPECT_EQ(parse_dtype(name_of(d)), d);
  EXPECT_EQ(parse_dtype("bfloat16"), DType::bf16);
  EXPECT_EQ(parse_dtype("float"), DType::f32);
  EXPECT_FALSE(parse_dtype("f8").has_value());
  EXPECT_TRUE(is_floating(DType::bf16));
  EXPECT_FALSE(is_floating(DType::i64));
}

TEST(DType, VisitsGiveTheType) {
  EXPECT_EQ(visit_any(DType::i32, "op", []<class T>() { return sizeof(T); }), 4u);
  EXPECT_TRUE(throws(Kind::unsupported, "myop", [] { visit_floating(DType::i64, "myop", []<class T>() {}); }));
  EXPECT_TRUE(throws(Kind::unsupported, "f16", [] { visit_wide_floating(DType::f16, "myop", []<class T>() {}); }));
}

TEST(Device, Parses) {
  EXPECT_EQ(parse_device("cpu"), kCpu);
  EXPECT_EQ(parse_device("cuda"), (Device{DeviceKind::cuda, 0}));
  EXPECT_EQ(parse_device("cuda:3"), (Device{DeviceKind::cuda, 3}));
  for (const char* bad : {"", "gpu", "cuda:", "cuda:-1", "cuda:1x", "CPU"}) EXPECT_FALSE(parse_device(bad)) << bad;
  EXPECT_EQ(to_string(Device{DeviceKind::cuda, 2}), "cuda:2");
}

TEST(Cpu, HasWhatWasCompiledFor) { EXPECT_EQ(missing_cpu_feature(), nullptr); }

TEST(Error, KindsHaveTheirExitCodes) {
  EXPECT_EQ(exit_code_of(Kind::data), exit_code::kData);
  EXPECT_EQ(exit_code_of(Kind::numerical), exit_code::kNumerical);
  EXPECT_EQ(exit_code_of(Kind::damaged), exit_code::kDamaged);
  EXPECT_EQ(exit_code_of(Kind::exhausted), exit_code::kMemory);
  EXPECT_EQ(exit_code_of(Kind::communication), exit_code::kCommunication);
  EXPECT_EQ(exit_code_of(Kind::timeout), exit_code::kCommunication);
  try {
    fail(Kind::data, "broken");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), Kind::data);
    EXPECT_EQ(e.domain(), Domain::apex);
    EXPECT_NE(std::string(e.file()).find("core_test.cpp"), std::string::npos);
    EXPECT_GT(e.line(), 0u);
  }
}

// ---- shapes and views ---------------------------------------------------------------------------------------------

TEST(Shape, StridesOfBothFormats) {
  EXPECT_EQ(strides_for({2, 3, 4, 5}), (Dims{60, 20, 5, 1}));
  EXPECT_EQ(strides_for({2, 3, 4, 5}, MemoryFormat::channels_last), (Dims{60, 1, 15, 3}));
  EXPECT_EQ(strides_for({2, 3, 4, 5, 6}, MemoryFormat::channels_last), (Dims{360, 1, 90, 18, 3}));
  EXPECT_EQ(strides_for({2, 3}, MemoryFormat::channels_last), (Dims{3, 1}));
  EXPECT_TRUE(is_dense({2, 1, 4, 5}, {20, 20, 5, 1}, MemoryFormat::channels_last));  // one channel: both
  EXPECT_FALSE(is_dense({2, 3, 4, 5}, {60, 20, 5, 1}, MemoryFormat::channels_last));
  EXPECT_TRUE(is_non_overlapping_and_dense({2, 3, 4}, {1, 8, 2}));
  EXPECT_FALSE(is_non_overlapping_and_dense({2, 3}, {0, 1}));
  EXPECT_FALSE(is_non_overlapping_and_dense({2, 3}, {4, 1}));
}

TEST(Shape, Broadcasting) {
  EXPECT_EQ(broadcast_shapes({3, 1}, {2, 1, 4}), (Dims{2, 3, 4}));
  EXPECT_EQ(broadcast_shapes({}, {5}), (Dims{5}));
  EXPECT_EQ(broadcast_shapes({0}, {1}), (Dims{0}));
  EXPECT_TRUE(throws(Kind::argument, "[2, 3] and [2]", [] { broadcast_shapes({2, 3}, {2}); }));
  EXPECT_EQ(broadcast_strides({3, 1}, {1, 1}, {2, 3, 4}), (Dims{0, 1, 0}));
  EXPECT_TRUE(throws(Kind::argument, "does not broadcast", [] { broadcast_strides({3}, {1}, {4}); }));
}

Tensor zeros_of_one() { return from_values<float>({1}, {0}); }

TEST(Shape, CountsAndLimits) {
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({3, 0, std::int64_t{1} << 40, std::int64_t{1} << 40}), 0);
  EXPECT_TRUE(throws(Kind::argument, "negative", [] { element_count({2, -1}); }));
  EXPECT_TRUE(throws(Kind::argument, "negative", [] { element_count({0, -1}); }));
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(size_of_sum("op", 3, 4, -5), 7);
  EXPECT_EQ(size_of_sum("op", 1, kMost - 1, 1), kMost);
  EXPECT_TRUE(throws(Kind::argument, "op: a size of 1 * 9223372036854775807 + 1 is more",
                     [] { size_of_sum("op", 1, kMost, 1); }));
  EXPECT_TRUE(throws(Kind::argument, "op: a size of 4 * 9223372036854775807 - 9223372036854775808 is more",
                     [] { size_of_sum("op", 4, kMost, -kMost - 1); }));
  const Tensor one = zeros_of_one();
  EXPECT_TRUE(throws(Kind::argument, "from_storage", [&] { views::as_strided(one, {3}, {kMost}, 0); }));
  EXPECT_TRUE(throws(Kind::argument, "int64", [] { element_count({std::int64_t{1} << 40, std::int64_t{1} << 40}); }));
  EXPECT_TRUE(throws(Kind::argument, "at most 8", [] { Dims{1, 1, 1, 1, 1, 1, 1, 1, 1}; }));
}

Tensor counting(const Dims& sizes, MemoryFormat format = MemoryFormat::contiguous) {
  return test::from_function(
      sizes, DType::i64, kCpu, [](std::int64_t i) { return static_cast<double>(i); }, format);
}

TEST(Tensor, MakesAndReads) {
  const Tensor t = from_values<float>({2, 2}, {1, 2, 3, 4});
  EXPECT_EQ(test::to_f64(t), (std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(t.data<float>()[3], 4.0f);
  EXPECT_EQ(t.bytes(), 16u);
  EXPECT_TRUE(throws(Kind::argument, "read as", [&] { t.data<double>(); }));
  EXPECT_TRUE(throws(Kind::argument, "single element", [&] { t.item(); }));
  EXPECT_EQ(from_values<std::int32_t>({}, {7}).item(), 7);
  EXPECT_TRUE(throws(Kind::argument, "values for sizes", [] { from_values<float>({3}, {1, 2}); }));
  EXPECT_TRUE(throws(Kind::argument, "undefined", [] { Tensor{}.dtype(); }));
  EXPECT_FALSE(Tensor{}.view().defined());
  EXPECT_TRUE(throws(Kind::unsupported, "cuda", [] { empty({2}, DType::f32, Device{DeviceKind::cuda, 99}); }));
  EXPECT_TRUE(throws(Kind::exhausted, "memory", [] { empty({std::int64_t{1} << 61}); }));
  EXPECT_TRUE(throws(Kind::argument, "negative", [] { empty({-2}); }));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(empty({3}).raw_data()) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(empty({300000}).raw_data()) % 64, 0u);
}

TEST(Tensor, IdentitySurvivesSetData) {
  Tensor t = from_values<float>({2}, {1, 2});
  const Tensor alias = t;
  const void* id = t.id();
  const Tensor other = from_values<double>({3}, {4, 5, 6});
  t.set_data(other);
  EXPECT_EQ(alias.dtype(), DType::f64);
  EXPECT_EQ(alias.sizes(), (Dims{3}));
  EXPECT_EQ(t.id(), id);
  EXPECT_TRUE(t.is_same(alias));
  EXPECT_FALSE(t.is_same(other));
  EXPECT_EQ(t.storage(), other.storage());
  EXPECT_FALSE(t.detach().is_same(t));
  EXPECT_EQ(t.detach().raw_data(), t.raw_data());
}

TEST(Tensor, VersionIsSharedByViews) {
  const Tensor t = empty({4}), v = views::narrow(t, 0, 1, 2);
  const auto before = t.version();
  v.raise_version();
  EXPECT_EQ(t.version(), before + 1);
}

TEST(Tensor, MemoryFormats) {
  const Tensor t = empty({2, 3, 4, 5}, DType::f32, kCpu, MemoryFormat::channels_last);
  EXPECT_EQ(t.memory_format(), MemoryFormat::channels_last);
  EXPECT_FALSE(t.is_contiguous());
  EXPECT_EQ(empty_like(t).strides(), t.strides());
  EXPECT_EQ(empty_like(views::permute(empty({2, 3, 4}), {2, 0, 1})).strides(), (Dims{1, 12, 4}));
  EXPECT_EQ(empty_like(views::narrow(t, 3, 0, 2)).strides(), strides_for({2, 3, 4, 2}));
  EXPECT_EQ(empty_like(t, DType::u8).dtype(), DType::u8);
  EXPECT_EQ(empty({2, 1, 4, 5}, DType::f32, kCpu, MemoryFormat::channels_last).memory_format(),
            MemoryFormat::channels_last);
  EXPECT_EQ(empty({2, 1, 4, 5}).memory_format(), MemoryFormat::contiguous);
}

TEST(Views, SelectAndRearrange) {
  const Tensor t = counting({2, 3, 4});
  EXPECT_EQ(test::to_f64(views::select(t, 1, 2)), (std::vector<double>{8, 9, 10, 11, 20, 21, 22, 23}));
  EXPECT_EQ(test::to_f64(views::narrow(views::select(t, 0, 1), -1, 1, 2)),
            (std::vector<double>{13, 14, 17, 18, 21, 22}));
  EXPECT_EQ(test::to_f64(views::transpose(views::select(t, 0, 0), 0, 1)),
            (std::vector<double>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  EXPECT_EQ(views::permute(t, {2, 0, 1}).sizes(), (Dims{4, 2, 3}));
  EXPECT_EQ(test::to_f64(views::expand(from_values<float>({2, 1}, {1, 2}), {2, 2, 3})),
            (std::vector<double>{1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2}));
  EXPECT_EQ(views::unsqueeze(t, 1).sizes(), (Dims{2, 1, 3, 4}));
  EXPECT_EQ(views::unsqueeze(t, -1).sizes(), (Dims{2, 3, 4, 1}));
  EXPECT_EQ(views::squeeze(views::unsqueeze(t, 3), 3).strides(), t.strides());
  EXPECT_TRUE(throws(Kind::argument, "not 1", [&] { views::squeeze(t, 0); }));
  EXPECT_TRUE(throws(Kind::argument, "narrow", [&] { views::narrow(t, 0, 1, 2); }));
  EXPECT_TRUE(throws(Kind::argument, "select", [&] { views::select(t, 2, 4); }));
  EXPECT_TRUE(throws(Kind::argument, "twice", [&] { views::permute(t, {0, 0, 1}); }));
  EXPECT_TRUE(throws(Kind::argument, "dimension 3", [&] { views::select(t, 3, 0); }));
  EXPECT_TRUE(throws(Kind::argument, "outside", [&] { views::as_strided(t, {25}, {1}, 0); }));
  EXPECT_TRUE(throws(Kind::argument, "outside", [&] { views::as_strided(t, {2}, {1}, -1); }));
}

/// Whenever reshape gives a view it must read the same sequence; whenever it refuses, no strides can.
TEST(Views, ReshapeKeepsTheSequence) {
  const Tensor base = counting({2, 3, 4, 5});
  const std::vector<Tensor> sources = {base,
                                       views::permute(base, {1, 0, 2, 3}),
                                       views::permute(base, {0, 2, 3, 1}),
                                       views::narrow(base, 3, 1, 2),
                                       views::narrow(base, 0, 1, 1),
                                       counting({2, 3, 4, 5}, MemoryFormat::channels_last),
                                       views::expand(counting({2, 1, 4, 1}), {2, 3, 4, 1}),
                                       counting({1}),
                                       counting({0, 3})};
  int made = 0, refused = 0;
  for (const auto& t : sources) {
    const std::int64_t n = t.numel();
    std::vector<Dims> targets = {{n}, {1, n}, {n, 1}, {-1}};
    for (std::int64_t a = 1; a <= std::max<std::int64_t>(n, 1); ++a)
      for (std::int64_t b = 1; n > 0 && a * b <= n; ++b)
        if (n % (a * b) == 0) targets.push_back({a, b, n / a / b});
    for (const auto& target : targets) {
      if (!views::can_reshape(t, target)) {
        ++refused;
        EXPECT_TRUE(throws(Kind::argument, "copy", [&] { views::reshape(t, target); }));
        continue;
      }
      ++made;
      ASSERT_EQ(test::to_f64(views::reshape(t, target)), test::to_f64(t)) << t.strides() << " to " << target;
    }
    EXPECT_TRUE(views::can_reshape(t, t.sizes()));
  }
  EXPECT_GT(made, 100);
  EXPECT_GT(refused, 50);
  // A split or merge inside each block of dimensions that advance as one needs no copy.
  EXPECT_TRUE(views::can_reshape(views::permute(base, {0, 2, 3, 1}), {2, 20, 3}));
  EXPECT_FALSE(views::can_reshape(views::permute(base, {0, 2, 3, 1}), {2, 60}));
  EXPECT_TRUE(throws(Kind::argument, "fit", [&] { views::reshape(base, {7, -1}); }));
  EXPECT_TRUE(throws(Kind::argument, "more than one", [&] { views::reshape(base, {-1, -1}); }));
}

// ---- host memory --------------------------------------------------------------------------------------------------

TEST(HostPool, HandsTheSameBlockOutAgain) {
  host_pool::trim();
  const std::size_t bytes = std::size_t{3} << 20;
  const auto before = host_pool::stats();
  void* first = host_pool::allocate(bytes);
  std::memset(first, 1, bytes);
  EXPECT_GE(host_pool::stats().live, before.live + bytes);
  host_pool::deallocate(first, bytes);
  EXPECT_EQ(host_pool::stats().live, before.live);
  EXPECT_GE(host_pool::stats().cached, bytes);
  EXPECT_EQ(host_pool::allocate(bytes), first);
  host_pool::deallocate(first, bytes);
  host_pool::trim();
  EXPECT_EQ(host_pool::stats().cached, 0u);
}

TEST(HostPool, HoldsLittleMoreThanItsPeak) {
  host_pool::trim();
  std::size_t held = 0;
  for (int i = 1; i <= 200; ++i) {  // ever new sizes: nothing fits again
    const std::size_t bytes = (std::size_t{1} << 20) + static_cast<std::size_t>(i) * 65536;
    host_pool::deallocate(host_pool::allocate(bytes), bytes);
    const auto s = host_pool::stats();
    held = std::max(held, s.live + s.cached);
  }
  EXPECT_LE(held, host_pool::stats().peak_live + (std::size_t{34} << 20));
  host_pool::trim();
}

TEST(HostPool, ServesThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        const std::size_t bytes = 70000 + static_cast<std::size_t>(i % 7) * 40000;
        auto* p = static_cast<unsigned char*>(host_pool::allocate(bytes));
        std::memset(p, t, bytes);
        for (std::size_t k = 0; k < bytes; k += 4096) ASSERT_EQ(p[k], t);
        host_pool::deallocate(p, bytes);
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_TRUE(throws(Kind::exhausted, "wanted", [] { host_pool::allocate(~std::size_t{0} / 2); }));
  EXPECT_EQ(host_pool::allocate(0), nullptr);
}

TEST(Storage, AdoptsAndLetsGoOnce) {
  int released = 0;
  double data[4] = {1, 2, 3, 4};
  {
    const Tensor t = Tensor::from_storage(Storage::adopt(data, sizeof data, kCpu,
                                                         [&](void* p) {
                                                           EXPECT_EQ(p, data);
                                                           ++released;
                                                         }),
                                          DType::f64, {2, 2}, {2, 1});
    const Tensor view = views::select(t, 0, 1);
    EXPECT_EQ(test::to_f64(view), (std::vector<double>{3, 4}));
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
}

/// Threads with streams of their own share a tensor: all of them note that they use it.
TEST(Storage, UsesAreNotedFromAnyThread) {
  const auto storage = Storage::allocate(64, kCpu);
  std::vector<char> streams(4000);  // addresses that stand for streams; a CPU storage does nothing with them
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::size_t i = t * 500; i < t * 500 + 2000; ++i) storage->add_use({kCpu, &streams[i]});
    });
  for (auto& thread : threads) thread.join();
}

TEST(Context, GuardsNestPerThread) {
  int marker = 0;
  const Context outer{kCpu, &marker}, inner{kCpu, nullptr};
  {
    const StreamGuard a(outer);
    EXPECT_EQ(Context::current(kCpu).stream, &marker);
    {
      const StreamGuard b(inner);
      EXPECT_EQ(Context::current(kCpu).stream, nullptr);
    }
    EXPECT_EQ(Context::current(kCpu).stream, &marker);
    std::thread([] { EXPECT_EQ(Context::current(kCpu).stream, nullptr); }).join();
  }
  EXPECT_EQ(Context::current(kCpu).stream, nullptr);
  const Workspace w = outer.workspace(1000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(w.data()) % 64, 0u);
  EXPECT_EQ(w.bytes(), 1000u);
}

// ---- Philox and sums ----------------------------------------------------------------------------------------------

void expect_words(Philox4x32::Counter got, std::initializer_list<std::uint32_t> want) {
  int i = 0;
  for (const auto w : want) EXPECT_EQ(got.v[i++], w);
}

TEST(Philox, KnownAnswers_ATT_7_11) {
  expect_words(Philox4x32::generate({{0, 0, 0, 0}}, {{0, 0}}), {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  expect_words(Philox4x32::generate({{~0u, ~0u, ~0u, ~0u}}, {{~0u, ~0u}}),
               {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect_words(Philox4x32::generate({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, {{0xa4093822, 0x299f31d0}}),
               {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  EXPECT_EQ(Philox4x32::uniform(0), 0.0f);
  EXPECT_EQ(Philox4x32::uniform(~0u), 1.0f - 0x1p-24f);
}

TEST(Simd, SumsInItsFixedTree) {
  for (const std::int64_t n : {0, 1, 15, 16, 17, 100}) {
    float lane[16] = {};
    for (std::int64_t i = 0; i < n; ++i) lane[i % 16] += 1.0f / static_cast<float>(i + 3);
    for (int width = 8; width > 0; width /= 2)
      for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
    EXPECT_EQ(simd::sum<float>(n, [](std::int64_t i) { return 1.0f / static_cast<float>(i + 3); }), lane[0]) << n;
  }
  const auto value = [](std::int64_t i) { return i == 37 ? std::nanf("") : static_cast<float>(i); };
  EXPECT_TRUE(std::isnan(simd::max<float>(100, -INFINITY, value)));
  EXPECT_EQ(simd::max<float>(37, -INFINITY, value), 36.0f);
  EXPECT_EQ(simd::max<float>(0, -5.0f, value), -5.0f);
}

TEST(Simd, SplitCoversEverythingOnce) {
  for (const std::int64_t n : {0, 1, 7, 64})
    for (const int parts : {1, 2, 3, 8}) {
      std::int64_t next = 0;
      for (int p = 0; p < parts; ++p) {
        const auto r = simd::split(n, p, parts);
        EXPECT_EQ(r.begin, next);
        EXPECT_LE(r.end - r.begin, n / parts + 1);
        next = r.end;
      }
      EXPECT_EQ(next, n);
    }
}

}  // namespace
}  // namespace apex
