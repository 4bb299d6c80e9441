// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// Batch norm with ReLU, and the statistics of synchronised batch norm.
#include <algorithm>
#include <cmath>

#include "apex/core/error.hpp"
#include "apex/kernels/batch_norm.hpp"
#include "ops.hpp"

namespace bench {
namespace {

using apex::ConstView;
using apex::Dims;
using apex::DType;
using apex::MemoryFormat;
using apex::Tensor;
namespace kernels = apex::kernels;
namespace views = apex::views;

constexpr double kEps = 1e-5;
constexpr double kShift = 0.25;  // x is not centred: a variance by E[x^2] - E[x]^2 would lose digits

ConstView in(const Tensor& t) { return ConstView(t.view()); }
std::vector<double> channel(const Tensor& t, std::int64_t c) { return values_of(views::narrow(t, 1, c, 1)); }

struct Statistics {
  double mean = 0, inv_std = 0, var = 0;
};
Statistics statistics_of(const std::vector<double>& x) {
  Statistics s;
  for (const double v : x) s.mean += v;
  s.mean /= static_cast<double>(x.size());
  for (const double v : x) s.var += (v - s.mean) * (v - s.mean);
  s.var /= static_cast<double>(x.size());
  s.inv_std = 1 / std::sqrt(s.var + kEps);
  return s;
}

struct Layer {
  Tensor x, residual, y, weight, bias, mean, inv_std, running_mean, running_var;
};

Layer make_layer(const Suite& suite, const Dims& sizes, DType dtype, bool with_residual) {
  const auto device = suite.device();
  const Dims channels{sizes[1]};
  Layer l;
  l.x = uniform(sizes, dtype, device, 20, -1 + kShift, 1 + kShift, MemoryFormat::channels_last);
  if (with_residual) l.residual = uniform(sizes, dtype, device, 21, -1, 1, MemoryFormat::channels_last);
  l.y = apex::empty_like(l.x);
  l.weight = uniform(channels, DType::f32, device, 22, 0.5, 1.5);
  l.bias = uniform(channels, DType::f32, device, 23, -0.5, 0.5);
  l.mean = apex::empty(channels, DType::f32, device);
  l.inv_std = apex::empty(channels, DType::f32, device);
  l.running_mean = uniform(channels, DType::f32, device, 24);
  l.running_var = uniform(channels, DType::f32, device, 25, 0.5, 1.5);
  return l;
}

void forward(const Layer& l) {
  kernels::batch_norm_forward(l.x.context(), l.y.view(), l.mean.view(), l.inv_std.view(), l.running_mean.view(),
                              l.running_var.view(), in(l.x), in(l.weight), in(l.bias),
                              l.residual ? in(l.residual) : ConstView{}, 0.1, {.eps = kEps, .relu = true});
}

/// The normalised value before the ReLU.
double before_relu(const Layer& l, const std::vector<double>& x, const std::vector<double>& residual, std::size_t i,
                   std::int64_t c, const Statistics& s) {
  const double w = values_of(views::narrow(l.weight, 0, c, 1))[0], b = values_of(views::narrow(l.bias, 0, c, 1))[0];
  return (x[i] - s.mean) * s.inv_std * w + b + (residual.empty() ? 0.0 : residual[i]);
}

void check_forward(const Layer& l, DType dtype, Check& check) {
  for (const std::int64_t c : {std::int64_t{0}, l.x.size(1) / 2 + 1, l.x.size(1) - 1}) {
    const auto x = channel(l.x, c), y = channel(l.y, c);
    const auto residual = l.residual ? channel(l.residual, c) : std::vector<double>{};
    const auto s = statistics_of(x);
    check.near("mean", c, values_of(views::narrow(l.mean, 0, c, 1))[0], s.mean, 1e-5, 1e-6);
    check.near("inv_std", c, values_of(views::narrow(l.inv_std, 0, c, 1))[0], s.inv_std, 1e-5, 0);
    for (std::size_t i = 0; i < x.size(); i += x.size() / 37 + 1)
      check.near("y", static_cast<std::int64_t>(i), y[i], std::max(0.0, before_relu(l, x, residual, i, c, s)),
                 rounding_of(dtype), 1e-4);
  }
}

void check_backward(const Layer& l, const Tensor& dy, const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
                    DType dtype, Check& check) {
  for (const std::int64_t c : {std::int64_t{0}, l.x.size(1) - 1}) {
    const auto x = channel(l.x, c), d = channel(dy, c), got = channel(dx, c), y = channel(l.y, c);
    const auto s = statistics_of(x);
    const double w = values_of(views::narrow(l.weight, 0, c, 1))[0];
    std::vector<double> g(x.size());
    double sum = 0, sum_xmu = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      g[i] = y[i] > 0 ? d[i] : 0;
      sum += g[i];
      sum_xmu += g[i] * (x[i] - s.mean);
    }
    // Elements at the edge of the ReLU may fall on either side; each moves a sum by at most 1.
    const double n = static_cast<double>(x.size()), slack = 8 + 3e-6 * n;
    check.near("dbias", c, values_of(views::narrow(dbias, 0, c, 1))[0], sum, 1e-3, slack);
    check.near("dweight", c, values_of(views::narrow(dweight, 0, c, 1))[0], sum_xmu * s.inv_std, 1e-3,
               slack * s.inv_std);
    for (std::size_t i = 0; i < x.size(); i += x.size() / 37 + 1) {
      const double pre = before_relu(l, x, l.residual ? channel(l.residual, c) : std::vector<double>{}, i, c, s);
      if (std::abs(pre) < 1e-3) continue;  // the mask is a matter of rounding there
      const double want = (g[i] - sum / n - (x[i] - s.mean) * s.inv_std * s.inv_std * sum_xmu / n) * w * s.inv_std;
      check.near("dx", static_cast<std::int64_t>(i), got[i], want, rounding_of(dtype), 2e-3);
    }
  }
}

void layer_rows(Suite& suite, std::int64_t c, std::int64_t side, DType dtype, bool with_residual) {
  const std::int64_t n = suite.scaled(256, 32);
  const Dims sizes{n, c, side, side};
  const double bytes = static_cast<double>(n * c * side * side) * static_cast<double>(apex::size_of(dtype));
  const std::string what = with_residual ? "batch norm + add + relu" : "batch norm + relu";
  const std::string tail = apex::concat(' ', n, 'x', c, 'x', side, 'x', side, ' ', dtype);
  const std::string request = apex::concat(with_residual ? "bn_add_relu" : "bn_relu");
  const std::string shape = apex::concat(' ', n, ' ', c, ' ', side, ' ', side, ' ', dtype);
  const std::vector<apex::Op> ops{with_residual ? apex::Op::batch_norm_add_relu : apex::Op::batch_norm_relu};
  suite.row(
      what + " forward" + tail, request + "_fwd" + shape,
      [&] {
        const Layer l = make_layer(suite, sizes, dtype, with_residual);
        return Work{Unit::bytes, (with_residual ? 4 : 3) * bytes, [=] { forward(l); },
                    [=](Check& check) { check_forward(l, dtype, check); }};
      },
      ops);
  suite.row(
      what + " backward" + tail, request + "_bwd" + shape,
      [&] {
        const Layer l = make_layer(suite, sizes, dtype, with_residual);
        const Tensor dy = uniform(sizes, dtype, suite.device(), 26, -1, 1, MemoryFormat::channels_last);
        const Tensor dx = apex::empty_like(dy), dresidual = with_residual ? apex::empty_like(dy) : Tensor();
        const Tensor dweight = apex::empty_like(l.weight), dbias = apex::empty_like(l.bias);
        forward(l);
        return Work{Unit::bytes, (with_residual ? 7 : 5) * bytes,
                    [=] {
                      kernels::batch_norm_backward(
                          dx.context(), dx.view(), with_residual ? dresidual.view() : apex::View{}, dweight.view(),
                          dbias.view(), in(dy), with_residual ? in(l.y) : ConstView{}, in(l.x), in(l.weight),
                          in(l.bias), in(l.mean), in(l.inv_std), {.eps = kEps, .relu = true});
                    },
                    [=](Check& check) { check_backward(l, dy, dx, dweight, dbias, dtype, check); }};
      },
      ops);
}

}  // namespace

