// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <utility>

#include "loop.hpp"
#include "streaming.hpp"
#include "vec.hpp"

// Elementwise loops over strided operands. A functor that takes eight f32 at once runs on vectors where its operands
// are contiguous. Another runs in place where they are contiguous or constant in the compute type itself; every other
// row (16-bit, strided, written past the cache) goes through blocks on the stack. Each row works with its own copy of
// the functor: numbers that a lambda captured then lie in registers, else a load in one arm of a ?: stops the compiler
// from vectorising.

namespace apex::kernels::cpu {

inline constexpr std::int64_t kMapBlock = 256;

template <class T>
inline constexpr bool computes_in_place = std::is_same_v<compute_t<T>, T>;

/// m elements of an operand as C: where they lie if they do so as such, else converted in `block`.
template <class C, class T>
inline const C* as_block(C* block, const T* from, std::int64_t stride, std::int64_t m) {
  if constexpr (std::is_same_v<C, T>) {
    if (stride == 1) return from;
  }
  load_block(block, from, stride, m);
  return block;
}

/// parallel_rows for a row that writes past the cache where `stream` says so.
template <int N, class Row>
void parallel_rows(const Loop<N>& loop, bool stream, Row&& row) {
  parallel_ranges(loop.numel, 1, [&](std::int64_t begin, std::int64_t end) {
    for_each_row(loop, begin, end, row);
    if (stream) end_streaming();
  });
}

/// Calls piece(at, m) for blocks of [0, n). Where `stream`, all but the first start a line of `out`.
template <class Out, class Piece>
inline void for_each_block(const Out* out, std::int64_t n, bool stream, Piece&& piece) {
  const std::int64_t head = stream ? up_to_line(out) : 0;
  for (std::int64_t at = 0, m = 0; at < n; at += m) {
    m = std::min(at < head ? head : kMapBlock, n - at);
    piece(at, m);
  }
}

using MapVector = VectorOps<float>::Value;

/// Whether rows of T, computed by F, are written as Out by vector_row.
template <class Out, class T, class F, class... Vectors>
constexpr bool by_vectors() {
  if constexpr (APEX_HALVES_BY_8 && std::is_same_v<Out, T> && std::is_same_v<compute_t<T>, float>)
    return std::is_invocable_v<const F&, Vectors...>;
  else
    return false;
}

/// Sixteen elements as two vectors, in an order that depends on T only: an elementwise loop may take any.
template <class T>
struct Sixteen {
  static MapVector first(const T* from) { return VectorOps<float>::load(from); }
  static MapVector second(const T* from) { return VectorOps<float>::load(from + 8); }
#if APEX_HALVES_BY_8
  static __m256i joined(MapVector a, MapVector b) { return narrowed_16<T>(__m256(a), __m256(b)); }
#endif
};
#if APEX_HALVES_BY_8
template <>
struct Sixteen<bfloat16> {
  static MapVector first(const bfloat16* from) { return MapVector(even_of_16(from)); }
  static MapVector second(const bfloat16* from) { return MapVector(odd_of_16(from)); }
  static __m256i joined(MapVector a, MapVector b) { return joined_16(__m256(a), __m256(b)); }
};
/// Writes them; past the cache where kPast, and `to` is aligned then.
template <bool kPast, class T>
inline void store_16(T* to, MapVector a, MapVector b) {
  const auto put = [](auto* at, __m256i v) {
    if constexpr (kPast)
      _mm256_stream_si256(reinterpret_cast<__m256i*>(at), v);
    else
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), v);
  };
  if constexpr (std::is_same_v<T, float>) {
    put(to, __m256i(a));
    put(to + 8, __m256i(b));
  } else {
    put(to, Sixteen<T>::joined(a, b));
  }
}
#endif

/// An operand of vector_row: elements side by side, or one for all.
template <class T>
struct VectorRow {
  const T* x;
  MapVector first(std::int64_t i) const { return Sixteen<T>::first(x + i); }
  MapVector second(std::int64_t i) const { return Sixteen<T>::second(x + i); }
  void fetch_ahead(std::int64_t i) const { cpu::fetch_ahead(x + i, 1); }
  VectorRow from(std::int64_t i) const { return {x + i}; }
  VectorRow copied(T* to, std::int64_t m) const {
    std::copy_n(x, m, to);
    return {to};
  }
};
struct VectorConstant {
  float value;
  MapVector first(std::int64_t) const { return VectorOps<float>::spread(value); }
  MapVector second(std::int64_t) const { return first(0); }
  void fetch_ahead(std::int64_t) const {}
  VectorConstant from(std::int64_t) const { return *this; }
  template <class T>
  VectorConstant copied(T*, std::int64_t) const {
    return *this;
  }
};

/// out[i] = f(x[i]...) for i in [0, n), n a multiple of 16 (kStream: of a line, which `out` starts). The one place
/// where f is compiled to vectors: in two, the sign of a NaN made of two NaNs could differ, and with it bits among
/// threads.
template <bool kStream, class T, class F, class... X>
[[gnu::noinline]] void sixteens(T* out, std::int64_t n, const F& function, const X... x) {
  const F f = function;
  constexpr std::int64_t kStep = kStream ? kLineBytes / static_cast<std::int64_t>(sizeof(T)) : 16;
  for (std::int64_t i = 0; i < n; i += kStep) {
    if constexpr (kStream) (x.fetch_ahead(i), ...);
    for (std::int64_t j = i; j < i + kStep; j += 16) store_16<kStream>(out + j, f(x.first(j)...), f(x.second(j)...));
  }
}

