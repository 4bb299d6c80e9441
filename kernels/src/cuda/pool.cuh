// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "../pool_impl.hpp"
#include "launch.cuh"

// Pooling, one thread an output pixel of a vector of channels. A row-major tensor is one of N * C images with a single
// channel, so both layouts share all kernels. Gradients are gathered per input pixel: nothing is added twice.

namespace apex::kernels::cuda::pool {

constexpr int kThreads = 256;

/// a / b for a >= 0. Most numbers fit 32 bits, whose division is several times faster.
__device__ __forceinline__ int quotient(std::int64_t a, int b) {
  return (a >> 32) == 0 ? static_cast<int>(static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b))
                        : static_cast<int>(a / b);
}

struct Range {
  int begin, end;
  __device__ __forceinline__ int length() const { return end - begin; }
};

/// The windows along one dimension.
struct Axis {
  int in = 0, out = 0, kernel = 1, stride = 1, padding = 0;
  bool adaptive = false, counts_padding = false;

  static Axis strided(std::int64_t in, std::int64_t out, const Pool2dOptions& o, std::size_t d) {
    return {narrow(in),           narrow(out), narrow(o.kernel[d]), narrow(o.stride[d]),
            narrow(o.padding[d]), false,       o.count_include_pad};
  }
  static Axis divided(std::int64_t in, std::int64_t out) { return {narrow(in), narrow(out), 1, 1, 0, true, false}; }

  /// Of output o, inside the input.
  __device__ __forceinline__ Range window(int o) const {
    if (adaptive) return {quotient(std::int64_t{o} * in, out), quotient(std::int64_t{o + 1} * in + out - 1, out)};
    const int from = o * stride - padding;
    return {max(from, 0), min(from + kernel, in)};
  }
  /// What output o counts in an average's divisor.
  __device__ __forceinline__ int divisor(int o) const {
    if (!counts_padding) return window(o).length();
    const int from = o * stride - padding;
    return min(from + kernel, in + padding) - from;
  }
  /// Outputs whose windows cover input i (none: an empty range).
  __device__ __forceinline__ Range outputs(int i) const {
    if (adaptive) return {quotient(std::int64_t{i} * out, in), quotient(std::int64_t{i + 1} * out + in - 1, in)};
    const int first = i + padding - kernel + 1;
    return {first <= 0 ? 0 : (first + stride - 1) / stride, min((i + padding) / stride + 1, out)};
  }

 private:
  static int narrow(std::int64_t value) {
    if (value > (std::int64_t{1} << 30))
      fail(Kind::unsupported, concat("pool2d: a size of ", value, " is too large for the CUDA backend"));
    return static_cast<int>(value);
  }
};

/// Images of h.in x w.in pixels, c channels side by side in memory.
struct Problem {
  std::int64_t images = 0, c = 0;
  Axis h, w;
  int vector = 1;

  Problem(const ConstView& x, const ConstView& y, Axis vertical, Axis horizontal, bool aligned)
      : h(vertical), w(horizontal) {
    const bool rows = !(x.is_contiguous() && y.is_contiguous());
    images = rows ? x.size(0) : x.size(0) * x.size(1);
    c = rows ? x.size(1) : 1;
    const int wide = static_cast<int>(16 / size_of(x.dtype));
    vector = aligned && c % wide == 0 ? wide : 1;
  }
};

/// t % d, and t becomes t / d. Most sizes fit 32 bits, whose division is several times faster.
__device__ __forceinline__ std::int64_t split(std::int64_t& t, std::int64_t d) {
  std::int64_t rest;
  if (((t | d) >> 32) == 0) {
    const auto small = static_cast<std::uint32_t>(t), by = static_cast<std::uint32_t>(d);
    rest = small % by;
    t = small / by;
  } else {
    rest = t % d;
    t /= d;
  }
  return rest;
}

/// One thread's pixel: image, row, column, first channel.
struct Pixel {
  std::int64_t image, channel;
  int row, column;

  __device__ __forceinline__ Pixel(std::int64_t task, const Problem& p, int vector, int rows, int columns) {
    channel = split(task, p.c / vector) * vector;
    column = static_cast<int>(split(task, columns));
    row = static_cast<int>(split(task, rows));
    image = task;
  }
};

/// Position of a pixel's channels in memory.
__device__ __forceinline__ std::int64_t at(const Problem& p, std::int64_t image, int rows, int columns, int row,
                                           int column, std::int64_t channel) {
  return ((image * rows + row) * columns + column) * p.c + channel;
}

template <int V, class N>
__device__ __forceinline__ Pack<N, V> fetch(const N* from) {
  return *reinterpret_cast<const Pack<N, V>*>(from);
}
template <int V, class N>
__device__ __forceinline__ void put(N* to, const Pack<N, V>& values) {
  *reinterpret_cast<Pack<N, V>*>(to) = values;
}

/// Calls body(task) for this thread's tasks.
template <class Body>
__device__ __forceinline__ void for_each_task(std::int64_t tasks, Body&& body) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t task = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; task < tasks; task += step) body(task);
}

inline unsigned blocks_for(std::int64_t tasks) { return grid_for(tasks, kThreads, 32); }

/// Calls f.operator()<V>() for the problem's vector.
template <class N, class F>
void with_vector(const Problem& p, F&& f) {
  p.vector == 1 ? f.template operator()<1>() : f.template operator()<kVector<N>>();
}

}  // namespace apex::kernels::cuda::pool
