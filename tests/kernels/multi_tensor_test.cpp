
// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/multi_tensor.hpp"

#include "kernels/multi_tensor_lists.hpp"

namespace apex {
namespace {

using kernels::SgdOptions;
using test::List;
using test::make;
using test::throws;
using test::values;

Tensor flag(int value = 0) { return values<std::int32_t>({1}, {value}); }

TEST(MultiTensorScale, EveryTypePairAndSize_OPT_10_A29) {
  for (const auto from : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const auto to : {DType::f64, DType::f32, DType::f16, DType::bf16})
      for (const std::int64_t n : {1, 777, 33333, 65537}) {
        List in, out;
        for (int i = 0; i < 3; ++i) {
          in.add(i == 1 ? test::misaligned(test::uniform({n}, from, test::device(), 1))
                        : test::uniform({n}, from, test::device(), 2));
          out.add(test::fresh({n}, to));
        }
        const Tensor f = flag();
        kernels::multi_tensor_scale(test::context(), f.view(), out.views, in.const_views, 0.25, 333);
        EXPECT_EQ(f.item(), 0);
        for (std::size_t i = 0; i < 3; ++i) {
          auto want = test::to_f64(in.tensors[i]);
          for (auto& v : want) v *= 0.25;
          EXPECT_TRUE(test::close(out.tensors[i], want, test::optimizer_tolerance(to))) << from << to << n;
        }
      }
}

TEST(MultiTensorScale, DetectsAtEveryPlace_OPT_10_A29) {
  for (const double bad : {INFINITY, -INFINITY, NAN})
    for (const std::int64_t at : {0, 40000, 77776})
      for (const auto dtype : {DType::f32, DType::f16}) {
        const List in{
            test::from_function({100}, dtype, test::device(), [](std::int64_t) { return 4.0; }),
            test::from_function({77777}, dtype, test::device(), [=](std::int64_t i) { return i == at ? bad : 4.0; })};
        const Tensor f = flag();
        kernels::multi_tensor_scale(test::context(), f.view(), in.views, in.const_views, 0.25, 65536);  // in place
        EXPECT_EQ(f.item(), 1) << bad << at;
        EXPECT_EQ(test::to_f64(in.tensors[0])[0], 1.0);
        EXPECT_EQ(test::to_f64(in.tensors[1])[static_cast<std::size_t>(at == 0 ? 1 : 0)], 1.0)
            << "finite ones are written all the same";
      }
  const List big{values<float>({1}, {1e5f})}, half{make({1}, DType::f16)};
  const Tensor f = flag();
  kernels::multi_tensor_scale(test::context(), f.view(), half.views, big.const_views, 1.0);
  EXPECT_EQ(f.item(), 1) << "an overflow in the conversion counts";
  kernels::multi_tensor_scale(test::context(), {}, half.views, big.const_views, 1.0);  // no flag wanted
  const Tensor held = flag(1);
  kernels::multi_tensor_scale(test::context(), held.view(), {}, {}, 1.0);
  EXPECT_EQ(held.item(), 1) << "an op never clears the flag";
}

TEST(MultiTensorAxpby, NumbersAndChecks_OPT_10_A30) {
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const List x{test::from_function({5, 401}, dtype, test::device(), [](std::int64_t) { return 1.0; })},
        y{test::from_function({5, 401}, dtype, test::device(), [](std::int64_t) { return 2.0; })},
        out{test::fresh({5, 401}, DType::f32)};
    const Tensor f = flag();
    if (dtype == DType::f64) {
      const List wide{test::fresh({5, 401}, DType::f64)};
      kernels::multi_tensor_axpby(test::context(), f.view(), wide.views, x.const_views, y.const_views, 2, 3);
      EXPECT_TRUE(test::equal(wide.tensors[0], std::vector<double>(2005, 8)));
    } else {
      kernels::multi_tensor_axpby(test::context(), f.view(), out.views, x.const_views, y.const_views, 2, 3);
      EXPECT_TRUE(test::equal(out.tensors[0], std::vector<double>(2005, 8)));
    }
    EXPECT_EQ(f.item(), 0);
  }
  const List x{values<float>({2}, {1, 1})}, y{values<float>({2}, {2, NAN})}, out{make({2})};
  using kernels::CheckArgs;
  for (const auto& [check, want] : {std::pair{CheckArgs::x, 0}, {CheckArgs::y, 1}, {CheckArgs::both, 1}}) {
    const Tensor f = flag();
    kernels::multi_tensor_axpby(test::context(), f.view(), out.views, x.const_views, y.const_views, 2, 3, check);
    EXPECT_EQ(f.item(), want);
  }
  const List inf{values<float>({1}, {INFINITY})}, one{values<float>({1}, {1})}, o{make({1})};
  kernels::multi_tensor_axpby(test::context(), {}, o.views, inf.const_views, one.const_views, 0, 1);
  EXPECT_TRUE(std::isnan(test::to_f64(o.tensors[0])[0])) << "0 * infinity is NaN on purpose";
}

TEST(MultiTensorAxpby, EveryTypeTriple) {
  constexpr DType kTypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
  for (const auto x_type : kTypes)
    for (const auto y_type : kTypes)
      for (const auto out_type : kTypes) {
        List x, y, out;
        for (const std::int64_t n : {9001, 1, 67}) {
          const auto whole = [](std::int64_t by) {
            return [=](std::int64_t i) { return static_cast<double>(i * by % 17) - 8; };
          };
          x.add(test::from_function({n}, x_type, test::device(), whole(5)));
          y.add(test::from_function({n}, y_type, test::device(), whole(7)));
          out.add(test::fresh({n}, out_type));
        }
        x.add(test::misaligned(x.tensors[2]));
        y.add(y.tensors[2]);
        out.add(test::fresh({67}, out_type));
        const Tensor f = flag();
        kernels::multi_tensor_axpby(test::context(), f.view(), out.views, x.const_views, y.const_views, 2, -0.5);
        EXPECT_EQ(f.item(), 0);
        for (std::size_t t = 0; t < 4; ++t) {  // exact in every type
          const auto p = test::to_f64(x.tensors[t]), q = test::to_f64(y.tensors[t]);
          std::vector<double> want;
          for (std::size_t i = 0; i < p.size(); ++i) want.push_back(2 * p[i] - 0.5 * q[i]);
          EXPECT_TRUE(test::equal(out.tensors[t], want)) << x_type << y_type << out_type << t;
        }
      }
}

TEST(MultiTensorL2Norm, OfNothingIsZero) {
  for (const auto dtype : {DType::f32, DType::f64}) {
    const Tensor norm = test::fresh({1}, dtype);
    kernels::multi_tensor_l2norm(test::context(), {}, norm.view(), {}, {});
    EXPECT_TRUE(test::equal(norm, {0})) << dtype;
  }
}

TEST(MultiTensorL2Norm, NumbersAndFlags_OPT_10_A31) {
  const Tensor f = flag(), norm = test::fresh({}, DType::f32), per = test::fresh({2}, DType::f32);
  const List x{values<float>({2}, {3, 4}), values<float>({2}, {0, 12})};
  kernels::multi_tensor_l2norm(test::context(), f.view(), norm.view(), per.view(), x.const_views);
  EXPECT_EQ(norm.item(), 13);
  EXPECT_TRUE(test::equal(per, {5, 12}));
  EXPECT_EQ(f.item(), 0);
  const List halves{test::from_list({2}, DType::f16, {60000, 60000})};
  kernels::multi_tensor_l2norm(test::context(), f.view(), norm.view(), {}, halves.const_views);
  EXPECT_NEAR(norm.item(), 84852.81, 0.01);
  EXPECT_EQ(f.item(), 0);
  const List large{values<float>({1}, {2e19f})};
  kernels::multi_tensor_l2norm(test::context(), f.view(), norm.view(), {}, large.const_views);
  EXPECT_EQ(f.item(), 1) << "a square beyond f32 is detected";
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const std::int64_t chunk : {333, 33333, 65536}) {
      List many;
      double all = 0;
      std::vector<double> each;
      for (const std::int64_t n : {10, 0, 7777, 65537, 1}) {
        many.add(test::uniform({n}, dtype, test::device(), static_cast<std::uint64_t>(n + 1)));
        double sum = 0;
        for (const double v : test::to_f64(many.tensors.back())) sum += v * v;
        all += sum;
        each.push_back(std::sqrt(sum));
      }
      const Tensor n = test::fresh({1}, accum_dtype(dtype)), p = test::fresh({5}, accum_dtype(dtype));
      kernels::multi_tensor_l2norm(test::context(), {}, n.view(), p.view(), many.const_views, chunk);
      EXPECT_TRUE(test::close(n, {std::sqrt(all)}, test::kNormTolerance)) << dtype << chunk;
      EXPECT_TRUE(test::close(p, each, test::kNormTolerance)) << dtype << chunk;
    }
  kernels::multi_tensor_l2norm(test::context(), {}, norm.view(), {}, {});
  EXPECT_EQ(norm.item(), 0);
}

