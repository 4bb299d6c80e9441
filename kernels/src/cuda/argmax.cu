// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "argmax.cuh"

namespace apex::kernels::cuda {
namespace {

/// The value that is largest where `value` is smallest; whole numbers are turned over bit by bit.
template <class C>
__device__ __forceinline__ C turned(C value, bool smallest) {
  if constexpr (std::is_floating_point_v<C>)
    return smallest ? -value : value;
  else
    return smallest ? static_cast<C>(~value) : value;
}

/// Elements of a pack that travel in one access, as words whose bits can be turned over.
template <class N>
using word_t = std::conditional_t<sizeof(N) == 8, std::uint64_t, std::uint32_t>;

/// What `turned` does, to all elements in a word.
template <class N>
word_t<N> turning_bits(bool smallest) {
  using W = word_t<N>;
  if (!smallest) return 0;
  if constexpr (!is_floating_native<N>) return ~W(0);
  W bits = 0;
  for (std::size_t i = 1; i <= sizeof(W) / sizeof(N); ++i) bits |= W(1) << (8 * sizeof(N) * i - 1);
  return bits;
}

/// Where argmax sees this value before the other.
template <class C>
__device__ __forceinline__ bool above(C value, C other) {
  return value > other || (is_nan(value) && !is_nan(other));
}

/// The largest element, NaN if there is one; 16-bit elements are compared in pairs.
template <class N, int V>
__device__ __forceinline__ compute_t<N> top_of(const Pack<N, V>& pack) {
  if constexpr (sizeof(N) == 2) {
    using Pair = std::conditional_t<std::is_same_v<N, __half>, __half2, __nv_bfloat162>;
    Pair top(pack.v[0], pack.v[1]);
#pragma unroll
    for (int v = 2; v < V; v += 2) top = __hmax2_nan(top, Pair(pack.v[v], pack.v[v + 1]));
    return load(__hmax_nan(top.x, top.y));
  } else {
    compute_t<N> top = pack.v[0];
#pragma unroll
    for (int v = 1; v < V; ++v) top = above<compute_t<N>>(pack.v[v], top) ? pack.v[v] : top;
    return top;
  }
}

constexpr int kRowPacks = 4;  // of a thread that are on their way together

/// Rows whose elements lie side by side, `group` threads for each: a power of two up to 32, or the block. Of a pack
/// only the largest element is looked at; which one it was is asked once, of the pack that came out first.
template <class N>
__global__ void __launch_bounds__(kSelectThreads)
    argmax_rows(std::int64_t* out, const N* x, Index<2> lines, std::int32_t length, bool aligned, int group,
                word_t<N> turning) {
  using C = compute_t<N>;
  constexpr int V = kVector<N>, kWords = 16 / static_cast<int>(sizeof(word_t<N>));
  const int lane = static_cast<int>(threadIdx.x) % group;
  const std::int64_t line = std::int64_t{blockIdx.x} * (kSelectThreads / group) + static_cast<int>(threadIdx.x) / group;
  const bool given = line < lines.numel;
  const auto at = lines.at(given ? line : 0);
  const N* row = x + at.v[1];
  const int whole = aligned ? length / V : 0, packs = (length - 1) / V + 1;
  const auto turn = [&](Pack<N, V>& pack) {
    auto* words = reinterpret_cast<word_t<N>*>(&pack);
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] ^= turning;
  };
  const auto read = [&](int p) {
    Pack<N, V> pack;
    if (p < whole) {
      pack = *reinterpret_cast<const Pack<N, V>*>(row + static_cast<std::int64_t>(p) * V);
    } else {
      const int first = p * V;  // what is beyond the end repeats the last element, which comes before it
#pragma unroll
      for (int v = 0; v < V; ++v) pack.v[v] = row[first + min(v, length - 1 - first)];
    }
    turn(pack);
    return pack;
  };
  Candidate<C> best{std::is_integral_v<C> ? std::numeric_limits<C>::lowest() : -std::numeric_limits<C>::infinity(),
                    given && lane < packs ? lane : -1};
  const auto consider = [&](C top, int p) {
    if (!above(top, best.value)) return;  // earlier packs of a thread come first
    best.value = top;
    best.at = p;
  };
  if (given) {
    int p = lane;
    for (; p + (kRowPacks - 1) * group < whole; p += kRowPacks * group) {
      Pack<N, V> pack[kRowPacks];
#pragma unroll
      for (int u = 0; u < kRowPacks; ++u)
        pack[u] = *reinterpret_cast<const Pack<N, V>*>(row + static_cast<std::int64_t>(p + u * group) * V);
#pragma unroll
      for (int u = 0; u < kRowPacks; ++u) {
        turn(pack[u]);
        consider(top_of(pack[u]), p + u * group);
      }
    }
    for (; p < packs; p += group) consider(top_of(read(p)), p);
  }
  if (group > 32)
    best = block_first(best);
  else
    best = group_first(best, group);
  if (!given || lane != 0) return;
  const auto pack = read(static_cast<int>(best.at));
  int found = 0;
#pragma unroll
  for (int v = V - 1; v >= 0; --v) {
    const C value = load(pack.v[v]);
    if (value == best.value || (is_nan(value) && is_nan(best.value))) found = v;
  }
  out[at.v[0]] = best.at * V + found;
}

/// `group` threads for a line: one, a warp, or the block.
template <class N>
__global__ void __launch_bounds__(kSelectThreads)
    argmax_kernel(std::int64_t* out, const N* x, Index<2> lines, std::int64_t length, std::int64_t stride, int group,
                  bool smallest) {
  using C = compute_t<N>;
  const std::int64_t line = std::int64_t{blockIdx.x} * (kSelectThreads / group) + static_cast<int>(threadIdx.x) / group;
  const bool given = line < lines.numel;
  const auto at = lines.at(given ? line : 0);
  Candidate<C> best{C(0), -1};
  if (given)
    for (std::int64_t i = static_cast<int>(threadIdx.x) % group; i < length; i += group)
      best = first_of(best, Candidate<C>{turned(load(x[at.v[1] + i * stride]), smallest), i});
  if (group == 32) best = warp_first(best);
  if (group > 32) best = block_first(best);
  if (given && static_cast<int>(threadIdx.x) % group == 0) out[at.v[0]] = best.at;
}

void first_along(const Context& ctx, const View& out, const ConstView& x, int dim, bool smallest) {
  if (out.numel() == 0) return;
  Dims sizes = x.sizes;
  sizes[dim] = 1;
  const auto lines = make_index<2>(sizes, {out.strides, x.strides});
  const std::int64_t length = x.sizes[dim], stride = x.strides[dim];
  if (stride == 1 && length > 4 && length <= std::numeric_limits<std::int32_t>::max() - 64) {
    visit_comparable(x.dtype, "argmax", [&]<class T>() {
      using N = native_t<T>;
      constexpr int V = kVector<N>;
      const auto* data = static_cast<const N*>(x.data);
      bool aligned = aligned_to(data, 16);
      for (int d = 0; d < lines.rank; ++d) aligned = aligned && (lines.size[d] == 1 || lines.stride[1][d] % V == 0);
      const std::int64_t packs = ceil_div(length, V);
      int group = 1;
      while (group < 32 && group * kRowPacks < packs) group *= 2;
      if (packs > 4096 || (packs >= 512 && lines.numel < 4096)) group = kSelectThreads;
      argmax_rows<<<static_cast<unsigned>(ceil_div(lines.numel, kSelectThreads / group)), kSelectThreads, 0,
                    stream_of(ctx)>>>(native<std::int64_t>(out), data, lines, static_cast<std::int32_t>(length),
                                      aligned, group, turning_bits<N>(smallest));
    });
    return check_launch("argmax");
  }
  const bool side_by_side = lines.numel >= 4096 && lines.stride[1][0] < stride;
  const int group = side_by_side || length <= 4 ? 1 : length <= 1024 ? 32 : kSelectThreads;
  const auto blocks = static_cast<unsigned>(ceil_div(lines.numel, kSelectThreads / group));
  visit_comparable(x.dtype, "argmax", [&]<class T>() {
    argmax_kernel<<<blocks, kSelectThreads, 0, stream_of(ctx)>>>(
        native<std::int64_t>(out), static_cast<const native_t<T>*>(x.data), lines, length, stride, group, smallest);
  });
  check_launch("argmax");
}

}  // namespace

void argmax(const Context& ctx, View out, ConstView x, int dim) { first_along(ctx, out, x, dim, false); }
void argmin(const Context& ctx, View out, ConstView x, int dim) { first_along(ctx, out, x, dim, true); }

}  // namespace apex::kernels::cuda
