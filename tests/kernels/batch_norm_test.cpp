
// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/batch_norm.hpp"

#include <omp.h>

#include "support/on_device.hpp"

namespace apex {
namespace {

using kernels::BatchNormOptions;
using test::make;
using test::throws;
using test::values;

constexpr double kEps = 1e-5;

/// Everything the layer computes, in float64 and in row-major [N, C, rest] order.
struct Reference {
  std::vector<double> mean, var, inv_std, y, dx, dresidual, dweight, dbias;
};

struct Inputs {
  std::vector<double> x, weight, bias, residual, dy, given_mean, given_var;  // empty: not given
  bool relu = false;
};

Reference reference(const Dims& sizes, const Inputs& in) {
  const std::int64_t n = sizes[0], c = sizes[1], inner = element_count(sizes) / std::max<std::int64_t>(n * c, 1);
  const double count = static_cast<double>(n * inner);
  const bool fixed = !in.given_mean.empty();
  Reference r;
  r.y.resize(in.x.size());
  r.dx.resize(in.x.size());
  r.dresidual.resize(in.x.size());
  for (std::int64_t k = 0; k < c; ++k) {
    const auto channel = static_cast<std::size_t>(k);
    const auto each = [&](auto f) {
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t j = 0; j < inner; ++j) f(static_cast<std::size_t>((i * c + k) * inner + j));
    };
    double mean = 0, var = 0, sum = 0, sum_xmu = 0;
    each([&](std::size_t i) { mean += in.x[i] / count; });
    each([&](std::size_t i) { var += (in.x[i] - mean) * (in.x[i] - mean) / count; });
    r.mean.push_back(mean);
    r.var.push_back(var);
    if (fixed) {
      mean = in.given_mean[channel];
      var = in.given_var[channel];
    }
    const double inv = 1 / std::sqrt(var + kEps), w = in.weight.empty() ? 1 : in.weight[channel],
                 b = in.bias.empty() ? 0 : in.bias[channel];
    r.inv_std.push_back(inv);
    each([&](std::size_t i) {
      double v = (in.x[i] - mean) * inv * w + b + (in.residual.empty() ? 0 : in.residual[i]);
      const bool passes = !in.relu || v > 0;
      r.y[i] = passes ? v : 0;
      r.dresidual[i] = passes ? in.dy[i] : 0;
      sum += r.dresidual[i];
      sum_xmu += r.dresidual[i] * (in.x[i] - mean);
    });
    each([&](std::size_t i) {
      const double centred =
          fixed ? r.dresidual[i] : r.dresidual[i] - sum / count - (in.x[i] - mean) * inv * inv * sum_xmu / count;
      r.dx[i] = centred * w * inv;
    });
    r.dweight.push_back(sum_xmu * inv);
    r.dbias.push_back(sum);
  }
  return r;
}

struct Case {
  Dims sizes;
  MemoryFormat format;
};
/// Rank 2 to 5, odd and even channel counts on both sides of a vector, both layouts, sizes beyond one group of sums.
const Case kCases[] = {
    {{5, 3}, MemoryFormat::contiguous},
    {{4100, 5}, MemoryFormat::contiguous},
    {{4, 7, 9}, MemoryFormat::contiguous},
    {{2, 16, 5, 7}, MemoryFormat::contiguous},
    {{2, 16, 5, 7}, MemoryFormat::channels_last},
    {{3, 1, 4, 4}, MemoryFormat::contiguous},
    {{2, 65, 7, 5}, MemoryFormat::channels_last},
    {{9, 96, 1, 1}, MemoryFormat::contiguous},
    {{2, 3, 100, 100}, MemoryFormat::contiguous},
    {{2, 3, 100, 100}, MemoryFormat::channels_last},
    {{2, 20, 3, 4, 5}, MemoryFormat::contiguous},
    {{2, 20, 3, 4, 5}, MemoryFormat::channels_last},
    {{3, 37, 40, 1}, MemoryFormat::channels_last},
    {{2, 300, 3, 3}, MemoryFormat::channels_last},
    {{2, 520, 5, 3}, MemoryFormat::channels_last},
    {{3, 64, 40, 21}, MemoryFormat::channels_last},
};

class BatchNorm : public ::testing::TestWithParam<Case> {};

/// One configuration through forward and backward, training and inference.
void check(const Case& c, DType dtype, bool affine, bool with_residual, bool relu, bool aligned) {
  SCOPED_TRACE(concat(c.sizes, dtype, c.format == MemoryFormat::channels_last, affine, with_residual, relu, aligned));
  const std::int64_t channels = c.sizes[1], rows = element_count(c.sizes) / channels;
  const DType acc = accum_dtype(dtype);
  const auto made = [&](std::uint64_t seed) {
    const Tensor t = test::uniform(c.sizes, dtype, test::device(), seed, -1, 2, c.format);
    return aligned ? t : test::misaligned(t);
  };
  const Tensor x = made(1), dy = made(2), residual = with_residual ? made(3) : Tensor{};
  const Tensor weight = affine ? test::uniform({channels}, acc, test::device(), 4, 0.5, 1.5) : Tensor{},
               bias = affine ? test::uniform({channels}, dtype, test::device(), 5) : Tensor{};
  const auto values = [](const Tensor& t) { return t.defined() ? test::to_f64(t) : std::vector<double>{}; };
  Inputs in{values(x), values(weight), values(bias), values(residual), values(dy), {}, {}, relu};
  const auto want = reference(c.sizes, in);
  const BatchNormOptions options{.eps = kEps, .relu = relu};
  const auto forward_bound = test::forward_tolerance(dtype), backward_bound = test::backward_tolerance(dtype),
             sum_bound = test::sum_tolerance(acc, rows);

  const Tensor y = test::fresh_like(x), mean = test::fresh({channels}, acc), inv_std = test::fresh({channels}, acc);
  const Tensor running_mean = test::uniform({channels}, acc, test::device(), 6),
               running_var = test::uniform({channels}, acc, test::device(), 7, 0.5, 2);
  auto moved_mean = test::to_f64(running_mean), moved_var = test::to_f64(running_var);
  for (std::size_t i = 0; i < moved_mean.size(); ++i) {
    moved_mean[i] = 0.9 * moved_mean[i] + 0.1 * want.mean[i];
    moved_var[i] = 0.9 * moved_var[i] + 0.1 * want.var[i] * static_cast<double>(rows) / static_cast<double>(rows - 1);
  }
  kernels::batch_norm_forward(test::context(), y.view(), mean.view(), inv_std.view(), running_mean.view(),
                              running_var.view(), x.view(), weight.view(), bias.view(), residual.view(), 0.1, options);
  EXPECT_TRUE(test::close(y, want.y, forward_bound));
  EXPECT_TRUE(test::close(mean, want.mean, test::forward_tolerance(acc)));
  EXPECT_TRUE(test::close(inv_std, want.inv_std, test::forward_tolerance(acc)));
  EXPECT_TRUE(test::close(running_mean, moved_mean, test::forward_tolerance(acc)));
  EXPECT_TRUE(test::close(running_var, moved_var, test::forward_tolerance(acc)));
  const auto copy_of = [&](const Tensor& t) {
    const Tensor out = aligned ? empty_like(t) : test::misaligned(t);
    const auto all = test::to_f64(t);
    test::assign(out, [&](std::int64_t i) { return all[static_cast<std::size_t>(i)]; });
    return out;
  };
  const Tensor in_place = copy_of(x);
  kernels::batch_norm_forward(test::context(), in_place.view(), mean.view(), inv_std.view(), {}, {}, in_place.view(),
                              weight.view(), bias.view(), residual.view(), 0.1, options);
  EXPECT_EQ(test::to_f64(in_place), test::to_f64(y));

  const Tensor dx = test::fresh_like(x), dresidual = test::fresh_like(x), dweight = test::fresh({channels}, acc),
               dbias = test::fresh({channels}, dtype);
  for (const bool from_output : {true, false}) {
    if (!from_output && with_residual && relu) continue;  // the mask needs the output then
    const ConstView out = from_output ? y.view() : View{};
    kernels::batch_norm_backward(test::context(), test::poisoned(dx).view(), {}, dweight.view(), dbias.view(),
                                 dy.view(), out, x.view(), weight.view(), bias.view(), mean.view(), inv_std.view(),
                                 options);
    EXPECT_TRUE(test::close(dx, want.dx, backward_bound));
    EXPECT_TRUE(test::close(dweight, want.dweight, sum_bound));
    EXPECT_TRUE(test::close(dbias, want.dbias, dtype == acc ? sum_bound : test::sum_tolerance(dtype, rows)));
    kernels::batch_norm_backward(test::context(), test::poisoned(dx).view(), dresidual.view(), {}, {}, dy.view(), out,
                                 x.view(), weight.view(), bias.view(), mean.view(), inv_std.view(), options);
    EXPECT_TRUE(test::close(dx, want.dx, backward_bound));
    EXPECT_TRUE(test::equal(dresidual, want.dresidual));
  }
  const Tensor over_dy = copy_of(dy);  // the gradient of the residual may replace dy, dx may replace dy
  kernels::batch_norm_backward(test::context(), {}, over_dy.view(), dweight.view(), {}, over_dy.view(), y.view(),
                               x.view(), weight.view(), bias.view(), mean.view(), inv_std.view(), options);
  EXPECT_TRUE(test::equal(over_dy, want.dresidual));
  const Tensor dx_over_dy = copy_of(dy);
  kernels::batch_norm_backward(test::context(), dx_over_dy.view(), {}, {}, {}, dx_over_dy.view(), y.view(), x.view(),
                               weight.view(), bias.view(), mean.view(), inv_std.view(), options);
  EXPECT_EQ(test::to_f64(dx_over_dy), test::to_f64(dx));

  in.given_mean = test::to_f64(running_mean);
  in.given_var = test::to_f64(running_var);
  const auto frozen = reference(c.sizes, in);
  kernels::batch_norm_inference(test::context(), test::poisoned(y).view(), x.view(), running_mean.view(),
                                running_var.view(), weight.view(), bias.view(), residual.view(), options);
  EXPECT_TRUE(test::close(y, frozen.y, forward_bound));
  kernels::batch_norm_inference_backward(test::context(), test::poisoned(dx).view(), dresidual.view(), dweight.view(),
                                         dbias.view(), dy.view(), y.view(), x.view(), weight.view(), bias.view(),
                                         running_mean.view(), running_var.view(), options);
  EXPECT_TRUE(test::close(dx, frozen.dx, backward_bound));
  EXPECT_TRUE(test::equal(dresidual, frozen.dresidual));
  EXPECT_TRUE(test::close(dweight, frozen.dweight, sum_bound));
}

TEST_P(BatchNorm, MatchesFloat64Reference) {
  for (const auto dtype : {DType::f64, DType::f32})
    for (int bits = 0; bits < 8; ++bits) check(GetParam(), dtype, bits & 1, bits & 2, bits & 4, bits & 1);
}
TEST_P(BatchNorm, SixteenBitStorage) {
  // Where ReLU's input is within rounding of zero the mask may differ from the float64 one, so without it.
  for (const auto dtype : {DType::f16, DType::bf16})
    for (const bool aligned : {false, true}) check(GetParam(), dtype, true, true, false, aligned);
}
/// The mask made again from x is the one the forward applied, whatever the type.
TEST_P(BatchNorm, MaskMadeAgain) {
  const auto& [sizes, format] = GetParam();
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    SCOPED_TRACE(concat(dtype));
    const Dims c{sizes[1]};
    const DType acc = accum_dtype(dtype);
    const Tensor x = test::uniform(sizes, dtype, test::device(), 1, -1, 1, format),
                 dy = test::uniform(sizes, dtype, test::device(), 2, 1, 2, format),
                 w = test::uniform(c, acc, test::device(), 3, 0.5, 1.5), b = test::uniform(c, acc, test::device(), 4);
    const Tensor plain = test::fresh_like(x), y = test::fresh_like(x), mean = test::fresh(c, acc),
                 inv = test::fresh(c, acc);
    kernels::batch_norm_forward(test::context(), plain.view(), mean.view(), inv.view(), {}, {}, x.view(), w.view(),
                                b.view(), {}, 0.1);
    kernels::batch_norm_forward(test::context(), y.view(), mean.view(), inv.view(), {}, {}, x.view(), w.view(),
                                b.view(), {}, 0.1, {.relu = true});
    auto want = test::to_f64(plain);
    for (auto& v : want) v = std::max(v, 0.0);
    EXPECT_TRUE(test::equal(y, want));
    std::vector<double> results[2], masks[2];
    for (const bool from_output : {false, true}) {
      const Tensor dx = test::fresh_like(x), g = test::fresh_like(x), dw = test::fresh(c, acc);
      const ConstView out = from_output ? y.view() : View{};
      kernels::batch_norm_backward(test::context(), dx.view(), {}, dw.view(), {}, dy.view(), out, x.view(), w.view(),
                                   b.view(), mean.view(), inv.view(), {.relu = true});
      kernels::batch_norm_backward(test::context(), {}, g.view(), {}, {}, dy.view(), out, x.view(), w.view(), b.view(),
                                   mean.view(), inv.view(), {.relu = true});
      results[from_output] = test::to_f64(dx);
      for (const double v : test::to_f64(dw)) results[from_output].push_back(v);
      masks[from_output] = test::to_f64(g);
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(masks[0], masks[1]);
    const auto gradient = test::to_f64(dy);
    for (std::size_t i = 0; i < want.size(); ++i) ASSERT_EQ(masks[1][i], want[i] > 0 ? gradient[i] : 0) << i;
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, BatchNorm, ::testing::ValuesIn(kCases), [](const auto& i) {
  std::string name = i.param.format == MemoryFormat::channels_last ? "last" : "row";
  for (const auto s : i.param.sizes) name += "_" + std::to_string(s);
  return name;
});

TEST(BatchNormPieces, ComposeToTheWhole) {
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor x = test::uniform({3, 20, 5, 6}, DType::f32, test::device(), 1, -1, 1, format),
                 dy = test::uniform({3, 20, 5, 6}, DType::f32, test::device(), 2, -1, 1, format);
    const Tensor w = test::uniform({20}, DType::f32, test::device(), 3),
                 b = test::uniform({20}, DType::f32, test::device(), 4);
    const auto vector = [] { return test::fresh({20}, DType::f32); };
    const Tensor mean = vector(), var = vector(), inv_std = vector(), mean2 = vector(), inv_std2 = vector(),
                 s1 = vector(), s2 = vector(), dw = vector(), db = vector();
    const Tensor y = test::fresh_like(x), y2 = test::fresh_like(x), dx = test::fresh_like(x), dx2 = test::fresh_like(x);
    kernels::batch_norm_statistics(test::context(), mean.view(), var.view(), x.view());
    kernels::batch_norm_finish_statistics(test::context(), inv_std.view(), {}, {}, mean.view(), var.view(), 90, 0.1,
                                          kEps);
    kernels::batch_norm_apply(test::context(), y.view(), x.view(), mean.view(), inv_std.view(), w.view(), b.view(), {},
                              true);
    kernels::batch_norm_forward(test::context(), y2.view(), mean2.view(), inv_std2.view(), {}, {}, x.view(), w.view(),
                                b.view(), {}, 0.1, {.eps = kEps, .relu = true});
    EXPECT_EQ(test::to_f64(y), test::to_f64(y2));
    kernels::batch_norm_backward_reduce(test::context(), s1.view(), s2.view(), {}, dy.view(), {}, x.view(), w.view(),
                                        b.view(), mean.view(), inv_std.view(), true);
    kernels::batch_norm_backward_apply(test::context(), dx.view(), dy.view(), {}, x.view(), w.view(), b.view(),
                                       mean.view(), inv_std.view(), s1.view(), s2.view(), 90, true);
    kernels::batch_norm_backward(test::context(), dx2.view(), {}, dw.view(), db.view(), dy.view(), {}, x.view(),
                                 w.view(), b.view(), mean.view(), inv_std.view(), {.eps = kEps, .relu = true});
    EXPECT_TRUE(test::close(dx, test::to_f64(dx2), {1e-6, 1e-7}));
    EXPECT_EQ(test::to_f64(s1), test::to_f64(db));
  }
}

TEST(BatchNorm, LargeOffset_PAR_15_22) {
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor x = test::from_list({4, 2, 1, 1}, DType::f32, {10000, -3, 10001, -3, 10002, -3, 10003, -3}, format);
    const Tensor y = test::fresh_like(x), mean = test::fresh({2}, DType::f32), var = test::fresh({2}, DType::f32),
                 inv = test::fresh({2}, DType::f32);
    kernels::batch_norm_statistics(test::context(), mean.view(), var.view(), x.view());
    EXPECT_TRUE(test::close(var, {1.25, 0}, {0, 1e-6}));
    kernels::batch_norm_forward(test::context(), y.view(), mean.view(), inv.view(), {}, {}, x.view(), {}, {}, {}, 0.1);
    EXPECT_TRUE(test::close(y, {-1.341635, 0, -0.447212, 0, 0.447212, 0, 1.341635, 0}, {0, 1e-5}));
  }
  // And where there are many values: 10^4 + small, in several groups of partial sums.
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Dims sizes{8, 3, 50, 50};
    const Tensor x = test::uniform(sizes, DType::f32, test::device(), 9, 10000, 10001, format),
                 mean = test::fresh({3}, DType::f32), var = test::fresh({3}, DType::f32);
    const auto want = reference(sizes, {test::to_f64(x), {}, {}, {}, std::vector<double>(60000, 0.0), {}, {}, false});
    kernels::batch_norm_statistics(test::context(), mean.view(), var.view(), x.view());
    EXPECT_TRUE(test::close(var, want.var, {1e-5, 0}));
    EXPECT_TRUE(test::close(mean, want.mean, {1e-7, 0}));
  }
}

