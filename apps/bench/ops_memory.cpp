// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// Rows that move bytes and do little else: elementwise, reductions, pooling, pictures.
#include <algorithm>
#include <array>
#include <cmath>

#include "apex/core/error.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/kernels/elementwise.hpp"
#include "apex/kernels/image.hpp"
#include "apex/kernels/pool.hpp"
#include "apex/kernels/reduce.hpp"
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

ConstView in(const Tensor& t) { return ConstView(t.view()); }
double at(const Tensor& t, std::int64_t i) { return values_of(views::narrow(t, 0, i, 1))[0]; }
std::array<std::int64_t, 4> places(std::int64_t n) { return {0, n / 3, n / 2 + 1, n - 1}; }

void elementwise(Suite& suite, DType dtype) {
  const std::int64_t n = suite.scaled(std::int64_t{1} << 28, 64);
  const auto tensor = [&](std::uint64_t seed) { return uniform({n}, dtype, suite.device(), seed); };
  const double bytes = static_cast<double>(n) * static_cast<double>(apex::size_of(dtype));
  suite.row(apex::concat("add ", n, ' ', dtype), apex::concat("add ", n, ' ', dtype),
            [&] {
              const Tensor a = tensor(1), b = tensor(2), y = apex::empty_like(a);
              return Work{Unit::bytes, 3 * bytes,
                          [=] { kernels::binary(y.context(), y.view(), in(a), in(b), kernels::BinaryOp::add); },
                          [=](Check& check) {
                            for (const auto i : places(n))
                              check.near("add", i, at(y, i), at(a, i) + at(b, i), rounding_of(dtype), 1e-7);
                          }};
            },
            {apex::Op::add});
  suite.row(apex::concat("relu ", n, ' ', dtype), apex::concat("relu ", n, ' ', dtype),
            [&] {
              const Tensor a = tensor(3), y = apex::empty_like(a);
              return Work{Unit::bytes, 2 * bytes,
                          [=] { kernels::unary(y.context(), y.view(), in(a), kernels::UnaryOp::relu); },
                          [=](Check& check) {
                            for (const auto i : places(n))
                              check.near("relu", i, at(y, i), std::max(0.0, at(a, i)), 0, 0);
                          }};
            },
            {apex::Op::relu});
  suite.row(apex::concat("relu backward ", n, ' ', dtype), "",
            [&] {
              const Tensor dy = tensor(4), y = tensor(5), dx = apex::empty_like(dy);
              return Work{Unit::bytes, 3 * bytes,
                          [=] { kernels::relu_backward(dx.context(), dx.view(), in(dy), in(y)); },
                          [=](Check& check) {
                            for (const auto i : places(n))
                              check.near("relu backward", i, at(dx, i), at(y, i) > 0 ? at(dy, i) : 0, 0, 0);
                          }};
            },
            {apex::Op::relu});
}

void casts(Suite& suite) {
  const std::int64_t n = suite.scaled(std::int64_t{1} << 28, 64);
  suite.row(apex::concat("copy f32 to bf16 ", n), apex::concat("cast ", n, " f32 bf16"),
            [&] {
              const Tensor a = uniform({n}, DType::f32, suite.device(), 6), y = apex::empty_like(a, DType::bf16);
              return Work{Unit::bytes, 6.0 * static_cast<double>(n),
                          [=] { kernels::copy(y.context(), y.view(), in(a)); },
                          [=](Check& check) {
                            for (const auto i : places(n))
                              check.near("copy", i, at(y, i), at(a, i), rounding_of(DType::bf16), 0);
                          }};
            },
            {apex::Op::cast});
  const std::int64_t images = suite.scaled(256, 64);
  const DType dtype = work_dtypes(suite).front();
  suite.row(apex::concat("copy NCHW to channels-last ", images, "x64x112x112 ", dtype),
            apex::concat("channels_last ", images, " 64 112 112 ", dtype),
            [&] {
              const Tensor a = uniform({images, 64, 112, 112}, dtype, suite.device(), 7);
              const Tensor y = apex::empty(a.sizes(), dtype, suite.device(), MemoryFormat::channels_last);
              return Work{Unit::bytes, 2.0 * static_cast<double>(a.bytes()),
                          [=] { kernels::copy(y.context(), y.view(), in(a)); },
                          [=](Check& check) {
                            const auto want = values_of(views::select(a, 0, images - 1));
                            const auto got = values_of(views::select(y, 0, images - 1));
                            for (std::size_t i = 0; i < want.size(); i += 997)
                              check.near("channels-last", static_cast<std::int64_t>(i), got[i], want[i], 0, 0);
                          }};
            },
            {apex::Op::contiguous});
}

