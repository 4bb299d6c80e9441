// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "elementwise.cuh"

// Row-major to channels-last and back, with a cast: a batch of matrix transposes through tiles in shared memory, so
// that both sides are read and written along memory.

namespace apex::kernels::cuda {

inline constexpr int kTile = 64;
inline constexpr int kTransposeThreads = 256;

/// A batch of matrices: dst is contiguous along columns, src along rows.
struct Transpose {
  std::int64_t rows, cols;              // cols is dst's innermost dimension, rows that of src
  std::int64_t dst_stride, src_stride;  // dst from row to row, src from column to column
  std::int64_t row_tiles, col_tiles;
  Index<2> batch;
};

/// Finds the pair of dimensions; false when a plain loop is as good.
inline bool as_transpose(const Index<2>& index, Transpose& t) {
  constexpr std::int64_t kLeast = 16;  // narrower ones are met by the caches
  if (index.stride[0][0] != 1 || index.stride[1][0] <= 1 || index.size[0] < kLeast) return false;
  int dim = -1;
  for (int d = 1; d < index.rank; ++d)
    if (index.stride[1][d] == 1 && index.size[d] >= kLeast) dim = d;
  if (dim < 0) return false;
  t = {index.size[dim], index.size[0], index.stride[0][dim], index.stride[1][0], 0, 0, {}};
  t.row_tiles = ceil_div(t.rows, kTile);
  t.col_tiles = ceil_div(t.cols, kTile);
  t.batch.rank = 0;
  for (int d = 1; d < index.rank; ++d) {
    if (d == dim) continue;
    t.batch.size[t.batch.rank] = index.size[d];
    t.batch.numel *= index.size[d];
    for (int k = 0; k < 2; ++k) t.batch.stride[k][t.batch.rank] = index.stride[k][d];
    ++t.batch.rank;
  }
  if (t.batch.rank == 0) t.batch.size[t.batch.rank++] = 1;
  t.batch.prepare();
  return true;
}

template <class To, class From>
__global__ void __launch_bounds__(kTransposeThreads) transpose_kernel(To* dst, const From* src, Transpose t) {
  constexpr int kPad = sizeof(To) < 4 ? 4 / sizeof(To) : 1;  // columns of a tile fall into different banks
  constexpr int kWarps = kTransposeThreads / 32;
  __shared__ To tile[kTile][kTile + kPad];  // [col][row]
  std::int64_t block = blockIdx.x;
  const std::int64_t col0 = block % t.col_tiles * kTile;
  block /= t.col_tiles;
  const std::int64_t row0 = block % t.row_tiles * kTile;
  const auto base = t.batch.at(block / t.row_tiles);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  dst += base.v[0];
  src += base.v[1];
#pragma unroll
  for (int step = 0; step < kTile; step += kWarps) {
    const int c = step + warp;
#pragma unroll
    for (int half = 0; half < kTile; half += 32) {
      const int r = half + lane;
      if (col0 + c < t.cols && row0 + r < t.rows)
        tile[c][r] = convert<To>(load(src[(col0 + c) * t.src_stride + row0 + r]));
    }
  }
  __syncthreads();
#pragma unroll
  for (int step = 0; step < kTile; step += kWarps) {
    const int r = step + warp;
#pragma unroll
    for (int half = 0; half < kTile; half += 32) {
      const int c = half + lane;
      if (col0 + c < t.cols && row0 + r < t.rows) dst[(row0 + r) * t.dst_stride + col0 + c] = tile[c][r];
    }
  }
}

template <class To, class From>
void transpose(const Context& ctx, To* dst, const From* src, const Transpose& t) {
  const auto blocks = static_cast<unsigned>(t.row_tiles * t.col_tiles * t.batch.numel);
  transpose_kernel<<<blocks, kTransposeThreads, 0, stream_of(ctx)>>>(dst, src, t);
  check_launch("copy");
}

}  // namespace apex::kernels::cuda