TEST(BatchNorm, ResidualAndReLU_PAR_15_25) {
  const Tensor x = values<float>({3, 1, 1}, {1, 3, 5}), z = values<float>({3, 1, 1}, {2, -2, -0.25f}),
               dy = values<float>({3, 1, 1}, {1, 2, 3});
  const Tensor b = values<float>({1}, {0.5f}), w = values<float>({1}, {1});
  const Tensor y = test::fresh_like(x), mean = test::fresh({1}, DType::f32), inv = test::fresh({1}, DType::f32),
               dx = test::fresh_like(x), dz = test::fresh_like(x), dw = test::fresh({1}, DType::f32),
               db = test::fresh({1}, DType::f32);
  kernels::batch_norm_forward(test::context(), y.view(), mean.view(), inv.view(), {}, {}, x.view(), w.view(), b.view(),
                              z.view(), 0.1, {.relu = true});
  EXPECT_TRUE(test::close(y, {1.2752574, 0, 1.4747426}, {0, 1e-5}));
  kernels::batch_norm_backward(test::context(), dx.view(), dz.view(), dw.view(), db.view(), dy.view(), y.view(),
                               x.view(), w.view(), b.view(), mean.view(), inv.view(), {.relu = true});
  EXPECT_TRUE(test::equal(dz, {1, 0, 3}));
  EXPECT_TRUE(test::close(dx, {0.4082452, -0.8164951, 0.4082498}, {0, 1e-5}));
  EXPECT_TRUE(test::close(dw, {-1.2247426 + 3.6742277}, {0, 1e-5}));
  EXPECT_TRUE(test::equal(db, {4}));
}

