
// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/pool.hpp"

#include "support/on_device.hpp"

namespace apex {
namespace {

using kernels::Pool2dOptions;
using test::make;
using test::throws;
using test::values;

struct Case {
  const char* name;
  Dims x;
  Pool2dOptions options;
};

const Case kCases[] = {
    {"resnet_stem", {2, 16, 14, 12}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}},
    {"plain", {2, 3, 8, 6}, {}},
    {"odd", {1, 5, 9, 7}, {.kernel = {3, 2}, .stride = {2, 3}, .padding = {1, 0}}},
    {"ceil", {2, 4, 8, 8}, {.kernel = {3, 3}, .stride = {2, 2}, .ceil_mode = true}},
    {"ceil_padded", {2, 9, 7, 6}, {.kernel = {3, 3}, .stride = {3, 3}, .padding = {1, 1}, .ceil_mode = true}},
    {"without_pad", {2, 4, 7, 7}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .count_include_pad = false}},
    {"wide", {2, 24, 11, 50}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}},
    {"wide_ceil", {1, 40, 10, 9}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {0, 1}, .ceil_mode = true}},
    {"whole_packs", {2, 24, 9, 8}, {.kernel = {2, 3}, .stride = {2, 1}, .padding = {0, 1}}},
    {"three_by_one", {1, 16, 6, 7}, {.kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}}},
    {"gaps", {1, 2, 10, 11}, {.kernel = {2, 1}, .stride = {4, 3}}},
    {"overlapping", {2, 33, 6, 6}, {.kernel = {5, 5}, .stride = {1, 1}, .padding = {2, 2}}},
};

std::size_t index(const Dims& s, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  return static_cast<std::size_t>(((n * s[1] + c) * s[2] + h) * s[3] + w);
}

template <class F>
void for_each_output(const Dims& y, F&& f) {
  for (std::int64_t n = 0; n < y[0]; ++n)
    for (std::int64_t c = 0; c < y[1]; ++c)
      for (std::int64_t i = 0; i < y[2]; ++i)
        for (std::int64_t j = 0; j < y[3]; ++j) f(n, c, i, j);
}

class Pool2d : public ::testing::TestWithParam<Case> {};

TEST_P(Pool2d, MatchesTheDefinition) {
  const auto& [name, xs, o] = GetParam();
  const Dims ys = kernels::pool2d_output_sizes(xs, o);
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      SCOPED_TRACE(concat(dtype, format == MemoryFormat::channels_last));
      // Few distinct values, so that equals occur in a window.
      const Tensor x = test::from_function(
          xs, dtype, test::device(),
          [](std::int64_t i) { return std::floor(8 * test::unit(1, static_cast<std::uint64_t>(i))); }, format);
      const Tensor dy = test::uniform(ys, dtype, test::device(), 2, -1, 1, format);
      const auto v = test::to_f64(x), g = test::to_f64(dy);
      std::vector<double> high, where, average, d_max(v.size(), 0.0), d_average(v.size(), 0.0);
      for_each_output(ys, [&](std::int64_t n, std::int64_t c, std::int64_t i, std::int64_t j) {
        double best = -INFINITY, at = -1, sum = 0, inside = 0, padded = 0;
        std::vector<std::size_t> window;
        for (std::int64_t p = i * o.stride[0] - o.padding[0]; p < i * o.stride[0] - o.padding[0] + o.kernel[0]; ++p)
          for (std::int64_t q = j * o.stride[1] - o.padding[1]; q < j * o.stride[1] - o.padding[1] + o.kernel[1]; ++q) {
            if (p < xs[2] + o.padding[0] && q < xs[3] + o.padding[1]) ++padded;
            if (p < 0 || p >= xs[2] || q < 0 || q >= xs[3]) continue;
            window.push_back(index(xs, n, c, p, q));
            ++inside;
            sum += v[window.back()];
            if (v[window.back()] > best) {
              best = v[window.back()];
              at = static_cast<double>(p * xs[3] + q);
            }
          }
        const double divisor = o.count_include_pad ? padded : inside, dout = g[index(ys, n, c, i, j)];
        high.push_back(best);
        where.push_back(at);
        average.push_back(sum / divisor);
        d_max[index(xs, n, c, 0, 0) + static_cast<std::size_t>(at)] += dout;
        for (const auto k : window) d_average[k] += dout / divisor;
      });
      const Tensor y = test::fresh(ys, dtype, format), indices = make(ys, DType::i32, test::device(), format),
                   dx = test::fresh(xs, dtype, format);
      kernels::max_pool2d(test::context(), y.view(), indices.view(), x.view(), o);
      EXPECT_TRUE(test::equal(y, high));
      EXPECT_TRUE(test::equal(indices, where));
      kernels::max_pool2d(test::context(), test::poisoned(y).view(), {}, test::misaligned(x).view(), o);
      EXPECT_TRUE(test::equal(y, high));
      kernels::max_pool2d_backward(test::context(), dx.view(), dy.view(), indices.view(), o);
      EXPECT_TRUE(test::close(dx, d_max, test::backward_tolerance(dtype)));
      kernels::avg_pool2d(test::context(), test::poisoned(y).view(), test::misaligned(x).view(), o);
      EXPECT_TRUE(test::close(y, average, test::forward_tolerance(dtype)));
      kernels::avg_pool2d_backward(test::context(), test::poisoned(dx).view(), dy.view(), o);
      EXPECT_TRUE(test::close(dx, d_average, test::backward_tolerance(dtype)));
    }
}
INSTANTIATE_TEST_SUITE_P(Shapes, Pool2d, ::testing::ValuesIn(kCases),
                         [](const auto& i) { return std::string(i.param.name); });

