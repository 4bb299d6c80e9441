// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <atomic>
#include <numeric>

#include "../reduce_impl.hpp"
#include "../sort_impl.hpp"
#include "convert.hpp"
#include "loop.hpp"

namespace apex::kernels::cpu {
namespace {

/// a before b: larger first, NaN largest of all.
template <class C>
bool larger(C a, C b) {
  return a > b || (a != a && b == b);
}
/// a before b: smaller first, NaN smallest of all.
template <class C>
bool smaller(C a, C b) {
  return a < b || (a != a && b == b);
}

/// x without dimension `dim`, as a loop over lines along it: operands out, x.
template <int N>
Loop<N> lines(const ConstView& x, int dim, const std::array<Dims, N>& strides) {
  Dims sizes = x.sizes;
  sizes[dim] = 1;
  return make_loop<N>(sizes, strides);
}

/// out = the place of the element of each line that comes before all others, the first of equals.
template <class First>
void first_along(const View& out, const ConstView& x, int dim, First first) {
  if (out.numel() == 0) return;
  const auto loop = lines<2>(x, dim, {out.strides, x.strides});
  const std::int64_t length = x.sizes[dim], stride = x.strides[dim];
  auto* y = out.as<std::int64_t>();
  visit_any(x.dtype, "argmax", [&]<class T>() {
    using C = compute_t<T>;
    parallel_ranges(loop.numel, length, [&](std::int64_t begin, std::int64_t end) {
      for_each_row(loop, begin, end, [&](const auto& offset, std::int64_t n) {
        for (std::int64_t i = 0; i < n; ++i) {
          const T* line = x.as<T>() + offset[1] + i * loop.inner_stride(1);
          std::int64_t best = 0;
          C value = convert<C>(line[0]);
          for (std::int64_t j = 1; j < length; ++j) {
            const C v = convert<C>(line[j * stride]);
            if (!first(v, value)) continue;
            value = v;
            best = j;
          }
          y[offset[0] + i * loop.inner_stride(0)] = best;
        }
      });
    });
  });
}

/// For each line along `dim`: sort(order, length, value) puts the places in `order` into theirs, value(place) being the
/// element there; the first k go to values and indices.
template <class T, class Sort>
void order_lines(const Context& ctx, const View& values, const View& indices, const ConstView& x, int dim,
                 std::int64_t k, Sort sort) {
  using C = compute_t<T>;
  const Dims none = Dims::filled(x.rank(), 0);
  const auto loop = lines<3>(
      x, dim, {x.strides, values.defined() ? values.strides : none, indices.defined() ? indices.strides : none});
  const std::int64_t length = x.sizes[dim], stride = x.strides[dim];
  const int threads = threads_for(loop.numel * length);
  const Workspace orders = ctx.workspace(static_cast<std::size_t>(length * threads) * sizeof(std::int64_t));
  std::atomic<int> next{0};
  parallel_ranges(loop.numel, length, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t* order = orders.as<std::int64_t>() + next++ * length;
    for_each_row(loop, begin, end, [&](const auto& offset, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) {
        const T* line = x.as<T>() + offset[0] + i * loop.inner_stride(0);
        std::iota(order, order + length, std::int64_t{0});
        sort(order, length, [=](std::int64_t at) { return convert<C>(line[at * stride]); });
        for (std::int64_t j = 0; j < k; ++j) {
          const std::int64_t from = order[j];
          if (values.defined())
            values.as<T>()[offset[1] + i * loop.inner_stride(1) + j * values.strides[dim]] = line[from * stride];
          if (indices.defined())
            indices.as<std::int64_t>()[offset[2] + i * loop.inner_stride(2) + j * indices.strides[dim]] = from;
        }
      }
    });
  });
}

}  // namespace

void argmax(const Context&, View out, ConstView x, int dim) {
  first_along(out, x, dim, [](auto a, auto b) { return larger(a, b); });
}
void argmin(const Context&, View out, ConstView x, int dim) {
  first_along(out, x, dim, [](auto a, auto b) { return smaller(a, b); });
}

void topk(const Context& ctx, View values, View indices, ConstView x, std::int64_t k, int dim, bool largest) {
  if (k == 0 || x.numel() == 0) return;
  visit_any(x.dtype, "topk", [&]<class T>() {
    using C = compute_t<T>;
    const auto select = [&](auto first) {
      order_lines<T>(ctx, values, indices, x, dim, k, [=](std::int64_t* order, std::int64_t n, auto value) {
        std::partial_sort(order, order + k, order + n, [&](std::int64_t a, std::int64_t b) {
          const C u = value(a), v = value(b);
          return first(u, v) || (!first(v, u) && a < b);
        });
      });
    };
    if (largest)
      select([](C a, C b) { return larger(a, b); });
    else
      select([](C a, C b) { return larger(b, a); });
  });
}

void sort(const Context& ctx, View values, View indices, ConstView x, int dim, bool descending) {
  if (x.numel() == 0) return;
  visit_any(x.dtype, "sort", [&]<class T>() {
    order_lines<T>(ctx, values, indices, x, dim, x.sizes[dim], [=](std::int64_t* order, std::int64_t n, auto value) {
      if (descending)
        std::stable_sort(order, order + n, [&](std::int64_t a, std::int64_t b) { return larger(value(a), value(b)); });
      else
        std::stable_sort(order, order + n, [&](std::int64_t a, std::int64_t b) { return larger(value(b), value(a)); });
    });
  });
}

}  // namespace apex::kernels::cpu