/// out[i] = f(x[i]...) for rows or constants x. What lies before a line of `out` (kStream) or is left at the end is
/// computed apart, the end before `out` is written, which may be one of x.
template <bool kStream, class T, class F, class... X>
void vector_row(T* out, std::int64_t n, const F& f, const X&... x) {
  constexpr std::int64_t kStep = kStream ? kLineBytes / static_cast<std::int64_t>(sizeof(T)) : 16;
  alignas(kLineBytes) T apart[kStep];
  if (n < kStep) {
    T held[sizeof...(X)][kStep] = {};
    [&]<std::size_t... k>(std::index_sequence<k...>) { sixteens<kStream>(apart, kStep, f, x.copied(held[k], n)...); }
    (std::index_sequence_for<X...>());
    std::copy_n(apart, n, out);
    return;
  }
  std::int64_t head = 0;
  if constexpr (kStream) {
    head = up_to_line(out);
    sixteens<kStream>(apart, kStep, f, x...);
    std::copy_n(apart, head, out);
  }
  const std::int64_t whole = (n - head) / kStep * kStep, left = n - head - whole;
  if (left > 0) sixteens<kStream>(apart, kStep, f, x.from(n - kStep)...);
  if (whole > 0) sixteens<kStream>(out + head, whole, f, x.from(head)...);
  std::copy_n(apart + kStep - left, left, out + n - left);
}

/// out[i] = f(x[i])
template <class Out, class T, class F>
void map1(Out* out, const T* x, const Loop<2>& loop, F f) {
  using C = compute_t<T>;
  const std::int64_t so = loop.inner_stride(0), sx = loop.inner_stride(1);
  constexpr std::int64_t kBytes = sizeof(Out) + sizeof(T);
  const bool stream = so == 1 && static_cast<const void*>(out) != x &&  // in place, the line is in the cache already
                      streams(out, loop.inner_size(), loop.numel * kBytes);
  parallel_rows(
      loop, stream, [=](const auto& offset, std::int64_t n) __attribute__((flatten)) {
        const F g = f;
        Out* o = out + offset[0];
        const T* a = x + offset[1];
        if constexpr (by_vectors<Out, T, F, MapVector>()) {
          if (so == 1 && sx == 1)
            return stream ? vector_row<true>(o, n, g, VectorRow<T>{a}) : vector_row<false>(o, n, g, VectorRow<T>{a});
        }
        if constexpr (computes_in_place<T> && !is_half_type<Out>) {
          if (so == 1 && sx == 1 && !stream) {
#pragma omp simd
            for (std::int64_t i = 0; i < n; ++i) o[i] = static_cast<Out>(g(a[i]));
            return;
          }
        }
        C block[kMapBlock];
        using R = decltype(g(C{}));
        R result[kMapBlock];
        for_each_block(o, n, stream, [&](std::int64_t i, std::int64_t m) {
          if (stream && sx == 1) fetch_ahead(a + i, m);
          const C* from = as_block(block, a + i * sx, sx, m);
#pragma omp simd
          for (std::int64_t j = 0; j < m; ++j) result[j] = g(from[j]);
          if (stream)
            stream_block(o + i, result, m);
          else
            store_block(o + i * so, so, result, m);
        });
      });
}

/// out[i] = f(a[i], b[i])
template <class Out, class T, class F>
void map2(Out* out, const T* a, const T* b, const Loop<3>& loop, F f) {
  using C = compute_t<T>;
  const std::int64_t so = loop.inner_stride(0), sa = loop.inner_stride(1), sb = loop.inner_stride(2);
  constexpr std::int64_t kBytes = sizeof(Out) + 2 * sizeof(T);
  const bool stream = so == 1 && static_cast<const void*>(out) != a && static_cast<const void*>(out) != b &&
                      streams(out, loop.inner_size(), loop.numel * kBytes);
  parallel_rows(
      loop, stream, [=](const auto& offset, std::int64_t n) __attribute__((flatten)) {
        const F g = f;
        Out* o = out + offset[0];
        const T* p = a + offset[1];
        const T* q = b + offset[2];
        if constexpr (by_vectors<Out, T, F, MapVector, MapVector>()) {
          const auto run = [&](const auto& first, const auto& second) {
            return stream ? vector_row<true>(o, n, g, first, second) : vector_row<false>(o, n, g, first, second);
          };
          if (so == 1 && sa == 1 && sb == 1) return run(VectorRow<T>{p}, VectorRow<T>{q});
          if (so == 1 && sa == 1 && sb == 0) return run(VectorRow<T>{p}, VectorConstant{convert<float>(*q)});
        }
        if constexpr (computes_in_place<T> && !is_half_type<Out>) {
          if (so == 1 && sa == 1 && sb == 1 && !stream) {
#pragma omp simd
            for (std::int64_t i = 0; i < n; ++i) o[i] = static_cast<Out>(g(p[i], q[i]));
            return;
          }
          if (so == 1 && sa == 1 && sb == 0 && !stream) {
            const T constant = *q;
#pragma omp simd
            for (std::int64_t i = 0; i < n; ++i) o[i] = static_cast<Out>(g(p[i], constant));
            return;
          }
        }
        C first[kMapBlock], second[kMapBlock];
        using R = decltype(g(C{}, C{}));
        R result[kMapBlock];
        for_each_block(o, n, stream, [&](std::int64_t i, std::int64_t m) {
          if (stream && sa == 1) fetch_ahead(p + i, m);
          if (stream && sb == 1) fetch_ahead(q + i, m);
          const C* x = as_block(first, p + i * sa, sa, m);
          const C* y = as_block(second, q + i * sb, sb, m);
#pragma omp simd
          for (std::int64_t j = 0; j < m; ++j) result[j] = g(x[j], y[j]);
          if (stream)
            stream_block(o + i, result, m);
          else
            store_block(o + i * so, so, result, m);
        });
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
