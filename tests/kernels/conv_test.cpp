// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/conv.hpp"

#include <omp.h>

#include "support/tensors.hpp"

namespace apex {
namespace {

using kernels::Conv2dOptions;
using test::throws;

constexpr auto kRow = MemoryFormat::contiguous;
constexpr auto kLast = MemoryFormat::channels_last;

struct Case {
  const char* name;
  Dims x, w;
  Conv2dOptions options;
};

const Case kCases[] = {
    {"plain3x3", {2, 16, 9, 11}, {32, 16, 3, 3}, {.padding = {1, 1}}},
    {"stride2", {3, 16, 12, 14}, {32, 16, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}}},
    {"oddstride2", {2, 5, 9, 7}, {7, 5, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}}},
    {"pointwise", {2, 33, 5, 7}, {17, 33, 1, 1}, {}},
    {"pointwise_stride2", {2, 16, 14, 14}, {32, 16, 1, 1}, {.stride = {2, 2}}},
    {"stem", {2, 3, 23, 21}, {8, 3, 7, 7}, {.stride = {2, 2}, .padding = {3, 3}}},
    {"one_channel", {3, 1, 10, 10}, {16, 1, 3, 3}, {.padding = {1, 1}}},
    {"grouped", {2, 12, 8, 8}, {8, 3, 3, 3}, {.padding = {1, 1}, .groups = 4}},
    {"grouped16", {2, 32, 8, 8}, {32, 16, 3, 3}, {.padding = {1, 1}, .groups = 2}},
    {"depthwise", {2, 8, 7, 9}, {8, 1, 3, 3}, {.stride = {2, 1}, .padding = {1, 1}, .groups = 8}},
    {"dilated", {2, 4, 12, 13}, {6, 4, 3, 3}, {.padding = {2, 2}, .dilation = {2, 2}}},
    {"uneven", {1, 3, 10, 17}, {4, 3, 2, 5}, {.stride = {3, 2}, .padding = {1, 2}, .dilation = {1, 2}}},
    {"whole_image", {4, 6, 5, 5}, {10, 6, 5, 5}, {}},
    {"big_padding", {1, 2, 3, 3}, {3, 2, 3, 3}, {.padding = {4, 4}}},
};

