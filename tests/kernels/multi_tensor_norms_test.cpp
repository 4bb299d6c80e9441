// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/multi_tensor_optimizers.hpp"

#include <functional>

#include "kernels/multi_tensor_lists.hpp"

namespace apex {
namespace {

using kernels::NormType;
using test::all_close;
using test::awkward;
using test::fresh_like;
using test::List;
using test::make;
using test::values;
using test::Values;
using test::values_of;

TEST(MultiTensorNorms, Acceptance_OPT_10_A31) {
  const Tensor flag = values<std::int32_t>({1}, {0}), norm = test::fresh({1}, DType::f32),
               per = test::fresh({2}, DType::f32), quarter = values<float>({1}, {0.25f});
  const List x{values<float>({2}, {3, 4}), values<float>({2}, {0, 12})},
      out{make({2}, DType::f16), make({2}, DType::f16)};
  kernels::multi_tensor_l2norm_mp(test::context(), flag.view(), norm.view(), per.view(), x.const_views);
  EXPECT_EQ(norm.item(), 13);
  EXPECT_TRUE(test::equal(per, {5, 12}));
  const List y{values<float>({2}, {12, 16})};
  kernels::multi_tensor_unscale_l2norm(test::context(), flag.view(), norm.view(), {}, y.const_views, quarter.view());
  EXPECT_EQ(norm.item(), 5);
  EXPECT_TRUE(test::equal(y.tensors[0], {12, 16}));
  kernels::multi_tensor_l2norm_scale(test::context(), flag.view(), norm.view(), per.view(), out.views, x.const_views,
                                     2);
  EXPECT_EQ(norm.item(), 13);
  EXPECT_TRUE(test::equal(per, {5, 12}));
  EXPECT_EQ(out.joined(), (std::vector<double>{6, 8, 0, 24}));
  EXPECT_EQ(flag.item(), 0);
  kernels::multi_tensor_max_norm(test::context(), flag.view(), norm.view(), per.view(), x.const_views);
  EXPECT_EQ(norm.item(), 12);
  EXPECT_TRUE(test::equal(per, {4, 12}));
  EXPECT_EQ(flag.item(), 0);
  const auto flagged = [&](const std::function<void(View)>& op) {
    const Tensor f = values<std::int32_t>({1}, {0});
    op(f.view());
    return f.item();
  };
  const List nan{values<float>({2}, {1, NAN}), values<float>({1}, {7})}, large{values<float>({1}, {2e19f})},
      half{make({1}, DType::f16)};
  EXPECT_EQ(flagged([&](View f) {
              kernels::multi_tensor_max_norm(test::context(), f, norm.view(), per.view(), nan.const_views);
            }),
            1);
  EXPECT_TRUE(std::isnan(norm.item()));
  EXPECT_TRUE(std::isnan(test::to_f64(per)[0]));
  EXPECT_EQ(test::to_f64(per)[1], 7);
  EXPECT_EQ(
      flagged([&](View f) { kernels::multi_tensor_l2norm_mp(test::context(), f, norm.view(), {}, large.const_views); }),
      1);
  EXPECT_EQ(
      flagged([&](View f) { kernels::multi_tensor_max_norm(test::context(), f, norm.view(), {}, large.const_views); }),
      0);
  EXPECT_EQ(flagged([&](View f) {
              kernels::multi_tensor_l2norm_scale(test::context(), f, norm.view(), {}, half.views,
                                                 List{values<float>({1}, {1e5f})}.const_views, 1);
            }),
            1)
      << "a result beyond f16";
  const Tensor set = values<std::int32_t>({1}, {5});
  kernels::multi_tensor_l2norm_mp(test::context(), set.view(), norm.view(), per.view(), nan.const_views);
  EXPECT_EQ(norm.item(), 0);
  EXPECT_TRUE(test::equal(per, {0, 0}));
  EXPECT_EQ(set.item(), 5);
  for (const auto dtype : {DType::f32, DType::f64}) {
    const Tensor none = test::fresh({1}, dtype);
    kernels::multi_tensor_max_norm(test::context(), {}, none.view(), {}, {});
    EXPECT_EQ(none.item(), 0) << "of nothing";
  }
}

TEST(MultiTensorNorms, EveryTypeAgainstTheFormulas) {
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const List x = awkward(dtype, 5);
    const auto n = static_cast<std::int64_t>(x.tensors.size());
    std::vector<double> l2, most, scaled_l2, blend_l2, blend_max;
    double sum = 0, largest = 0;
    for (const auto& values : values_of(x)) {
      double s = 0, m = 0;
      for (const double v : values) s += v * v, m = std::max(m, std::abs(v));
      l2.push_back(std::sqrt(s)), scaled_l2.push_back(0.25 * std::sqrt(s)), most.push_back(m);
      blend_l2.push_back(std::sqrt(0.75 * 4 + 0.25 * s)), blend_max.push_back(0.75 * 2 + 0.25 * m);
      sum += s, largest = std::max(largest, m);
    }
    const DType wide = accum_dtype(dtype);
    const Tensor norm = test::fresh({1}, wide), per = test::fresh({n}, wide), quarter = values<float>({1}, {0.25f});
    kernels::multi_tensor_l2norm_mp(test::context(), {}, norm.view(), per.view(), x.const_views);
    EXPECT_TRUE(test::close(norm, {std::sqrt(sum)}, test::kNormTolerance)) << dtype;
    EXPECT_TRUE(test::close(per, l2, test::kNormTolerance)) << dtype;
    kernels::multi_tensor_unscale_l2norm(test::context(), {}, norm.view(), per.view(), x.const_views, quarter.view());
    EXPECT_TRUE(test::close(per, scaled_l2, test::kNormTolerance)) << dtype;
    kernels::multi_tensor_max_norm(test::context(), {}, norm.view(), per.view(), x.const_views);
    EXPECT_TRUE(test::equal(per, most)) << dtype;
    EXPECT_EQ(norm.item(), largest);
    for (const auto type : {NormType::l2, NormType::inf}) {
      const Tensor kept = test::from_function({n}, wide, test::device(), [](std::int64_t) { return 2.0; });
      kernels::multi_tensor_norm_out(test::context(), {}, kept.view(), x.const_views, 0.75, 0.25, type);
      EXPECT_TRUE(test::close(kept, type == NormType::l2 ? blend_l2 : blend_max, test::kNormTolerance)) << dtype;
    }
    const List out = fresh_like(x, dtype == DType::f64 ? DType::f64 : DType::f32);
    kernels::multi_tensor_l2norm_scale(test::context(), {}, norm.view(), per.view(), out.views, x.const_views, 0.5);
    EXPECT_TRUE(test::close(per, l2, test::kNormTolerance)) << dtype;
    Values halved = values_of(x);
    for (auto& t : halved)
      for (auto& v : t) v *= 0.5;
    EXPECT_TRUE(all_close(out, halved, {})) << dtype;
  }
}

TEST(MultiTensorClip, Coefficients_OPT_10_A34) {
  const auto clipped = [](double most, double norm_value, const std::vector<double>& x, DType dtype = DType::f32,
                          DType norm_dtype = DType::f32) {
    const List l{test::from_list({static_cast<std::int64_t>(x.size())}, dtype, x)};
    const Tensor norm = test::from_list({1}, norm_dtype, {norm_value});
    kernels::multi_tensor_clip(test::context(), l.views, norm.view(), most);
    return l.joined();
  };
  EXPECT_TRUE(test::close(clipped(1, 13, {3, 4}), {3 * 0.0769230723, 4 * 0.0769230723}, {1e-6, 0}));
  EXPECT_TRUE(test::close(clipped(6.5, 13, {3, 4, 12}), {1.4999999, 1.9999999, 5.9999995}, {2e-7, 0}));
  EXPECT_TRUE(test::close(clipped(13, 13, {3, 4}), {3 * 0.99999994, 4 * 0.99999994}, {1e-7, 0}));
  EXPECT_EQ(clipped(20, 13, {3, 4}), (std::vector<double>{3, 4}));
  const auto of_inf = clipped(1, INFINITY, {3, INFINITY});
  EXPECT_EQ(of_inf[0], 0);
  EXPECT_TRUE(std::isnan(of_inf[1]));
  EXPECT_TRUE(std::isnan(clipped(1, NAN, {3})[0]));
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const auto norm_dtype : {DType::f32, DType::f64})
      EXPECT_TRUE(test::close(clipped(2, 4, {1, -2, 3}, dtype, norm_dtype), {0.5, -1, 1.5}, {0x1p-7, 0})) << dtype;
}

