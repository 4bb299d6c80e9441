// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/conv.hpp"
#include "support/tensors.hpp"
#ifdef APEX_HAS_CUDA
#include "cuda/conv_direct.hpp"
#endif

namespace apex {
namespace {

using kernels::ConvTranspose2dOptions;
using test::throws;

constexpr auto kRow = MemoryFormat::contiguous;
constexpr auto kLast = MemoryFormat::channels_last;
constexpr DType kDtypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16};

Tensor blank(const Dims& sizes, DType dtype = DType::f32) { return empty(sizes, dtype, test::device()); }

struct Case {
  const char* name;
  Dims x, w;
  ConvTranspose2dOptions options;
};

const Case kCases[] = {
    {"first_of_a_generator", {3, 20, 1, 1}, {20, 16, 4, 4}, {}},
    {"doubling", {2, 16, 5, 7}, {16, 8, 4, 4}, {.stride = {2, 2}, .padding = {1, 1}}},
    {"last_of_a_generator", {2, 16, 6, 6}, {16, 3, 4, 4}, {.stride = {2, 2}, .padding = {1, 1}}},
    {"plain3x3", {2, 5, 6, 4}, {5, 7, 3, 3}, {.padding = {1, 1}}},
    {"pointwise", {2, 33, 5, 7}, {33, 17, 1, 1}, {}},
    {"gaps", {2, 8, 4, 5}, {8, 8, 1, 1}, {.stride = {3, 2}}},
    {"output_padding", {2, 6, 5, 4}, {6, 4, 3, 3}, {.stride = {2, 3}, .padding = {1, 0}, .output_padding = {1, 2}}},
    {"grouped", {2, 12, 5, 4}, {12, 2, 3, 3}, {.stride = {2, 1}, .padding = {1, 1}, .groups = 4}},
    {"depthwise", {2, 8, 7, 5}, {8, 1, 4, 4}, {.stride = {2, 2}, .padding = {1, 1}, .groups = 8}},
    {"dilated", {2, 4, 7, 6}, {4, 6, 3, 2}, {.stride = {2, 1}, .padding = {1, 2}, .dilation = {2, 3}}},
    {"uneven", {1, 3, 4, 9}, {3, 4, 2, 5}, {.stride = {3, 2}, .padding = {1, 2}, .dilation = {1, 2}}},
    // More at the end than a stride: what padding has cut off comes back, and beyond that there is only the bias.
    {"whole_strides", {2, 3, 4, 3}, {3, 5, 2, 3}, {.padding = {2, 1}, .output_padding = {2, 3}, .dilation = {3, 4}}},
    {"whole_strides_and_half",
     {2, 4, 4, 3},
     {4, 2, 2, 2},
     {.stride = {2, 2}, .padding = {1, 1}, .output_padding = {3, 2}, .dilation = {5, 3}, .groups = 2}},
};

/// Walks every (input, weight, output) triple of the definition.
template <class F>
void for_each_term(const Case& c, const Dims& y, F&& f) {
  const auto& o = c.options;
  const std::int64_t c_group = c.x[1] / o.groups, k_group = c.w[1];
  for (std::int64_t n = 0; n < c.x[0]; ++n)
    for (std::int64_t ch = 0; ch < c.x[1]; ++ch)
      for (std::int64_t i = 0; i < c.x[2]; ++i)
        for (std::int64_t j = 0; j < c.x[3]; ++j)
          for (std::int64_t k = 0; k < k_group; ++k)
            for (std::int64_t r = 0; r < c.w[2]; ++r)
              for (std::int64_t s = 0; s < c.w[3]; ++s) {
                const std::int64_t h = i * o.stride[0] + r * o.dilation[0] - o.padding[0],
                                   v = j * o.stride[1] + s * o.dilation[1] - o.padding[1];
                if (h < 0 || h >= y[2] || v < 0 || v >= y[3]) continue;
                const std::int64_t channel = ch / c_group * k_group + k;
                f(static_cast<std::size_t>(((n * c.x[1] + ch) * c.x[2] + i) * c.x[3] + j),
                  static_cast<std::size_t>(((ch * k_group + k) * c.w[2] + r) * c.w[3] + s),
                  static_cast<std::size_t>(((n * y[1] + channel) * y[2] + h) * y[3] + v));
              }
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

class ConvTranspose2d : public ::testing::TestWithParam<Case> {};

TEST_P(ConvTranspose2d, MatchesTheDefinition) {
  const Case& c = GetParam();
  const Dims ys = kernels::conv_transpose2d_output_sizes(c.x, c.w, c.options);
  for (const auto dtype : kDtypes) {
    const Tensor b = test::uniform({ys[1]}, dtype, test::device(), 3);
    const auto xs = test::to_f64(test::uniform(c.x, dtype, test::device(), 1)),
               ws = test::to_f64(test::uniform(c.w, dtype, test::device(), 2)), bs = test::to_f64(b),
               gs = test::to_f64(test::uniform(ys, dtype, test::device(), 4));
    const auto pixels = static_cast<std::size_t>(ys[2] * ys[3]), outputs = static_cast<std::size_t>(element_count(ys));
    std::vector<double> y(outputs, 0.0), biased, dx(xs.size(), 0.0), dw(ws.size(), 0.0), db(bs.size(), 0.0);
    for_each_term(c, ys, [&](std::size_t i, std::size_t w, std::size_t o) {
      y[o] += xs[i] * ws[w];
      dx[i] += gs[o] * ws[w];
      dw[w] += gs[o] * xs[i];
    });
    for (std::size_t o = 0; o < outputs; ++o) {
      const std::size_t k = o / pixels % bs.size();
      biased.push_back(y[o] + bs[k]);
      db[k] += gs[o];
    }
    const std::int64_t terms = c.x[1] / c.options.groups * c.w[2] * c.w[3], reach = c.w[1] * c.w[2] * c.w[3],
                       rows = c.x[0] * c.x[2] * c.x[3], outs = ys[0] * ys[2] * ys[3];
    for (const auto xf : {kRow, kLast})
      for (const auto wf : {kRow, kLast})
        for (const auto yf : {kRow, kLast}) {
          if (is_16bit(dtype) && wf != xf) continue;  // the wide types have shown that any mix is taken
          SCOPED_TRACE(concat(dtype, xf == kLast, wf == kLast, yf == kLast));
          const Tensor x = test::uniform(c.x, dtype, test::device(), 1, -1, 1, xf),
                       w = test::uniform(c.w, dtype, test::device(), 2, -1, 1, wf);
          const Tensor dy = test::uniform(ys, dtype, test::device(), 4, -1, 1, yf), out = test::fresh(ys, dtype, yf);
          kernels::conv_transpose2d_forward(test::context(), out.view(), x.view(), w.view(), {}, c.options);
          ASSERT_TRUE(test::close(out, y, test::product_tolerance(dtype, terms)));
          kernels::conv_transpose2d_forward(test::context(), test::poisoned(out).view(), test::misaligned(x).view(),
                                            w.view(), b.view(), c.options);
          ASSERT_TRUE(test::close(out, biased, test::product_tolerance(dtype, terms)));
          const Tensor dx_out = test::fresh(c.x, dtype, xf), dw_out = test::fresh(c.w, dtype, wf),
                       db_out = test::fresh({ys[1]}, dtype);
          kernels::conv_transpose2d_backward_data(test::context(), dx_out.view(), dy.view(), w.view(), c.options);
          ASSERT_TRUE(test::close(dx_out, dx, test::product_tolerance(dtype, reach)));
          kernels::conv_transpose2d_backward_weight(test::context(), dw_out.view(), db_out.view(), dy.view(), x.view(),
                                                    c.options);
          ASSERT_TRUE(test::close(dw_out, dw, test::sum_tolerance(dtype, rows)));
          ASSERT_TRUE(test::close(db_out, db, test::sum_tolerance(dtype, outs)));
          kernels::conv_transpose2d_backward_weight(test::context(), test::poisoned(dw_out).view(), {},
                                                    test::misaligned(dy).view(), x.view(), c.options);
          ASSERT_TRUE(test::close(dw_out, dw, test::sum_tolerance(dtype, rows)));
        }
    const Tensor only = test::fresh({ys[1]}, dtype);
    kernels::conv_transpose2d_backward_weight(test::context(), {}, only.view(),
                                              test::uniform(ys, dtype, test::device(), 4).view(), {}, c.options);
    EXPECT_TRUE(test::close(only, db, test::sum_tolerance(dtype, outs)));
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, ConvTranspose2d, ::testing::ValuesIn(kCases), case_name);

/// Our own kernel on the GPU adds the bias before it rounds. Through the front only f64 is sure to come to it; the CPU
/// takes the same case through the front.
TEST(ConvTranspose2dDirect, AddsTheBias) {
  const kernels::Conv2dOptions o{.stride = {2, 1}, .padding = {1, 1}, .groups = 2};
  const ConvTranspose2dOptions turned{.stride = o.stride, .padding = o.padding, .groups = o.groups};
  const Dims ys{2, 70, 9, 4};
  for (const auto dtype : kDtypes) {
    const Tensor x = test::uniform({2, 6, 5, 4}, dtype, test::device(), 1),
                 w = test::uniform({6, 35, 3, 3}, dtype, test::device(), 2),
                 b = test::uniform({70}, dtype, test::device(), 3);
    const auto wide = [](const Tensor& t) { return test::from_list(t.sizes(), DType::f64, test::to_f64(t)); };
    const Tensor y = test::fresh(ys, dtype), want = test::fresh(ys, DType::f64);
    kernels::conv_transpose2d_forward(test::context(), want.view(), wide(x).view(), wide(w).view(), wide(b).view(),
                                      turned);
    if (test::on_cuda()) {
#ifdef APEX_HAS_CUDA
      kernels::cuda::direct::backward_data(test::context(), y.view(), x.view(), w.view(), b.view(), o);
#endif
    } else {
      kernels::conv_transpose2d_forward(test::context(), y.view(), x.view(), w.view(), b.view(), turned);
    }
    EXPECT_TRUE(test::close(y, test::to_f64(want), test::product_tolerance(dtype, 27)));
  }
}

TEST(ConvTranspose2d, GradientsMatchDifferences) {
  const Case c{"",
               {2, 4, 3, 4},
               {4, 3, 3, 2},
               {.stride = {2, 1}, .padding = {1, 0}, .output_padding = {1, 1}, .dilation = {1, 2}, .groups = 2}};
  const Dims ys = kernels::conv_transpose2d_output_sizes(c.x, c.w, c.options);
  const Tensor x = test::uniform(c.x, DType::f64, test::device(), 1),
               w = test::uniform(c.w, DType::f64, test::device(), 2),
               b = test::uniform({6}, DType::f64, test::device(), 3);
  const Tensor y = test::fresh(ys, DType::f64), dx = test::fresh_like(x), dw = test::fresh_like(w),
               db = test::fresh_like(b);
  const auto loss = [&] {
    kernels::conv_transpose2d_forward(test::context(), y.view(), x.view(), w.view(), b.view(), c.options);
    return test::weighted_sum(y);
  };
  const Tensor dy = test::weights_like(y);
  kernels::conv_transpose2d_backward_data(test::context(), dx.view(), dy.view(), w.view(), c.options);
  kernels::conv_transpose2d_backward_weight(test::context(), dw.view(), db.view(), dy.view(), x.view(), c.options);
  EXPECT_TRUE(test::gradient_matches(x, dx, loss));
  EXPECT_TRUE(test::gradient_matches(w, dw, loss));
  EXPECT_TRUE(test::gradient_matches(b, db, loss));
}

TEST(ConvTranspose2d, NothingToSum) {
  for (const auto dtype : kDtypes) {
    const Tensor x = blank({0, 3, 5, 5}, dtype), w = test::uniform({3, 4, 3, 3}, dtype, test::device(), 1),
                 y = blank({0, 4, 7, 7}, dtype), dw = test::fresh({3, 4, 3, 3}, dtype), db = test::fresh({4}, dtype);
    kernels::conv_transpose2d_forward(test::context(), y.view(), x.view(), w.view(), {});
    kernels::conv_transpose2d_backward_data(test::context(), x.view(), y.view(), w.view());
    kernels::conv_transpose2d_backward_weight(test::context(), dw.view(), db.view(), y.view(), x.view());
    EXPECT_TRUE(test::equal(dw, std::vector<double>(108, 0)));
    EXPECT_TRUE(test::equal(db, {0, 0, 0, 0}));
    // No input channels: the bias is all there is.
    const Tensor none = blank({1, 0, 1, 1}, dtype), taps = blank({0, 2, 1, 2}, dtype),
                 out = test::fresh({1, 2, 1, 2}, dtype), bias = test::from_list({2}, dtype, {3, -1});
    kernels::conv_transpose2d_forward(test::context(), out.view(), none.view(), taps.view(), bias.view());
    EXPECT_TRUE(test::equal(out, {3, 3, -1, -1}));
    kernels::conv_transpose2d_forward(test::context(), out.view(), none.view(), taps.view(), {});
    EXPECT_TRUE(test::equal(out, {0, 0, 0, 0}));
  }
}

TEST(ConvTranspose2d, OutputSizes) {
  EXPECT_EQ(kernels::conv_transpose2d_output_sizes({2, 100, 1, 1}, {100, 512, 4, 4}, {}), (Dims{2, 512, 4, 4}));
  EXPECT_EQ(kernels::conv_transpose2d_output_sizes(
                {2, 8, 4, 5}, {8, 2, 3, 4},
                {.stride = {2, 3}, .padding = {1, 0}, .output_padding = {1, 0}, .dilation = {2, 1}, .groups = 4}),
            (Dims{2, 8, 10, 16}));
  constexpr std::int64_t kHalf = std::int64_t{1} << 62;
  const Dims x{1, 1, 4, 4}, w{1, 1, 3, 3};
  for (const ConvTranspose2dOptions& o :
       {ConvTranspose2dOptions{.stride = {kHalf, 1}}, ConvTranspose2dOptions{.dilation = {1, kHalf}}})
    EXPECT_TRUE(throws(Kind::argument, "conv_transpose2d: a size of",
                       [&] { kernels::conv_transpose2d_output_sizes(x, w, o); }));
  EXPECT_TRUE(throws(Kind::argument, "leaves nothing", [&] {
    kernels::conv_transpose2d_output_sizes(x, w, {.padding = {kHalf, 0}});
  }));
  EXPECT_TRUE(throws(Kind::argument, "conv_transpose2d: a size of", [&] {
    kernels::conv_transpose2d_output_sizes({0, 4, 1, 1}, {4, kHalf, 1, 1}, {.groups = 4});
  }));
}

TEST(ConvTranspose2d, BadArguments) {
  const Tensor x = blank({2, 4, 3, 3}), w = blank({4, 8, 3, 3}), y = blank({2, 8, 5, 5});
  const auto forward = [&](const Tensor& px, const Tensor& pw, const Tensor& py, const ConvTranspose2dOptions& o = {}) {
    kernels::conv_transpose2d_forward(test::context(), py.view(), px.view(), pw.view(), {}, o);
  };
  EXPECT_TRUE(throws(Kind::argument, "stride 0", [&] { forward(x, w, y, {.stride = {0, 1}}); }));
  EXPECT_TRUE(throws(Kind::argument, "padding -1", [&] { forward(x, w, y, {.padding = {1, -1}}); }));
  EXPECT_TRUE(throws(Kind::argument, "output_padding 1", [&] { forward(x, w, y, {.output_padding = {1, 0}}); }));
  EXPECT_TRUE(throws(Kind::argument, "output_padding -1", [&] { forward(x, w, y, {.output_padding = {0, -1}}); }));
  EXPECT_TRUE(throws(Kind::argument, "dilation 0", [&] { forward(x, w, y, {.dilation = {0, 1}}); }));
  EXPECT_TRUE(throws(Kind::argument, "groups is 0", [&] { forward(x, w, y, {.groups = 0}); }));
  EXPECT_TRUE(throws(Kind::argument, "groups 3 does not divide", [&] { forward(x, w, y, {.groups = 3}); }));
  EXPECT_TRUE(throws(Kind::argument, "does not fit w", [&] { forward(x, blank({3, 8, 3, 3}), y); }));
  EXPECT_TRUE(throws(Kind::argument, "no pixels", [&] { forward(blank({2, 4, 0, 3}), w, y); }));
  EXPECT_TRUE(throws(Kind::argument, "leaves nothing", [&] { forward(x, w, y, {.padding = {3, 0}}); }));
  EXPECT_TRUE(throws(Kind::argument, "y has sizes [2, 8, 5, 6], wanted [2, 8, 5, 5]", [&] {
    forward(x, w, blank({2, 8, 5, 6}));
  }));
  EXPECT_TRUE(throws(Kind::argument, "rank 4", [&] { forward(blank({4, 3, 3}), w, y); }));
  EXPECT_TRUE(throws(Kind::argument, "copy it first", [&] { forward(test::spread_out(x), w, y); }));
  EXPECT_TRUE(throws(Kind::argument, "w is f64", [&] { forward(x, blank({4, 8, 3, 3}, DType::f64), y); }));
  EXPECT_TRUE(throws(Kind::unsupported, "i32", [&] { forward(blank({2, 4, 3, 3}, DType::i32), w, y); }));
  EXPECT_TRUE(throws(Kind::argument, "bias has sizes", [&] {
    kernels::conv_transpose2d_forward(test::context(), y.view(), x.view(), w.view(), blank({7}).view());
  }));
  EXPECT_TRUE(throws(Kind::argument, "dy has sizes",
                     [&] { kernels::conv_transpose2d_backward_data(test::context(), x.view(), x.view(), w.view()); }));
  EXPECT_TRUE(throws(Kind::argument, "w is not given",
                     [&] { kernels::conv_transpose2d_backward_data(test::context(), x.view(), y.view(), {}); }));
  EXPECT_TRUE(throws(Kind::argument, "dy is not given",
                     [&] { kernels::conv_transpose2d_backward_weight(test::context(), {}, w.view(), {}, x.view()); }));
  EXPECT_TRUE(throws(Kind::argument, "db has sizes", [&] {
    kernels::conv_transpose2d_backward_weight(test::context(), w.view(), blank({2}).view(), y.view(), x.view());
  }));
}

}  // namespace
}  // namespace apex
