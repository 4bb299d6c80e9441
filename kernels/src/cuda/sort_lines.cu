// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "sort.cuh"

// A merge sort. Runs of up to kTile keys are sorted in shared memory by Batcher's bitonic network (Batcher 1968); then
// pairs of runs are merged, each element finding its place by counting, with a binary search, those of the other run
// that come before it. Equal keys go by place, so the order is total and the result the same on every run.

namespace apex::kernels::cuda {
namespace {

constexpr int kTile = 2048;
constexpr int kTileThreads = 512;
constexpr int kMergeThreads = 256;

/// How lines fall into runs of `run` keys, a power of two up to kTile; several runs share a tile.
struct Runs {
  std::int64_t lines, length, run, per_line;
};

template <class K>
__device__ __forceinline__ bool before(K a, std::uint32_t a_place, K b, std::uint32_t b_place) {
  return a < b || (a == b && a_place < b_place);
}

template <class K>
__global__ void __launch_bounds__(kTileThreads)
    tile_kernel(K* keys_out, std::uint32_t* places_out, const K* keys_in, const Runs s) {
  __shared__ K keys[kTile];
  __shared__ std::uint32_t places[kTile];
  const int run = static_cast<int>(s.run);
  const std::int64_t first_run = std::int64_t{blockIdx.x} * (kTile / run);
  // Where slot i of the tile lies in memory; negative for one beyond the end of its line or of all lines.
  const auto address = [&](int i) -> std::int64_t {
    const std::int64_t r = first_run + i / run, line = r / s.per_line;
    const std::int64_t place = (r - line * s.per_line) * run + i % run;
    return line < s.lines && place < s.length ? line * s.length + place : -1;
  };
  for (int i = threadIdx.x; i < kTile; i += kTileThreads) {
    const std::int64_t at = address(i);
    keys[i] = at < 0 ? ~K(0) : keys_in[at];
    places[i] = at < 0 ? ~0u : static_cast<std::uint32_t>(at % s.length);  // empty slots come last
  }
  for (int size = 2; size <= run; size *= 2)
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      for (int t = threadIdx.x; t < kTile / 2; t += kTileThreads) {
        const int i = 2 * t - (t & (stride - 1)), j = i + stride;
        const bool up = (i & (run - 1) & size) == 0;  // the last round is upward in every run
        if (before(keys[j], places[j], keys[i], places[i]) == up) {
          const K key = keys[i];
          keys[i] = keys[j];
          keys[j] = key;
          const std::uint32_t place = places[i];
          places[i] = places[j];
          places[j] = place;
        }
      }
    }
  __syncthreads();
  for (int i = threadIdx.x; i < kTile; i += kTileThreads) {
    const std::int64_t at = address(i);
    if (at < 0) continue;
    keys_out[at] = keys[i];
    places_out[at] = places[i];
  }
}

/// Number of keys of the sorted [0, n) that are below `key`, or not above it.
template <class K>
__device__ __forceinline__ std::int64_t count_before(const K* sorted, std::int64_t n, K key, bool with_equal) {
  std::int64_t low = 0;
  while (n > 0) {
    const std::int64_t half = n / 2;
    const K middle = sorted[low + half];
    if (middle < key || (with_equal && middle == key)) {
      low += half + 1;
      n -= half + 1;
    } else {
      n = half;
    }
  }
  return low;
}

/// Merges runs [0, width), [width, 2 width), ... of each line two by two; of equal keys those of the first run come
/// first, as their places do.
template <class K>
__global__ void __launch_bounds__(kMergeThreads)
    merge_kernel(K* keys_out, std::uint32_t* places_out, const K* keys, const std::uint32_t* places, std::int64_t lines,
                 std::int64_t length, std::int64_t width) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kMergeThreads + threadIdx.x;
  if (at >= lines * length) return;
  const std::int64_t line = at / length, place = at - line * length;
  const std::int64_t first = place / (2 * width) * (2 * width), middle = min(first + width, length);
  const std::int64_t end = min(first + 2 * width, length);
  const K* of_line = keys + line * length;
  const K key = of_line[place];
  std::int64_t to = place;
  if (place < middle)
    to += count_before(of_line + middle, end - middle, key, false);
  else
    to += count_before(of_line + first, middle - first, key, true) - (middle - first);
  keys_out[line * length + to] = key;
  places_out[line * length + to] = places[at];
}

}  // namespace

template <class K>
SortedLines<K> sort_lines(const Context& ctx, void* memory, std::int64_t lines, std::int64_t length) {
  const std::int64_t n = lines * length;
  K* keys = static_cast<K*>(memory);
  K* other_keys = keys + n;
  auto* places = reinterpret_cast<std::uint32_t*>(other_keys + n);
  std::uint32_t* other_places = places + n;
  if (n == 0) return {keys, places};
  Runs runs{lines, length, 2, 0};
  while (runs.run < length && runs.run < kTile) runs.run *= 2;
  runs.per_line = ceil_div(length, runs.run);
  const auto stream = stream_of(ctx);
  const auto tiles = static_cast<unsigned>(ceil_div(lines * runs.per_line, kTile / runs.run));
  tile_kernel<<<tiles, kTileThreads, 0, stream>>>(other_keys, places, keys, runs);
  std::swap(keys, other_keys);
  const auto blocks = static_cast<unsigned>(ceil_div(n, kMergeThreads));
  for (std::int64_t width = runs.run; width < length; width *= 2) {
    merge_kernel<<<blocks, kMergeThreads, 0, stream>>>(other_keys, other_places, keys, places, lines, length, width);
    std::swap(keys, other_keys);
    std::swap(places, other_places);
  }
  check_launch("sort");
  return {keys, places};
}

template SortedLines<std::uint32_t> sort_lines(const Context&, void*, std::int64_t, std::int64_t);
template SortedLines<std::uint64_t> sort_lines(const Context&, void*, std::int64_t, std::int64_t);

}  // namespace apex::kernels::cuda
