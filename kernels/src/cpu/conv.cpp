// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <vector>

#include "../conv_impl.hpp"
#include "../copy_impl.hpp"
#include "../elementwise_impl.hpp"
#include "../reduce_impl.hpp"
#include "gemm.hpp"
#include "onednn.hpp"
#include "widened.hpp"

// f32 goes to oneDNN, 16 bits through f32 to the same. f64 is a matrix product whose packers read the images where they
// lie:
//   forward          y[k, (n,i,j)]     = w[k, (c,r,s)]     patches[(c,r,s), (n,i,j)]
//   backward data    dx[c, (n,h,w)]    = w[(k,r,s), c]^T   reached[(k,r,s), (n,h,w)]
//   backward weight  dw[k, (c,r,s)]    = dy[k, (n,i,j)]    patches[(c,r,s), (n,i,j)]^T

namespace apex::kernels::cpu {
namespace {

using G = Gemm<double>;
constexpr auto kUninitialised = Widened::Contents::uninitialised;

/// Sizes and strides of one group of the convolution.
struct Geometry {
  std::int64_t n, c, h, w, k, r, s, i, j;  // c and k per group
  Dims xs, ws, ys;                         // strides
  std::int64_t stride_h, stride_w, pad_h, pad_w, dil_h, dil_w;

  Geometry(const ConstView& x, const ConstView& weight, const ConstView& y, const Conv2dOptions& o)
      : n(x.size(0)),
        c(weight.size(1)),
        h(x.size(2)),
        w(x.size(3)),
        k(weight.size(0) / o.groups),
        r(weight.size(2)),
        s(weight.size(3)),
        i(y.size(2)),
        j(y.size(3)),
        xs(x.strides),
        ws(weight.strides),
        ys(y.strides),
        stride_h(o.stride[0]),
        stride_w(o.stride[1]),
        pad_h(o.padding[0]),
        pad_w(o.padding[1]),
        dil_h(o.dilation[0]),
        dil_w(o.dilation[1]) {}
};

/// Counts through (a, b, c) with c fastest.
struct Counter {
  std::int64_t a, b, c, nb, nc;
  Counter(std::int64_t flat, std::int64_t b_count, std::int64_t c_count)
      : a(flat / (b_count * c_count)), b(flat / c_count % b_count), c(flat % c_count), nb(b_count), nc(c_count) {}
  void next() {
    if (++c < nc) return;
    c = 0;
    if (++b < nb) return;
    b = 0;
    ++a;
  }
};

void forward(const Context& ctx, double* y, const double* x, const double* w, const double* bias, const Geometry& g) {
  G::run(
      ctx, g.k, g.n * g.i * g.j, g.c * g.r * g.s,
      [&](double* panel, std::int64_t row, std::int64_t rows, std::int64_t k, std::int64_t count) {
        Counter at(k, g.r, g.s);
        for (std::int64_t kk = 0; kk < count; ++kk, at.next()) {
          const double* from = w + row * g.ws[0] + at.a * g.ws[1] + at.b * g.ws[2] + at.c * g.ws[3];
          for (std::int64_t q = 0; q < rows; ++q) panel[kk * G::kRows + q] = from[q * g.ws[0]];
        }
      },
      [&](double* panel, std::int64_t col, std::int64_t cols, std::int64_t k, std::int64_t count) {
        const double* image[G::kCols];
        std::int64_t top[G::kCols], left[G::kCols];
        Counter pixel(col, g.i, g.j);
        for (std::int64_t q = 0; q < cols; ++q, pixel.next()) {
          image[q] = x + pixel.a * g.xs[0];
          top[q] = pixel.b * g.stride_h - g.pad_h;
          left[q] = pixel.c * g.stride_w - g.pad_w;
        }
        Counter at(k, g.r, g.s);
        for (std::int64_t kk = 0; kk < count; ++kk, at.next())
          for (std::int64_t q = 0; q < cols; ++q) {
            const std::int64_t ih = top[q] + at.b * g.dil_h, iw = left[q] + at.c * g.dil_w;
            const bool inside = ih >= 0 && ih < g.h && iw >= 0 && iw < g.w;
            panel[kk * G::kCols + q] = inside ? image[q][at.a * g.xs[1] + ih * g.xs[2] + iw * g.xs[3]] : 0.0;
          }
      },
      [&](std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols, const double* tile) {
        Counter pixel(col, g.i, g.j);
        for (std::int64_t q = 0; q < cols; ++q, pixel.next()) {
          double* to = y + pixel.a * g.ys[0] + pixel.b * g.ys[2] + pixel.c * g.ys[3] + row * g.ys[1];
          for (std::int64_t p = 0; p < rows; ++p)
            to[p * g.ys[1]] = tile[p * G::kBlockCols + q] + (bias == nullptr ? 0.0 : bias[row + p]);
        }
      });
}

/// For a coordinate in padded input, the output whose window starts there; -1 where none does. Made once, because
/// dividing by the stride for every element of a panel costs more than the product.
class StartTable {
 public:
  StartTable(std::int64_t padded, std::int64_t reach, std::int64_t stride, std::int64_t outputs)
      : reach_(reach), output_(static_cast<std::size_t>(padded + reach), -1) {
    for (std::int64_t o = 0; o < outputs && o * stride < padded; ++o)
      output_[static_cast<std::size_t>(o * stride + reach)] = o;
  }
  std::int64_t operator[](std::int64_t coordinate) const {
    return output_[static_cast<std::size_t>(coordinate + reach_)];
  }

