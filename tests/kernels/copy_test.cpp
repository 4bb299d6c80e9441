// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/copy.hpp"

#include <limits>

#include "apex/kernels/image.hpp"
#include "support/tensors.hpp"

namespace apex {
namespace {

using test::throws;

/// What a conversion must give, from its description alone.
double converted(double value, DType to) {
  const auto saturated = [&](double low, double high) {
    return std::isnan(value) ? 0.0 : std::clamp(std::trunc(value), low, high);
  };
  switch (to) {
    case DType::f64: return value;
    case DType::f32: return static_cast<float>(value);
    case DType::f16: return static_cast<float>(float16(static_cast<float>(value)));
    case DType::bf16: return static_cast<float>(bfloat16(static_cast<float>(value)));
    case DType::i64: return saturated(-0x1p63, 0x1p63);
    case DType::i32: return saturated(-0x1p31, 0x1p31 - 1);
    case DType::u8: return saturated(0, 255);
    case DType::boolean: return value != 0;
  }
  return 0;
}

constexpr DType kAll[] = {DType::f64, DType::f32, DType::f16, DType::bf16,
                          DType::i64, DType::i32, DType::u8,  DType::boolean};

TEST(Copy, EveryTypeToEveryType) {
  const std::vector<double> wide = {0,    1,     -1,  2.5,  -2.5, 0.49,  255,       256,      300.7,     1e5,
                                    -1e5, 65519, 3e9, -3e9, 1e30, -1e30, 1.0009765, INFINITY, -INFINITY, std::nan("")};
  for (const auto from : kAll)
    for (const auto to : kAll) {
      std::vector<double> values;
      for (const double v : wide) {
        if (from == DType::i64 || from == DType::i32)
          values.push_back(std::isfinite(v) ? std::clamp(std::trunc(v), -2e9, 2e9) : 5);
        else if (from == DType::u8 || from == DType::boolean)
          values.push_back(converted(v, from));
        else
          values.push_back(v);
      }
      const auto n = static_cast<std::int64_t>(values.size());
      const Tensor x = test::from_list({n}, from, values), y = test::fresh({n}, to);
      kernels::copy(x.context(), y.view(), x.view());
      std::vector<double> want;
      const bool wraps_between_integers = !is_floating(from) && (to == DType::i32 || to == DType::u8);
      for (const double v : test::to_f64(x))
        want.push_back(wraps_between_integers && to == DType::u8
                           ? static_cast<std::uint8_t>(static_cast<std::int64_t>(v))
                           : converted(v, to));
      EXPECT_TRUE(test::equal(y, want)) << from << " to " << to;
    }
}

/// Whole tensors take the machine's conversion instructions: they must agree with core's for every 16-bit pattern, and
/// for the values on both sides of every rounding.
template <class H>
void check_sixteen_bit_rows(DType dtype) {
  const Tensor all = empty({65536}, dtype), wide = empty({65536}), back = empty({65536}, dtype);
  H* patterns = all.data<H>();
  for (std::uint32_t i = 0; i < 65536; ++i) patterns[i].bits = static_cast<std::uint16_t>(i);
  kernels::copy({}, wide.view(), all.view());
  kernels::copy({}, back.view(), wide.view());
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const float want = static_cast<float>(patterns[i]), got = wide.data<float>()[i];
    ASSERT_TRUE(std::isnan(want) ? std::isnan(got) : got == want) << i;
    if (!std::isnan(want)) {
      ASSERT_EQ(back.data<H>()[i].bits, i);
    }
  }
  const Tensor near = empty({3 * 32768}), rounded = empty({3 * 32768}, dtype);
  for (std::uint32_t i = 0; i < 32768; ++i) {
    const float value = static_cast<float>(patterns[i]), next = static_cast<float>(patterns[std::min(i + 1, 0x7fffu)]);
    const float middle = std::isfinite(next) ? static_cast<float>((double{value} + double{next}) / 2) : value;
    near.data<float>()[3 * i] = middle;
    near.data<float>()[3 * i + 1] = std::nextafter(middle, 0.0f);
    near.data<float>()[3 * i + 2] = -std::nextafter(middle, INFINITY);
  }
  kernels::copy({}, rounded.view(), near.view());
  for (int i = 0; i < 3 * 32768; ++i) {
    const float value = near.data<float>()[i];
    if (!std::isnan(value)) {
      ASSERT_EQ(rounded.data<H>()[i].bits, H(value).bits) << value;
    }
  }
}

TEST(Copy, SixteenBitRowsConvertLikeCore) {
  check_sixteen_bit_rows<float16>(DType::f16);
  check_sixteen_bit_rows<bfloat16>(DType::bf16);
}

TEST(Copy, AnyStridesToAnyStrides) {
  for (const auto dtype : {DType::f32, DType::f64, DType::f16, DType::u8, DType::i64}) {
    for (const Dims& sizes :
         {Dims{2, 3, 5, 7}, Dims{1, 64, 33, 2}, Dims{3, 1, 1, 4}, Dims{2, 40, 70, 1}, Dims{0, 3, 2, 2}}) {
      const Tensor x =
          test::from_function(sizes, dtype, test::device(), [](std::int64_t i) { return static_cast<double>(i % 251); });
      const auto want = test::to_f64(x);
      const Tensor last = empty(sizes, dtype, test::device(), MemoryFormat::channels_last), back = empty(sizes, dtype);
      kernels::copy(x.context(), last.view(), x.view());
      EXPECT_TRUE(test::equal(last, want)) << dtype << sizes;
      kernels::copy(x.context(), back.view(), last.view());
      EXPECT_TRUE(test::equal(back, want)) << dtype << sizes;
      const Tensor spread = test::spread_out(test::from_function(sizes, dtype, test::device(), [](std::int64_t) { return 0.0; }));
      kernels::copy(x.context(), spread.view(), test::spread_out(x).view());
      EXPECT_TRUE(test::equal(spread, want)) << dtype << sizes;
      const Tensor odd = test::misaligned(back);
      kernels::copy(x.context(), odd.view(), last.view());
      EXPECT_TRUE(test::equal(odd, want)) << dtype << sizes;
    }
  }
}

TEST(Copy, LargeTransposesAreExact) {
  const Tensor x =
      test::from_function({4, 37, 65, 50}, DType::f32, test::device(), [](std::int64_t i) { return static_cast<double>(i); });
  const Tensor y = empty({4, 37, 65, 50}, DType::f32, test::device(), MemoryFormat::channels_last);
  kernels::copy(x.context(), y.view(), x.view());
  EXPECT_TRUE(test::equal(y, test::to_f64(x)));
  const Tensor z = test::fresh({50, 65, 37, 4}, DType::f64);
  kernels::copy(x.context(), z.view(), views::permute(x, {3, 2, 1, 0}).view());
  EXPECT_TRUE(test::equal(z, test::to_f64(views::permute(x, {3, 2, 1, 0}))));
}

TEST(Copy, Broadcasts) {
  const Tensor x = from_values<float>({3, 1}, {1, 2, 3}), y = test::fresh({2, 3, 2}, DType::f64);
  kernels::copy(x.context(), y.view(), x.view());
  EXPECT_TRUE(test::equal(y, {1, 1, 2, 2, 3, 3, 1, 1, 2, 2, 3, 3}));
}

TEST(Copy, RefusesWhatDoesNotFit) {
  const Tensor x = empty({3}), y = empty({4}), c = empty({1});
  EXPECT_TRUE(throws(Kind::argument, "does not broadcast", [&] { kernels::copy({}, y.view(), x.view()); }));
  EXPECT_TRUE(throws(Kind::argument, "broadcast and cannot be written",
                     [&] { kernels::copy({}, views::expand(c, {3}).view(), x.view()); }));
  EXPECT_TRUE(throws(Kind::argument, "dst is not given", [&] { kernels::copy({}, {}, x.view()); }));
  EXPECT_TRUE(throws(Kind::argument, "src is not given", [&] { kernels::copy({}, x.view(), {}); }));
  const Context gpu{Device{DeviceKind::cuda, 0}, nullptr};
  EXPECT_TRUE(throws(Kind::argument, "runs on cuda:0", [&] { kernels::copy(gpu, x.view(), x.view()); }));
  View there = x.view();
  there.device = gpu.device;
  EXPECT_TRUE(throws(Kind::unsupported, "no backend for cuda:0", [&] { kernels::copy(gpu, there, there); }));
}

TEST(Fill, EveryTypeAndStrides) {
  for (const auto dtype : kAll) {
    const Tensor t = test::from_function({5, 7}, dtype, test::device(), [](std::int64_t) { return 0.0; });
    kernels::fill({}, views::transpose(views::narrow(t, 1, 2, 3), 0, 1).view(), 1.0);
    double sum = 0;
    for (const double v : test::to_f64(t)) sum += v;
    EXPECT_EQ(sum, 15) << dtype;
    kernels::fill({}, views::narrow(t, 0, 0, 0).view(), 1.0);
  }
  const Tensor scalar = empty({});
  kernels::fill({}, scalar.view(), 2.5);
  EXPECT_EQ(scalar.item(), 2.5);
  const Tensor bytes = empty({2}, DType::u8);
  kernels::fill({}, bytes.view(), -4);
  EXPECT_TRUE(test::equal(bytes, {0, 0}));
}

TEST(ImageNormalize, MatchesTheFormulaInEveryLayout) {
  const std::vector<float> mean = {123.675f, 116.28f, 103.53f}, std = {58.395f, 57.12f, 57.375f};
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const auto from : {MemoryFormat::contiguous, MemoryFormat::channels_last})
      for (const auto to : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
        const Dims sizes{2, 3, 5, 9};
        const Tensor x = test::from_function(
            sizes, DType::u8, test::device(), [](std::int64_t i) { return static_cast<double>(i * 7 % 256); }, from);
        const Tensor y = test::fresh(sizes, dtype, to);
        kernels::image_normalize({}, y.view(), x.view(), mean, std);
        std::vector<double> want;
        const auto xs = test::to_f64(x);
        for (std::size_t i = 0; i < xs.size(); ++i) {
          const std::size_t c = i / 45 % 3;
          want.push_back((xs[i] - static_cast<double>(mean[c])) / static_cast<double>(std[c]));
        }
        EXPECT_TRUE(test::close(y, want, test::forward_tolerance(dtype))) << dtype;
      }
  const Tensor x = empty({1, 3, 2, 2}, DType::u8), y = empty({1, 3, 2, 2});
  kernels::image_normalize({}, views::narrow(y, 0, 0, 0).view(), views::narrow(x, 0, 0, 0).view(), mean, std);
  EXPECT_TRUE(throws(Kind::argument, "2 means", [&] {
    kernels::image_normalize({}, y.view(), x.view(), std::vector<float>{1, 2}, std);
  }));
  EXPECT_TRUE(throws(Kind::argument, "not positive", [&] {
    kernels::image_normalize({}, y.view(), x.view(), mean, std::vector<float>{1, 0, 1});
  }));
  EXPECT_TRUE(throws(Kind::argument, "x is f32", [&] { kernels::image_normalize({}, y.view(), y.view(), mean, std); }));
  EXPECT_TRUE(
      throws(Kind::unsupported, "y is u8", [&] { kernels::image_normalize({}, x.view(), x.view(), mean, std); }));
}

}  // namespace
}  // namespace apex
