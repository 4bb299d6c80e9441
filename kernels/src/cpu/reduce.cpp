// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <vector>

#include "../reduce_impl.hpp"
#include "convert.hpp"
#include "loop.hpp"
#include "streaming.hpp"
#include "vec.hpp"

// The elements that go into one output are cut into segments whose bounds depend on sizes only; segments are reduced in
// 16 lanes (or, where outputs lie side by side, row by row) and their results combined in order, sums in f64. Elements
// side by side that are computed in f32 go through vectors: the same operations in the same order, so the same bits.

namespace apex::kernels::cpu {
namespace {

constexpr std::int64_t kSegment = 4096;  // terms summed in the accumulation type before f64 takes over
constexpr std::int64_t kBlock = 256;     // elements converted at once
constexpr std::int64_t kWidth = 1024;    // outputs side by side in one task: long pieces of each row of x

template <class C>
struct Sum {
  using Merged = std::conditional_t<std::is_integral_v<C>, std::int64_t, double>;
  static C identity() { return C(0); }
  static C take(C a, C b) { return a + b; }
  static Merged merge(Merged a, Merged b) { return a + b; }
};
template <class C>
struct Max {
  using Merged = C;
  static C identity() {
    return std::is_integral_v<C> ? std::numeric_limits<C>::lowest() : -std::numeric_limits<C>::infinity();
  }
  static C take(C a, C b) { return (b > a) | (b != b) ? b : a; }  // a held NaN stays: nothing is greater
  static Merged merge(C a, C b) { return take(a, b); }
};
template <class C>
struct Min {
  using Merged = C;
  static C identity() {
    return std::is_integral_v<C> ? std::numeric_limits<C>::max() : std::numeric_limits<C>::infinity();
  }
  static C take(C a, C b) { return (b < a) | (b != b) ? b : a; }
  static Merged merge(C a, C b) { return take(a, b); }
};

using Vector = VectorOps<float>::Value;

/// Takes vectors as R does. A NaN among them only raises a flag, since to keep one costs more than the maximum itself:
/// who sees the flag starts again without vectors.
template <class R>
struct Taker {
  Vector take(Vector a, Vector b) { return a + b; }
  void look_at(Vector, Vector) {}
  bool flagged() const { return false; }
};
#if APEX_HALVES_BY_8
struct OrderTaker {
  __m256 nan = _mm256_setzero_ps();