TEST(AdaptiveAvgPool2d, MatchesTheDefinition) {
  for (const auto& [xs, h, w] : {std::tuple<Dims, std::int64_t, std::int64_t>{{2, 17, 7, 7}, 1, 1},
                                 {{2, 3, 10, 7}, 3, 4},
                                 {{1, 8, 4, 5}, 4, 5},
                                 {{1, 2, 3, 2}, 5, 4}})
    for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
      for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
        const Dims ys{xs[0], xs[1], h, w};
        const Tensor x = test::uniform(xs, dtype, test::device(), 1, -1, 1, format),
                     dy = test::uniform(ys, dtype, test::device(), 2, -1, 1, format);
        const auto v = test::to_f64(x), g = test::to_f64(dy);
        std::vector<double> mean, dx(v.size(), 0.0);
        for_each_output(ys, [&](std::int64_t n, std::int64_t c, std::int64_t i, std::int64_t j) {
          const auto low = [](std::int64_t k, std::int64_t in, std::int64_t out) { return k * in / out; };
          const auto high = [](std::int64_t k, std::int64_t in, std::int64_t out) {
            return ((k + 1) * in + out - 1) / out;
          };
          double sum = 0;
          const std::int64_t rows = high(i, xs[2], ys[2]) - low(i, xs[2], ys[2]),
                             columns = high(j, xs[3], ys[3]) - low(j, xs[3], ys[3]);
          for (std::int64_t p = low(i, xs[2], ys[2]); p < high(i, xs[2], ys[2]); ++p)
            for (std::int64_t q = low(j, xs[3], ys[3]); q < high(j, xs[3], ys[3]); ++q) {
              sum += v[index(xs, n, c, p, q)];
              dx[index(xs, n, c, p, q)] += g[index(ys, n, c, i, j)] / static_cast<double>(rows * columns);
            }
          mean.push_back(sum / static_cast<double>(rows * columns));
        });
        const Tensor y = test::fresh(ys, dtype, format), out = test::fresh(xs, dtype, format);
        kernels::adaptive_avg_pool2d(test::context(), y.view(), x.view());
        EXPECT_TRUE(test::close(y, mean, test::forward_tolerance(dtype)));
        kernels::adaptive_avg_pool2d_backward(test::context(), out.view(), dy.view());
        EXPECT_TRUE(test::close(out, dx, test::backward_tolerance(dtype)));
      }
}