void reductions(Suite& suite, DType dtype) {
  const std::int64_t rows = suite.scaled(65536, 64), columns = 4096;
  const double bytes = static_cast<double>(rows * columns) * static_cast<double>(apex::size_of(dtype));
  const struct {
    const char* name;
    Dims dims, out;
  } cases[] = {{"sum of all", {}, {1, 1}}, {"sum of rows", {1}, {rows, 1}}, {"sum of columns", {0}, {1, columns}}};
  for (const auto& c : cases) {
    const std::string what = apex::concat(c.name, ' ', rows, 'x', columns, ' ', dtype);
    const std::string dim = c.dims.empty() ? "all" : std::to_string(c.dims[0]);
    suite.row(
        what, apex::concat("sum ", rows, ' ', columns, ' ', dim, ' ', dtype),
        [&] {
          const Tensor x = uniform({rows, columns}, dtype, suite.device(), 8);
          const Tensor y = apex::empty(c.out, DType::f32, suite.device());
          return Work{
              Unit::bytes, bytes,
              [=, dims = c.dims] { kernels::reduce(y.context(), y.view(), in(x), dims, kernels::ReduceOp::sum); },
              [=, dims = c.dims](Check& check) {
                // Sums of n numbers in [-1, 1) are about sqrt(n / 3); f32 sums may be off by a
                // little of that.
                const auto compare = [&](std::int64_t i, double got, const std::vector<double>& terms) {
                  double want = 0;
                  for (const double v : terms) want += v;
                  check.near("sum", i, got, want, 1e-5, 1e-5 * std::sqrt(static_cast<double>(terms.size())));
                };
                const auto got = values_of(y);
                if (dims.empty()) {
                  double want = 0;
                  for (std::int64_t r = 0; r < rows; r += 4096)
                    for (const double v : values_of(views::narrow(x, 0, r, std::min<std::int64_t>(4096, rows - r))))
                      want += v;
                  check.near("sum", 0, got[0], want, 1e-5, 1e-5 * std::sqrt(static_cast<double>(rows * columns)));
                  return;
                }
                const int reduced = static_cast<int>(dims[0]);
                for (const auto i : places(static_cast<std::int64_t>(got.size())))
                  compare(i, got[static_cast<std::size_t>(i)], values_of(views::narrow(x, 1 - reduced, i, 1)));
              }};
        },
        {apex::Op::sum});
  }
}

