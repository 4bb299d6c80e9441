// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/copy.hpp"

#include <limits>

#include "apex/kernels/image.hpp"
#include "support/layouts.hpp"

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
  const Tensor patterns = empty({65536}, dtype), wide = test::make({65536}), back = test::make({65536}, dtype);
  H* pattern = patterns.data<H>();
  for (std::uint32_t i = 0; i < 65536; ++i) pattern[i].bits = static_cast<std::uint16_t>(i);
  const Tensor all = test::on_device(patterns);
  kernels::copy(test::context(), wide.view(), all.view());
  kernels::copy(test::context(), back.view(), wide.view());
  const Tensor wide_here = test::on_host(wide), back_here = test::on_host(back);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const float want = static_cast<float>(pattern[i]), got = wide_here.data<float>()[i];
    ASSERT_TRUE(std::isnan(want) ? std::isnan(got) : got == want) << i;
    if (!std::isnan(want)) {
      ASSERT_EQ(back_here.data<H>()[i].bits, i);
    }
  }
  const Tensor near = empty({3 * 32768}), rounded = test::make({3 * 32768}, dtype);
  for (std::uint32_t i = 0; i < 32768; ++i) {
    const float value = static_cast<float>(pattern[i]), next = static_cast<float>(pattern[std::min(i + 1, 0x7fffu)]);
    const float middle = std::isfinite(next) ? static_cast<float>((double{value} + double{next}) / 2) : value;
    near.data<float>()[3 * i] = middle;
    near.data<float>()[3 * i + 1] = std::nextafter(middle, 0.0f);
    near.data<float>()[3 * i + 2] = -std::nextafter(middle, INFINITY);
  }
  kernels::copy(test::context(), rounded.view(), test::on_device(near).view());
  const Tensor rounded_here = test::on_host(rounded);
  for (int i = 0; i < 3 * 32768; ++i) {
    const float value = near.data<float>()[i];
    if (!std::isnan(value)) {
      ASSERT_EQ(rounded_here.data<H>()[i].bits, H(value).bits) << value;
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
      const Tensor x = test::from_function(sizes, dtype, test::device(),
                                           [](std::int64_t i) { return static_cast<double>(i % 251); });
      const auto want = test::to_f64(x);
      const Tensor last = test::make(sizes, dtype, test::device(), MemoryFormat::channels_last),
                   back = test::make(sizes, dtype);
      kernels::copy(x.context(), last.view(), x.view());
      EXPECT_TRUE(test::equal(last, want)) << dtype << sizes;
      kernels::copy(x.context(), back.view(), last.view());
      EXPECT_TRUE(test::equal(back, want)) << dtype << sizes;
      const Tensor spread =
          test::spread_out(test::from_function(sizes, dtype, test::device(), [](std::int64_t) { return 0.0; }));
      kernels::copy(x.context(), spread.view(), test::spread_out(x).view());
      EXPECT_TRUE(test::equal(spread, want)) << dtype << sizes;
      const Tensor odd = test::misaligned(back);
      kernels::copy(x.context(), odd.view(), last.view());
      EXPECT_TRUE(test::equal(odd, want)) << dtype << sizes;
    }
  }
}

TEST(Copy, LargeTransposesAreExact) {
  const Tensor x = test::from_function({4, 37, 65, 50}, DType::f32, test::device(),
                                       [](std::int64_t i) { return static_cast<double>(i); });
  const Tensor y = test::make({4, 37, 65, 50}, DType::f32, test::device(), MemoryFormat::channels_last);
  kernels::copy(x.context(), y.view(), x.view());
  EXPECT_TRUE(test::equal(y, test::to_f64(x)));
  const Tensor z = test::fresh({50, 65, 37, 4}, DType::f64);
  kernels::copy(x.context(), z.view(), views::permute(x, {3, 2, 1, 0}).view());
  EXPECT_TRUE(test::equal(z, test::to_f64(views::permute(x, {3, 2, 1, 0}))));
}

TEST(Copy, Broadcasts) {
  const Tensor x = test::values<float>({3, 1}, {1, 2, 3}), y = test::fresh({2, 3, 2}, DType::f64);
  kernels::copy(x.context(), y.view(), x.view());
  EXPECT_TRUE(test::equal(y, {1, 1, 2, 2, 3, 3, 1, 1, 2, 2, 3, 3}));
}