/// Sizes of a ResNet in small: whole vectors of channels, every kernel of the GPU.
TEST(Pool2d, LayoutsAgree) {
  const Pool2dOptions o{.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
  const Dims xs{3, 64, 23, 18}, ys = kernels::pool2d_output_sizes(xs, o), one{3, 64, 1, 1};
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    std::vector<std::vector<double>> results[2];
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      const Tensor x = test::uniform(xs, dtype, test::device(), 1, -1, 1, format),
                   dy = test::uniform(ys, dtype, test::device(), 2, -1, 1, format),
                   d_one = test::uniform(one, dtype, test::device(), 3, -1, 1, format);
      const Tensor y = test::fresh(ys, dtype, format), where = make(ys, DType::i32, test::device(), format),
                   dx = test::fresh(xs, dtype, format), mean = test::fresh(one, dtype, format);
      auto& all = results[format == MemoryFormat::channels_last];
      kernels::max_pool2d(test::context(), y.view(), where.view(), x.view(), o);
      all.push_back(test::to_f64(y));
      all.push_back(test::to_f64(where));
      kernels::max_pool2d_backward(test::context(), dx.view(), dy.view(), where.view(), o);
      all.push_back(test::to_f64(dx));
      kernels::avg_pool2d_backward(test::context(), test::poisoned(dx).view(), dy.view(), o);
      all.push_back(test::to_f64(dx));
      kernels::adaptive_avg_pool2d(test::context(), mean.view(), x.view());
      all.push_back(test::to_f64(mean));
      kernels::adaptive_avg_pool2d_backward(test::context(), test::poisoned(dx).view(), d_one.view());
      all.push_back(test::to_f64(dx));
    }
    for (std::size_t i = 0; i < results[0].size(); ++i)
      EXPECT_TRUE(test::close(results[1][i], results[0][i], test::forward_tolerance(dtype))) << dtype << i;
  }
}

TEST(Pool2d, GradientsMatchDifferences) {
  const Pool2dOptions o{.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
  const Dims xs{1, 2, 6, 5}, ys = kernels::pool2d_output_sizes(xs, o);
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor x = test::uniform(xs, DType::f64, test::device(), 3, -1, 1, format),
                 y = make(ys, DType::f64, test::device(), format),
                 indices = make(ys, DType::i32, test::device(), format);
    const Tensor dx = test::fresh_like(x), dy = test::weights_like(y),
                 small = make({1, 2, 2, 3}, DType::f64, test::device(), format);
    kernels::max_pool2d(test::context(), y.view(), indices.view(), x.view(), o);
    kernels::max_pool2d_backward(test::context(), dx.view(), dy.view(), indices.view(), o);
    EXPECT_TRUE(test::gradient_matches(x, dx, [&] {
      kernels::max_pool2d(test::context(), y.view(), {}, x.view(), o);
      return test::weighted_sum(y);
    }));
    kernels::avg_pool2d_backward(test::context(), dx.view(), dy.view(), o);
    EXPECT_TRUE(test::gradient_matches(x, dx, [&] {
      kernels::avg_pool2d(test::context(), y.view(), x.view(), o);
      return test::weighted_sum(y);
    }));
    kernels::adaptive_avg_pool2d_backward(test::context(), dx.view(), test::weights_like(small).view());
    EXPECT_TRUE(test::gradient_matches(x, dx, [&] {
      kernels::adaptive_avg_pool2d(test::context(), small.view(), x.view());
      return test::weighted_sum(small);
    }));
  }
}

