// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "convert.hpp"
#include "loop.hpp"

// Elementwise loops over strided operands. A row whose operands are contiguous or constant in the compute type itself
// runs in place; every other row (16-bit, strided) goes through blocks on the stack. Each row works with its own copy
// of the functor: numbers that a lambda captured then lie in registers, else a load in one arm of a ?: stops the
// compiler from vectorising.

namespace apex::kernels::cpu {

inline constexpr std::int64_t kMapBlock = 256;

template <class T>
inline constexpr bool computes_in_place = std::is_same_v<compute_t<T>, T>;

/// out[i] = f(x[i])
template <class Out, class T, class F>
void map1(Out* out, const T* x, const Loop<2>& loop, F f) {
  using C = compute_t<T>;
  const std::int64_t so = loop.inner_stride(0), sx = loop.inner_stride(1);
  parallel_rows(
      loop, [=](const auto& offset, std::int64_t n) __attribute__((flatten)) {
        const F g = f;
        Out* o = out + offset[0];
        const T* a = x + offset[1];
        if constexpr (computes_in_place<T> && !is_half_type<Out>) {
          if (so == 1 && sx == 1) {
#pragma omp simd
            for (std::int64_t i = 0; i < n; ++i) o[i] = static_cast<Out>(g(a[i]));
            return;
          }
        }
        C block[kMapBlock];
        for (std::int64_t i = 0; i < n; i += kMapBlock) {
          const std::int64_t m = std::min(kMapBlock, n - i);
          load_block(block, a + i * sx, sx, m);
#pragma omp simd
          for (std::int64_t j = 0; j < m; ++j) block[j] = g(block[j]);
          store_block(o + i * so, so, block, m);
        }
      });
}

/// out[i] = f(a[i], b[i])
template <class Out, class T, class F>
void map2(Out* out, const T* a, const T* b, const Loop<3>& loop, F f) {
  using C = compute_t<T>;
  const std::int64_t so = loop.inner_stride(0), sa = loop.inner_stride(1), sb = loop.inner_stride(2);
  parallel_rows(
      loop, [=](const auto& offset, std::int64_t n) __attribute__((flatten)) {
        const F g = f;
        Out* o = out + offset[0];
        const T* p = a + offset[1];
        const T* q = b + offset[2];
        if constexpr (computes_in_place<T> && !is_half_type<Out>) {
          if (so == 1 && sa == 1 && sb == 1) {
#pragma omp simd
            for (std::int64_t i = 0; i < n; ++i) o[i] = static_cast<Out>(g(p[i], q[i]));
            return;
          }
          if (so == 1 && sa == 1 && sb == 0) {
            const T constant = *q;
#pragma omp simd
            for (std::int64_t i = 0; i < n; ++i) o[i] = static_cast<Out>(g(p[i], constant));
            return;
          }
        }
        C first[kMapBlock], second[kMapBlock];
        using R = decltype(g(C{}, C{}));
        R result[kMapBlock];
        for (std::int64_t i = 0; i < n; i += kMapBlock) {
          const std::int64_t m = std::min(kMapBlock, n - i);
          load_block(first, p + i * sa, sa, m);
          load_block(second, q + i * sb, sb, m);
#pragma omp simd
          for (std::int64_t j = 0; j < m; ++j) result[j] = g(first[j], second[j]);
          store_block(o + i * so, so, result, m);
        }
      });
}

inline Loop<2> loop_of(const View& out, const ConstView& x) {
  return make_loop<2>(out.sizes, {out.strides, broadcast_strides(x.sizes, x.strides, out.sizes)});
}
inline Loop<3> loop_of(const View& out, const ConstView& a, const ConstView& b) {
  return make_loop<3>(out.sizes, {out.strides, broadcast_strides(a.sizes, a.strides, out.sizes),
                                  broadcast_strides(b.sizes, b.strides, out.sizes)});
}

}  // namespace apex::kernels::cpu