/// The rules of SGD, one element at a time, in float64.
struct Element {
  double p = 0, buf = 0;
  bool first = true;
  void step(double g, const SgdOptions& o) {
    g *= o.scale;
    if (!o.wd_after_momentum) g += o.weight_decay * p;
    if (o.momentum != 0) {
      buf = first ? g : o.momentum * buf + (1 - o.dampening) * g;
      first = false;
      g = o.nesterov ? g + o.momentum * buf : buf;
    }
    if (o.wd_after_momentum) g += o.weight_decay * p;
    p -= o.lr * g;
  }
};

const std::vector<double> kP = {1, -2, 0.5, 3};
const std::vector<double> kG[] = {{0.1, -0.2, 0.3, -0.4}, {0.05, 0.1, -0.15, 0.2}, {-0.3, 0, 0.6, 0.01}};

/// Three steps on the data of the acceptance cases, as one tensor or split into four, aligned or not.
struct ThreeSteps {
  List p, buf;

  ThreeSteps(const SgdOptions& o, bool split, bool odd, DType dtype = DType::f32) {
    const std::size_t parts = split ? 4 : 1, length = 4 / parts;
    const auto make = [&](const std::vector<double>& all, std::size_t part) {
      const auto from = static_cast<std::ptrdiff_t>(part * length);
      const Tensor t = test::from_list({static_cast<std::int64_t>(length)}, dtype,
                                       {all.begin() + from, all.begin() + from + static_cast<std::ptrdiff_t>(length)});
      return odd ? test::misaligned(t) : t;
    };
    for (std::size_t i = 0; i < parts; ++i) {
      p.add(make(kP, i));
      buf.add(test::fresh_like(p.tensors.back()));
    }
    std::vector<std::uint8_t> first(parts, 1);
    for (const auto& step : kG) {
      List g;
      for (std::size_t i = 0; i < parts; ++i) g.add(make(step, i));
      kernels::multi_tensor_sgd(test::context(), {}, p.views,
                                o.momentum != 0 ? std::span<const View>(buf.views) : std::span<const View>{}, {},
                                g.const_views, first, o);
      first.assign(parts, 0);
    }
  }
  static std::vector<double> joined(const List& l) {
    std::vector<double> out;
    for (const auto& t : l.tensors)
      for (const double v : test::to_f64(t)) out.push_back(v);
    return out;
  }
};