TEST(BatchNorm, Eval_PAR_15_26) {
  const Tensor x = values<float>({3, 1}, {1, 3, -1}), m = values<float>({1}, {1}), v = values<float>({1}, {4}),
               w = values<float>({1}, {3}), b = values<float>({1}, {0.5f});
  const Tensor y = test::fresh_like(x), dx = test::fresh_like(x), one = values<float>({3, 1}, {1, 1, 1});
  kernels::batch_norm_inference(test::context(), y.view(), x.view(), m.view(), v.view(), w.view(), b.view(), {});
  EXPECT_TRUE(test::close(y, {0.5, 3.4999963, -2.4999963}, {0, 1e-6}));
  kernels::batch_norm_inference_backward(test::context(), dx.view(), {}, {}, {}, one.view(), {}, x.view(), w.view(),
                                         b.view(), m.view(), v.view());
  EXPECT_TRUE(test::close(dx, {1.4999981, 1.4999981, 1.4999981}, {0, 1e-6}));
}

TEST(BatchNorm, GradientsMatchDifferences) {
  for (const bool relu : {false, true})
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      const Tensor x = test::uniform({3, 4, 2, 3}, DType::f64, test::device(), 1, -1, 1, format),
                   z = test::uniform({3, 4, 2, 3}, DType::f64, test::device(), 2, -1, 1, format);
      const Tensor w = test::uniform({4}, DType::f64, test::device(), 3, 0.5, 1.5),
                   b = test::uniform({4}, DType::f64, test::device(), 4), y = empty_like(x),
                   mean = make({4}, DType::f64), inv = make({4}, DType::f64);
      const Tensor dx = test::fresh_like(x), dz = test::fresh_like(x), dw = test::fresh_like(w),
                   db = test::fresh_like(b), dy = test::weights_like(y);
      const BatchNormOptions o{.eps = kEps, .relu = relu};
      const auto loss = [&] {
        kernels::batch_norm_forward(test::context(), y.view(), mean.view(), inv.view(), {}, {}, x.view(), w.view(),
                                    b.view(), z.view(), 0.1, o);
        return test::weighted_sum(y);
      };
      loss();
      kernels::batch_norm_backward(test::context(), dx.view(), dz.view(), dw.view(), db.view(), dy.view(), y.view(),
                                   x.view(), w.view(), b.view(), mean.view(), inv.view(), o);
      EXPECT_TRUE(test::gradient_matches(x, dx, loss));
      EXPECT_TRUE(test::gradient_matches(z, dz, loss));
      EXPECT_TRUE(test::gradient_matches(w, dw, loss));
      EXPECT_TRUE(test::gradient_matches(b, db, loss));
    }
}

