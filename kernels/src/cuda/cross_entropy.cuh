// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <type_traits>

#include "../cross_entropy_impl.hpp"
#include "exponential.cuh"

// What forward and backward share: a block a row, as wide as the row asks for, and the split of a row into a head up to
// the first aligned address, whole vectors and a tail.

namespace apex::kernels::cuda::cross_entropy_detail {

constexpr int kUnroll = 4;  // vectors of a thread that are on their way together
constexpr int kSumThreads = 1024;

/// Calls f with the threads that suit a row of so many bytes, at most kMost, as a constant.
template <int kMost, class F>
void with_threads(std::int64_t bytes, F&& f) {
  if (bytes <= 4096) return f(std::integral_constant<int, 32>{});
  if (bytes <= 32768) return f(std::integral_constant<int, 128>{});
  f(std::integral_constant<int, kMost>{});
}

/// Elements [0, head) and [head + V vectors, size) go one by one.
template <int V>
struct Split {
  std::int64_t head, vectors;

  template <class N>
  __device__ __forceinline__ Split(const N* row, std::int64_t size, bool whole) {
    const auto off = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(row) % 16);
    head = off == 0 ? 0 : (16 - off) / static_cast<std::int64_t>(sizeof(N));
    if (!whole || head > size) head = size;
    vectors = (size - head) / V;
  }
  __device__ __forceinline__ std::int64_t tail() const { return head + vectors * V; }
};

enum class Label { counts, ignored, invalid };

__device__ __forceinline__ Label kind_of(std::int64_t label, std::int64_t classes, std::int64_t ignore_index) {
  if (label == ignore_index) return Label::ignored;
  return label >= 0 && label < classes ? Label::counts : Label::invalid;
}

/// Rows that are not ignored, counted by one block.
__device__ __forceinline__ double count_rows(const std::int64_t* labels, std::int64_t stride, std::int64_t rows,
                                             std::int64_t ignore_index) {
  double count = 0;
  for (std::int64_t i = threadIdx.x; i < rows; i += kSumThreads)
    count += labels[i * stride] == ignore_index ? 0.0 : 1.0;
  return block_sum<kSumThreads>(count);
}

}  // namespace apex::kernels::cuda::cross_entropy_detail