TEST(MultiTensorSgd, AcceptanceCases_OPT_10_A20_to_A23) {
  struct Case {
    SgdOptions options;
    std::vector<double> p, buf;
  };
  const Case cases[] = {
      {{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1},
       {0.93820798, -1.854216, 0.36037651, 2.901221},
       {0.08991998, -0.60184, 0.834735, 0.67679}},
      {{.lr = 0.1, .momentum = 0.9, .dampening = 0.5}, {0.98315001, -1.9553, 0.40295002, 3.0889001}, {}},
      {{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true},
       {0.93115741, -1.8017929, 0.28645427, 2.8407722},
       {}},
      {{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .wd_after_momentum = true},
       {0.96403801, -1.905876, 0.37306652, 2.979341},
       {-0.174, -0.072, 0.708, -0.134}},
  };
  for (const auto& c : cases)
    for (const bool split : {false, true})
      for (const bool odd : {false, true})
        for (const auto dtype : {DType::f32, DType::f64}) {
          const ThreeSteps r(c.options, split, odd, dtype);
          EXPECT_TRUE(test::close(ThreeSteps::joined(r.p), c.p, test::optimizer_tolerance(DType::f32)));
          if (!c.buf.empty()) {
            EXPECT_TRUE(test::close(ThreeSteps::joined(r.buf), c.buf, test::optimizer_tolerance(DType::f32)));
          }
        }
}

