// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../copy_impl.hpp"

#include <cmath>
#include <cstring>

#include "map.hpp"

namespace apex::kernels::cpu {
namespace {

/// A dimension of the loop, other than the innermost, along which the source is contiguous; -1 if none.
int transposed_dim(const Loop<2>& loop) {
  if (loop.inner_stride(0) != 1 || loop.inner_stride(1) == 1 || loop.inner_stride(1) == 0) return -1;
  for (int d = 0; d < loop.rank - 1; ++d)
    if (loop.stride[1][d] == 1) return d;
  return -1;
}

/// Row-major to channels-last and back: tiles small enough that both sides stay in cache.
template <class T>
void copy_transposed(T* dst, const T* src, const Loop<2>& loop, int dim) {
  constexpr std::int64_t kTile = 32;
  const int inner = loop.rank - 1;
  const std::int64_t rows = loop.size[dim], cols = loop.size[inner];
  const std::int64_t dst_stride = loop.stride[0][dim], src_stride = loop.stride[1][inner];
  Loop<2> outer = loop;  // what is left without the two dimensions
  outer.rank = 0;
  outer.numel = 1;
  for (int d = 0; d < inner; ++d) {
    if (d == dim) continue;
    outer.size[outer.rank] = loop.size[d];
    outer.numel *= loop.size[d];
    for (int k = 0; k < 2; ++k) outer.stride[k][outer.rank] = loop.stride[k][d];
    ++outer.rank;
  }
  if (outer.rank == 0) outer.size[outer.rank++] = 1;
  const std::int64_t tiles = (rows + kTile - 1) / kTile;
  parallel_for(outer.numel * tiles, kTile * cols, [&](std::int64_t task) {
    const std::int64_t row0 = task % tiles * kTile, row1 = std::min(row0 + kTile, rows);
    for_each_row(outer, task / tiles, task / tiles + 1, [&](const auto& offset, std::int64_t) {
      for (std::int64_t col0 = 0; col0 < cols; col0 += kTile)
        for (std::int64_t r = row0; r < row1; ++r)
          for (std::int64_t c = col0; c < std::min(col0 + kTile, cols); ++c)
            dst[offset[0] + r * dst_stride + c] = src[offset[1] + c * src_stride + r];
    });
  });
}

template <class T>
void copy_same_type(T* dst, const T* src, const Loop<2>& loop) {
  if (const int dim = transposed_dim(loop); dim >= 0) return copy_transposed(dst, src, loop, dim);
  const std::int64_t to = loop.inner_stride(0), from = loop.inner_stride(1);
  constexpr std::int64_t kBytes = 2 * sizeof(T);
  const bool stream = to == 1 && from == 1 && streams(dst, loop.inner_size(), loop.numel * kBytes);
  parallel_rows(loop, stream, [=](const auto& offset, std::int64_t n) {
    T* d = dst + offset[0];
    const T* s = src + offset[1];
    if (stream)
      for_each_block(d, n, true, [&](std::int64_t i, std::int64_t m) {
        fetch_ahead(s + i, m);
        stream_block(d + i, s + i, m);
      });
    else if (to == 1 && from == 1)
      std::memcpy(d, s, static_cast<std::size_t>(n) * sizeof(T));
    else
      for (std::int64_t i = 0; i < n; ++i) d[i * to] = s[i * from];
  });
}

template <class To, class From>
void cast(To* dst, const From* src, const Loop<2>& loop) {
  using Through = std::conditional_t<is_half_type<From>, float, From>;
  const std::int64_t to = loop.inner_stride(0), from = loop.inner_stride(1);
  constexpr std::int64_t kBytes = sizeof(To) + sizeof(From);
  const bool stream =
      to == 1 && static_cast<const void*>(dst) != src && streams(dst, loop.inner_size(), loop.numel * kBytes);
  parallel_rows(loop, stream, [=](const auto& offset, std::int64_t n) {
    To* d = dst + offset[0];
    const From* s = src + offset[1];
    if (is_half_type<From> || is_half_type<To> || stream) {
      Through block[kMapBlock];
      for_each_block(d, n, stream, [&](std::int64_t i, std::int64_t m) {
        if (stream && from == 1) fetch_ahead(s + i, m);
        const Through* values = as_block(block, s + i * from, from, m);
        if (stream)
          stream_block(d + i, values, m);
        else
          store_block(d + i * to, to, values, m);
      });
    } else if (to == 1 && from == 1) {
      for (std::int64_t i = 0; i < n; ++i) d[i] = convert<To>(s[i]);
    } else {
      for (std::int64_t i = 0; i < n; ++i) d[i * to] = convert<To>(s[i * from]);
    }
  });
}

}  // namespace

void copy(const Context&, View dst, ConstView src) {
  const auto loop = make_loop<2>(dst.sizes, {dst.strides, broadcast_strides(src.sizes, src.strides, dst.sizes)});
  if (loop.numel == 0) return;
  if (dst.dtype == src.dtype) {
    if (dst.data == src.data && std::equal(loop.stride[0], loop.stride[0] + loop.rank, loop.stride[1])) return;
    return visit_width(dst.dtype, [&]<class T>() { copy_same_type(dst.as<T>(), src.as<T>(), loop); });
  }
  visit_any(dst.dtype, "copy", [&]<class To>() {
    visit_any(src.dtype, "copy", [&]<class From>() { cast(dst.as<To>(), src.as<From>(), loop); });
  });
}

void fill(const Context&, View dst, double value) {
  const auto loop = make_loop<1>(dst.sizes, {dst.strides});
  visit_any(dst.dtype, "fill", [&]<class T>() {
    const T v = convert<T>(value);
    T* out = dst.as<T>();
    const std::int64_t stride = loop.inner_stride(0);
    const bool stream =
        stride == 1 && streams(out, loop.inner_size(), loop.numel * static_cast<std::int64_t>(sizeof(T)));
    T block[kMapBlock];
    std::fill_n(block, kMapBlock, v);
    parallel_rows(loop, stream, [&](const auto& offset, std::int64_t n) {
      T* d = out + offset[0];
      if (stream)
        for_each_block(d, n, true, [&](std::int64_t i, std::int64_t m) { stream_block(d + i, block, m); });
      else if (stride == 1)
        std::fill_n(d, n, v);
      else
        for (std::int64_t i = 0; i < n; ++i) d[i * stride] = v;
    });
  });
}

void arange(const Context&, View dst, double start, double step) {
  const std::int64_t stride = dst.strides[0];
  visit_any(dst.dtype, "arange", [&]<class T>() {
    T* out = dst.as<T>();
    parallel_ranges(dst.sizes[0], 1, [=](std::int64_t begin, std::int64_t end) {
      if constexpr (std::is_integral_v<T>) {
        if (start == std::trunc(start) && step == std::trunc(step)) {
          const auto first = static_cast<std::int64_t>(start), by = static_cast<std::int64_t>(step);
          for (std::int64_t i = begin; i < end; ++i) out[i * stride] = convert<T>(first + i * by);
          return;
        }
      }
      for (std::int64_t i = begin; i < end; ++i) out[i * stride] = convert<T>(start + static_cast<double>(i) * step);
    });
  });
}

}  // namespace apex::kernels::cpu
