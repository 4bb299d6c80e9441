// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>

#include "../softmax_impl.hpp"
#include "convert.hpp"
#include "loop.hpp"

namespace apex::kernels::cpu {
namespace {

/// One line of elements along the dimension, read in the compute type.
template <class T>
struct Line {
  const T* data;
  std::int64_t stride;
  compute_t<T> operator[](std::int64_t i) const { return convert<compute_t<T>>(data[i * stride]); }
};

/// Calls f(out pointer, first input line, second input line) for each line along `dim`.
template <class T, class F>
void for_each_line(const View& out, const ConstView& a, const ConstView& b, int dim, F&& f) {
  Dims sizes = out.sizes;
  sizes[dim] = std::min<std::int64_t>(sizes[dim], 1);
  const auto loop = make_loop<3>(sizes, {out.strides, a.strides, b.strides});
  parallel_ranges(loop.numel, out.sizes[dim] * 8, [&](std::int64_t begin, std::int64_t end) {
    for_each_row(loop, begin, end, [&](const auto& offset, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i)
        f(out.as<T>() + offset[0] + i * loop.inner_stride(0),
          Line<T>{a.as<T>() + offset[1] + i * loop.inner_stride(1), a.strides[dim]},
          Line<T>{b.as<T>() + offset[2] + i * loop.inner_stride(2), b.strides[dim]});
    });
  });
}

template <class C, class T>
C largest(const Line<T>& x, std::int64_t n) {
  return simd::max<C>(n, -std::numeric_limits<C>::infinity(), [&](std::int64_t i) { return x[i]; });
}

}  // namespace

void softmax(const Context&, View y, ConstView x, int dim) {
  const std::int64_t n = y.sizes[dim], step = y.strides[dim];
  visit_floating(y.dtype, "softmax", [&]<class T>() {
    using C = compute_t<T>;
    for_each_line<T>(y, x, x, dim, [&](T* out, Line<T> in, Line<T>) {
      const C high = largest<C>(in, n);
      const C sum = simd::sum<C>(n, [&](std::int64_t i) { return std::exp(in[i] - high); });
      for (std::int64_t i = 0; i < n; ++i) out[i * step] = convert<T>(std::exp(in[i] - high) / sum);
    });
  });
}

void softmax_backward(const Context&, View dx, ConstView dy, ConstView y, int dim) {
  const std::int64_t n = dx.sizes[dim], step = dx.strides[dim];
  visit_floating(dx.dtype, "softmax_backward", [&]<class T>() {
    using C = compute_t<T>;
    for_each_line<T>(dx, dy, y, dim, [&](T* out, Line<T> g, Line<T> p) {
      const C sum = simd::sum<C>(n, [&](std::int64_t i) { return p[i] * g[i]; });
      for (std::int64_t i = 0; i < n; ++i) out[i * step] = convert<T>(p[i] * (g[i] - sum));
    });
  });
}

void log_softmax(const Context&, View y, ConstView x, int dim) {
  const std::int64_t n = y.sizes[dim], step = y.strides[dim];
  visit_floating(y.dtype, "log_softmax", [&]<class T>() {
    using C = compute_t<T>;
    for_each_line<T>(y, x, x, dim, [&](T* out, Line<T> in, Line<T>) {
      const C high = largest<C>(in, n);
      const C log_sum = std::log(simd::sum<C>(n, [&](std::int64_t i) { return std::exp(in[i] - high); }));
      for (std::int64_t i = 0; i < n; ++i) out[i * step] = convert<T>(in[i] - high - log_sum);
    });
  });
}

void log_softmax_backward(const Context&, View dx, ConstView dy, ConstView y, int dim) {
  const std::int64_t n = dx.sizes[dim], step = dx.strides[dim];
  visit_floating(dx.dtype, "log_softmax_backward", [&]<class T>() {
    using C = compute_t<T>;
    for_each_line<T>(dx, dy, y, dim, [&](T* out, Line<T> g, Line<T> log_p) {
      const C sum = simd::sum<C>(n, [&](std::int64_t i) { return g[i]; });
      for (std::int64_t i = 0; i < n; ++i) out[i * step] = convert<T>(g[i] - std::exp(log_p[i]) * sum);
    });
  });
}

}  // namespace apex::kernels::cpu