TEST(BatchNorm, SameBitsForEveryThreadCount) {
  const int threads = omp_get_max_threads();
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor x = test::uniform({16, 24, 20, 20}, DType::f32, test::device(), 1, -1, 1, format), y = empty_like(x),
                 mean = make({24}), inv = make({24}), dx = empty_like(x), dw = make({24});
    std::vector<std::vector<double>> results;
    for (const int t : {1, 2, 3}) {
      omp_set_num_threads(t);
      kernels::batch_norm_forward(test::context(), y.view(), mean.view(), inv.view(), {}, {}, x.view(), {}, {}, {},
                                  0.1);
      kernels::batch_norm_backward(test::context(), dx.view(), {}, dw.view(), {}, x.view(), {}, y.view(), {}, {},
                                   mean.view(), inv.view());
      auto all = test::to_f64(y);
      for (const auto& t2 : {mean, inv, dx, dw})
        for (const double v : test::to_f64(t2)) all.push_back(v);
      results.push_back(all);
    }
    omp_set_num_threads(threads);
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
  }
}

TEST(BatchNorm, EmptyInputAndNaN) {
  const Tensor x = make({0, 3, 4, 4}), mean = test::fresh({3}, DType::f32), inv = test::fresh({3}, DType::f32),
               rm = values<float>({3}, {1, 2, 3}), rv = values<float>({3}, {4, 5, 6});
  kernels::batch_norm_forward(test::context(), x.view(), mean.view(), inv.view(), rm.view(), rv.view(), x.view(), {},
                              {}, {}, 0.1);
  EXPECT_TRUE(test::equal(rm, {1, 2, 3}));
  EXPECT_TRUE(test::equal(rv, {4, 5, 6}));
  EXPECT_TRUE(test::equal(mean, {0, 0, 0}));
  const Tensor dw = test::fresh({3}, DType::f32), db = test::fresh({3}, DType::f32);
  kernels::batch_norm_backward(test::context(), x.view(), {}, dw.view(), db.view(), x.view(), {}, x.view(), {}, {},
                               mean.view(), inv.view());
  EXPECT_TRUE(test::equal(dw, {0, 0, 0}));
  EXPECT_TRUE(test::equal(db, {0, 0, 0}));
  const Tensor n = values<float>({2, 2}, {NAN, -1, 1, -2}), y = test::fresh({2, 2}, DType::f32),
               m = values<float>({2}, {0, 0}), v = values<float>({2}, {1, 1});
  kernels::batch_norm_inference(test::context(), y.view(), n.view(), m.view(), v.view(), {}, {}, {}, {.relu = true});
  EXPECT_TRUE(test::close(y, {std::nan(""), 0, 1, 0}, {1e-4, 0}));
}