TEST(MultiTensorSgd, FirstRunIsPerTensor_OPT_10_A24) {
  for (const bool a_first : {true, false}) {
    const Tensor a = values<float>({1}, {1}), b = values<float>({1}, {1}), ma = make({1}), mb = make({1}),
                 one = values<float>({1}, {1});
    const SgdOptions o{.lr = 0.1, .momentum = 0.9, .dampening = 0.5};
    {
      const List p{a}, m{ma}, g{one};
      kernels::multi_tensor_sgd(test::context(), {}, p.views, m.views, {}, g.const_views, std::vector<std::uint8_t>{1},
                                o);
    }
    const List p = a_first ? List{a, b} : List{b, a}, m = a_first ? List{ma, mb} : List{mb, ma}, g{one, one};
    const std::vector<std::uint8_t> first = a_first ? std::vector<std::uint8_t>{0, 1} : std::vector<std::uint8_t>{1, 0};
    kernels::multi_tensor_sgd(test::context(), {}, p.views, m.views, {}, g.const_views, first, o);
    EXPECT_NEAR(a.item(), 0.76, 1e-7);
    EXPECT_NEAR(b.item(), 0.9, 1e-7);
  }
}

TEST(MultiTensorSgd, EveryTypeAgainstTheRules) {
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const auto grad_dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
      for (int bits = 0; bits < 32; ++bits) {
        if ((dtype == DType::f64) != (grad_dtype == DType::f64)) continue;
        const DType momentum_dtype = bits & 16 ? dtype : accum_dtype(dtype);
        if ((bits & 16) && momentum_dtype == accum_dtype(dtype)) continue;  // the same again
        const SgdOptions o{.lr = 0.05,
                           .momentum = bits & 1 ? 0.9 : 0.0,
                           .dampening = bits & 2 ? 0.3 : 0.0,
                           .weight_decay = bits & 4 ? 0.01 : 0.0,
                           .nesterov = (bits & 3) == 1,
                           .wd_after_momentum = (bits & 8) != 0,
                           .scale = 0.5};
        List p, m, g;
        for (const std::int64_t n : {1500, 0, 33, 1}) {
          p.add(test::misaligned(test::uniform({n}, dtype, test::device(), 1)));
          m.add(test::uniform({n}, momentum_dtype, test::device(), 2));
          g.add(test::uniform({n}, grad_dtype, test::device(), 3));
        }
        std::vector<std::vector<double>> want_p, want_m;
        const std::vector<std::uint8_t> first = {0, 1, 1, 0};
        for (std::size_t t = 0; t < 4; ++t) {
          const auto ps = test::to_f64(p.tensors[t]), ms = test::to_f64(m.tensors[t]), gs = test::to_f64(g.tensors[t]);
          want_p.emplace_back();
          want_m.emplace_back();
          for (std::size_t i = 0; i < ps.size(); ++i) {
            Element e{ps[i], ms[i], first[t] != 0};
            e.step(gs[i], o);
            want_p.back().push_back(e.p);
            want_m.back().push_back(e.buf);
          }
        }
        kernels::multi_tensor_sgd(test::context(), {}, p.views, m.views, {}, g.const_views, first, o);
        for (std::size_t t = 0; t < 4; ++t) {
          EXPECT_TRUE(test::close(p.tensors[t], want_p[t], test::optimizer_tolerance(dtype)))
              << dtype << grad_dtype << bits;
          EXPECT_TRUE(test::close(m.tensors[t], want_m[t], test::optimizer_tolerance(momentum_dtype)))
              << dtype << grad_dtype << bits;
        }
      }
}