TEST(Pool2d, NaNAndInfinity) {
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor x =
        test::from_list({1, 2, 2, 2}, DType::f32, {1, NAN, NAN, 7, -INFINITY, -INFINITY, -INFINITY, -INFINITY}, format);
    const Tensor y = make({1, 2, 1, 1}, DType::f32, test::device(), format),
                 i = make({1, 2, 1, 1}, DType::i32, test::device(), format);
    kernels::max_pool2d(test::context(), y.view(), i.view(), x.view(), {});
    EXPECT_TRUE(test::equal(y, {std::nan(""), -INFINITY}));
    EXPECT_TRUE(test::equal(i, {1, 0}));
  }
}

/// NaN is larger than all, the first among equals stays, and both zeros are equal: one channel or many at a time.
TEST(Pool2d, LargestAmongSpecialValues) {
  const Pool2dOptions o{.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
  const double nan = std::nan(""), table[] = {-0.0, 0.0, -INFINITY, -2, nan, -0.0, -1, INFINITY, -nan, 0.0, -1, -3};
  const Dims xs{2, 24, 7, 8}, ys = kernels::pool2d_output_sizes(xs, o);
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      const Tensor x = test::from_function(
          xs, dtype, test::device(),
          [&](std::int64_t i) {
            // Some planes without NaN and infinity, so that finite values and zeros win as well.
            const auto few = static_cast<std::size_t>(12 - i / 56 % 3 * 4);
            return table[static_cast<std::size_t>(test::unit(1, static_cast<std::uint64_t>(i)) * 12) % few];
          },
          format);
      const auto v = test::to_f64(x);
      std::vector<double> high, where;
      for_each_output(ys, [&](std::int64_t n, std::int64_t c, std::int64_t i, std::int64_t j) {
        double best = 0, at = -1;
        for (std::int64_t p = std::max<std::int64_t>(2 * i - 1, 0); p < std::min<std::int64_t>(2 * i + 2, xs[2]); ++p)
          for (std::int64_t q = std::max<std::int64_t>(2 * j - 1, 0); q < std::min<std::int64_t>(2 * j + 2, xs[3]);
               ++q) {
            const double value = v[index(xs, n, c, p, q)];
            if (at >= 0 && !(value > best) && !(std::isnan(value) && !std::isnan(best))) continue;
            best = value;
            at = static_cast<double>(p * xs[3] + q);
          }
        high.push_back(best);
        where.push_back(at);
      });
      const Tensor y = test::fresh(ys, dtype, format), indices = make(ys, DType::i32, test::device(), format);
      kernels::max_pool2d(test::context(), y.view(), indices.view(), x.view(), o);
      EXPECT_TRUE(test::equal(y, high)) << dtype;
      EXPECT_TRUE(test::equal(indices, where)) << dtype;
    }
}

TEST(Pool2d, SizesNearTheEndOfInt64) {
  constexpr std::int64_t kHalf = std::int64_t{1} << 62, kMost = std::numeric_limits<std::int64_t>::max();
  const Dims x{1, 1, 4, 4};
  EXPECT_EQ(kernels::pool2d_output_sizes(x, {.kernel = {2, 2}, .stride = {kMost, kMost}, .ceil_mode = true}),
            (Dims{1, 1, 1, 1}));
  EXPECT_TRUE(throws(Kind::argument, "pool2d: a size of 2 * 4611686018427387903 + 4 is more", [&] {
    kernels::pool2d_output_sizes(x, {.kernel = {kMost, 2}, .stride = {1, 1}, .padding = {kHalf - 1, 0}});
  }));
  if (!test::on_cuda()) {  // which has no windows of this size, and says so
    constexpr std::int64_t kWide = std::int64_t{1} << 40;
    const Pool2dOptions wide{.kernel = {kWide, kWide}, .stride = {8, 8}, .padding = {kWide / 2, kWide / 2}};
    const Tensor ones = test::from_function(x, DType::f64, test::device(), [](std::int64_t) { return 1.0; }),
                 y = make({1, 1, 1, 1}, DType::f64);
    kernels::avg_pool2d(test::context(), y.view(), ones.view(), wide);
    EXPECT_EQ(test::to_f64(y)[0], 16.0 / static_cast<double>(kWide) / static_cast<double>(kWide));
  }
  // Rounded up where a window begins in x or its left padding, as before.
  for (std::int64_t size = 1; size < 12; ++size)
    for (std::int64_t kernel = 1; kernel <= size; ++kernel)
      for (std::int64_t stride = 1; stride < 5; ++stride)
        for (std::int64_t padding = 0; padding <= kernel / 2; ++padding) {
          std::int64_t windows = 1;
          while (windows * stride < size + padding && (windows - 1) * stride + kernel < size + 2 * padding) ++windows;
          EXPECT_EQ(kernels::pool2d_output_sizes({1, 1, size, size}, {.kernel = {kernel, kernel},
                                                                      .stride = {stride, stride},
                                                                      .padding = {padding, padding},
                                                                      .ceil_mode = true}),
                    (Dims{1, 1, windows, windows}))
              << size << ' ' << kernel << ' ' << stride << ' ' << padding;
        }
}