 private:
  std::int64_t reach_;  // coordinates run from -reach_ on
  std::vector<std::int64_t> output_;
};

void backward_data(const Context& ctx, double* dx, const double* dy, const double* w, const double* bias,
                   const Geometry& g) {
  const StartTable down(g.h + g.pad_h, (g.r - 1) * g.dil_h, g.stride_h, g.i);
  const StartTable right(g.w + g.pad_w, (g.s - 1) * g.dil_w, g.stride_w, g.j);
  G::run(
      ctx, g.c, g.n * g.h * g.w, g.k * g.r * g.s,
      [&](double* panel, std::int64_t row, std::int64_t rows, std::int64_t k, std::int64_t count) {
        Counter at(k, g.r, g.s);
        for (std::int64_t kk = 0; kk < count; ++kk, at.next()) {
          const double* from = w + at.a * g.ws[0] + row * g.ws[1] + at.b * g.ws[2] + at.c * g.ws[3];
          for (std::int64_t q = 0; q < rows; ++q) panel[kk * G::kRows + q] = from[q * g.ws[1]];
        }
      },
      [&](double* panel, std::int64_t col, std::int64_t cols, std::int64_t k, std::int64_t count) {
        const double* image[G::kCols];
        std::int64_t row[G::kCols], column[G::kCols];
        Counter pixel(col, g.h, g.w);
        for (std::int64_t q = 0; q < cols; ++q, pixel.next()) {
          image[q] = dy + pixel.a * g.ys[0];
          row[q] = pixel.b + g.pad_h;
          column[q] = pixel.c + g.pad_w;
        }
        Counter at(k, g.r, g.s);
        for (std::int64_t kk = 0; kk < count; ++kk, at.next())
          for (std::int64_t q = 0; q < cols; ++q) {
            const std::int64_t oi = down[row[q] - at.b * g.dil_h], oj = right[column[q] - at.c * g.dil_w];
            panel[kk * G::kCols + q] = (oi | oj) < 0 ? 0.0 : image[q][at.a * g.ys[1] + oi * g.ys[2] + oj * g.ys[3]];
          }
      },
      [&](std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols, const double* tile) {
        Counter pixel(col, g.h, g.w);
        for (std::int64_t q = 0; q < cols; ++q, pixel.next()) {
          double* to = dx + pixel.a * g.xs[0] + pixel.b * g.xs[2] + pixel.c * g.xs[3] + row * g.xs[1];
          for (std::int64_t p = 0; p < rows; ++p)
            to[p * g.xs[1]] = tile[p * G::kBlockCols + q] + (bias == nullptr ? 0.0 : bias[row + p]);
        }
      });
}

void backward_weight(const Context& ctx, double* dw, const double* dy, const double* x, const Geometry& g) {
  G::run(
      ctx, g.k, g.c * g.r * g.s, g.n * g.i * g.j,
      [&](double* panel, std::int64_t row, std::int64_t rows, std::int64_t k, std::int64_t count) {
        Counter pixel(k, g.i, g.j);
        for (std::int64_t kk = 0; kk < count; ++kk, pixel.next()) {
          const double* from = dy + pixel.a * g.ys[0] + pixel.b * g.ys[2] + pixel.c * g.ys[3] + row * g.ys[1];
          for (std::int64_t q = 0; q < rows; ++q) panel[kk * G::kRows + q] = from[q * g.ys[1]];
        }
      },
      [&](double* panel, std::int64_t col, std::int64_t cols, std::int64_t k, std::int64_t count) {
        std::int64_t channel[G::kCols], down[G::kCols], right[G::kCols];
        Counter at(col, g.r, g.s);
        for (std::int64_t q = 0; q < cols; ++q, at.next()) {
          channel[q] = at.a * g.xs[1];
          down[q] = at.b * g.dil_h - g.pad_h;
          right[q] = at.c * g.dil_w - g.pad_w;
        }
        Counter pixel(k, g.i, g.j);
        for (std::int64_t kk = 0; kk < count; ++kk, pixel.next()) {
          const double* image = x + pixel.a * g.xs[0];
          const std::int64_t top = pixel.b * g.stride_h, left = pixel.c * g.stride_w;
          for (std::int64_t q = 0; q < cols; ++q) {
            const std::int64_t ih = top + down[q], iw = left + right[q];
            const bool inside = ih >= 0 && ih < g.h && iw >= 0 && iw < g.w;
            panel[kk * G::kCols + q] = inside ? image[channel[q] + ih * g.xs[2] + iw * g.xs[3]] : 0.0;
          }
        }
      },
      [&](std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols, const double* tile) {
        Counter at(col, g.r, g.s);
        for (std::int64_t q = 0; q < cols; ++q, at.next()) {
          double* to = dw + row * g.ws[0] + at.a * g.ws[1] + at.b * g.ws[2] + at.c * g.ws[3];
          for (std::int64_t p = 0; p < rows; ++p) to[p * g.ws[0]] = tile[p * G::kBlockCols + q];
        }
      });
}

/// db = sum of dy over all but the channel.
void bias_gradient(const Context& ctx, const View& db, const ConstView& dy) {
  View aligned = db;
  aligned.sizes = {1, dy.size(1), 1, 1};
  aligned.strides = {0, db.stride(0), 0, 0};
  reduce(ctx, aligned, dy, ReduceOp::sum);
}

}  // namespace

void conv2d_forward(const Context& ctx, View y, ConstView x, ConstView w, ConstView bias,
                    const Conv2dOptions& options) {
  if (y.numel() == 0) return;
  if (x.dtype == DType::f32) return onednn::conv2d_forward(ctx, y, x, w, bias, options);
  if (is_16bit(x.dtype)) {
    const Widened wide_x(ctx, x), wide_w(ctx, w), wide_bias(ctx, bias), wide_y(ctx, y, kUninitialised);
    onednn::conv2d_forward(ctx, wide_y.view(), wide_x.view(), wide_w.view(), wide_bias.view(), options);
    return wide_y.store(ctx, y);
  }
  const Geometry g(x, w, y, options);
  for (std::int64_t group = 0; group < options.groups; ++group)
    forward(ctx, y.as<double>() + group * g.k * g.ys[1], x.as<double>() + group * g.c * g.xs[1],
            w.as<double>() + group * g.k * g.ws[0], bias.defined() ? bias.as<double>() + group * g.k : nullptr, g);
}

void conv2d_backward_data(const Context& ctx, View dx, ConstView dy, ConstView w, ConstView bias,
                          const Conv2dOptions& options) {
  if (dx.numel() == 0) return;
  if (dy.numel() == 0) {
    if (bias.defined()) return copy(ctx, dx, along_channels(bias));
    return fill(ctx, dx, 0.0);
  }
  if (dx.dtype == DType::f32) {
    onednn::conv2d_backward_data(ctx, dx, dy, w, options);
    if (bias.defined()) cpu::binary(ctx, dx, dx, along_channels(bias), BinaryOp::add);
    return;
  }
  if (is_16bit(dx.dtype)) {
    const Widened wide_dy(ctx, dy), wide_w(ctx, w), wide_bias(ctx, bias), wide_dx(ctx, dx, kUninitialised);
    conv2d_backward_data(ctx, wide_dx.view(), wide_dy.view(), wide_w.view(), wide_bias.view(), options);
    return wide_dx.store(ctx, dx);
  }
  const Geometry g(dx, w, dy, options);
  for (std::int64_t group = 0; group < options.groups; ++group)
    backward_data(ctx, dx.as<double>() + group * g.c * g.xs[1], dy.as<double>() + group * g.k * g.ys[1],
                  w.as<double>() + group * g.k * g.ws[0], bias.defined() ? bias.as<double>() + group * g.c : nullptr,
                  g);
}

void conv2d_backward_weight(const Context& ctx, View dw, View db, ConstView dy, ConstView x,
                            const Conv2dOptions& options) {
  if (!dw.defined() || dy.numel() == 0) {
    if (dw.defined()) fill(ctx, dw, 0.0);
    if (db.defined()) bias_gradient(ctx, db, dy);
    return;
  }
  if (dw.dtype == DType::f32) return onednn::conv2d_backward_weight(ctx, dw, db, dy, x, options);
  if (is_16bit(dw.dtype)) {
    const Widened wide_dy(ctx, dy), wide_x(ctx, x), wide_dw(ctx, dw, kUninitialised), wide_db(ctx, db, kUninitialised);
    onednn::conv2d_backward_weight(ctx, wide_dw.view(), wide_db.view(), wide_dy.view(), wide_x.view(), options);
    wide_dw.store(ctx, dw);
    return wide_db.store(ctx, db);
  }
  const Geometry g(x, dw, dy, options);
  for (std::int64_t group = 0; group < options.groups; ++group)
    backward_weight(ctx, dw.as<double>() + group * g.k * g.ws[0], dy.as<double>() + group * g.k * g.ys[1],
                    x.as<double>() + group * g.c * g.xs[1], g);
  if (db.defined()) bias_gradient(ctx, db, dy);
}

}  // namespace apex::kernels::cpu