TEST(MultiTensorSgd, MastersWriteTheModelCopy_OPT_10_A24) {
  for (const auto half : {DType::f16, DType::bf16}) {
    const List p{test::from_list({4}, DType::f32, kP)}, m{test::fresh({4}, DType::f32)}, copy{make({4}, half)};
    std::vector<std::uint8_t> first{1};
    const Tensor inv = values<float>({1}, {1.0f / 128});
    SgdOptions o{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1};
    o.inv_scale = inv.view();
    for (const auto& step : kG) {
      auto scaled = step;
      for (auto& v : scaled) v *= 128;
      const List g{test::from_list({4}, DType::f16, scaled)};
      kernels::multi_tensor_sgd(test::context(), {}, p.views, m.views, copy.views, g.const_views, first, o);
      first[0] = 0;
    }
    EXPECT_TRUE(test::close(p.tensors[0], {0.93820798, -1.854216, 0.36037651, 2.901221}, {5e-4, 5e-4}));
    const Tensor rounded = test::from_list({4}, half, test::to_f64(p.tensors[0]));
    EXPECT_TRUE(test::equal(copy.tensors[0], test::to_f64(rounded)));
  }
}

TEST(MultiTensorSgd, LearningRateOnTheDevice) {
  const double lr = 0.1 / 3;  // no exact f32
  for (const auto dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const auto stepped = [&](const SgdOptions& o) {
      const List p{test::uniform({5001}, dtype, test::device(), 1)}, g{test::uniform({5001}, dtype, test::device(), 2)},
          m{test::uniform({5001}, accum_dtype(dtype), test::device(), 3)};
      kernels::multi_tensor_sgd(test::context(), {}, p.views, m.views, {}, g.const_views, std::vector<std::uint8_t>{0},
                                o);
      return test::to_f64(p.tensors[0]);
    };
    const Tensor on_device = values<double>({1}, {lr});
    EXPECT_EQ(stepped({.lr = lr, .momentum = 0.9}),
              stepped({.lr = 77, .momentum = 0.9, .lr_on_device = on_device.view()}));
  }
}

TEST(MultiTensor, MoreTensorsThanOneLaunchTakes) {
  List p, g, m, out;
  std::vector<double> want, norms;
  double sum = 0;
  for (std::int64_t i = 0; i < 2000; ++i) {
    const Dims n{i % 7 == 3 ? 0 : i % 5 + 1};
    const double value = static_cast<double>(i % 11) + 1;
    const auto made = [&](double v) {
      return test::from_function(n, DType::f32, test::device(), [=](std::int64_t) { return v; });
    };
    p.add(made(value));
    g.add(made(2));
    m.add(made(0));
    out.add(test::fresh(n, DType::f32));
    want.insert(want.end(), static_cast<std::size_t>(n[0]), value - 0.5 * 2);
    sum += static_cast<double>(n[0]) * (value - 1) * (value - 1);
    norms.push_back(std::sqrt(static_cast<double>(n[0])) * (value - 1));
  }
  kernels::multi_tensor_sgd(test::context(), {}, p.views, m.views, {}, g.const_views,
                            std::vector<std::uint8_t>(2000, 1), {.lr = 0.5, .momentum = 0.9});
  const Tensor flat = test::fresh({static_cast<std::int64_t>(want.size())}, DType::f32);
  kernels::flatten(test::context(), flat.view(), p.const_views);
  EXPECT_TRUE(test::equal(flat, want));
  kernels::unflatten(test::context(), out.views, flat.view());
  kernels::multi_tensor_scale(test::context(), {}, out.views, out.const_views, 1.0);
  kernels::multi_tensor_axpby(test::context(), {}, out.views, out.const_views, p.const_views, 0.5, 0.5);
  const Tensor again = test::fresh_like(flat), norm = test::fresh({}, DType::f32),
               per_tensor = test::fresh({2000}, DType::f32);
  kernels::flatten(test::context(), again.view(), out.const_views);
  EXPECT_TRUE(test::equal(again, want));
  kernels::multi_tensor_l2norm(test::context(), {}, norm.view(), per_tensor.view(), p.const_views);
  EXPECT_TRUE(test::close(norm, {std::sqrt(sum)}, test::kNormTolerance));
  EXPECT_TRUE(test::close(per_tensor, norms, test::kNormTolerance));
}

