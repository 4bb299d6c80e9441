// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/batch_norm.hpp"
#include "apex/kernels/elementwise.hpp"
#include "support/on_device.hpp"

// BatchNormOptions::more_dy: the gradient as two terms must be, bit for bit, the gradient as their rounded sum.

namespace apex {
namespace {

using kernels::BatchNormOptions;
using test::make;
using test::throws;

constexpr auto kLast = MemoryFormat::channels_last;

struct Case {
  Dims sizes;
  MemoryFormat format;
};
const Case kCases[] = {
    {{5, 3}, MemoryFormat::contiguous},
    {{9, 40}, MemoryFormat::contiguous},
    {{3, 5, 7, 3}, MemoryFormat::contiguous},
    {{2, 16, 4, 8}, MemoryFormat::contiguous},
    {{2, 3, 60, 60}, MemoryFormat::contiguous},
    {{3, 37, 5, 3}, kLast},
    {{2, 64, 5, 7}, kLast},
    {{2, 24, 20, 21}, kLast},
};

/// All that backward writes, as numbers.
using Results = std::vector<std::vector<double>>;

class BatchNormTerms : public ::testing::TestWithParam<Case> {
 protected:
  void check(DType dtype, bool aligned, bool relu, bool with_residual, bool training) {
    const auto& [sizes, format] = GetParam();
    SCOPED_TRACE(concat(sizes, dtype, format == kLast, aligned, relu, with_residual, training));
    const DType acc = accum_dtype(dtype);
    const Dims c{sizes[1]};
    const auto laid = [&](const Tensor& t) { return aligned ? t : test::misaligned(t); };
    const auto made = [&](std::uint64_t seed) {
      return laid(test::uniform(sizes, dtype, test::device(), seed, -1, 1, format));
    };
    const Tensor x = made(1), residual = with_residual ? made(2) : Tensor{}, dy = made(3), more = made(4),
                 sum = laid(test::fresh_like(x)), y = laid(test::fresh_like(x));
    const Tensor w = test::uniform(c, acc, test::device(), 5, 0.5, 1.5), b = test::uniform(c, dtype, test::device(), 6),
                 mean = test::uniform(c, acc, test::device(), 7),
                 spread = test::uniform(c, acc, test::device(), 8, 0.5, 2);
    const BatchNormOptions one{.relu = relu};
    BatchNormOptions two = one;
    if (training)
      kernels::batch_norm_forward(test::context(), y.view(), mean.view(), spread.view(), {}, {}, x.view(), w.view(),
                                  b.view(), residual.view(), 0.1, one);
    else
      kernels::batch_norm_inference(test::context(), y.view(), x.view(), mean.view(), spread.view(), w.view(), b.view(),
                                    residual.view(), one);
    kernels::binary(test::context(), sum.view(), dy.view(), more.view(), kernels::BinaryOp::add);
    const auto backward = training ? kernels::batch_norm_backward : kernels::batch_norm_inference_backward;
    const auto run = [&](const Tensor& dx, const Tensor& dresidual, const Tensor& g, const Tensor& out,
                         const BatchNormOptions& o) {
      const Tensor dw = test::fresh(c, acc), db = test::fresh(c, acc);
      backward(test::context(), dx.view(), dresidual.view(), dw.view(), db.view(), g.view(), out.view(), x.view(),
               w.view(), b.view(), mean.view(), spread.view(), o);
      Results r;
      for (const auto& t : {dx, dresidual, dw, db}) r.push_back(t.defined() ? test::to_f64(t) : std::vector<double>{});
      return r;
    };
    const auto blank = [&] { return laid(test::fresh_like(x)); };
    const auto copy_of = [&](const Tensor& t) {
      const Tensor out = blank();
      const auto all = test::to_f64(t);
      test::assign(out, [&](std::int64_t i) { return all[static_cast<std::size_t>(i)]; });
      return out;
    };
    two.more_dy = more.view();
    const auto dy_before = test::to_f64(dy), more_before = test::to_f64(more);
    const auto want = run(blank(), blank(), sum, y, one);  // of a kernel without terms
    ASSERT_FALSE(std::isnan(want[0][0]));
    EXPECT_NE(want, run(blank(), blank(), dy, y, one));
    EXPECT_EQ(run(blank(), blank(), dy, y, two), want);
    EXPECT_EQ(test::to_f64(dy), dy_before);
    EXPECT_EQ(test::to_f64(more), more_before);
    const Tensor over_dy = copy_of(dy);  // dresidual over one term, dx over the other
    const Tensor over_more = copy_of(more);
    two.more_dy = over_more.view();
    EXPECT_EQ(run(over_more, over_dy, over_dy, y, two), want);
    two.more_dy = more.view();
    const auto without = run(blank(), {}, sum, y, one);  // no gradient of a residual wanted
    EXPECT_EQ(run(blank(), {}, dy, y, two), without);
    const Tensor dx_over_dy = copy_of(dy);
    EXPECT_EQ(run(dx_over_dy, {}, dx_over_dy, y, two), without);
    const Tensor dx_over_more = copy_of(more);
    two.more_dy = dx_over_more.view();
    EXPECT_EQ(run(dx_over_more, {}, dy, y, two), without);
    two.more_dy = more.view();
    EXPECT_EQ(run({}, blank(), dy, y, two), run({}, blank(), sum, y, one));
    if (relu && !with_residual) {  // the mask made again from x
      EXPECT_EQ(run(blank(), blank(), dy, {}, two), run(blank(), blank(), sum, {}, one));
    }
  }
};

TEST_P(BatchNormTerms, AreTheirRoundedSum) {
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const bool aligned : {true, false})
      for (const bool training : {true, false}) {
        check(dtype, aligned, true, true, training);
        check(dtype, aligned, true, false, training);
        check(dtype, aligned, false, true, training);
      }
}
INSTANTIATE_TEST_SUITE_P(Shapes, BatchNormTerms, ::testing::ValuesIn(kCases), [](const auto& i) {
  std::string name = i.param.format == kLast ? "last" : "row";
  for (const auto s : i.param.sizes) name += "_" + std::to_string(s);
  return name;
});

TEST(BatchNormSecondTerm, BadArguments) {
  const Tensor x = test::uniform({2, 3, 4, 4}, DType::f32, test::device(), 1), y = make(x.sizes()),
               dx = make(x.sizes()), dz = make(x.sizes()), mean = make({3}),
               spread = test::uniform({3}, DType::f32, test::device(), 2, 1, 2);
  for (const auto backward : {kernels::batch_norm_backward, kernels::batch_norm_inference_backward}) {
    const auto with = [&](const Tensor& more, const Tensor& dresidual) {
      BatchNormOptions o{.relu = true};
      o.more_dy = more.view();
      backward(test::context(), dx.view(), dresidual.view(), {}, {}, x.view(), y.view(), x.view(), {}, {}, mean.view(),
               spread.view(), o);
    };
    for (const Tensor& dresidual : {dz, Tensor{}}) {
      EXPECT_TRUE(throws(Kind::argument, "more_dy has sizes", [&] { with(make({2, 3, 4, 5}), dresidual); }));
      EXPECT_TRUE(throws(Kind::argument, "more_dy is f64", [&] { with(make(x.sizes(), DType::f64), dresidual); }));
      EXPECT_TRUE(throws(Kind::argument, "more_dy has strides",
                         [&] { with(make(x.sizes(), DType::f32, test::device(), kLast), dresidual); }));
    }
  }
}

TEST(BatchNormCounter, CountsABatchWithoutChannels) {
  const Tensor x = make({2, 0, 3, 3}), none = make({0}), count = test::values<std::int64_t>({}, {4});
  kernels::batch_norm_forward(test::context(), x.view(), none.view(), none.view(), {}, {}, x.view(), {}, {}, {}, 0.1,
                              {.batches_tracked = count.view()});
  EXPECT_EQ(count.item(), 5);
}

}  // namespace
}  // namespace apex
