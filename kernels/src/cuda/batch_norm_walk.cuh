// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "batch_norm_passes.cuh"

// How the threads of a pass share a tensor: places, cursors, and the sums of a block.

namespace apex::kernels::cuda::batch_norm {

/// What the cache should think of a load.
enum class Hint { keep, last_use };

template <Hint kHint, int V, class N>
__device__ __forceinline__ Pack<N, V> fetch(const N* from) {
  Pack<N, V> out;
  if constexpr (sizeof(Pack<N, V>) == 16 && kHint == Hint::last_use)
    reinterpret_cast<uint4&>(out) = __ldcs(reinterpret_cast<const uint4*>(from));
  else
    out = *reinterpret_cast<const Pack<N, V>*>(from);
  return out;
}

/// Where a thread stands: its channels, and its first item.
template <int V, bool kRows>
struct Place {
  std::int64_t group, channel, item;
  int column, row;  // in the block
  bool active;      // has channels and items

  __device__ __forceinline__ explicit Place(const Walk& w) {
    const std::int64_t tile = blockIdx.x % w.tiles;
    group = blockIdx.x / w.tiles;
    column = static_cast<int>(threadIdx.x) & (w.columns - 1);
    row = static_cast<int>(threadIdx.x) / w.columns;
    channel = kRows ? (tile * w.columns + column) * V : tile;
    item = group * w.block_rows() + row;
    active = channel < w.c && item < w.items;
  }
  /// Values per channel that the thread visits.
  __device__ __forceinline__ std::int64_t values(const Walk& w) const {
    if (!active) return 0;
    const std::int64_t step = w.step();
    return ((w.items - item + step - 1) / step) * w.values_per_item();
  }
};

/// Goes from item to item of one thread. Batch holds the positions of the next few items; moving on is taking one.
template <int V, bool kRows, bool kReverse>
struct Cursor {  // row-major: the items of a channel are the vectors of its planes
  std::int64_t image, vector, image_step, vector_step, line, channels, channel, images;

  __device__ __forceinline__ Cursor(const Walk& w, const Place<V, kRows>& p)
      : image(p.item / w.line),
        vector(p.item % w.line),
        image_step(w.step() / w.line),
        vector_step(w.step() % w.line),
        line(w.line),
        channels(w.c),
        channel(p.channel),
        images(w.items / w.line) {}
  __device__ __forceinline__ std::int64_t take() {
    const std::int64_t i = kReverse ? images - 1 - image : image, j = kReverse ? line - 1 - vector : vector;
    const std::int64_t at = ((i * channels + channel) * line + j) * V;
    image += image_step;
    vector += vector_step;
    if (vector >= line) {
      vector -= line;
      ++image;
    }
    return at;
  }
  template <int kCount>
  struct Batch {
    std::int64_t at[kCount];
    __device__ __forceinline__ void fill(Cursor& from, int u) { at[u] = from.take(); }
    __device__ __forceinline__ std::int64_t operator[](int u) const { return at[u]; }
  };
};
template <int V, bool kReverse>
struct Cursor<V, true, kReverse> {  // channels-last: an item is a row of channels
  std::int64_t at, by;

  __device__ __forceinline__ Cursor(const Walk& w, const Place<V, true>& p)
      : at((kReverse ? w.items - 1 - p.item : p.item) * w.c + p.channel), by((kReverse ? -1 : 1) * w.step() * w.c) {}
  __device__ __forceinline__ std::int64_t take() {
    const std::int64_t here = at;
    at += by;
    return here;
  }
  template <int kCount>
  struct Batch {  // evenly spaced: two numbers instead of an array that would cost registers
    std::int64_t first = 0, by = 0;
    __device__ __forceinline__ void fill(Cursor& from, int u) {
      const std::int64_t at = from.take();
      if (u > 0) return;
      first = at;
      by = from.by;
    }
    __device__ __forceinline__ std::int64_t operator[](int u) const { return first + u * by; }
  };
};

/// For all items of a thread load(u, position), then use(u, position), kUnroll loads ahead. The last few items of the
/// passes that read one tensor go together too; for the others that costs more registers than it saves time.
template <int kUnroll, int V, bool kRows, bool kReverse, bool kTogether = false, class Load, class Use>
__device__ __forceinline__ void walk(const Walk& w, const Place<V, kRows>& p, Load&& load_item, Use&& use_item) {
  Cursor<V, kRows, kReverse> cursor(w, p);
  const std::int64_t step = w.step();
  std::int64_t item = p.item;
  for (; item + (kUnroll - 1) * step < w.items; item += kUnroll * step) {
    typename Cursor<V, kRows, kReverse>::template Batch<kUnroll> at;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      at.fill(cursor, u);
      load_item(u, at[u]);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) use_item(u, at[u]);
  }
  if constexpr (!kTogether) {
    for (; item < w.items; item += step) {
      const std::int64_t at = cursor.take();
      load_item(0, at);
      use_item(0, at);
    }
  }
  if (item >= w.items) return;
  typename Cursor<V, kRows, kReverse>::template Batch<kUnroll> at;  // the rest, together too
#pragma unroll
  for (int u = 0; u < kUnroll; ++u)
    if (item + u * step < w.items) {
      at.fill(cursor, u);
      load_item(u, at[u]);
    }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u)
    if (item + u * step < w.items) use_item(u, at[u]);
}

/// Adds a and b over the threads of the block that share channels; write(slot, channel, sums) once a channel. All
/// threads must call.
template <int V, bool kRows, int L, class Write>
__device__ __forceinline__ void sum_block(const Walk& w, const Place<V, kRows>& p, double (&a)[L], double (&b)[L],
                                          Write&& write) {
  constexpr int kWarps = kThreads / 32;
  __shared__ double2 sums[kWarps][32 * L];
  for (int offset = 16; offset >= w.columns; offset /= 2) {
#pragma unroll
    for (int l = 0; l < L; ++l) {
      a[l] += __shfl_xor_sync(0xffffffffu, a[l], offset);
      b[l] += __shfl_xor_sync(0xffffffffu, b[l], offset);
    }
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane < w.columns) {
#pragma unroll
    for (int l = 0; l < L; ++l) sums[threadIdx.x / 32][lane * L + l] = make_double2(a[l], b[l]);
  }
  __syncthreads();
  const int slot = static_cast<int>(threadIdx.x);
  const std::int64_t channel = std::int64_t{blockIdx.x % w.tiles} * w.columns * L + slot;
  if (slot >= w.columns * L || channel >= w.c) return;
  double2 total = make_double2(0, 0);
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    total.x += sums[i][slot].x;
    total.y += sums[i][slot].y;
  }
  write(slot, channel, total);
}

}  // namespace apex::kernels::cuda::batch_norm
