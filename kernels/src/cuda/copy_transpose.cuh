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

/// Where the tile of this block begins. Their number fits 32 bits, as the grid does.
struct Tile {
  std::int64_t row, col;
  Index<2>::Offsets base;

  __device__ __forceinline__ explicit Tile(const Transpose& t) {
    const auto row_tiles = static_cast<std::uint32_t>(t.row_tiles), col_tiles = static_cast<std::uint32_t>(t.col_tiles);
    const std::uint32_t line = blockIdx.x / col_tiles;
    col = std::int64_t{blockIdx.x - line * col_tiles} * kTile;
    row = std::int64_t{line % row_tiles} * kTile;
    base = t.batch.at(line / row_tiles);
  }
};

template <class To, class From>
__global__ void __launch_bounds__(kTransposeThreads) transpose_kernel(To* dst, const From* src, Transpose t) {
  constexpr int kPad = sizeof(To) < 4 ? 4 / sizeof(To) : 1;  // columns of a tile fall into different banks
  constexpr int kWarps = kTransposeThreads / 32;
  __shared__ To tile[kTile][kTile + kPad];  // [col][row]
  const Tile place(t);
  const std::int64_t row0 = place.row, col0 = place.col;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  dst += place.base.v[0];
  src += place.base.v[1];
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

/// Elements of 16 bits, all strides, sizes and addresses multiples of 8: 16 bytes an access on both sides. The tile has
/// pairs of rows; half of its columns are turned by 4 words, so that 8 columns of a warp fall into different banks.
inline __global__ void __launch_bounds__(kTransposeThreads)
    transpose_pairs(std::uint16_t* dst, const std::uint16_t* src, Transpose t) {
  static_assert(kTile == 64 && kTransposeThreads == 256);
  constexpr int kWords = kTile / 2;
  __shared__ std::uint32_t tile[kTile][kWords + 1];  // [col][pair of rows]
  const auto turned = [](int col, int word) { return (word + col / 32 * 4) % kWords; };
  const Tile place(t);
  const int thread = threadIdx.x, eighth = thread % 8;
  uint4 in[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t c = place.col + thread / 8 + half * 32, r = place.row + eighth * 8;
    if (c < t.cols && r < t.rows)
      in[half] = *reinterpret_cast<const uint4*>(src + place.base.v[1] + c * t.src_stride + r);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int c = thread / 8 + half * 32, word = eighth * 4;
    tile[c][turned(c, word)] = in[half].x;
    tile[c][turned(c, word + 1)] = in[half].y;
    tile[c][turned(c, word + 2)] = in[half].z;
    tile[c][turned(c, word + 3)] = in[half].w;
  }
  __syncthreads();
  const int pair = thread / 8;
  const std::int64_t r = place.row + pair * 2, c = place.col + eighth * 8;
  if (c >= t.cols || r >= t.rows) return;
  std::uint32_t words[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) words[k] = tile[eighth * 8 + k][turned(eighth * 8 + k, pair)];
  auto* to = dst + place.base.v[0] + r * t.dst_stride + c;
  const auto lows = [&](int k) { return __byte_perm(words[k], words[k + 1], 0x5410); };
  const auto highs = [&](int k) { return __byte_perm(words[k], words[k + 1], 0x7632); };
  // By name: the compiler makes four stores of an assignment here.
  __stwb(reinterpret_cast<uint4*>(to), make_uint4(lows(0), lows(2), lows(4), lows(6)));
  __stwb(reinterpret_cast<uint4*>(to + t.dst_stride), make_uint4(highs(0), highs(2), highs(4), highs(6)));
}

inline bool in_eights(const Transpose& t, const void* dst, const void* src) {
  bool all = aligned_to(dst, 16) && aligned_to(src, 16) && t.rows % 8 == 0 && t.cols % 8 == 0 &&
             t.dst_stride % 8 == 0 && t.src_stride % 8 == 0;
  for (int d = 0; d < t.batch.rank; ++d)
    all = all && (t.batch.size[d] == 1 || (t.batch.stride[0][d] % 8 == 0 && t.batch.stride[1][d] % 8 == 0));
  return all;
}

template <class To, class From>
void transpose(const Context& ctx, To* dst, const From* src, const Transpose& t) {
  const auto blocks = static_cast<unsigned>(t.row_tiles * t.col_tiles * t.batch.numel);
  bool done = false;
  if constexpr (std::is_same_v<To, std::uint16_t> && std::is_same_v<From, std::uint16_t>) {
    if ((done = in_eights(t, dst, src))) transpose_pairs<<<blocks, kTransposeThreads, 0, stream_of(ctx)>>>(dst, src, t);
  }
  if (!done) transpose_kernel<<<blocks, kTransposeThreads, 0, stream_of(ctx)>>>(dst, src, t);
  check_launch("copy");
}

}  // namespace apex::kernels::cuda
