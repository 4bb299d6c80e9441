// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "argmax.cuh"
#include "order.hpp"
#include "sort.cuh"

namespace apex::kernels::cuda {
namespace {

constexpr int kMost = 8;  // of a line in the registers of each thread; above it the line is sorted

struct Places {
  Index<3> lines;  // operands x, values, indices
  std::int64_t length, k;
  std::int64_t stride, values_stride, indices_stride;
};

template <class K>
struct Entry {
  K key;
  std::uint32_t place;  // ~0: none

  __device__ __forceinline__ bool before(const Entry& other) const {
    return key < other.key || (key == other.key && place < other.place);
  }
};

template <class K>
__device__ __forceinline__ Entry<K> first_of_warp(Entry<K> e) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const Entry<K> other{__shfl_xor_sync(0xffffffffu, e.key, offset), __shfl_xor_sync(0xffffffffu, e.place, offset)};
    if (other.before(e)) e = other;
  }
  return e;
}

/// A block reads a line once: each thread keeps the first kMost of what it sees in order; then the block takes the
/// first of all threads' first ones k times.
template <class N>
__global__ void __launch_bounds__(kSelectThreads)
    topk_kernel(N* values, std::int64_t* indices, const N* x, const Places s, bool largest) {
  using K = sort_key_t<N>;
  __shared__ Entry<K> of_warp[2][kSelectThreads / 32];
  const auto at = s.lines.at(blockIdx.x);
  Entry<K> kept[kMost];
#pragma unroll
  for (int j = 0; j < kMost; ++j) kept[j] = {~K(0), ~0u};
  for (std::int64_t i = threadIdx.x; i < s.length; i += kSelectThreads) {
    const K key = key_of(x[at.v[0] + i * s.stride]);
    Entry<K> e{largest ? ~key : key, static_cast<std::uint32_t>(i)};
    if (!e.before(kept[kMost - 1])) continue;
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      if (!e.before(kept[j])) continue;
      const Entry<K> next = kept[j];
      kept[j] = e;
      e = next;
    }
  }
  for (int j = 0; j < static_cast<int>(s.k); ++j) {
    Entry<K> best = first_of_warp(kept[0]);
    if (threadIdx.x % 32 == 0) of_warp[j % 2][threadIdx.x / 32] = best;  // the other half may still be read
    __syncthreads();
    best = of_warp[j % 2][0];
#pragma unroll
    for (int w = 1; w < kSelectThreads / 32; ++w)
      if (of_warp[j % 2][w].before(best)) best = of_warp[j % 2][w];
    if (kept[0].place == best.place) {  // its owner, who writes it down
#pragma unroll
      for (int i = 0; i + 1 < kMost; ++i) kept[i] = kept[i + 1];
      kept[kMost - 1] = {~K(0), ~0u};
      const std::int64_t place = best.place;
      if (values != nullptr) values[at.v[1] + j * s.values_stride] = x[at.v[0] + place * s.stride];
      if (indices != nullptr) indices[at.v[2] + j * s.indices_stride] = place;
    }
  }
}

}  // namespace

void topk(const Context& ctx, View values, View indices, ConstView x, std::int64_t k, int dim, bool largest) {
  if (k == 0 || x.numel() == 0) return;
  if (k > kMost) return order_lines(ctx, "topk", values, indices, x, k, dim, largest);
  check_sortable("topk", x.sizes[dim]);
  const Dims none = Dims::filled(x.rank(), 0);
  Dims sizes = x.sizes;
  sizes[dim] = 1;
  const Dims& to_values = values.defined() ? values.strides : none;
  const Dims& to_indices = indices.defined() ? indices.strides : none;
  const Places s{make_index<3>(sizes, {x.strides, to_values, to_indices}),
                 x.sizes[dim],
                 k,
                 x.strides[dim],
                 to_values[dim],
                 to_indices[dim]};
  visit_comparable(x.dtype, "topk", [&]<class T>() {
    using N = native_t<T>;
    topk_kernel<<<static_cast<unsigned>(s.lines.numel), kSelectThreads, 0, stream_of(ctx)>>>(
        values.defined() ? static_cast<N*>(values.data) : nullptr,
        indices.defined() ? native<std::int64_t>(indices) : nullptr, static_cast<const N*>(x.data), s, largest);
  });
  check_launch("topk");
}

}  // namespace apex::kernels::cuda