TEST(MultiTensor, SameBitsEveryTime) {
  const List x{test::uniform({1000003}, DType::f32, test::device(), 1),
               test::uniform({257}, DType::f32, test::device(), 2)};
  std::vector<double> first;
  for (int run = 0; run < 3; ++run) {
    const Tensor norm = test::fresh({}, DType::f32), per = test::fresh({2}, DType::f32);
    kernels::multi_tensor_l2norm(test::context(), {}, norm.view(), per.view(), x.const_views);
    auto all = test::to_f64(per);
    all.push_back(norm.item());
    if (run == 0) first = all;
    EXPECT_EQ(all, first);
  }
}

TEST(MultiTensorSgd, SkipsWithoutATrace) {
  const Tensor inf = values<float>({1}, {1}), zero = values<float>({1}, {0});
  const auto step = [&](const Tensor& f, const Tensor& found) {
    const List p{test::from_list({4}, DType::f32, kP)}, m{test::from_list({4}, DType::f32, kG[0])},
        g{test::from_list({4}, DType::f32, {NAN, INFINITY, 1, 2})}, c{test::from_list({4}, DType::f16, kG[1])};
    const auto before_p = test::to_f64(p.tensors[0]), before_m = test::to_f64(m.tensors[0]),
               before_c = test::to_f64(c.tensors[0]);
    SgdOptions o{.lr = 0.1, .momentum = 0.9};
    o.found_inf = found.view();
    kernels::multi_tensor_sgd(test::context(), f.view(), p.views, m.views, c.views, g.const_views,
                              std::vector<std::uint8_t>{0}, o);
    return test::equal(p.tensors[0], before_p) && test::equal(m.tensors[0], before_m) &&
           test::equal(c.tensors[0], before_c);
  };
  EXPECT_TRUE(step(flag(1), {}));
  EXPECT_TRUE(step(flag(-7), {}));
  EXPECT_TRUE(step(flag(0), inf));
  EXPECT_TRUE(step({}, inf));
  EXPECT_FALSE(step(flag(0), zero));
}

TEST(MultiTensor, EmptyTensorsKeepTheirPlace_OPT_10_A32) {
  for (const auto& sizes : {std::vector<std::int64_t>{10, 0}, {0, 10}, {0}, {}, [] {
                              std::vector<std::int64_t> v(35, 10);
                              v.push_back(0);
                              v.insert(v.end(), 20, 10);
                              return v;
                            }()}) {
    List p, g;
    for (const auto n : sizes) {
      p.add(test::from_function({n}, DType::f32, test::device(), [](std::int64_t) { return 1.0; }));
      g.add(test::from_function({n}, DType::f32, test::device(), [](std::int64_t) { return 1.0; }));
    }
    kernels::multi_tensor_sgd(test::context(), {}, p.views, {}, {}, g.const_views, {}, {.lr = 0.5});
    for (const auto& t : p.tensors)
      for (const double v : test::to_f64(t)) ASSERT_EQ(v, 0.5);
  }
}