  void look_at(Vector a, Vector b) { nan = _mm256_or_ps(nan, _mm256_cmp_ps(__m256(a), __m256(b), _CMP_UNORD_Q)); }
  bool flagged() const { return _mm256_movemask_ps(nan) != 0; }
};
// Of equal numbers (zeros of two signs) the instructions give the second operand, the one already held.
template <>
struct Taker<Max<float>> : OrderTaker {
  Vector take(Vector a, Vector b) { return Vector(_mm256_max_ps(__m256(b), __m256(a))); }
};
template <>
struct Taker<Min<float>> : OrderTaker {
  Vector take(Vector a, Vector b) { return Vector(_mm256_min_ps(__m256(b), __m256(a))); }
};
template <class C>
inline constexpr bool has_vectors = std::is_same_v<C, float>;
#else
template <class C>
inline constexpr bool has_vectors = false;
#endif

/// Kept and reduced dimensions as two loops over x; the kept one carries the output's offsets too.
struct Split {
  Loop<2> kept;     // operand 0: out, operand 1: x
  Loop<1> reduced;  // operand 0: x
};

Split split_dims(const View& out, const ConstView& x) {
  Dims kept_sizes, kept_out, kept_x, reduced_sizes, reduced_x;
  for (int d = 0; d < x.rank(); ++d) {
    if (out.sizes[d] == x.sizes[d]) {
      kept_sizes.push_back(x.sizes[d]);
      kept_out.push_back(out.strides[d]);
      kept_x.push_back(x.strides[d]);
    } else {
      reduced_sizes.push_back(x.sizes[d]);
      reduced_x.push_back(x.strides[d]);
    }
  }
  return {make_loop<2>(kept_sizes, {kept_out, kept_x}), make_loop<1>(reduced_sizes, {reduced_x})};
}

/// The lanes onto each other, in halves.
template <class R, class C>
C fold(C (&lane)[simd::kLanes]) {
  for (int width = simd::kLanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lane[l] = R::take(lane[l], lane[l + width]);
  return lane[0];
}

/// Reduces n strided elements in 16 lanes.
template <class R, class C, class T>
C reduce_row(const T* x, std::int64_t stride, std::int64_t n) {
  C lane[simd::kLanes];
  for (auto& l : lane) l = R::identity();
  C block[kBlock];
  for (std::int64_t i = 0; i < n; i += kBlock) {
    const std::int64_t m = std::min(kBlock, n - i);
    load_block(block, x + i * stride, stride, m);
    std::int64_t j = 0;
    for (; j + simd::kLanes <= m; j += simd::kLanes) {
#pragma omp simd
      for (int l = 0; l < simd::kLanes; ++l) lane[l] = R::take(lane[l], block[j + l]);
    }
    for (int l = 0; j + l < m; ++l) lane[l] = R::take(lane[l], block[j + l]);
  }
  return fold<R>(lane);
}

/// The same for kRows rows of n f32 or 16-bit elements side by side, `step` from row to row. False where a NaN was met.
template <class R, int kRows, class T>
bool reduce_rows(float* result, const T* x, std::int64_t step, std::int64_t n) {
  using V = VectorOps<float>;
  Taker<R> taker;
  Vector low[kRows], high[kRows];
  for (int r = 0; r < kRows; ++r) low[r] = high[r] = V::spread(R::identity());
  const auto take = [&](int r, const auto* from) {
    const Vector a = V::load(from), b = V::load(from + V::width);
    taker.look_at(a, b);
    low[r] = taker.take(low[r], a);
    high[r] = taker.take(high[r], b);
  };
  std::int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes)
    for (int r = 0; r < kRows; ++r) {
      const T* from = x + r * step + i;
      fetch_ahead(from, 1);
      take(r, from);
    }
  for (int r = 0; i < n && r < kRows; ++r) {  // what is left, filled up with what changes no lane
    float rest[simd::kLanes];
    std::fill_n(rest, simd::kLanes, R::identity());
    for (std::int64_t l = 0; i + l < n; ++l) rest[l] = convert<float>(x[r * step + i + l]);
    take(r, rest);
  }
  for (int r = 0; r < kRows; ++r)
    result[r] = fold_8(taker.take(low[r], high[r]), [&](Vector a, Vector b) { return taker.take(a, b); });
  return !taker.flagged();
}

template <class R, class C, class T>
typename R::Merged reduce_range(const T* x, const Loop<1>& loop, std::int64_t begin, std::int64_t end) {
  typename R::Merged total = R::identity();
  for_each_row(loop, begin, end, [&](const auto& offset, std::int64_t n) {
    const T* row = x + offset[0];
    const std::int64_t stride = loop.inner_stride(0);
    std::int64_t i = 0;
    if constexpr (has_vectors<C>) {
      constexpr int kPair = 2;  // segments in flight: one alone waits for its own sums
      float part[kPair];
      for (; stride == 1 && i + kPair * kSegment <= n; i += kPair * kSegment) {
        if (!reduce_rows<R, kPair>(part, row + i, kSegment, kSegment)) break;
        for (const float p : part) total = R::merge(total, p);
      }
      for (; stride == 1 && i < n; i += kSegment) {
        if (!reduce_rows<R, 1>(part, row + i, 0, std::min(kSegment, n - i))) break;
        total = R::merge(total, part[0]);
      }
    }
    for (; i < n; i += kSegment)
      total = R::merge(total, reduce_row<R, C>(row + i * stride, stride, std::min(kSegment, n - i)));
  });
  return total;
}

/// Each output's terms lie along memory: one output (or one segment of it) per task.
template <class R, class C, class T, class Store>
void reduce_along(const Context& ctx, const T* x, const Split& s, Store&& store) {
  using M = typename R::Merged;
  const std::int64_t outputs = s.kept.numel, terms = s.reduced.numel;
  // Few outputs of many terms: cut each into parts, on row bounds where rows are short.
  const std::int64_t row = s.reduced.inner_size();
  const std::int64_t unit = row >= kSegment ? kSegment : row * ((kSegment + row - 1) / row);
  const std::int64_t part = std::max(unit, (terms / 256 + unit - 1) / unit * unit);
  const std::int64_t parts = outputs >= 64 ? 1 : (terms + part - 1) / part;
  const auto at = [&](std::int64_t output, auto&& use) {
    for_each_row(s.kept, output, output + 1, [&](const auto& offset, std::int64_t) { use(offset[0], offset[1]); });
  };
  if (parts == 1) {
    parallel_for(outputs, terms, [&](std::int64_t output) {
      at(output,
         [&](std::int64_t to, std::int64_t from) { store(to, reduce_range<R, C>(x + from, s.reduced, 0, terms)); });
    });
    return;
  }
  const Workspace scratch = ctx.workspace(static_cast<std::size_t>(outputs * parts) * sizeof(M));
  M* partial = scratch.as<M>();
  parallel_for(outputs * parts, part, [&](std::int64_t task) {
    const std::int64_t begin = task % parts * part, end = std::min(begin + part, terms);
    at(task / parts,
       [&](std::int64_t, std::int64_t from) { partial[task] = reduce_range<R, C>(x + from, s.reduced, begin, end); });
  });
  for (std::int64_t output = 0; output < outputs; ++output) {
    M total = partial[output * parts];
    for (std::int64_t p = 1; p < parts; ++p) total = R::merge(total, partial[output * parts + p]);
    at(output, [&](std::int64_t to, std::int64_t) { store(to, total); });
  }
}

/// acc[i] = take(... take(acc[i], x[i]) ..., x[i + (kRows - 1) step]) for i in [0, width).
template <class R, int kRows, class T>
void take_rows(Taker<R>& taker, float* acc, const T* x, std::int64_t step, std::int64_t width) {
  using V = VectorOps<float>;
  constexpr std::int64_t kLine = kLineBytes / static_cast<std::int64_t>(sizeof(T));
  std::int64_t i = 0;
  for (; i + kLine <= width; i += kLine) {
    for (int r = 0; r < kRows; ++r)
      __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(x + i) +
                                                       static_cast<std::uintptr_t>(r + kRows) *
                                                           static_cast<std::uintptr_t>(step) * sizeof(T)));
    for (std::int64_t at = i; at < i + kLine; at += 2 * V::width) {
      Vector low = V::load(acc + at), high = V::load(acc + at + V::width);
      for (int r = 0; r < kRows; ++r) {
        const T* from = x + r * step + at;
        const Vector a = V::load(from), b = V::load(from + V::width);
        taker.look_at(a, b);
        low = taker.take(low, a);
        high = taker.take(high, b);
      }
      V::store(acc + at, low);
      V::store(acc + at + V::width, high);
    }
  }
  for (; i + V::width <= width; i += V::width) {
    Vector held = V::load(acc + i);
    for (int r = 0; r < kRows; ++r) {
      const Vector a = V::load(x + r * step + i);
      taker.look_at(a, a);
      held = taker.take(held, a);
    }
    V::store(acc + i, held);
  }
  for (; i < width; ++i)
    for (int r = 0; r < kRows; ++r) acc[i] = R::take(acc[i], convert<float>(x[r * step + i]));
}