TEST(Copy, RefusesWhatDoesNotFit) {
  const Tensor x = test::make({3}), y = test::make({4}), c = test::make({1});
  EXPECT_TRUE(
      throws(Kind::argument, "does not broadcast", [&] { kernels::copy(test::context(), y.view(), x.view()); }));
  EXPECT_TRUE(throws(Kind::argument, "broadcast and cannot be written",
                     [&] { kernels::copy(test::context(), views::expand(c, {3}).view(), x.view()); }));
  EXPECT_TRUE(throws(Kind::argument, "dst is not given", [&] { kernels::copy(test::context(), {}, x.view()); }));
  EXPECT_TRUE(throws(Kind::argument, "src is not given", [&] { kernels::copy(test::context(), x.view(), {}); }));
  const Context other{test::on_cuda() ? kCpu : Device{DeviceKind::cuda, 0}, nullptr};
  EXPECT_TRUE(
      throws(Kind::argument, concat("runs on ", other.device), [&] { kernels::copy(other, x.view(), x.view()); }));
  if constexpr (!has_cuda) {
    View there = x.view();
    there.device = other.device;
    EXPECT_TRUE(throws(Kind::unsupported, "no backend for cuda:0", [&] { kernels::copy(other, there, there); }));
  }
}

TEST(Copy, TransposesAndCastsAtOnce) {
  for (const auto from : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const auto to : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      const Dims sizes{3, 66, 9, 16};
      const Tensor x = test::from_function(sizes, from, test::device(),
                                           [](std::int64_t i) { return static_cast<double>(i % 255) - 100; });
      const Tensor last = test::make(sizes, to, test::device(), MemoryFormat::channels_last),
                   back = test::make(sizes, from);
      kernels::copy(test::context(), last.view(), x.view());
      EXPECT_TRUE(test::equal(last, test::to_f64(x))) << from << to;
      kernels::copy(test::context(), back.view(), last.view());
      EXPECT_TRUE(test::equal(back, test::to_f64(x))) << from << to;
    }
}

/// Sizes in whole packs, with tiles that end early; and the same at another address.
TEST(Copy, TransposesPacks) {
  for (const auto dtype : {DType::f32, DType::f16, DType::bf16})
    for (const Dims& sizes : {Dims{2, 72, 10, 20}, Dims{1, 64, 8, 8}, Dims{3, 16, 4, 34}, Dims{2, 136, 1, 56}}) {
      const Tensor x = test::from_function(sizes, dtype, test::device(),
                                           [](std::int64_t i) { return static_cast<double>(i % 251) - 100; });
      const Tensor last = test::make(sizes, dtype, test::device(), MemoryFormat::channels_last);
      for (const auto& in : {x, test::misaligned(x)}) {
        const Tensor back = test::fresh(sizes, dtype);
        kernels::copy(test::context(), test::poisoned(last).view(), in.view());
        EXPECT_TRUE(test::equal(last, test::to_f64(x))) << dtype << sizes;
        kernels::copy(test::context(), back.view(), last.view());
        EXPECT_TRUE(test::equal(back, test::to_f64(x))) << dtype << sizes;
      }
    }
}

TEST(Copy, RowsTheOtherWayRound) {
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::u8})
    for (const std::int64_t columns : {1, 7, 8, 16, 48, 2064})
      for (const bool rows_too : {false, true}) {
        const std::int64_t rows = 5;
        const Tensor x = test::from_function({rows, columns}, dtype, test::device(),
                                             [](std::int64_t i) { return static_cast<double>(i * 37 % 101); });
        std::vector<double> want;
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t c = 0; c < columns; ++c)
            want.push_back(static_cast<double>(((rows_too ? rows - 1 - r : r) * columns + columns - 1 - c) * 37 % 101));
        for (const Tensor& from : {x, test::misaligned(x)}) {
          const std::int64_t last = rows_too ? rows * columns - 1 : columns - 1;
          const Tensor turned = views::as_strided(from, {rows, columns}, {rows_too ? -columns : columns, -1},
                                                  from.storage_offset() + last);
          const Tensor y = test::fresh({rows, columns}, dtype);
          kernels::copy(test::context(), y.view(), turned.view());
          EXPECT_TRUE(test::equal(y, want)) << dtype << columns << rows_too;
        }
      }
}

