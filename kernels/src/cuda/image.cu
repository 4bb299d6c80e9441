// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
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

/// Three interleaved channels in, four pixels (12 bytes) a thread. Planar: out in row-major order, `plane` pixels each,
/// a multiple of 4; else interleaved.
template <bool kPlanar, class N>
__global__ void __launch_bounds__(kThreads)
    three_channels(N* y, const std::uint8_t* x, std::int64_t quads, std::int64_t plane, Constants<compute_t<N>> k) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t q = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; q < quads; q += step) {
    std::uint32_t words[3];
#pragma unroll
    for (int w = 0; w < 3; ++w) words[w] = reinterpret_cast<const std::uint32_t*>(x)[q * 3 + w];
    const auto byte = [&](int i) { return static_cast<std::uint8_t>(words[i / 4] >> (i % 4 * 8)); };
    const std::int64_t image = kPlanar ? q * 4 / plane : 0;
    N* to = kPlanar ? y + image * 3 * plane + (q * 4 - image * plane) : y + q * 12;
#pragma unroll
    for (int part = 0; part < 3; ++part) {  // a channel's four pixels, or four neighbours of the twelve
      N v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int b = kPlanar ? i * 3 + part : part * 4 + i;
        v[i] = normalized<N>(byte(b), k.mean[b % 3], k.std[b % 3]);
      }
      put_four(kPlanar ? to + part * plane : to + part * 4, v);
    }
  }
}

template <class T>
void normalize(const Context& ctx, const View& y, const ConstView& x, const Constants<accum_t<T>>& k) {
  using N = native_t<T>;
  N* to = native<T>(y);
  const auto* from = native<std::uint8_t>(x);
  const std::int64_t pixels = x.size(0) * x.size(2) * x.size(3), plane = x.size(2) * x.size(3);
  const bool interleaved = x.size(1) == 3 && x.is_contiguous(MemoryFormat::channels_last) && pixels % 4 == 0 &&
                           aligned_to(from, 4) && aligned_to(to, std::min<std::size_t>(16, 4 * sizeof(N)));
  const unsigned blocks = grid_for(pixels / 4, kThreads, 16);
  if (interleaved && y.is_contiguous(MemoryFormat::channels_last)) {
    three_channels<false><<<blocks, kThreads, 0, stream_of(ctx)>>>(to, from, pixels / 4, plane, k);
  } else if (interleaved && y.is_contiguous() && plane % 4 == 0) {
    three_channels<true><<<blocks, kThreads, 0, stream_of(ctx)>>>(to, from, pixels / 4, plane, k);
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