TEST(Flatten, PacksInMemoryOrderAndBack) {
  for (const auto flat_dtype : {DType::f64, DType::f32, DType::f16})
    for (const double scale : {1.0, 0.5}) {
      const Tensor last =
          test::uniform({2, 3, 4, 5}, DType::f32, test::device(), 2, -1, 1, MemoryFormat::channels_last);
      const List in{test::uniform({70001}, DType::f32, test::device(), 1), last, make({0}),
                    test::misaligned(test::uniform({7}, DType::f16, test::device(), 3))};
      std::vector<double> want;
      for (const auto& t : in.tensors)
        for (const double v : test::to_f64(t.is_same(last) ? views::permute(t, {0, 2, 3, 1}) : t))
          want.push_back(v * scale);
      const Tensor flat = test::fresh({70128}, flat_dtype);
      kernels::flatten(test::context(), flat.view(), in.const_views, scale);
      EXPECT_TRUE(test::close(flat, want, test::optimizer_tolerance(flat_dtype)));
      List out;
      for (const auto& t : in.tensors) out.add(test::fresh_like(t));
      kernels::unflatten(test::context(), out.views, flat.view(), 1 / scale);
      for (std::size_t i = 0; i < 4; ++i)
        EXPECT_TRUE(test::close(out.tensors[i], test::to_f64(in.tensors[i]),
                                test::optimizer_tolerance(flat_dtype == DType::f16 ? DType::f16 : DType::f32)));
    }
  const List in{values<float>({2, 2}, {1, 2, 3, 4}), values<float>({1}, {5})};
  const Tensor flat = make({5});
  kernels::flatten(test::context(), flat.view(), in.const_views);
  EXPECT_TRUE(test::equal(flat, {1, 2, 3, 4, 5}));  // PAR-15.1
}

TEST(Flatten, EveryTypePairIsExact) {
  constexpr DType kTypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
  for (const auto dtype : kTypes)
    for (const auto flat_dtype : kTypes)
      for (const double scale : {1.0, 0.5}) {
        List in, out;
        std::vector<double> want;
        for (const std::int64_t n : {9001, 3, 64}) {
          const Tensor t = test::from_function({n}, dtype, test::device(),
                                               [](std::int64_t i) { return static_cast<double>(i * 7 % 255) - 100; });
          in.add(n == 64 ? test::misaligned(t) : t);
          out.add(test::fresh_like(in.tensors.back()));
          for (const double v : test::to_f64(t)) want.push_back(v * scale);
        }
        const Tensor flat = test::fresh({9068}, flat_dtype);
        kernels::flatten(test::context(), flat.view(), in.const_views, scale);
        EXPECT_TRUE(test::equal(flat, want)) << dtype << flat_dtype << scale;
        kernels::unflatten(test::context(), out.views, flat.view(), 1 / scale);
        for (std::size_t i = 0; i < 3; ++i)
          EXPECT_TRUE(test::equal(out.tensors[i], test::to_f64(in.tensors[i]))) << dtype << flat_dtype << scale << i;
      }
}