void pooling(Suite& suite, DType dtype) {
  const std::int64_t n = suite.scaled(256, 64), c = 64, side = 112, half = 56;
  const kernels::Pool2dOptions options{.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
  const double x_bytes = static_cast<double>(n * c * side * side) * static_cast<double>(apex::size_of(dtype));
  const double y_bytes = x_bytes / 4, index_bytes = 4.0 * static_cast<double>(n * c * half * half);
  const std::string shape = apex::concat(n, 'x', c, 'x', side, 'x', side, ' ', dtype);
  const std::string sizes = apex::concat(n, ' ', c, ' ', side, ' ', side, ' ', dtype);
  const auto make = [&](std::uint64_t seed, const Dims& dims, DType type) {
    return uniform(dims, type, suite.device(), seed, -1, 1, MemoryFormat::channels_last);
  };
  // f(window, place of its largest value) for every window of one channel; the first of equals.
  const auto each_window = [=](const std::vector<double>& x, auto&& f) {
    for (std::int64_t p = 0; p < half; ++p)
      for (std::int64_t q = 0; q < half; ++q) {
        std::int64_t best = -1;
        for (std::int64_t h = std::max<std::int64_t>(0, 2 * p - 1); h <= std::min(side - 1, 2 * p + 1); ++h)
          for (std::int64_t w = std::max<std::int64_t>(0, 2 * q - 1); w <= std::min(side - 1, 2 * q + 1); ++w)
            if (best < 0 || x[static_cast<std::size_t>(h * side + w)] > x[static_cast<std::size_t>(best)])
              best = h * side + w;
        f(static_cast<std::size_t>(p * half + q), static_cast<std::size_t>(best));
      }
  };
  const auto channel = [=](const Tensor& t) { return views::select(views::select(t, 0, n - 1), 0, 5); };
  suite.row("max pool 3x3/2 forward " + shape, "max_pool_fwd " + sizes,
            [&] {
              const Tensor x = make(9, {n, c, side, side}, dtype);
              const Tensor y = apex::empty({n, c, half, half}, dtype, suite.device(), MemoryFormat::channels_last);
              const Tensor indices = apex::empty(y.sizes(), DType::i32, suite.device(), MemoryFormat::channels_last);
              return Work{Unit::bytes, x_bytes + y_bytes + index_bytes,
                          [=] { kernels::max_pool2d(y.context(), y.view(), indices.view(), in(x), options); },
                          [=](Check& check) {
                            const auto xs = values_of(channel(x)), ys = values_of(channel(y));
                            each_window(xs, [&](std::size_t to, std::size_t from) {
                              check.near("max pool", static_cast<std::int64_t>(to), ys[to], xs[from], 0, 0);
                            });
                          }};
            },
            {apex::Op::max_pool2d});
  suite.row("max pool 3x3/2 backward " + shape, "max_pool_bwd " + sizes,
            [&] {
              const Tensor x = make(9, {n, c, side, side}, dtype), dx = apex::empty_like(x);
              const Tensor y = apex::empty({n, c, half, half}, dtype, suite.device(), MemoryFormat::channels_last);
              const Tensor indices = apex::empty(y.sizes(), DType::i32, suite.device(), MemoryFormat::channels_last);
              const Tensor dy = make(10, y.sizes(), dtype);
              kernels::max_pool2d(y.context(), y.view(), indices.view(), in(x), options);
              return Work{Unit::bytes, x_bytes + y_bytes + index_bytes,
                          [=] { kernels::max_pool2d_backward(dx.context(), dx.view(), in(dy), in(indices), options); },
                          [=](Check& check) {
                            const auto xs = values_of(channel(x)), dys = values_of(channel(dy)),
                                       got = values_of(channel(dx));
                            std::vector<double> want(xs.size(), 0.0);
                            each_window(xs, [&](std::size_t to, std::size_t from) { want[from] += dys[to]; });
                            for (std::size_t i = 0; i < want.size(); ++i)
                              check.near("max pool dx", static_cast<std::int64_t>(i), got[i], want[i],
                                         rounding_of(dtype), 1e-7);
                          }};
            },
            {apex::Op::max_pool2d});
}

void pictures(Suite& suite, DType dtype) {
  const std::int64_t n = suite.scaled(256, 16), side = 224;
  const double pixels = static_cast<double>(n * 3 * side * side);
  suite.row(apex::concat("image normalize ", n, "x3x", side, "x", side, " u8 to ", dtype),
            apex::concat("image_normalize ", n, " 3 ", side, ' ', side, ' ', dtype), [&] {
              const std::array<float, 3> mean{123.675f, 116.28f, 103.53f}, std{58.395f, 57.12f, 57.375f};
              const Tensor u =
                  uniform({n, 3, side, side}, DType::f32, suite.device(), 11, 0, 256, MemoryFormat::channels_last);
              const Tensor x = apex::empty(u.sizes(), DType::u8, suite.device(), MemoryFormat::channels_last);
              kernels::copy(x.context(), x.view(), in(u));
              const Tensor y = apex::empty(u.sizes(), dtype, suite.device(), MemoryFormat::channels_last);
              return Work{Unit::bytes, pixels * (1 + static_cast<double>(apex::size_of(dtype))),
                          [=] { kernels::image_normalize(y.context(), y.view(), in(x), mean, std); },
                          [=](Check& check) {
                            for (std::int64_t c = 0; c < 3; ++c) {
                              const auto one = [&](const Tensor& t) {
                                return values_of(views::select(views::select(t, 0, n - 1), 0, c));
                              };
                              const auto xs = one(x), ys = one(y);
                              for (std::size_t i = 0; i < xs.size(); i += 499)
                                check.near(
                                    "pixel", static_cast<std::int64_t>(i), ys[i],
                                    (xs[i] - mean[static_cast<std::size_t>(c)]) / std[static_cast<std::size_t>(c)],
                                    rounding_of(dtype), 1e-4);
                            }
                          }};
            });
}

/// One sample of a bilinear resize along one axis, as pairs of input and weight; no smaller than the input.
std::vector<std::pair<std::int64_t, double>> taps(std::int64_t in, std::int64_t out, std::int64_t i) {
  const double at = (static_cast<double>(i) + 0.5) * static_cast<double>(in) / static_cast<double>(out) - 0.5;
  const double share = at - std::floor(at);
  const auto inside = [in](double x) { return std::clamp<std::int64_t>(static_cast<std::int64_t>(x), 0, in - 1); };
  return {{inside(std::floor(at)), 1 - share}, {inside(std::floor(at) + 1), share}};
}

/// What a decoded batch of photographs goes through on its way to the network.
void resizing(Suite& suite) {
  const std::int64_t n = suite.scaled(256, 16), side = 256, out = 224, height = 180, width = 200;
  suite.row(apex::concat("image resize ", n, "x3x", side, 'x', side, " u8, boxes of ", width, 'x', height, " to ", out),
            apex::concat("image_resize ", n, " 3 ", side, ' ', out), [&] {
              const Tensor u =
                  uniform({n, 3, side, side}, DType::f32, suite.device(), 12, 0, 256, MemoryFormat::channels_last);
              const Tensor x = apex::empty(u.sizes(), DType::u8, suite.device(), MemoryFormat::channels_last);
              kernels::copy(x.context(), x.view(), in(u));
              const Tensor y = apex::empty({n, 3, out, out}, DType::u8, suite.device(), MemoryFormat::channels_last);
              std::vector<kernels::ImageWindow> windows;
              for (std::int64_t i = 0; i < n; ++i)
                windows.push_back({.image = views::select(x, 0, i).view(),
                                   .row = i,
                                   .box_left = static_cast<int>(i % 50),
                                   .box_top = static_cast<int>(i % 70),
                                   .box_width = static_cast<int>(width),
                                   .box_height = static_cast<int>(height),
                                   .resized_width = static_cast<int>(out),
                                   .resized_height = static_cast<int>(out)});
              const auto bytes = static_cast<double>(n * 3 * (width * height + out * out));
              return Work{Unit::bytes, bytes, [=] { kernels::image_resize(y.context(), y.view(), windows); },
                          [=](Check& check) {
                            const std::int64_t last = n - 1;
                            const auto xs = values_of(views::select(views::select(x, 0, last), 0, 1)),
                                       ys = values_of(views::select(views::select(y, 0, last), 0, 1));
                            for (std::int64_t i = 0; i < out * out; i += 499) {
                              double want = 0;
                              for (const auto& [r, a] : taps(height, out, i / out))
                                for (const auto& [k, b] : taps(width, out, i % out))
                                  want += a * b * xs[static_cast<std::size_t>((last % 70 + r) * side + last % 50 + k)];
                              check.near("pixel", i, ys[static_cast<std::size_t>(i)], want, 0, 1.01);
                            }
                          }};
            });
}

}  // namespace

std::vector<DType> work_dtypes(const Suite& suite) {
  if (suite.on_cuda()) return {DType::f16, DType::bf16};
  return {DType::f32};
}

void memory_rows(Suite& suite) {
  const DType half = work_dtypes(suite).front();
  elementwise(suite, DType::f32);
  if (suite.on_cuda()) elementwise(suite, half);
  casts(suite);
  reductions(suite, half);
  pooling(suite, half);
  pictures(suite, half);
  resizing(suite);
}

}  // namespace bench