/// Walks every (output, weight, input) triple of the definition.
template <class F>
void for_each_term(const Case& c, const Dims& y, F&& f) {
  const auto& o = c.options;
  const std::int64_t k_group = c.w[0] / o.groups, c_group = c.w[1];
  for (std::int64_t n = 0; n < y[0]; ++n)
    for (std::int64_t k = 0; k < y[1]; ++k)
      for (std::int64_t i = 0; i < y[2]; ++i)
        for (std::int64_t j = 0; j < y[3]; ++j)
          for (std::int64_t ch = 0; ch < c_group; ++ch)
            for (std::int64_t r = 0; r < c.w[2]; ++r)
              for (std::int64_t s = 0; s < c.w[3]; ++s) {
                const std::int64_t h = i * o.stride[0] + r * o.dilation[0] - o.padding[0],
                                   v = j * o.stride[1] + s * o.dilation[1] - o.padding[1];
                if (h < 0 || h >= c.x[2] || v < 0 || v >= c.x[3]) continue;
                const std::int64_t channel = k / k_group * c_group + ch;
                f(static_cast<std::size_t>(((n * y[1] + k) * y[2] + i) * y[3] + j),
                  static_cast<std::size_t>(((k * c_group + ch) * c.w[2] + r) * c.w[3] + s),
                  static_cast<std::size_t>(((n * c.x[1] + channel) * c.x[2] + h) * c.x[3] + v));
              }
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

class Conv2d : public ::testing::TestWithParam<Case> {};

TEST_P(Conv2d, MatchesTheDefinition) {
  const Case& c = GetParam();
  const Dims ys = kernels::conv2d_output_sizes(c.x, c.w, c.options);
  for (const auto dtype : {DType::f64, DType::f32}) {
    const Tensor b = test::uniform({c.w[0]}, dtype, test::device(), 3);
    const auto xs = test::to_f64(test::uniform(c.x, dtype, test::device(), 1)),
               ws = test::to_f64(test::uniform(c.w, dtype, test::device(), 2)), bs = test::to_f64(b);
    const auto gs = test::to_f64(test::uniform(ys, dtype, test::device(), 4));
    const auto pixels = static_cast<std::size_t>(ys[2] * ys[3]), outputs = static_cast<std::size_t>(element_count(ys));
    std::vector<double> y(outputs, 0.0), biased, dx(xs.size(), 0.0), dw(ws.size(), 0.0), db(bs.size(), 0.0);
    for_each_term(c, ys, [&](std::size_t o, std::size_t w, std::size_t i) {
      y[o] += xs[i] * ws[w];
      dx[i] += gs[o] * ws[w];
      dw[w] += gs[o] * xs[i];
    });
    for (std::size_t o = 0; o < outputs; ++o) {
      const std::size_t k = o / pixels % bs.size();
      biased.push_back(y[o] + bs[k]);
      db[k] += gs[o];
    }
    const std::int64_t terms = c.w[1] * c.w[2] * c.w[3], rows = ys[0] * ys[2] * ys[3],
                       reach = c.w[0] / c.options.groups * c.w[2] * c.w[3];
    for (const auto xf : {kRow, kLast})
      for (const auto wf : {kRow, kLast})
        for (const auto yf : {kRow, kLast}) {
          SCOPED_TRACE(concat(dtype, xf == kLast, wf == kLast, yf == kLast));
          const Tensor x = test::uniform(c.x, dtype, test::device(), 1, -1, 1, xf),
                       w = test::uniform(c.w, dtype, test::device(), 2, -1, 1, wf);
          const Tensor dy = test::uniform(ys, dtype, test::device(), 4, -1, 1, yf), out = test::fresh(ys, dtype, yf);
          kernels::conv2d_forward({}, out.view(), x.view(), w.view(), {}, c.options);
          ASSERT_TRUE(test::close(out, y, test::product_tolerance(dtype, terms)));
          kernels::conv2d_forward({}, out.view(), test::misaligned(x).view(), w.view(), b.view(), c.options);
          ASSERT_TRUE(test::close(out, biased, test::product_tolerance(dtype, terms)));
          const Tensor dx_out = test::fresh(c.x, dtype, xf), dw_out = test::fresh(c.w, dtype, wf),
                       db_out = test::fresh({c.w[0]}, dtype);
          kernels::conv2d_backward_data({}, dx_out.view(), dy.view(), w.view(), c.options);
          ASSERT_TRUE(test::close(dx_out, dx, test::product_tolerance(dtype, reach)));
          kernels::conv2d_backward_weight({}, dw_out.view(), db_out.view(), dy.view(), x.view(), c.options);
          ASSERT_TRUE(test::close(dw_out, dw, test::sum_tolerance(dtype, rows)));
          ASSERT_TRUE(test::close(db_out, db, test::sum_tolerance(dtype, rows)));
          kernels::conv2d_backward_weight({}, test::poisoned(dw_out).view(), {}, test::misaligned(dy).view(), x.view(),
                                          c.options);
          ASSERT_TRUE(test::close(dw_out, dw, test::sum_tolerance(dtype, rows)));
        }
    const Tensor only = test::fresh({c.w[0]}, dtype);
    kernels::conv2d_backward_weight({}, {}, only.view(), test::uniform(ys, dtype, test::device(), 4).view(), {}, c.options);
    EXPECT_TRUE(test::close(only, db, test::sum_tolerance(dtype, rows)));
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, Conv2d, ::testing::ValuesIn(kCases), case_name);

TEST(Conv2d, GradientsMatchDifferences) {
  const Case c{"", {2, 4, 5, 4}, {6, 2, 3, 2}, {.stride = {2, 1}, .padding = {1, 1}, .groups = 2}};
  const Dims ys = kernels::conv2d_output_sizes(c.x, c.w, c.options);
  const Tensor x = test::uniform(c.x, DType::f64, test::device(), 1), w = test::uniform(c.w, DType::f64, test::device(), 2),
               b = test::uniform({6}, DType::f64, test::device(), 3);
  const Tensor y = test::fresh(ys, DType::f64), dx = test::fresh_like(x), dw = test::fresh_like(w),
               db = test::fresh_like(b);
  const auto loss = [&] {
    kernels::conv2d_forward({}, y.view(), x.view(), w.view(), b.view(), c.options);
    return test::weighted_sum(y);
  };
  const Tensor dy = test::weights_like(y);
  kernels::conv2d_backward_data({}, dx.view(), dy.view(), w.view(), c.options);
  kernels::conv2d_backward_weight({}, dw.view(), db.view(), dy.view(), x.view(), c.options);
  EXPECT_TRUE(test::gradient_matches(x, dx, loss));
  EXPECT_TRUE(test::gradient_matches(w, dw, loss));
  EXPECT_TRUE(test::gradient_matches(b, db, loss));
}

TEST(Conv2d, EmptyBatch) {
  for (const auto dtype : {DType::f64, DType::f32}) {
    const Tensor x = empty({0, 3, 5, 5}, dtype), w = test::uniform({4, 3, 3, 3}, dtype, test::device(), 1),
                 y = empty({0, 4, 3, 3}, dtype);
    const Tensor dw = test::fresh({4, 3, 3, 3}, dtype), db = test::fresh({4}, dtype);
    kernels::conv2d_forward({}, y.view(), x.view(), w.view(), {});
    kernels::conv2d_backward_data({}, x.view(), y.view(), w.view());
    kernels::conv2d_backward_weight({}, dw.view(), db.view(), y.view(), x.view());
    EXPECT_TRUE(test::equal(dw, std::vector<double>(108, 0)));
    EXPECT_TRUE(test::equal(db, {0, 0, 0, 0}));
  }
}

TEST(Conv2d, RepeatsBitForBit) {
  const Tensor x = test::uniform({4, 16, 14, 14}, DType::f32, test::device(), 1, -1, 1, kLast),
               w = test::uniform({32, 16, 3, 3}, DType::f32, test::device(), 2);
  const Tensor y = empty({4, 32, 14, 14}, DType::f32, test::device(), kLast), dw = empty_like(w), again = empty_like(w);
  const Conv2dOptions o{.padding = {1, 1}};
  kernels::conv2d_forward({}, y.view(), x.view(), w.view(), {}, o);
  kernels::conv2d_backward_weight({}, dw.view(), {}, y.view(), x.view(), o);
  for (int i = 0; i < 5; ++i) {
    kernels::conv2d_backward_weight({}, again.view(), {}, y.view(), x.view(), o);
    ASSERT_EQ(test::to_f64(again), test::to_f64(dw));
  }
}

TEST(Conv2d, Float64HasTheSameBitsForEveryThreadCount) {
  const Case c{"", {4, 20, 17, 15}, {100, 20, 3, 3}, {.stride = {2, 1}, .padding = {1, 1}}};
  const Dims ys = kernels::conv2d_output_sizes(c.x, c.w, c.options);
  const Tensor x = test::uniform(c.x, DType::f64, test::device(), 1), w = test::uniform(c.w, DType::f64, test::device(), 2);
  const Tensor dy = test::uniform(ys, DType::f64, test::device(), 3), y = test::fresh(ys, DType::f64);
  const Tensor dx = test::fresh_like(x), dw = test::fresh_like(w), db = test::fresh({100}, DType::f64);
  const int threads = omp_get_max_threads();
  std::vector<std::vector<double>> results;
  for (const int t : {1, 2, 3}) {
    omp_set_num_threads(t);
    kernels::conv2d_forward({}, y.view(), x.view(), w.view(), {}, c.options);
    kernels::conv2d_backward_data({}, dx.view(), dy.view(), w.view(), c.options);
    kernels::conv2d_backward_weight({}, dw.view(), db.view(), dy.view(), x.view(), c.options);
    results.emplace_back();
    for (const auto& out : {y, dx, dw, db})
      for (const double v : test::to_f64(out)) results.back().push_back(v);
  }
  omp_set_num_threads(threads);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(Conv2d, OutputSizes) {
  EXPECT_EQ(kernels::conv2d_output_sizes({2, 3, 224, 224}, {64, 3, 7, 7}, {.stride = {2, 2}, .padding = {3, 3}}),
            (Dims{2, 64, 112, 112}));
  EXPECT_EQ(
      kernels::conv2d_output_sizes({1, 4, 9, 10}, {8, 2, 3, 3}, {.stride = {2, 3}, .dilation = {2, 1}, .groups = 2}),
      (Dims{1, 8, 3, 3}));
}

TEST(Conv2d, BadArguments) {
  const Tensor x = empty({2, 4, 6, 6}), w = empty({8, 4, 3, 3}), y = empty({2, 8, 4, 4}), b = empty({8});
  const auto forward = [&](const Tensor& px, const Tensor& pw, const Tensor& py, const Conv2dOptions& o = {}) {
    kernels::conv2d_forward({}, py.view(), px.view(), pw.view(), {}, o);
  };
  EXPECT_TRUE(throws(Kind::argument, "stride 0", [&] { forward(x, w, y, {.stride = {0, 1}}); }));
  EXPECT_TRUE(throws(Kind::argument, "padding -1", [&] { forward(x, w, y, {.padding = {1, -1}}); }));
  EXPECT_TRUE(throws(Kind::argument, "dilation 0", [&] { forward(x, w, y, {.dilation = {0, 1}}); }));
  EXPECT_TRUE(throws(Kind::argument, "groups is 0", [&] { forward(x, w, y, {.groups = 0}); }));
  EXPECT_TRUE(throws(Kind::argument, "groups 3 does not divide", [&] { forward(x, w, y, {.groups = 3}); }));
  EXPECT_TRUE(throws(Kind::argument, "does not fit w", [&] { forward(x, empty({8, 3, 3, 3}), y); }));
  EXPECT_TRUE(throws(Kind::argument, "larger than x", [&] { forward(x, empty({8, 4, 7, 3}), y); }));
  EXPECT_TRUE(throws(Kind::argument, "y has sizes [2, 8, 4, 5], wanted [2, 8, 4, 4]", [&] {
    forward(x, w, empty({2, 8, 4, 5}));
  }));
  EXPECT_TRUE(throws(Kind::argument, "rank 4", [&] { forward(empty({4, 6, 6}), w, y); }));
  EXPECT_TRUE(throws(Kind::argument, "copy it first", [&] { forward(test::spread_out(x), w, y); }));
  EXPECT_TRUE(throws(Kind::argument, "w is f64", [&] { forward(x, empty({8, 4, 3, 3}, DType::f64), y); }));
  EXPECT_TRUE(throws(Kind::argument, "w is f32", [&] { forward(empty({2, 4, 6, 6}, DType::bf16), w, y); }));
  EXPECT_TRUE(throws(Kind::unsupported, "i32", [&] { forward(empty({2, 4, 6, 6}, DType::i32), w, y); }));
  EXPECT_TRUE(throws(Kind::argument, "bias has sizes",
                     [&] { kernels::conv2d_forward({}, y.view(), x.view(), w.view(), empty({7}).view()); }));
  EXPECT_TRUE(throws(Kind::argument, "bias has stride 2",
                     [&] { kernels::conv2d_forward({}, y.view(), x.view(), w.view(), test::spread_out(b).view()); }));
  EXPECT_TRUE(
      throws(Kind::argument, "dy has sizes", [&] { kernels::conv2d_backward_data({}, x.view(), x.view(), w.view()); }));
  EXPECT_TRUE(
      throws(Kind::argument, "dw is not given", [&] { kernels::conv2d_backward_data({}, x.view(), y.view(), {}); }) ||
      throws(Kind::argument, "w is not given", [&] { kernels::conv2d_backward_data({}, x.view(), y.view(), {}); }));
  EXPECT_TRUE(throws(Kind::argument, "db has sizes",
                     [&] { kernels::conv2d_backward_weight({}, w.view(), empty({2}).view(), y.view(), x.view()); }));
}

}  // namespace
}  // namespace apex
