// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "conv_stem.hpp"
#include "launch.cuh"

namespace apex::kernels::cuda::stem {
namespace {

using Bits = std::uint16_t;  // f16 and bf16 alike: elements only move, and 0 is all zeros in both
constexpr int kThreads = 256, kChannels = 16;

struct Geometry {
  std::int64_t strides[4];     // of what is folded or unfolded
  std::int64_t c, h, w;        // its channels and spatial sizes
  std::int64_t height, width;  // of the folded tensor
  std::int64_t pad_h, pad_w;
};

/// A thread gathers the 8 channels of one row of a square and writes them at once.
__global__ void __launch_bounds__(kThreads)
    fold(Pack<Bits, 8>* to, const Bits* from, const Geometry g, std::int64_t count) {
  for (std::int64_t at = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; at < count;
       at += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t square = at / 2, line = square / g.width, n = line / g.height;
    const std::int64_t h = 2 * (line - n * g.height) + at % 2 - g.pad_h, w0 = 2 * (square - line * g.width) - g.pad_w;
    Pack<Bits, 8> out{};
    if (h >= 0 && h < g.h) {
      const Bits* row = from + n * g.strides[0] + h * g.strides[2];
#pragma unroll
      for (int q = 0; q < 2; ++q)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          if (c < g.c && w0 + q >= 0 && w0 + q < g.w)
            out.v[q * 4 + c] = row[c * g.strides[1] + (w0 + q) * g.strides[3]];
    }
    to[at] = out;
  }
}

/// A thread an element of w [k, c, r, s].
__global__ void __launch_bounds__(kThreads) unfold(Bits* to, const Bits* from, const Geometry g, std::int64_t count) {
  for (std::int64_t at = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; at < count;
       at += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t line = at / g.w, s = at - line * g.w, plane = line / g.h, r = line - plane * g.h;
    const std::int64_t k = plane / g.c, c = plane - k * g.c;
    const std::int64_t square = (k * g.height + r / 2) * g.width + s / 2;
    to[k * g.strides[0] + c * g.strides[1] + r * g.strides[2] + s * g.strides[3]] =
        from[square * kChannels + (r % 2 * 2 + s % 2) * 4 + c];
  }
}

Geometry geometry(const ConstView& v, const ConstView& folded, std::int64_t pad_h, std::int64_t pad_w) {
  return {.strides = {v.stride(0), v.stride(1), v.stride(2), v.stride(3)},
          .c = v.size(1),
          .h = v.size(2),
          .w = v.size(3),
          .height = folded.size(2),
          .width = folded.size(3),
          .pad_h = pad_h,
          .pad_w = pad_w};
}

void launch_fold(const Context& ctx, const View& folded, const ConstView& v, std::int64_t pad_h, std::int64_t pad_w) {
  const std::int64_t count = folded.numel() / 8;
  fold<<<grid_for(count, kThreads, 16), kThreads, 0, stream_of(ctx)>>>(folded.as<Pack<Bits, 8>>(), v.as<Bits>(),
                                                                       geometry(v, folded, pad_h, pad_w), count);
  check_launch("conv2d");
}

}  // namespace

bool applies(const ConstView& x, const ConstView& w, const ConstView& y, const Conv2dOptions& options) {
  return is_16bit(x.dtype) && x.size(1) <= 4 && options.groups == 1 && options.stride[0] == 2 &&
         options.stride[1] == 2 && options.dilation[0] == 1 && options.dilation[1] == 1 && w.size(2) > 2 &&
         w.size(3) > 2 && y.is_contiguous(MemoryFormat::channels_last);
}

Dims folded_weight(const ConstView& w) { return {w.size(0), kChannels, (w.size(2) + 1) / 2, (w.size(3) + 1) / 2}; }

Dims folded_input(const ConstView& w, const ConstView& y) {
  const Dims taps = folded_weight(w);
  return {y.size(0), kChannels, y.size(2) + taps[2] - 1, y.size(3) + taps[3] - 1};
}

void fold_input(const Context& ctx, View folded, ConstView x, const Conv2dOptions& options) {
  launch_fold(ctx, folded, x, options.padding[0], options.padding[1]);
}

void fold_weight(const Context& ctx, View folded, ConstView w) { launch_fold(ctx, folded, w, 0, 0); }

void unfold_weight(const Context& ctx, View w, ConstView folded) {
  const std::int64_t count = w.numel();
  unfold<<<grid_for(count, kThreads), kThreads, 0, stream_of(ctx)>>>(w.as<Bits>(), folded.as<Bits>(),
                                                                     geometry(w, folded, 0, 0), count);
  check_launch("conv2d");
}

}  // namespace apex::kernels::cuda::stem