TEST(MultiTensorMaybeCast, TypesAndBytes_OPT_10_A38) {
  const List x{test::from_list({6}, DType::f32, {1.1, 1.125, 1.375, -3.3, 57344, 61440})}, bytes{make({6}, DType::u8)},
      back{make({6}, DType::f16)}, special{values<float>({3}, {NAN, -INFINITY, 0})}, codes{make({3}, DType::u8)},
      again{make({3}, DType::f32)};
  kernels::multi_tensor_maybe_cast(test::context(), {}, bytes.views, x.const_views);
  EXPECT_EQ(bytes.joined(), (std::vector<double>{0x3C, 0x3D, 0x3E, 0xC3, 0x7B, 0x7C}));
  kernels::multi_tensor_maybe_cast(test::context(), {}, back.views, bytes.const_views);
  EXPECT_EQ(back.joined(), (std::vector<double>{1, 1.25, 1.5, -3.5, 57344, INFINITY}));
  kernels::multi_tensor_maybe_cast(test::context(), {}, codes.views, special.const_views);
  kernels::multi_tensor_maybe_cast(test::context(), {}, again.views, codes.const_views);
  EXPECT_TRUE(test::equal(again.tensors[0], {NAN, -INFINITY, 0}));
  constexpr DType kTypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
  for (const auto from : kTypes)
    for (const auto to : kTypes) {
      const List in = awkward(from, 1), out = fresh_like(in, to);
      kernels::multi_tensor_maybe_cast(test::context(), {}, out.views, in.const_views);
      const auto want = values_of(in);
      EXPECT_TRUE(all_close(out, want,
                            size_of(to) >= size_of(from) && from != DType::f16 && from == to
                                ? test::Tolerance{}
                                : test::optimizer_tolerance(to == DType::f64 ? from : to)))
          << from << to;
    }
  const Tensor set = values<std::int32_t>({1}, {1}), clear = values<std::int32_t>({1}, {0});
  const List from{values<float>({1}, {2})}, to{values<float>({1}, {9})};
  kernels::multi_tensor_maybe_cast(test::context(), set.view(), to.views, from.const_views);
  EXPECT_EQ(to.tensors[0].item(), 9);
  kernels::multi_tensor_maybe_cast(test::context(), clear.view(), to.views, from.const_views);
  EXPECT_EQ(to.tensors[0].item(), 2);
}

