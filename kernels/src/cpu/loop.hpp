// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>

#include "apex/core/view.hpp"
#include "parallel.hpp"

namespace apex::kernels::cpu {

/// The index space that N operands of equal sizes share, with as few dimensions as their strides allow: size-1
/// dimensions gone, dimensions ordered as the first operand lies in memory, neighbours that advance as one merged.
template <int N>
struct Loop {
  int rank = 0;  ///< at least 1 once built
  std::int64_t numel = 1;
  std::int64_t size[kMaxRank] = {};
  std::int64_t stride[N][kMaxRank] = {};  ///< in elements

  std::int64_t inner_size() const { return size[rank - 1]; }
  std::int64_t inner_stride(int operand) const { return stride[operand][rank - 1]; }
};

enum class Order { memory, logical };

/// `strides[k]` are operand k's strides under `sizes` (0 where it is broadcast). Order::logical keeps the dimensions as
/// they are, so that elements are met in row-major order.
template <int N>
Loop<N> make_loop(const Dims& sizes, const std::array<Dims, N>& strides, Order wanted = Order::memory) {
  Loop<N> loop;
  int order[kMaxRank];
  int rank = 0;
  for (int d = 0; d < sizes.size(); ++d) {
    loop.numel *= sizes[d];
    if (sizes[d] != 1) order[rank++] = d;
  }
  const auto lies_outside = [&](int a, int b) {  // a belongs outside of b
    for (int k = 0; k < N; ++k)
      if (strides[k][a] != strides[k][b]) return strides[k][a] > strides[k][b];
    return a < b;
  };
  for (int i = 1; i < rank && wanted == Order::memory; ++i)  // insertion sort: at most eight entries
    for (int j = i; j > 0 && lies_outside(order[j], order[j - 1]); --j) std::swap(order[j], order[j - 1]);

  for (int i = 0; i < rank; ++i) {
    const int d = order[i];
    bool merges = loop.rank > 0;
    for (int k = 0; merges && k < N; ++k) merges = loop.stride[k][loop.rank - 1] == strides[k][d] * sizes[d];
    const int at = merges ? loop.rank - 1 : loop.rank++;
    loop.size[at] = merges ? loop.size[at] * sizes[d] : sizes[d];
    for (int k = 0; k < N; ++k) loop.stride[k][at] = strides[k][d];
  }
  if (loop.rank == 0) {
    loop.rank = 1;
    loop.size[0] = 1;
    for (int k = 0; k < N; ++k) loop.stride[k][0] = 1;
  }
  return loop;
}

/// Calls row(offsets, count) for pieces of innermost rows that cover elements [begin, end) of the loop; offsets[k] is
/// operand k's element offset of the piece's start.
template <int N, class Row>
void for_each_row(const Loop<N>& loop, std::int64_t begin, std::int64_t end, Row&& row) {
  if (begin >= end) return;
  const int inner = loop.rank - 1;
  std::int64_t index[kMaxRank];
  std::array<std::int64_t, N> offset{};
  std::int64_t rest = begin;
  for (int d = inner; d >= 0; --d) {
    index[d] = rest % loop.size[d];
    rest /= loop.size[d];
    for (int k = 0; k < N; ++k) offset[static_cast<std::size_t>(k)] += index[d] * loop.stride[k][d];
  }
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t count = std::min(loop.size[inner] - index[inner], end - at);
    row(offset, count);
    at += count;
    for (int k = 0; k < N; ++k) offset[static_cast<std::size_t>(k)] -= index[inner] * loop.stride[k][inner];
    index[inner] = 0;
    for (int d = inner - 1; d >= 0; --d) {
      for (int k = 0; k < N; ++k) offset[static_cast<std::size_t>(k)] += loop.stride[k][d];
      if (++index[d] < loop.size[d]) break;
      for (int k = 0; k < N; ++k) offset[static_cast<std::size_t>(k)] -= loop.size[d] * loop.stride[k][d];
      index[d] = 0;
    }
  }
}

/// The same over all elements, split among threads.
template <int N, class Row>
void parallel_rows(const Loop<N>& loop, Row&& row) {
  parallel_ranges(loop.numel, 1, [&](std::int64_t begin, std::int64_t end) { for_each_row(loop, begin, end, row); });
}

}  // namespace apex::kernels::cpu