TEST(Pool2d, BadArguments) {
  const Tensor x = make({2, 3, 6, 6}), y = make({2, 3, 3, 3}),
               last = make({2, 3, 3, 3}, DType::f32, test::device(), MemoryFormat::channels_last);
  const Tensor i = make({2, 3, 3, 3}, DType::i32), none = make({0, 3, 6, 6});
  kernels::max_pool2d(test::context(), make({0, 3, 3, 3}).view(), {}, none.view(), {});
  kernels::avg_pool2d_backward(test::context(), none.view(), make({0, 3, 3, 3}).view(), {});
  EXPECT_TRUE(throws(Kind::argument, "kernel 0", [&] {
    kernels::max_pool2d(test::context(), y.view(), {}, x.view(), {.kernel = {0, 2}});
  }));
  EXPECT_TRUE(throws(Kind::argument, "stride 0", [&] {
    kernels::max_pool2d(test::context(), y.view(), {}, x.view(), {.stride = {2, 0}});
  }));
  EXPECT_TRUE(throws(Kind::argument, "padding 2", [&] {
    kernels::max_pool2d(test::context(), y.view(), {}, x.view(), {.padding = {2, 0}});
  }));
  EXPECT_TRUE(throws(Kind::argument, "larger than x", [&] {
    kernels::max_pool2d(test::context(), y.view(), {}, x.view(), {.kernel = {7, 2}});
  }));
  EXPECT_TRUE(throws(Kind::argument, "y has sizes", [&] {
    kernels::avg_pool2d(test::context(), make({2, 3, 3, 4}).view(), x.view(), {});
  }));
  EXPECT_TRUE(throws(Kind::argument, "copy one first",
                     [&] { kernels::avg_pool2d(test::context(), last.view(), x.view(), {}); }));
  EXPECT_TRUE(throws(Kind::argument, "indices is f32",
                     [&] { kernels::max_pool2d(test::context(), y.view(), y.view(), x.view(), {}); }) ||
              throws(Kind::argument, "indices is",
                     [&] { kernels::max_pool2d(test::context(), y.view(), y.view(), x.view(), {}); }));
  EXPECT_TRUE(throws(Kind::argument, "indices is not given",
                     [&] { kernels::max_pool2d_backward(test::context(), x.view(), y.view(), {}, {}); }));
  EXPECT_TRUE(throws(Kind::argument, "cannot be averaged", [&] {
    kernels::adaptive_avg_pool2d(test::context(), make({2, 4, 1, 1}).view(), x.view());
  }));
  EXPECT_TRUE(throws(Kind::unsupported, "i32", [&] {
    kernels::avg_pool2d(test::context(), y.view(), make({2, 3, 6, 6}, DType::i32).view(), {});
  }));
  EXPECT_TRUE(throws(Kind::argument, "rank 4", [&] {
    kernels::avg_pool2d(test::context(), y.view(), make({3, 6, 6}).view(), {});
  }));
}

}  // namespace
}  // namespace apex