TEST(UpdateScaleHysteresis, Sequence_OPT_10_A35) {
  const Tensor scale = values<float>({1}, {65536}), growth = values<std::int32_t>({1}, {0}),
               hysteresis = values<std::int32_t>({1}, {2});
  const auto update = [&](double found, double least = 0.0, double most = 3.4028234663852886e38) {
    const Tensor inf = test::from_list({1}, DType::f32, {found});
    kernels::update_scale_hysteresis(test::context(), scale.view(), growth.view(), hysteresis.view(), inf.view(), 2,
                                     0.5, 3, 2, least, most);
  };
  const int found[] = {1, 0, 1, 1, 1, 0, 0, 0, 0};
  const double scales[] = {65536, 65536, 65536, 32768, 16384, 16384, 16384, 32768, 32768};
  const int grown[] = {0, 1, 0, 0, 0, 1, 2, 0, 1}, held[] = {1, 2, 1, 0, -1, 2, 2, 2, 2};
  for (int i = 0; i < 9; ++i) {
    update(found[i]);
    EXPECT_EQ(scale.item(), scales[i]) << i;
    EXPECT_EQ(growth.item(), grown[i]) << i;
    EXPECT_EQ(hysteresis.item(), held[i]) << i;
  }
  const auto set = [](const Tensor& t, double x) { test::assign(t, [=](std::int64_t) { return x; }); };
  set(scale, 3e38), set(growth, 2);
  update(0);
  EXPECT_EQ(scale.item(), static_cast<double>(3e38f)) << "never infinite";
  EXPECT_EQ(growth.item(), 0);
  set(scale, 1024), set(growth, 2);
  update(0, 0, 1500);
  EXPECT_EQ(scale.item(), 1500);
  set(hysteresis, 1);
  update(1, 1000, 1500);
  EXPECT_EQ(scale.item(), 1000);
  set(scale, 1e-45), set(hysteresis, 1);
  update(NAN);
  EXPECT_EQ(scale.item(), 0) << "it may underflow";
}

}  // namespace
}  // namespace apex
