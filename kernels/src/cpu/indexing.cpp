// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../indexing_impl.hpp"

#include <atomic>
#include <cstring>
#include <limits>

#include "../index_faults.hpp"
#include "convert.hpp"
#include "loop.hpp"
#include "widened.hpp"

namespace apex::kernels::cpu {
namespace {

template <class F>
void visit_index(DType dtype, F&& f) {
  if (dtype == DType::i64)
    f.template operator()<std::int64_t>();
  else
    f.template operator()<std::int32_t>();
}

/// A broadcast index has each of its elements once.
ConstView distinct(ConstView index) {
  for (int d = 0; d < index.rank(); ++d)
    if (index.strides[d] == 0 && index.sizes[d] > 1) index.sizes[d] = 1;
  return index;
}

Dims without(Dims strides, int dim) {
  strides[dim] = 0;
  return strides;
}

template <class U, class I>
void gather_typed(U* out, const I* index, const U* x, const Loop<3>& loop, std::int64_t reach) {
  const std::int64_t so = loop.inner_stride(0), si = loop.inner_stride(1), sx = loop.inner_stride(2);
  parallel_rows(loop, [=](const auto& offset, std::int64_t n) {
    U* to = out + offset[0];
    const I* at = index + offset[1];
    const U* from = x + offset[2];
    if (si == 0) {  // one index for the row
      const U* row = from + static_cast<std::int64_t>(*at) * reach;
      if (so == 1 && sx == 1)
        std::memcpy(to, row, static_cast<std::size_t>(n) * sizeof(U));
      else
        for (std::int64_t i = 0; i < n; ++i) to[i * so] = row[i * sx];
      return;
    }
    for (std::int64_t i = 0; i < n; ++i) to[i * so] = from[i * sx + static_cast<std::int64_t>(at[i * si]) * reach];
  });
}

/// What is not a floating number adds without overflow.
template <class A>
A added(A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    using U = std::make_unsigned_t<A>;
    return static_cast<A>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

/// sum += src at the places of index; elements that differ in another dimension than `dim` never meet, so those are
/// shared among threads, and each of them goes through the indices in order.
template <class A, class T, class I>
void scatter_typed(const View& sum, const ConstView& src, const ConstView& index, int dim,
                   const ScatterOptions& options) {
  Dims sizes = src.sizes;
  const std::int64_t count = sizes[dim];
  sizes[dim] = 1;
  const auto lines = make_loop<3>(sizes, {sum.strides, index.strides, src.strides});
  const std::int64_t so = lines.inner_stride(0), si = lines.inner_stride(1), ss = lines.inner_stride(2);
  const std::int64_t reach = sum.strides[dim], next_index = index.strides[dim], next = src.strides[dim];
  const bool ignores = options.ignore_index.has_value();
  const std::int64_t ignored = options.ignore_index.value_or(0);
  parallel_ranges(lines.numel, count, [=](std::int64_t begin, std::int64_t end) {
    for_each_row(lines, begin, end, [=](const auto& offset, std::int64_t n) {
      for (std::int64_t i = 0; i < count; ++i) {
        A* to = sum.as<A>() + offset[0];
        const I* at = index.as<I>() + offset[1] + i * next_index;
        const T* from = src.as<T>() + offset[2] + i * next;
        if (si == 0) {
          const auto place = static_cast<std::int64_t>(*at);
          if (ignores && place == ignored) continue;
          A* row = to + place * reach;
          if (so == 1 && ss == 1) {
#pragma omp simd
            for (std::int64_t k = 0; k < n; ++k) row[k] = added(row[k], convert<A>(from[k]));
            continue;
          }
          for (std::int64_t k = 0; k < n; ++k) row[k * so] = added(row[k * so], convert<A>(from[k * ss]));
          continue;
        }
        for (std::int64_t k = 0; k < n; ++k) {
          const auto place = static_cast<std::int64_t>(at[k * si]);
          if (ignores && place == ignored) continue;
          A& sum_at = to[k * so + place * reach];
          sum_at = added(sum_at, convert<A>(from[k * ss]));
        }
      }
    });
  });
}

}  // namespace

void check_indices(const IndexBounds& bounds, const ConstView& index) {
  const ConstView once = distinct(index);
  const auto loop = make_loop<1>(once.sizes, {once.strides}, Order::logical);
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  visit_index(index.dtype, [&]<class I>() {
    std::atomic<std::int64_t> first{kNone};
    parallel_ranges(loop.numel, 1, [&](std::int64_t begin, std::int64_t end) {
      std::int64_t flat = begin;
      for_each_row(loop, begin, end, [&](const auto& offset, std::int64_t n) {
        for (std::int64_t i = 0; i < n; ++i, ++flat) {
          if (bounds.fits(static_cast<std::int64_t>(once.as<I>()[offset[0] + i * loop.inner_stride(0)]))) continue;
          std::int64_t seen = first;
          while (flat < seen && !first.compare_exchange_weak(seen, flat)) {}
          return;  // `flat` stays behind: no later find of this thread comes before this one
        }
      });
    });
    if (first == kNone) return;
    std::int64_t rest = first, offset = 0;
    for (int d = once.rank() - 1; d >= 0; --d) {
      offset += rest % once.sizes[d] * once.strides[d];
      rest /= once.sizes[d];
    }
    throw_index_fault(bounds, once, first, static_cast<std::int64_t>(once.as<I>()[offset]));
  });
}

void gather(const Context&, View out, ConstView x, ConstView index, int dim, const IndexSource& source) {
  if (out.numel() == 0) return;
  check_indices({source.op, "index", x.sizes[dim]}, source.given.defined() ? source.given : index);
  const auto loop = make_loop<3>(out.sizes, {out.strides, index.strides, without(x.strides, dim)});
  visit_width(x.dtype, [&]<class U>() {
    visit_index(index.dtype,
                [&]<class I>() { gather_typed(out.as<U>(), index.as<I>(), x.as<U>(), loop, x.strides[dim]); });
  });
}

void scatter_add(const Context& ctx, View out, ConstView base, ConstView src, ConstView index, int dim,
                 const ScatterOptions& options) {
  if (src.numel() > 0) check_indices({"scatter_add", "index", out.sizes[dim], options.ignore_index}, index);
  if (out.numel() == 0) return;
  if (base.defined())
    copy(ctx, out, base);
  else
    fill(ctx, out, 0.0);
  if (src.numel() == 0) return;
  visit_index(index.dtype, [&]<class I>() {
    if (is_16bit(out.dtype)) {
      const Widened sum(ctx, out);
      visit_halves(out.dtype, [&]<class T>() { scatter_typed<float, T, I>(sum.view(), src, index, dim, options); });
      return sum.store(ctx, out);
    }
    visit_any(out.dtype, "scatter_add", [&]<class T>() {
      if constexpr (std::is_same_v<compute_t<T>, T> && !std::is_same_v<T, bool>)
        scatter_typed<T, T, I>(out, src, index, dim, options);
    });
  });
}

void one_hot(const Context& ctx, View out, ConstView labels) {
  if (labels.numel() == 0) return;
  const int classes_dim = out.rank() - 1;
  check_indices({"one_hot", "label", out.sizes[classes_dim]}, labels);
  fill(ctx, out, 0.0);
  Dims strides = out.strides, under = labels.strides, sizes = out.sizes;
  sizes[classes_dim] = 1;
  under.push_back(0);
  const auto loop = make_loop<2>(sizes, {strides, under});
  const std::int64_t reach = out.strides[classes_dim];
  visit_any(out.dtype, "one_hot", [&]<class T>() {
    visit_index(labels.dtype, [&]<class I>() {
      parallel_rows(loop, [&](const auto& offset, std::int64_t n) {
        for (std::int64_t i = 0; i < n; ++i) {
          const auto label = static_cast<std::int64_t>(labels.as<I>()[offset[1] + i * loop.inner_stride(1)]);
          out.as<T>()[offset[0] + i * loop.inner_stride(0) + label * reach] = convert<T>(1.0f);
        }
      });
    });
  });
}

}  // namespace apex::kernels::cpu