/// Neighbouring outputs are neighbours in x: rows of x are added onto a row of outputs.
template <class R, class C, class T, class Store>
void reduce_across(const Context& ctx, const T* x, const Split& s, Store&& store) {
  using M = typename R::Merged;
  const std::int64_t inner = s.kept.inner_size(), outer = s.kept.numel / inner, terms = s.reduced.numel;
  const std::int64_t stride_out = s.kept.inner_stride(0), stride_x = s.kept.inner_stride(1);
  const std::int64_t tiles = (inner + kWidth - 1) / kWidth;
  const std::int64_t part = std::max<std::int64_t>(64, 65536 / std::min(inner, kBlock));
  const std::int64_t parts = (terms + part - 1) / part;
  const Workspace scratch = ctx.workspace(static_cast<std::size_t>(s.kept.numel * parts) * sizeof(M));
  M* partial = scratch.as<M>();
  parallel_for(outer * tiles * parts, part * std::min(inner, kWidth), [&](std::int64_t task) {
    const std::int64_t p = task % parts, tile = task / parts % tiles, o = task / parts / tiles;
    const std::int64_t first = tile * kWidth, width = std::min(kWidth, inner - first);
    C acc[kWidth], block[kWidth];
    M merged[kWidth];
    const auto pass = [&](Taker<R> taker, bool by_vectors) {  // whether it met no NaN that it could not keep
      std::fill_n(merged, width, M(R::identity()));
      std::fill_n(acc, width, R::identity());
      std::int64_t held = 0;
      const auto flush = [&] {
        for (std::int64_t i = 0; i < width; ++i) merged[i] = R::merge(merged[i], acc[i]);
        std::fill_n(acc, width, R::identity());
        held = 0;
      };
      for_each_row(s.kept, o * inner + first, o * inner + first + 1, [&](const auto& base, std::int64_t) {
        for_each_row(s.reduced, p * part, std::min(p * part + part, terms), [&](const auto& offset, std::int64_t n) {
          constexpr std::int64_t kFlush = 512, kRows = sizeof(T) == 2 ? 8 : 4;
          const std::int64_t step = s.reduced.inner_stride(0);
          std::int64_t taken = 1;
          for (std::int64_t r = 0; r < n; r += taken) {
            const T* row = x + base[1] + offset[0] + r * step;
            taken = 1;
            if constexpr (has_vectors<C>) {
              if (by_vectors && kRows <= std::min(n - r, kFlush - held)) {
                take_rows<R, kRows>(taker, acc, row, step, width);
                taken = kRows;
              } else if (by_vectors) {
                take_rows<R, 1>(taker, acc, row, step, width);
              }
            }
            if (!by_vectors) {
              load_block(block, row, stride_x, width);
#pragma omp simd
              for (std::int64_t i = 0; i < width; ++i) acc[i] = R::take(acc[i], block[i]);
            }
            if ((held += taken) == kFlush) flush();
          }
        });
      });
      flush();
      return !taker.flagged();
    };
    const bool by_vectors = has_vectors<C> && stride_x == 1;
    if (!pass(Taker<R>(), by_vectors)) pass(Taker<R>(), false);
    std::copy_n(merged, width, partial + p * s.kept.numel + o * inner + first);
  });
  parallel_ranges(s.kept.numel, parts, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t output = begin;
    for_each_row(s.kept, begin, end, [&](const auto& offset, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i, ++output) {
        M total = partial[output];
        for (std::int64_t p = 1; p < parts; ++p) total = R::merge(total, partial[p * s.kept.numel + output]);
        store(offset[0] + i * stride_out, total);
      }
    });
  });
}

