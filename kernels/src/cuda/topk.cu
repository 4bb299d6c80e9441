// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "argmax.cuh"
#include "order.hpp"
#include "sort.cuh"

namespace apex::kernels::cuda {
namespace {

constexpr int kMost = 8;                           // of a line in the registers of each thread
constexpr int kMostChosen = 256;                   // of a line chosen by digits; above it the line is sorted
constexpr std::int64_t kMostLineBytes = 32 << 10;  // of its keys, in shared memory

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

/// A block holds the keys of a line. Digit by digit, eight bits at a time, it finds the k-th key of the sorted line; it
/// then takes the keys before that one and, of those equal to it, the first, and sorts these few. `slots` is the power
/// of two from k on.
template <class N>
__global__ void __launch_bounds__(kSelectThreads)
    select_kernel(N* values, std::int64_t* indices, const N* x, const Places s, bool largest, int slots) {
  using K = sort_key_t<N>;
  constexpr int kBins = 256, kDigitBits = 8, kBits = 8 * static_cast<int>(sizeof(K));
  static_assert(kBins == kSelectThreads);
  extern __shared__ uint4 shared_keys[];
  K* keys = reinterpret_cast<K*>(shared_keys);
  __shared__ Entry<K> chosen[kMostChosen];
  __shared__ int bins[kBins];
  __shared__ int digit, before, equal, filled;
  const int thread = static_cast<int>(threadIdx.x), length = static_cast<int>(s.length), k = static_cast<int>(s.k);
  const auto at = s.lines.at(blockIdx.x);
  for (int i = thread; i < length; i += kSelectThreads) {
    const K key = key_of(x[at.v[0] + i * s.stride]);
    keys[i] = largest ? ~key : key;
  }
  if (thread == 0) filled = 0;
  K kth = 0;       // as far as its digits are known
  int wanted = k;  // the k-th is so manieth of the keys that begin with these digits
  for (int shift = kBits - kDigitBits; shift >= 0; shift -= kDigitBits) {
    bins[thread] = 0;
    __syncthreads();
    for (int i = thread; i < length; i += kSelectThreads)
      if (shift == kBits - kDigitBits || (keys[i] ^ kth) >> (shift + kDigitBits) % kBits == 0)
        atomicAdd(&bins[static_cast<int>(keys[i] >> shift) & (kBins - 1)], 1);
    __syncthreads();
    if (thread < 32) {
      constexpr int kOwn = kBins / 32;
      int own[kOwn], sum = 0;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) sum += own[j] = bins[thread * kOwn + j];
      int up_to = sum;  // of this lane's bins and all before
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, up_to, offset);
        if (thread >= offset) up_to += other;
      }
      int count = up_to - sum;
      if (count < wanted && wanted <= up_to) {  // in one lane
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
          if (count < wanted && wanted <= count + own[j]) {
            digit = thread * kOwn + j;
            before = count;
            equal = own[j];
          }
          count += own[j];
        }
      }
    }
    __syncthreads();
    kth |= static_cast<K>(digit) << shift;
    wanted -= before;
  }
  const bool all = equal == wanted;  // of the keys equal to the k-th
  for (int i = thread; i < length; i += kSelectThreads)
    if (keys[i] < kth || (all && keys[i] == kth))
      chosen[atomicAdd(&filled, 1)] = {keys[i], static_cast<std::uint32_t>(i)};  // in any order: they are sorted yet
  if (!all && thread < 32) {
    int taken = 0;
    for (int first = 0; first < length && taken < wanted; first += 32) {
      const int i = first + thread;
      const bool same = i < length && keys[i] == kth;
      const unsigned of_warp = __ballot_sync(0xffffffffu, same);
      const int rank = taken + __popc(of_warp & ((1u << thread) - 1));
      if (same && rank < wanted) chosen[k - wanted + rank] = {kth, static_cast<std::uint32_t>(i)};
      taken += __popc(of_warp);
    }
  }
  for (int i = k + thread; i < slots; i += kSelectThreads) chosen[i] = {~K(0), ~0u};  // empty ones come last
  for (int size = 2; size <= slots; size *= 2)
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      if (thread < slots / 2) {
        const int i = 2 * thread - (thread & (stride - 1)), j = i + stride;
        const bool up = (i & size) == 0 || size == slots;
        if (chosen[j].before(chosen[i]) == up) {
          const Entry<K> entry = chosen[i];
          chosen[i] = chosen[j];
          chosen[j] = entry;
        }
      }
    }
  __syncthreads();
  for (int j = thread; j < k; j += kSelectThreads) {
    const std::int64_t place = chosen[j].place;
    if (values != nullptr) values[at.v[1] + j * s.values_stride] = x[at.v[0] + place * s.stride];
    if (indices != nullptr) indices[at.v[2] + j * s.indices_stride] = place;
  }
}

}  // namespace

void topk(const Context& ctx, View values, View indices, ConstView x, std::int64_t k, int dim, bool largest) {
  if (k == 0 || x.numel() == 0) return;
  const auto key_bytes = static_cast<std::int64_t>(std::max<std::size_t>(4, size_of(x.dtype)));
  const std::int64_t line_bytes = x.sizes[dim] * key_bytes;
  if (k > kMostChosen || (k > kMost && line_bytes > kMostLineBytes))
    return order_lines(ctx, "topk", values, indices, x, k, dim, largest);
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
    const auto blocks = static_cast<unsigned>(s.lines.numel);
    N* to = values.defined() ? static_cast<N*>(values.data) : nullptr;
    auto* places = indices.defined() ? native<std::int64_t>(indices) : nullptr;
    const auto* from = static_cast<const N*>(x.data);
    if (k <= kMost) {
      topk_kernel<<<blocks, kSelectThreads, 0, stream_of(ctx)>>>(to, places, from, s, largest);
    } else {
      int slots = 2;
      while (slots < k) slots *= 2;
      select_kernel<<<blocks, kSelectThreads, static_cast<std::size_t>(line_bytes), stream_of(ctx)>>>(
          to, places, from, s, largest, slots);
    }
  });
  check_launch("topk");
}

}  // namespace apex::kernels::cuda
