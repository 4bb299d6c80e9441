// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstring>

#include "apex/core/context.hpp"
#include "parallel.hpp"

// Our own matrix product: the reference that vendor libraries are held against, and the way for f64. Operands come
// through packers, so a convolution is a product too, without its patch matrix. Every output is summed in the order of
// k in blocks of kBlockK; threads share outputs only, so the result does not depend on their number.

namespace apex::kernels::cpu {

template <class T>
struct Gemm {
  typedef T Vector __attribute__((vector_size(32)));
  static constexpr int kLanes = 32 / static_cast<int>(sizeof(T));
  static constexpr std::int64_t kRows = 6;           // rows of a register tile
  static constexpr std::int64_t kCols = 2 * kLanes;  // its columns
  static constexpr std::int64_t kBlockRows = 96, kBlockCols = 96, kBlockK = 256;

  /// tile[kRows, kCols] (leading dimension kBlockCols) += a panel * b panel
  static void multiply(T* tile, const T* a, const T* b, std::int64_t k_count) {
    Vector sum[kRows][2];
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < 2; ++v) std::memcpy(&sum[r][v], tile + r * kBlockCols + v * kLanes, sizeof(Vector));
    for (std::int64_t k = 0; k < k_count; ++k, a += kRows, b += kCols) {
      Vector b0, b1;
      std::memcpy(&b0, b, sizeof(Vector));
      std::memcpy(&b1, b + kLanes, sizeof(Vector));
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        sum[r][0] += a[r] * b0;
        sum[r][1] += a[r] * b1;
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < 2; ++v) std::memcpy(tile + r * kBlockCols + v * kLanes, &sum[r][v], sizeof(Vector));
  }

  /// Products of an m x k and a k x n matrix.
  /// @param pack_a  (panel, i, rows, k, k_count): panel[kk * kRows + r] = a(i + r, k + kk) for r < rows
  /// @param pack_b  (panel, j, cols, k, k_count): panel[kk * kCols + c] = b(k + kk, j + c)
  /// @param store   (i, rows, j, cols, tile): takes tile[r * kBlockCols + c]
  template <class PackA, class PackB, class Store>
  static void run(const Context& ctx, std::int64_t m, std::int64_t n, std::int64_t k, PackA&& pack_a, PackB&& pack_b,
                  Store&& store) {
    const std::int64_t row_blocks = (m + kBlockRows - 1) / kBlockRows, col_blocks = (n + kBlockCols - 1) / kBlockCols;
    constexpr std::int64_t per_thread = (kBlockRows + kBlockCols) * kBlockK + kBlockRows * kBlockCols;
    const std::int64_t work = std::min(m, kBlockRows) * std::min(n, kBlockCols) * std::max<std::int64_t>(k, 1);
    const int threads = threads_for(row_blocks * col_blocks * work / 16);
    const Workspace scratch = ctx.workspace(static_cast<std::size_t>(threads * per_thread) * sizeof(T));
    const auto tasks = [&](std::int64_t begin, std::int64_t end, T* memory) {
      T* a = memory;
      T* b = a + kBlockRows * kBlockK;
      T* tile = b + kBlockCols * kBlockK;
      std::fill_n(memory, per_thread, T(0));  // rows and columns past the edge are multiplied too, and dropped
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t i = task % row_blocks * kBlockRows, j = task / row_blocks * kBlockCols;
        block(a, b, tile, i, std::min(kBlockRows, m - i), j, std::min(kBlockCols, n - j), k, pack_a, pack_b);
        store(i, std::min(kBlockRows, m - i), j, std::min(kBlockCols, n - j), static_cast<const T*>(tile));
      }
    };
    const std::int64_t count = row_blocks * col_blocks;
    if (threads == 1) return tasks(0, count, scratch.as<T>());
#pragma omp parallel num_threads(threads)
    {
      const auto part = simd::split(count, omp_get_thread_num(), omp_get_num_threads());
      tasks(part.begin, part.end, scratch.as<T>() + omp_get_thread_num() * per_thread);
    }
  }

 private:
  template <class PackA, class PackB>
  static void block(T* a, T* b, T* tile, std::int64_t i, std::int64_t rows, std::int64_t j, std::int64_t cols,
                    std::int64_t k, PackA& pack_a, PackB& pack_b) {
    std::fill_n(tile, kBlockRows * kBlockCols, T(0));
    for (std::int64_t k0 = 0; k0 < k; k0 += kBlockK) {
      const std::int64_t k_count = std::min(kBlockK, k - k0);
      for (std::int64_t r = 0; r < rows; r += kRows)
        pack_a(a + r * k_count, i + r, std::min(kRows, rows - r), k0, k_count);
      for (std::int64_t c = 0; c < cols; c += kCols)
        pack_b(b + c * k_count, j + c, std::min(kCols, cols - c), k0, k_count);
      for (std::int64_t c = 0; c < cols; c += kCols)
        for (std::int64_t r = 0; r < rows; r += kRows)
          multiply(tile + r * kBlockCols + c, a + r * k_count, b + c * k_count, k_count);
    }
  }
};

}  // namespace apex::kernels::cpu
