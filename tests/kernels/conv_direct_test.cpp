// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/conv.hpp"
#include "support/tensors.hpp"
#ifdef APEX_HAS_CUDA
#include "cuda/conv_direct.hpp"
#endif

// Our own convolution on the GPU, called by itself: through the front it is met only by f64 and where cuDNN has no
// plan, which depends on cuDNN's version. The CPU takes the same cases through the front.

namespace apex {
namespace {

using kernels::Conv2dOptions;

struct Case {
  const char* name;
  Dims x, w;
  Conv2dOptions options;
};
/// The second has a weight gradient of several slices, the third tiles that end early in both directions.
const Case kCases[] = {
    {"strided", {2, 5, 9, 7}, {7, 5, 3, 3}, {.stride = {2, 1}, .padding = {1, 1}}},
    {"many_pixels", {3, 4, 20, 20}, {5, 4, 3, 3}, {.padding = {1, 1}}},
    {"grouped", {2, 6, 10, 9}, {140, 3, 2, 3}, {.padding = {1, 0}, .dilation = {2, 1}, .groups = 2}},
};

class Conv2dDirect : public ::testing::TestWithParam<Case> {};

TEST_P(Conv2dDirect, MatchesFloat64) {
  const Case& c = GetParam();
  const Dims ys = kernels::conv2d_output_sizes(c.x, c.w, c.options);
  const Context host;
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      SCOPED_TRACE(concat(dtype, format == MemoryFormat::channels_last));
      const auto made = [&](const Dims& sizes, std::uint64_t seed) {
        return test::uniform(sizes, dtype, test::device(), seed, -1, 1, format);
      };
      const Tensor x = made(c.x, 1), w = made(c.w, 2), dy = made(ys, 3),
                   b = test::uniform({c.w[0]}, dtype, test::device(), 4);
      const auto wide = [](const Tensor& t) {  // on the host in f64, where the definition has been tested
        const auto v = test::to_f64(t);
        return test::from_function(t.sizes(), DType::f64, kCpu,
                                   [&](std::int64_t i) { return v[static_cast<std::size_t>(i)]; });
      };
      const Tensor x64 = wide(x), w64 = wide(w), dy64 = wide(dy), b64 = wide(b), y64 = empty(ys, DType::f64),
                   dx64 = empty_like(x64), dw64 = empty_like(w64);
      kernels::conv2d_forward(host, y64.view(), x64.view(), w64.view(), b64.view(), c.options);
      kernels::conv2d_backward_data(host, dx64.view(), dy64.view(), w64.view(), c.options);
      kernels::conv2d_backward_weight(host, dw64.view(), {}, dy64.view(), x64.view(), c.options);
      const Tensor y = test::fresh(ys, dtype, format), dx = test::fresh_like(x), dw = test::fresh_like(w);
      if (test::on_cuda()) {
#ifdef APEX_HAS_CUDA
        namespace direct = kernels::cuda::direct;
        direct::forward(test::context(), y.view(), x.view(), w.view(), b.view(), c.options);
        direct::backward_data(test::context(), dx.view(), dy.view(), w.view(), {}, c.options);
        direct::backward_weight(test::context(), dw.view(), dy.view(), x.view(), c.options);
#endif
      } else {
        kernels::conv2d_forward(host, y.view(), x.view(), w.view(), b.view(), c.options);
        kernels::conv2d_backward_data(host, dx.view(), dy.view(), w.view(), c.options);
        kernels::conv2d_backward_weight(host, dw.view(), {}, dy.view(), x.view(), c.options);
      }
      const std::int64_t terms = c.w[1] * c.w[2] * c.w[3], reach = c.w[0] / c.options.groups * c.w[2] * c.w[3],
                         rows = ys[0] * ys[2] * ys[3];
      EXPECT_TRUE(test::close(y, test::to_f64(y64), test::product_tolerance(dtype, terms)));
      EXPECT_TRUE(test::close(dx, test::to_f64(dx64), test::product_tolerance(dtype, reach)));
      EXPECT_TRUE(test::close(dw, test::to_f64(dw64), test::sum_tolerance(dtype, rows)));
    }
}
INSTANTIATE_TEST_SUITE_P(Shapes, Conv2dDirect, ::testing::ValuesIn(kCases),
                         [](const auto& i) { return std::string(i.param.name); });

}  // namespace
}  // namespace apex