TEST(BatchNorm, CountsItsBatches) {
  const Tensor count = values<std::int64_t>({}, {41}), x = test::uniform({4, 3}, DType::f32, test::device(), 1),
               y = test::fresh_like(x), mean = make({3}), inv = make({3}), none = make({0, 3});
  const BatchNormOptions o{.batches_tracked = count.view()};
  const auto forward = [&](const Tensor& in, const Tensor& out) {
    kernels::batch_norm_forward(test::context(), out.view(), mean.view(), inv.view(), {}, {}, in.view(), {}, {}, {},
                                0.1, o);
  };
  forward(x, y);
  EXPECT_EQ(count.item(), 42);
  forward(x, y);
  EXPECT_EQ(count.item(), 43);
  forward(none, none);
  EXPECT_EQ(count.item(), 43) << "an empty batch counts for nothing";
  kernels::batch_norm_inference(test::context(), y.view(), x.view(), mean.view(), inv.view(), {}, {}, {}, o);
  EXPECT_EQ(count.item(), 43);
}

/// The running statistics of four steps are the plain average of the batches', for more channels than a block takes.
TEST(BatchNorm, AveragesAllBatches) {
  constexpr std::int64_t kChannels = 70, kRows = 6;
  const auto n = static_cast<std::size_t>(kChannels);
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const DType acc = accum_dtype(dtype);
    const Tensor count = values<std::int64_t>({}, {0}), mean = make({kChannels}, acc), inv = make({kChannels}, acc),
                 running_mean = test::uniform({kChannels}, acc, test::device(), 7),
                 running_var = test::uniform({kChannels}, acc, test::device(), 8);
    const BatchNormOptions o{.batches_tracked = count.view(), .cumulative = true};
    std::vector<double> means(n, 0.0), vars(n, 0.0);
    for (std::uint64_t step = 0; step < 4; ++step) {
      const Tensor none = make({0, kChannels}, dtype);  // between two batches: it has no part in the average
      kernels::batch_norm_forward(test::context(), none.view(), mean.view(), inv.view(), running_mean.view(),
                                  running_var.view(), none.view(), {}, {}, {}, 0.9, o);
      const Tensor x = test::uniform({kRows, kChannels}, dtype, test::device(), step), y = test::fresh_like(x);
      kernels::batch_norm_forward(test::context(), y.view(), mean.view(), inv.view(), running_mean.view(),
                                  running_var.view(), x.view(), {}, {}, {}, 0.9, o);
      const auto in = test::to_f64(x);
      for (std::size_t c = 0; c < n; ++c) {
        double m = 0, v = 0;
        for (std::size_t r = 0; r < kRows; ++r) m += in[r * n + c] / kRows;
        for (std::size_t r = 0; r < kRows; ++r) v += (in[r * n + c] - m) * (in[r * n + c] - m) / (kRows - 1);
        means[c] += m / 4;
        vars[c] += v / 4;
      }
    }
    EXPECT_TRUE(test::close(running_mean, means, test::forward_tolerance(acc)));
    EXPECT_TRUE(test::close(running_var, vars, test::forward_tolerance(acc)));
    EXPECT_EQ(count.item(), 4);
  }
}

