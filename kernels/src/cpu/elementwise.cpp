// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../elementwise_impl.hpp"
#include "map.hpp"
#include "vector_math.hpp"

namespace apex::kernels::cpu {
namespace {

/// Integers wrap, as they do on every device.
template <class T, class F>
T wrapping(T a, T b, F f) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(f(static_cast<U>(a), static_cast<U>(b)));
  } else {
    return f(a, b);
  }
}

template <class T>
void binary_typed(T* out, const T* a, const T* b, const Loop<3>& loop, BinaryOp op) {
  using C = compute_t<T>;
  const auto run = [&](auto f) { map2(out, a, b, loop, f); };
  switch (op) {
    case BinaryOp::add: return run([](auto x, auto y) { return wrapping(x, y, [](auto p, auto q) { return p + q; }); });
    case BinaryOp::sub: return run([](auto x, auto y) { return wrapping(x, y, [](auto p, auto q) { return p - q; }); });
    case BinaryOp::mul: return run([](auto x, auto y) { return wrapping(x, y, [](auto p, auto q) { return p * q; }); });
    case BinaryOp::minimum: return run([](auto x, auto y) { return vm::minimum(x, y); });
    case BinaryOp::maximum: return run([](auto x, auto y) { return vm::maximum(x, y); });
    case BinaryOp::div:
      if constexpr (is_floating_type<T>) run([](auto x, auto y) { return x / y; });
      return;
    case BinaryOp::pow:
      if constexpr (is_floating_type<T>) run([](C x, C y) { return std::pow(x, y); });
      return;
  }
}

template <class T>
void compare_typed(bool* out, const T* a, const T* b, const Loop<3>& loop, CompareOp op) {
  using C = compute_t<T>;
  const auto run = [&](auto f) { map2(out, a, b, loop, f); };
  switch (op) {
    case CompareOp::eq: return run([](C x, C y) { return x == y; });
    case CompareOp::ne: return run([](C x, C y) { return x != y; });
    case CompareOp::lt: return run([](C x, C y) { return x < y; });
    case CompareOp::le: return run([](C x, C y) { return x <= y; });
    case CompareOp::gt: return run([](C x, C y) { return x > y; });
    case CompareOp::ge: return run([](C x, C y) { return x >= y; });
  }
}

template <class T>
void where_typed(T* out, const std::uint8_t* condition, const T* a, const T* b, const Loop<4>& loop) {
  const std::int64_t so = loop.inner_stride(0), sc = loop.inner_stride(1), sa = loop.inner_stride(2),
                     sb = loop.inner_stride(3);
  parallel_rows(loop, [=](const auto& offset, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i)
      out[offset[0] + i * so] = condition[offset[1] + i * sc] ? a[offset[2] + i * sa] : b[offset[3] + i * sb];
  });
}

template <class T, class S>
void accumulate_typed(T* dst, const S* src, const Loop<2>& loop) {
  using C = compute_t<T>;
  const std::int64_t to = loop.inner_stride(0), from = loop.inner_stride(1);
  parallel_rows(loop, [=](const auto& offset, std::int64_t n) {
    T* d = dst + offset[0];
    const S* s = src + offset[1];
    if constexpr (std::is_same_v<T, S> && computes_in_place<T>) {
      if (to == 1 && from == 1) {
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i) d[i] += s[i];
        return;
      }
    }
    C sum[kMapBlock], term[kMapBlock];
    for (std::int64_t i = 0; i < n; i += kMapBlock) {
      const std::int64_t m = std::min(kMapBlock, n - i);
      load_block(sum, d + i * to, to, m);
      load_block(term, s + i * from, from, m);
#pragma omp simd
      for (std::int64_t j = 0; j < m; ++j) sum[j] += term[j];
      store_block(d + i * to, to, sum, m);
    }
  });
}

}  // namespace

void binary(const Context&, View out, ConstView a, ConstView b, BinaryOp op) {
  const auto loop = loop_of(out, a, b);
  visit_any(out.dtype, "binary", [&]<class T>() {
    if constexpr (!std::is_same_v<T, bool>) binary_typed(out.as<T>(), a.as<T>(), b.as<T>(), loop, op);
  });
}

void compare(const Context&, View out, ConstView a, ConstView b, CompareOp op) {
  const auto loop = loop_of(out, a, b);
  visit_any(a.dtype, "compare", [&]<class T>() { compare_typed(out.as<bool>(), a.as<T>(), b.as<T>(), loop, op); });
}

void relu_backward(const Context&, View dx, ConstView dy, ConstView y) {
  const auto loop = loop_of(dx, dy, y);
  visit_floating(dx.dtype, "relu_backward", [&]<class T>() {
    using C = compute_t<T>;
    map2(dx.as<T>(), dy.as<T>(), y.as<T>(), loop, [](auto g, auto v) { return v > C(0) ? g : decltype(g){}; });
  });
}

void scale_shift(const Context&, View out, ConstView x, double scale, double shift) {
  const auto loop = loop_of(out, x);
  visit_floating(out.dtype, "scale_shift", [&]<class T>() {
    using C = compute_t<T>;
    map1(out.as<T>(), x.as<T>(), loop, [s = C(scale), t = C(shift)](auto v) { return v * s + t; });
  });
}

void add_scaled(const Context&, View out, ConstView a, double alpha, ConstView b) {
  const auto loop = loop_of(out, a, b);
  visit_floating(out.dtype, "add_scaled", [&]<class T>() {
    using C = compute_t<T>;
    map2(out.as<T>(), a.as<T>(), b.as<T>(), loop, [s = C(alpha)](auto x, auto y) { return x + s * y; });
  });
}

void accumulate(const Context&, View dst, ConstView src) {
  const auto loop = loop_of(dst, src);
  visit_floating(dst.dtype, "accumulate", [&]<class T>() {
    visit_floating(src.dtype, "accumulate", [&]<class S>() { accumulate_typed(dst.as<T>(), src.as<S>(), loop); });
  });
}

void where(const Context&, View out, ConstView condition, ConstView a, ConstView b) {
  const auto under = [&](const ConstView& v) { return broadcast_strides(v.sizes, v.strides, out.sizes); };
  const auto loop = make_loop<4>(out.sizes, {out.strides, under(condition), under(a), under(b)});
  visit_any(out.dtype, "where",
            [&]<class T>() { where_typed(out.as<T>(), condition.as<std::uint8_t>(), a.as<T>(), b.as<T>(), loop); });
}

}  // namespace apex::kernels::cpu