template <class R, class C, class T, class Store>
void reduce_any(const Context& ctx, const T* x, const Split& s, Store&& store) {
  const bool across =
      s.kept.inner_size() > 1 && s.reduced.numel > 1 && s.kept.inner_stride(1) < s.reduced.inner_stride(0);
  if (s.reduced.numel == 0) {
    for_each_row(s.kept, 0, s.kept.numel, [&](const auto& offset, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i)
        store(offset[0] + i * s.kept.inner_stride(0), typename R::Merged(R::identity()));
    });
  } else if (across) {
    reduce_across<R, C>(ctx, x, s, store);
  } else {
    reduce_along<R, C>(ctx, x, s, store);
  }
}

/// Writes one result; the output's type is looked up per result, which is rare beside the terms that went into it.
struct Store {
  View out;
  double divisor = 1.0;
  void operator()(std::int64_t at, double value) const {
    visit_floating(out.dtype, "reduce", [&]<class T>() { out.as<T>()[at] = convert<T>(value / divisor); });
  }
  void operator()(std::int64_t at, std::int64_t value) const {
    visit_any(out.dtype, "reduce", [&]<class T>() { out.as<T>()[at] = convert<T>(value); });
  }
};

template <class T>
void reduce_typed(const Context& ctx, const View& out, const T* x, const Split& s, ReduceOp op) {
  using C = std::conditional_t<is_floating_type<T>, accum_t<T>, std::int64_t>;
  switch (op) {
    case ReduceOp::sum: return reduce_any<Sum<C>, C>(ctx, x, s, Store{out});
    case ReduceOp::mean:
      if constexpr (is_floating_type<T>)
        reduce_any<Sum<C>, C>(ctx, x, s, Store{out, static_cast<double>(s.reduced.numel)});
      return;
    case ReduceOp::max: return reduce_any<Max<C>, C>(ctx, x, s, Store{out});
    case ReduceOp::min: return reduce_any<Min<C>, C>(ctx, x, s, Store{out});
  }
}

}  // namespace

void reduce(const Context& ctx, View out, ConstView x, ReduceOp op) {
  if (out.numel() == 0) return;
  const Split s = split_dims(out, x);
  visit_any(x.dtype, name_of(op), [&]<class T>() { reduce_typed(ctx, out, x.as<T>(), s, op); });
}

}  // namespace apex::kernels::cpu