TEST(BatchNorm, BadArguments) {
  const Tensor x = make({2, 3, 4, 4}), y = make({2, 3, 4, 4}), mean = make({3}), inv = make({3}), w = make({3});
  const auto forward = [&](const Tensor& px, const Tensor& py, const Tensor& m, const Tensor& weight,
                           const Tensor& rm = {}, const Tensor& rv = {}, const BatchNormOptions& o = {}) {
    kernels::batch_norm_forward(test::context(), py.view(), m.view(), inv.view(), rm.view(), rv.view(), px.view(),
                                weight.view(), {}, {}, 0.1, o);
  };
  EXPECT_TRUE(throws(Kind::argument, "more than one value", [&] { forward(make({1, 3}), make({1, 3}), mean, w); }));
  EXPECT_TRUE(throws(Kind::argument, "rank 2 to 5", [&] { forward(make({3}), y, mean, w); }));
  EXPECT_TRUE(throws(Kind::argument, "copy it first", [&] { forward(test::spread_out(x), y, mean, w); }));
  EXPECT_TRUE(throws(Kind::argument, "y has strides", [&] {
    forward(x, make({2, 3, 4, 4}, DType::f32, test::device(), MemoryFormat::channels_last), mean, w);
  }));
  EXPECT_TRUE(throws(Kind::argument, "y has sizes", [&] { forward(x, make({2, 3, 4, 5}), mean, w); }));
  EXPECT_TRUE(throws(Kind::argument, "mean has sizes", [&] { forward(x, y, make({4}), w); }));
  EXPECT_TRUE(throws(Kind::argument, "mean is f64", [&] { forward(x, y, make({3}, DType::f64), w); }));
  EXPECT_TRUE(throws(Kind::argument, "weight is f16", [&] { forward(x, y, mean, make({3}, DType::f16)); }));
  EXPECT_TRUE(throws(Kind::argument, "weight has sizes", [&] { forward(x, y, mean, make({2})); }));
  EXPECT_TRUE(throws(Kind::argument, "go together", [&] { forward(x, y, mean, w, make({3})); }));
  EXPECT_TRUE(throws(Kind::argument, "eps is 0", [&] { forward(x, y, mean, w, {}, {}, {.eps = 0}); }));
  EXPECT_TRUE(throws(Kind::argument, "cumulative average needs batches_tracked",
                     [&] { forward(x, y, mean, w, {}, {}, {.cumulative = true}); }));
  const Tensor two = make({2}, DType::i64);
  EXPECT_TRUE(throws(Kind::argument, "batches_tracked is f32",
                     [&] { forward(x, y, mean, w, {}, {}, {.batches_tracked = w.view()}); }));
  EXPECT_TRUE(throws(Kind::argument, "batches_tracked has sizes [2]",
                     [&] { forward(x, y, mean, w, {}, {}, {.batches_tracked = two.view()}); }));
  EXPECT_TRUE(throws(Kind::unsupported, "i64", [&] { forward(make({2, 3}, DType::i64), y, mean, w); }));
  EXPECT_TRUE(throws(Kind::argument, "running_mean is not given",
                     [&] { kernels::batch_norm_inference(test::context(), y.view(), x.view(), {}, {}, {}, {}, {}); }));
  EXPECT_TRUE(throws(Kind::argument, "dy is not given", [&] {
    kernels::batch_norm_backward(test::context(), y.view(), {}, {}, {}, {}, {}, x.view(), {}, {}, mean.view(),
                                 inv.view());
  }));
  EXPECT_TRUE(throws(Kind::argument, "inv_std is not given", [&] {
    kernels::batch_norm_apply(test::context(), y.view(), x.view(), mean.view(), {}, {}, {}, {}, false);
  }));
  EXPECT_TRUE(throws(Kind::argument, "var is not given",
                     [&] { kernels::batch_norm_statistics(test::context(), mean.view(), {}, x.view()); }));
}

}  // namespace
}  // namespace apex
