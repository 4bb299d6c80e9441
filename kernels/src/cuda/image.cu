// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>

#include "../image_impl.hpp"
#include "elementwise.cuh"

namespace apex::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChannels = 64;  // constants that travel with a launch

template <class C>
struct Constants {
  C mean[kChannels], std[kChannels];
};

template <class N>
__device__ __forceinline__ N normalized(std::uint8_t value, compute_t<N> mean, compute_t<N> std) {
  return store<N>((static_cast<compute_t<N>>(value) - mean) / std);
}

/// Any strides; operands y, x and the number of the channel.
template <class N>
__global__ void __launch_bounds__(kThreads)
    any_layout(N* y, const std::uint8_t* x, Index<3> index, Constants<compute_t<N>> k) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t p = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; p < index.numel; p += step) {
    const auto at = index.at(p);
    y[at.v[0]] = normalized<N>(x[at.v[1]], k.mean[at.v[2]], k.std[at.v[2]]);
  }
}

/// What the kernels for three channels take: 16-bit results, which are rounded more coarsely, are multiplied by 1 /
/// std.
template <class N>
struct Three {
  static constexpr bool kMultiplies = sizeof(N) == 2;
  using C = compute_t<N>;
  C mean[3], by[3];
  bool usable = true;  // 1 / std is as exact as std

  explicit Three(const Constants<C>& k) {
    for (int c = 0; c < 3; ++c) {
      mean[c] = k.mean[c];
      by[c] = kMultiplies ? C(1) / k.std[c] : k.std[c];
      usable = usable && (!kMultiplies || std::isnormal(by[c]));
    }
  }
};

template <class N>
__device__ __forceinline__ N normalized_by(std::uint8_t value, compute_t<N> mean, compute_t<N> by) {
  const auto off = static_cast<compute_t<N>>(value) - mean;
  return store<N>(Three<N>::kMultiplies ? off * by : off / by);
}

constexpr int kTripleThreads = 192;  // a multiple of 3: all packs of a thread begin with the same channel
constexpr int kTriplePacks = 4;      // of a thread

/// Three interleaved channels in and out: bytes and results lie alike, so that only the channel of a thread's first
/// element is to be known. The last `rest` elements follow the packs.
template <class N>
__global__ void __launch_bounds__(kTripleThreads)
    interleaved(N* y, const std::uint8_t* x, std::int64_t packs, int rest, Three<N> k) {
  constexpr int V = kVector<N>;
  using C = compute_t<N>;
  const std::int64_t first = std::int64_t{blockIdx.x} * (kTripleThreads * kTriplePacks) + threadIdx.x;
  // Whole words until all loads are on their way: taking bytes out of one would wait for it.
  using Word = std::conditional_t<V == 8, std::uint64_t, std::conditional_t<V == 4, std::uint32_t, std::uint16_t>>;
  static_assert(sizeof(Word) == V);
  Word in[kTriplePacks] = {};
#pragma unroll
  for (int u = 0; u < kTriplePacks; ++u) {
    const std::int64_t p = first + u * kTripleThreads;
    if (p < packs) in[u] = reinterpret_cast<const Word*>(x)[p];
  }
  const unsigned channel = threadIdx.x * V % 3;
  const auto turned = [channel](const C(&of)[3], int i) {
    return channel == 0 ? of[i] : channel == 1 ? of[(i + 1) % 3] : of[(i + 2) % 3];
  };
  const C mean[3] = {turned(k.mean, 0), turned(k.mean, 1), turned(k.mean, 2)},
          by[3] = {turned(k.by, 0), turned(k.by, 1), turned(k.by, 2)};
#pragma unroll
  for (int u = 0; u < kTriplePacks; ++u) {
    const std::int64_t p = first + u * kTripleThreads;
    if (p >= packs) continue;
    Pack<N, V> out;
#pragma unroll
    for (int v = 0; v < V; ++v)
      out.v[v] = normalized_by<N>(static_cast<std::uint8_t>(in[u] >> (8 * v)), mean[v % 3], by[v % 3]);
    reinterpret_cast<Pack<N, V>*>(y)[p] = out;
  }
  if (blockIdx.x == 0 && threadIdx.x < static_cast<unsigned>(rest)) {
    const std::int64_t e = packs * V + threadIdx.x;
    const auto c = static_cast<int>(e % 3);
    const C m = c == 0 ? k.mean[0] : c == 1 ? k.mean[1] : k.mean[2], b = c == 0 ? k.by[0] : c == 1 ? k.by[1] : k.by[2];
    y[e] = normalized_by<N>(x[e], m, b);
  }
}

