// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <vector>

#include "../reduce_impl.hpp"
#include "convert.hpp"
#include "loop.hpp"

namespace apex::kernels::cpu {
namespace {

/// a before b: larger first, NaN largest of all.
template <class C>
bool precedes(C a, C b) {
  return a > b || (a != a && b == b);
}

/// x without dimension `dim`, as a loop over lines along it: operands out, x.
template <int N>
Loop<N> lines(const ConstView& x, int dim, const std::array<Dims, N>& strides) {
  Dims sizes = x.sizes;
  sizes[dim] = 1;
  return make_loop<N>(sizes, strides);
}

}  // namespace

void argmax(const Context&, View out, ConstView x, int dim) {
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
            if (precedes(v, value)) {
              value = v;
              best = j;
            }
          }
          y[offset[0] + i * loop.inner_stride(0)] = best;
        }
      });
    });
  });
}

void topk(const Context&, View values, View indices, ConstView x, std::int64_t k, int dim) {
  if (k == 0 || x.numel() == 0) return;
  const Dims none = Dims::filled(x.rank(), 0);
  const auto loop = lines<3>(
      x, dim, {x.strides, values.defined() ? values.strides : none, indices.defined() ? indices.strides : none});
  const std::int64_t length = x.sizes[dim], stride = x.strides[dim];
  visit_any(x.dtype, "topk", [&]<class T>() {
    using C = compute_t<T>;
    std::vector<std::int64_t> order(static_cast<std::size_t>(length));
    for_each_row(loop, 0, loop.numel, [&](const auto& offset, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) {
        const T* line = x.as<T>() + offset[0] + i * loop.inner_stride(0);
        for (std::int64_t j = 0; j < length; ++j) order[static_cast<std::size_t>(j)] = j;
        std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](std::int64_t a, std::int64_t b) {
          const C u = convert<C>(line[a * stride]), v = convert<C>(line[b * stride]);
          return precedes(u, v) || (!precedes(v, u) && a < b);
        });
        for (std::int64_t j = 0; j < k; ++j) {
          const std::int64_t from = order[static_cast<std::size_t>(j)];
          if (values.defined())
            values.as<T>()[offset[1] + i * loop.inner_stride(1) + j * values.strides[dim]] = line[from * stride];
          if (indices.defined())
            indices.as<std::int64_t>()[offset[2] + i * loop.inner_stride(2) + j * indices.strides[dim]] = from;
        }
      }
    });
  });
}

}  // namespace apex::kernels::cpu