void batch_norm_rows(Suite& suite) {
  for (const DType dtype : work_dtypes(suite)) {
    layer_rows(suite, 64, 112, dtype, false);
    layer_rows(suite, 256, 56, dtype, false);
    layer_rows(suite, 1024, 14, dtype, false);
    layer_rows(suite, 256, 56, dtype, true);
  }
  const DType dtype = work_dtypes(suite).front();
  const std::int64_t n = suite.scaled(256, 32);
  suite.row(apex::concat("sync batch norm statistics ", n, "x64x112x112 ", dtype),
            apex::concat("bn_stats ", n, " 64 112 112 ", dtype), [&] {
              const Tensor x = uniform({n, 64, 112, 112}, dtype, suite.device(), 27, -1 + kShift, 1 + kShift,
                                       MemoryFormat::channels_last);
              const Tensor mean = apex::empty({64}, DType::f32, suite.device()), var = apex::empty_like(mean);
              return Work{Unit::bytes, static_cast<double>(x.bytes()),
                          [=] { kernels::batch_norm_statistics(x.context(), mean.view(), var.view(), in(x)); },
                          [=](Check& check) {
                            for (const std::int64_t c : {std::int64_t{0}, std::int64_t{33}, std::int64_t{63}}) {
                              const auto s = statistics_of(channel(x, c));
                              check.near("mean", c, values_of(views::narrow(mean, 0, c, 1))[0], s.mean, 1e-5, 1e-6);
                              check.near("var", c, values_of(views::narrow(var, 0, c, 1))[0], s.var, 1e-5, 0);
                            }
                          }};
            });
}

}  // namespace bench