TEST(Copy, PacksLeaveNoRestBehind) {
  for (const auto dtype : kAll)
    for (const std::int64_t n : {1, 3, 31, 1031, 8209}) {
      const Tensor x =
          test::from_function({n}, dtype, test::device(), [](std::int64_t i) { return static_cast<double>(i % 2); });
      for (const auto to : {DType::f64, DType::bf16, DType::i32, DType::u8}) {
        const Tensor block = test::from_function({n + 2}, to, test::device(), [](std::int64_t) { return 3.0; });
        kernels::copy(test::context(), views::narrow(block, 0, 0, n).view(), x.view());
        auto want = test::to_f64(x);
        want.insert(want.end(), {3, 3});
        EXPECT_TRUE(test::equal(block, want)) << dtype << to << n;
      }
    }
}

/// Every pair of types, each way that operands may lie; the values are exact in all types but boolean.
TEST(Copy, EveryTypeHoweverItLies) {
  for (const auto lie : test::kLies)
    for (const auto from : kAll)
      for (const auto to : kAll) {
        const Tensor x = test::laid(lie, from, [](std::int64_t i) { return static_cast<double>(i * 37 % 251); }),
                     y = test::result_of(lie, to);
        kernels::copy(test::context(), y.view(), x.view());
        std::vector<double> want;
        for (const double v : test::to_f64(x)) want.push_back(converted(v, to));
        EXPECT_TRUE(test::equal(y, want)) << from << " to " << to << test::name_of(lie);
      }
}

TEST(Transfer, BetweenHostAndDeviceInEveryLayout) {
  const Dims sizes{2, 5, 3, 4};
  for (const auto dtype : kAll) {
    const Tensor x = test::from_function(sizes, dtype, kCpu, [](std::int64_t i) { return static_cast<double>(i % 2); });
    const auto want = test::to_f64(x);
    const auto layouts = [&](Device where) {
      const Tensor wide = empty({2, 5, 3, 8}, dtype, where);
      return std::vector<Tensor>{empty(sizes, dtype, where), empty(sizes, dtype, where, MemoryFormat::channels_last),
                                 views::as_strided(wide, sizes, {120, 24, 8, 2}, 1)};
    };
    for (const auto& source : layouts(kCpu))
      for (const auto& there : layouts(test::device()))
        for (const auto& result : layouts(kCpu)) {
          kernels::copy({}, source.view(), x.view());
          kernels::transfer(test::context(), there.view(), source.view());
          EXPECT_TRUE(test::equal(there, want)) << dtype << source.strides() << there.strides();
          kernels::transfer(test::context(), result.view(), there.view());
#ifdef APEX_HAS_CUDA
          if (test::on_cuda()) cuda::synchronize(test::context());
#endif
          EXPECT_TRUE(test::equal(result, want)) << dtype << there.strides() << result.strides();
        }
    const Tensor host = empty(sizes, dtype), there = test::on_device(x);
    kernels::transfer({}, host.view(), there.view());  // a CPU context: done when it returns
    EXPECT_TRUE(test::equal(host, want)) << dtype;
  }
  const Tensor none = empty({0, 3}), nothing = test::make({0, 3});
  kernels::transfer(test::context(), nothing.view(), none.view());
}

TEST(Transfer, RefusesWhatDoesNotFit) {
  const Tensor x = test::make({3}), y = empty({4}), z = empty({3}, DType::f64);
  EXPECT_TRUE(
      throws(Kind::argument, "src has sizes [4]", [&] { kernels::transfer(test::context(), x.view(), y.view()); }));
  EXPECT_TRUE(throws(Kind::argument, "src is f64", [&] { kernels::transfer(test::context(), x.view(), z.view()); }));
  EXPECT_TRUE(throws(Kind::argument, "dst is not given", [&] { kernels::transfer(test::context(), {}, x.view()); }));
  EXPECT_TRUE(throws(Kind::argument, "src is not given", [&] { kernels::transfer(test::context(), x.view(), {}); }));
  const Context other{Device{DeviceKind::cuda, 7}, nullptr};
  EXPECT_TRUE(throws(Kind::argument, "runs on cuda:7", [&] { kernels::transfer(other, x.view(), x.view()); }));
}