TEST(MultiTensor, ErrorsNameOpListAndTensor) {
  const Tensor a = make({3}), b = make({3}), c = make({4}), d = make({3}, DType::f64), i = make({3}, DType::i64);
  const List good{a, b}, longer{a, c}, mixed{a, d}, integer{a, i}, one{a}, gaps{a, test::spread_out(b)};
  const auto scale = [&](const List& out, const List& in, const Tensor& f = {}, std::int64_t chunk = 100) {
    kernels::multi_tensor_scale(test::context(), f.view(), out.views, in.const_views, 1.0, chunk);
  };
  EXPECT_TRUE(throws(Kind::argument, "1 out and 2 in", [&] { scale(one, good); }));
  EXPECT_TRUE(
      throws(Kind::argument, "multi_tensor_scale: out[1] has sizes [3], in[1] has [4]", [&] { scale(good, longer); }));
  EXPECT_TRUE(throws(Kind::argument, "in[1] is f64, in[0] is f32", [&] { scale(good, mixed); }));
  EXPECT_TRUE(throws(Kind::unsupported, "in[1] is i64", [&] { scale(good, integer); }));
  EXPECT_TRUE(throws(Kind::argument, "in[1] of sizes [3] and strides [2] is not dense", [&] { scale(good, gaps); }));
  EXPECT_TRUE(throws(Kind::argument, "chunk_size is 0", [&] { scale(good, good, {}, 0); }));
  EXPECT_TRUE(throws(Kind::argument, "flag is f32", [&] { scale(good, good, values<float>({1}, {0})); }));
  EXPECT_TRUE(throws(Kind::argument, "flag has sizes [3]", [&] { scale(good, good, make({3}, DType::i32)); }));
  const List row{make({2, 3})}, column{views::transpose(make({3, 2}), 0, 1)};
  EXPECT_TRUE(throws(Kind::argument, "out[0] has strides [1, 2], in[0] has [3, 1]", [&] { scale(column, row); }));
  scale(column, column);  // the same order on both sides is fine
  const std::vector<View> undefined(2);
  EXPECT_TRUE(throws(Kind::argument, "out[0] is not given",
                     [&] { kernels::multi_tensor_scale(test::context(), {}, undefined, good.const_views, 1.0); }));
  const auto sgd = [&](const List& p, const List& m, const List& g, std::vector<std::uint8_t> first,
                       const List& copies = {}) {
    kernels::multi_tensor_sgd(test::context(), {}, p.views, m.views, copies.views, g.const_views, first,
                              {.lr = 1, .momentum = 0.9});
  };
  const List doubles{d, d};
  EXPECT_TRUE(throws(Kind::argument, "1 momenta and 2 params", [&] { sgd(good, one, good, {0, 0}); }));
  EXPECT_TRUE(throws(Kind::argument, "1 first_run flags", [&] { sgd(good, good, good, {0}); }));
  EXPECT_TRUE(throws(Kind::argument, "f64 goes with f64", [&] { sgd(good, good, doubles, {0, 0}); }));
  EXPECT_TRUE(throws(Kind::argument, "momenta is f64", [&] { sgd(good, doubles, good, {0, 0}); }));
  EXPECT_TRUE(throws(Kind::argument, "copies is f32", [&] { sgd(good, good, good, {0, 0}, good); }));
  SgdOptions o{.lr = 1};
  o.found_inf = d.view();
  EXPECT_TRUE(throws(Kind::argument, "found_inf is f64", [&] {
    kernels::multi_tensor_sgd(test::context(), {}, good.views, {}, {}, good.const_views, {}, o);
  }));
  SgdOptions rate{.lr = 1};
  rate.lr_on_device = a.view();
  EXPECT_TRUE(throws(Kind::argument, "lr_on_device is f32", [&] {
    kernels::multi_tensor_sgd(test::context(), {}, good.views, {}, {}, good.const_views, {}, rate);
  }));
  const Tensor norm = make({});
  EXPECT_TRUE(throws(Kind::argument, "norm is f32",
                     [&] { kernels::multi_tensor_l2norm(test::context(), {}, norm.view(), {}, doubles.const_views); }));
  EXPECT_TRUE(throws(Kind::argument, "per_tensor has sizes [3]", [&] {
    kernels::multi_tensor_l2norm(test::context(), {}, norm.view(), a.view(), good.const_views);
  }));
  EXPECT_TRUE(throws(Kind::argument, "flat has sizes [3]",
                     [&] { kernels::flatten(test::context(), a.view(), good.const_views); }));
  EXPECT_TRUE(throws(Kind::argument, "tensors[1]",
                     [&] { kernels::flatten(test::context(), make({6}).view(), gaps.const_views); }));
  EXPECT_TRUE(
      throws(Kind::argument, "flat has sizes [4]", [&] { kernels::unflatten(test::context(), good.views, c.view()); }));
  const Context gpu{test::on_cuda() ? kCpu : Device{DeviceKind::cuda, 0}, nullptr};
  EXPECT_TRUE(throws(Kind::argument, "in[0] is on ",
                     [&] { kernels::multi_tensor_scale(gpu, {}, good.views, good.const_views, 1.0); }));
}

}  // namespace
}  // namespace apex