template <class N>
__device__ __forceinline__ void put_four(N* at, const N (&v)[4]) {
  constexpr int V = std::min(4, kVector<N>);
#pragma unroll
  for (int i = 0; i < 4; i += V) {
    Pack<N, V> p;
#pragma unroll
    for (int j = 0; j < V; ++j) p.v[j] = v[i + j];
    *reinterpret_cast<Pack<N, V>*>(at + i) = p;
  }
}

/// Three interleaved channels in, four pixels (12 bytes) a thread; out in row-major order, `plane` pixels each, a
/// multiple of 4.
template <class N>
__global__ void __launch_bounds__(kThreads)
    to_planes(N* y, const std::uint8_t* x, std::int64_t quads, std::int64_t plane, Three<N> k) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t q = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; q < quads; q += step) {
    std::uint32_t words[3];
#pragma unroll
    for (int w = 0; w < 3; ++w) words[w] = reinterpret_cast<const std::uint32_t*>(x)[q * 3 + w];
    const auto byte = [&](int i) { return static_cast<std::uint8_t>(words[i / 4] >> (i % 4 * 8)); };
    const std::int64_t image = q * 4 / plane;
    N* to = y + image * 3 * plane + (q * 4 - image * plane);
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      N v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = normalized_by<N>(byte(i * 3 + c), k.mean[c], k.by[c]);
      put_four(to + c * plane, v);
    }
  }
}

template <class T>
void normalize(const Context& ctx, const View& y, const ConstView& x, const Constants<accum_t<T>>& k) {
  using N = native_t<T>;
  constexpr int V = kVector<N>;
  N* to = native<T>(y);
  const auto* from = native<std::uint8_t>(x);
  const std::int64_t plane = x.size(2) * x.size(3), pixels = x.size(0) * plane;
  const Three<N> three(k);
  const bool triples = x.size(1) == 3 && x.is_contiguous(MemoryFormat::channels_last) && three.usable;
  if (triples && y.is_contiguous(MemoryFormat::channels_last) && aligned_to(from, V) && aligned_to(to, 16)) {
    const std::int64_t packs = pixels * 3 / V;
    const auto blocks = std::max<std::int64_t>(1, ceil_div(packs, kTripleThreads * kTriplePacks));
    interleaved<N><<<static_cast<unsigned>(blocks), kTripleThreads, 0, stream_of(ctx)>>>(
        to, from, packs, static_cast<int>(pixels * 3 - packs * V), three);
  } else if (triples && y.is_contiguous() && plane % 4 == 0 && aligned_to(from, 4) &&
             aligned_to(to, std::min<std::size_t>(16, 4 * sizeof(N)))) {
    to_planes<N>
        <<<grid_for(pixels / 4, kThreads, 16), kThreads, 0, stream_of(ctx)>>>(to, from, pixels / 4, plane, three);
  } else {
    const auto index = make_index<3>(y.sizes, {y.strides, x.strides, Dims{0, 1, 0, 0}});
    any_layout<<<grid_for(index.numel, kThreads, 16), kThreads, 0, stream_of(ctx)>>>(to, from, index, k);
  }
  check_launch("image_normalize");
}

/// Channels [begin, begin + count) of v.
template <class V>
V channels(V v, std::int64_t begin, std::int64_t count) {
  v.sizes[1] = count;
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(v.data)>>, const char, char>;
  v.data = static_cast<Byte*>(v.data) + begin * v.strides[1] * static_cast<std::int64_t>(size_of(v.dtype));
  return v;
}

}  // namespace

void image_normalize(const Context& ctx, View y, ConstView x, std::span<const float> mean, std::span<const float> std) {
  if (y.numel() == 0) return;
  visit_floating(y.dtype, "image_normalize", [&]<class T>() {
    for (std::int64_t begin = 0; begin < x.size(1); begin += kChannels) {
      const std::int64_t count = std::min<std::int64_t>(kChannels, x.size(1) - begin);
      Constants<accum_t<T>> k{};
      for (std::int64_t c = 0; c < count; ++c) {
        k.mean[c] = static_cast<accum_t<T>>(mean[static_cast<std::size_t>(begin + c)]);
        k.std[c] = static_cast<accum_t<T>>(std[static_cast<std::size_t>(begin + c)]);
      }
      normalize<T>(ctx, channels(y, begin, count), channels(x, begin, count), k);
    }
  });
}

}  // namespace apex::kernels::cuda