TEST(Fill, EveryTypeAndStrides) {
  for (const auto dtype : kAll) {
    const Tensor t = test::from_function({5, 7}, dtype, test::device(), [](std::int64_t) { return 0.0; });
    kernels::fill(test::context(), views::transpose(views::narrow(t, 1, 2, 3), 0, 1).view(), 1.0);
    double sum = 0;
    for (const double v : test::to_f64(t)) sum += v;
    EXPECT_EQ(sum, 15) << dtype;
    kernels::fill(test::context(), views::narrow(t, 0, 0, 0).view(), 1.0);
  }
  const Tensor scalar = test::make({});
  kernels::fill(test::context(), scalar.view(), 2.5);
  EXPECT_EQ(scalar.item(), 2.5);
  const Tensor bytes = test::make({2}, DType::u8);
  kernels::fill(test::context(), bytes.view(), -4);
  EXPECT_TRUE(test::equal(bytes, {0, 0}));
}

TEST(ImageNormalize, MatchesTheFormulaInEveryLayout) {
  const std::vector<float> mean = {123.675f, 116.28f, 103.53f}, std = {58.395f, 57.12f, 57.375f};
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const auto from : {MemoryFormat::contiguous, MemoryFormat::channels_last})
      for (const auto to : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
        for (const auto& [height, width] : {std::pair{1, 1}, {5, 9}, {6, 8}, {33, 20}, {64, 51}}) {
          const Dims sizes{2, 3, height, width};
          const Tensor x = test::from_function(
              sizes, DType::u8, test::device(), [](std::int64_t i) { return static_cast<double>(i * 7 % 256); }, from);
          std::vector<double> want;
          const auto xs = test::to_f64(x);
          for (std::size_t i = 0; i < xs.size(); ++i) {
            const std::size_t c = i / static_cast<std::size_t>(height * width) % 3;
            want.push_back((xs[i] - static_cast<double>(mean[c])) / static_cast<double>(std[c]));
          }
          for (const auto& in : {x, test::misaligned(x)}) {
            const Tensor y = test::fresh(sizes, dtype, to);
            kernels::image_normalize(test::context(), y.view(), in.view(), mean, std);
            EXPECT_TRUE(test::close(y, want, test::forward_tolerance(dtype))) << dtype << sizes;
          }
        }
      }
  // A standard deviation whose reciprocal is not a number of f32.
  const Tensor zero = test::from_function(
                   {1, 3, 1, 8}, DType::u8, test::device(), [](std::int64_t) { return 0.0; },
                   MemoryFormat::channels_last),
               stays = test::fresh({1, 3, 1, 8}, DType::f16, MemoryFormat::channels_last);
  kernels::image_normalize(test::context(), stays.view(), zero.view(), std::vector<float>{0, 0, 0},
                           std::vector<float>{1e-40f, 1, 1});
  EXPECT_TRUE(test::equal(stays, std::vector<double>(24, 0.0)));
  std::vector<float> means, stds;
  std::vector<double> want;
  for (int c = 0; c < 70; ++c) {
    means.push_back(static_cast<float>(c));
    stds.push_back(static_cast<float>(1 + c % 4));
    for (int i = 0; i < 4; ++i) want.push_back((9.0 - c) / (1 + c % 4));
  }
  const Tensor many = test::from_function({1, 70, 2, 2}, DType::u8, test::device(), [](std::int64_t) { return 9.0; }),
               normal = test::fresh({1, 70, 2, 2}, DType::f64, MemoryFormat::channels_last);
  kernels::image_normalize(test::context(), normal.view(), many.view(), means, stds);
  EXPECT_TRUE(test::close(normal, want, test::forward_tolerance(DType::f64)));
  const Tensor x = test::make({1, 3, 2, 2}, DType::u8), y = test::make({1, 3, 2, 2});
  kernels::image_normalize(test::context(), views::narrow(y, 0, 0, 0).view(), views::narrow(x, 0, 0, 0).view(), mean,
                           std);
  EXPECT_TRUE(throws(Kind::argument, "2 means", [&] {
    kernels::image_normalize(test::context(), y.view(), x.view(), std::vector<float>{1, 2}, std);
  }));
  EXPECT_TRUE(throws(Kind::argument, "not positive", [&] {
    kernels::image_normalize(test::context(), y.view(), x.view(), mean, std::vector<float>{1, 0, 1});
  }));
  EXPECT_TRUE(throws(Kind::argument, "x is f32",
                     [&] { kernels::image_normalize(test::context(), y.view(), y.view(), mean, std); }));
  EXPECT_TRUE(throws(Kind::unsupported, "y is u8",
                     [&] { kernels::image_normalize(test::context(), x.view(), x.view(), mean, std); }));
}

}  // namespace
}  // namespace apex
