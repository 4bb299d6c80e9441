// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "conv_direct.hpp"

#include "launch.cuh"

// Each pass is a matrix product whose operands are read where they lie (as in cpu/conv.cpp):
//   forward          y[k, (n,i,j)]     = w[k, (c,r,s)]     patches[(c,r,s), (n,i,j)]
//   backward data    dx[c, (n,h,w)]    = w[(k,r,s), c]^T   reached[(k,r,s), (n,h,w)]
//   backward weight  dw[k, (c,r,s)]    = dy[k, (n,i,j)]    patches[(c,r,s), (n,i,j)]^T
// A block makes a tile of 64 x 64, a thread 4 x 4 of it. The weight gradient has few tiles and a long sum: it is cut
// into slices, which a second kernel adds in their order.

namespace apex::kernels::cuda::direct {
namespace {

constexpr int kThreads = 256, kTile = 64, kDepth = 16, kMicro = 4;

enum class Pass { forward, data, weight };

struct Strides {
  std::int64_t v[4];
  explicit Strides(const Dims& d) : v{d[0], d[1], d[2], d[3]} {}
};

/// Sizes and strides; c and k per group.
struct Geometry {
  std::int64_t n, c, h, w, k, r, s, i, j;
  Strides xs, ws, ys;
  std::int64_t stride_h, stride_w, pad_h, pad_w, dil_h, dil_w;
  std::int64_t groups;
  std::int64_t rows = 0, cols = 0, depth = 0;  // of the product
  std::int64_t row_tiles = 0, col_tiles = 0, slices = 1, slice = 0;

  Geometry(const ConstView& x, const ConstView& weight, const ConstView& y, const Conv2dOptions& o)
      : n(x.size(0)),
        c(weight.size(1)),
        h(x.size(2)),
        w(x.size(3)),
        k(weight.size(0) / o.groups),
        r(weight.size(2)),
        s(weight.size(3)),
        i(y.size(2)),
        j(y.size(3)),
        xs(x.strides),
        ws(weight.strides),
        ys(y.strides),
        stride_h(o.stride[0]),
        stride_w(o.stride[1]),
        pad_h(o.padding[0]),
        pad_w(o.padding[1]),
        dil_h(o.dilation[0]),
        dil_w(o.dilation[1]),
        groups(o.groups) {}

  std::int64_t blocks() const { return row_tiles * col_tiles * groups * slices; }
};

/// flat = (a * b_count + b) * c_count + c
struct Index3 {
  std::int64_t a, b, c;
  __device__ Index3(std::int64_t flat, std::int64_t b_count, std::int64_t c_count) {
    const std::int64_t rest = flat / c_count;
    c = flat - rest * c_count;
    a = rest / b_count;
    b = rest - a * b_count;
  }
};

/// x under window element (r, s) of output pixel (i, j), 0 in the padding.
template <class N>
__device__ compute_t<N> patch(const N* image, const Geometry& g, std::int64_t i, std::int64_t j, std::int64_t r,
                              std::int64_t s) {
  const std::int64_t down = i * g.stride_h - g.pad_h + r * g.dil_h, right = j * g.stride_w - g.pad_w + s * g.dil_w;
  if (down < 0 || down >= g.h || right < 0 || right >= g.w) return 0;
  return load(image[down * g.xs.v[2] + right * g.xs.v[3]]);
}

/// dy of the output whose window element (r, s) lies on input pixel (h, w), 0 where there is none.
template <class N>
__device__ compute_t<N> reached(const N* image, const Geometry& g, std::int64_t h, std::int64_t w, std::int64_t r,
                                std::int64_t s) {
  const std::int64_t down = h + g.pad_h - r * g.dil_h, right = w + g.pad_w - s * g.dil_w;
  if (down < 0 || right < 0) return 0;
  const std::int64_t i = down / g.stride_h, j = right / g.stride_w;
  if (i * g.stride_h != down || j * g.stride_w != right || i >= g.i || j >= g.j) return 0;
  return load(image[i * g.ys.v[2] + j * g.ys.v[3]]);
}

template <class N, class A>
struct Operands {
  const N* x;  // what a pass writes stays null here
  const N* w;
  const N* dy;
  const N* bias;
  N* out;
  A* partial;  // [slices, groups, rows, cols], or null
};

template <Pass P, class N, class A>
__global__ void __launch_bounds__(kThreads) product(const Geometry g, const Operands<N, A> in) {
  __shared__ A left[kDepth][kTile + 1], right[kDepth][kTile + 1];
  std::int64_t block = blockIdx.x;
  const std::int64_t col_tile = block % g.col_tiles;
  block /= g.col_tiles;
  const std::int64_t row_tile = block % g.row_tiles;
  block /= g.row_tiles;
  const std::int64_t group = block % g.groups, slice = block / g.groups;

  const std::int64_t row0 = row_tile * kTile, col0 = col_tile * kTile;
  const std::int64_t from = slice * g.slice, to = from + g.slice < g.depth ? from + g.slice : g.depth;
  const std::int64_t x_group = group * g.c * g.xs.v[1], w_group = group * g.k * g.ws.v[0],
                     y_group = group * g.k * g.ys.v[1];
  const int tid = static_cast<int>(threadIdx.x);
  const int deep = tid % kDepth, wide = tid / kDepth;        // neighbours along the sum
  const int pixel_col = tid % kTile, pixel_k = tid / kTile;  // neighbours along the columns

  A sum[kMicro][kMicro] = {};
  for (std::int64_t k0 = from; k0 < to; k0 += kDepth) {
    const std::int64_t kd = k0 + deep;
    if constexpr (P == Pass::weight) {
      const bool inside = kd < to;
      const Index3 pixel(inside ? kd : 0, g.i, g.j);
      const N* gradient = in.dy + y_group + pixel.a * g.ys.v[0] + pixel.b * g.ys.v[2] + pixel.c * g.ys.v[3];
      const N* image = in.x + x_group + pixel.a * g.xs.v[0];
#pragma unroll
      for (int q = 0; q < kMicro; ++q) {
        const int at = wide + q * (kThreads / kDepth);
        const std::int64_t row = row0 + at, col = col0 + at;
        left[deep][at] = inside && row < g.rows ? load(gradient[row * g.ys.v[1]]) : A(0);
        A value = 0;
        if (inside && col < g.cols) {
          const Index3 tap(col, g.r, g.s);
          value = patch(image + tap.a * g.xs.v[1], g, pixel.b, pixel.c, tap.b, tap.c);
        }
        right[deep][at] = value;
      }
    } else {
      const Index3 tap(kd < to ? kd : 0, g.r, g.s);
      const N* weights =
          in.w + w_group + tap.a * g.ws.v[P == Pass::forward ? 1 : 0] + tap.b * g.ws.v[2] + tap.c * g.ws.v[3];
#pragma unroll
      for (int q = 0; q < kMicro; ++q) {
        const int at = wide + q * (kThreads / kDepth);
        const std::int64_t row = row0 + at;
        left[deep][at] = kd < to && row < g.rows ? load(weights[row * g.ws.v[P == Pass::forward ? 0 : 1]]) : A(0);
      }
      const std::int64_t col = col0 + pixel_col;
      const Index3 pixel(col < g.cols ? col : 0, P == Pass::forward ? g.i : g.h, P == Pass::forward ? g.j : g.w);
#pragma unroll
      for (int q = 0; q < kMicro; ++q) {
        const int at = pixel_k + q * (kThreads / kTile);
        const std::int64_t kk = k0 + at;
        A value = 0;
        if (kk < to && col < g.cols) {
          const Index3 t(kk, g.r, g.s);
          if constexpr (P == Pass::forward)
            value = patch(in.x + x_group + pixel.a * g.xs.v[0] + t.a * g.xs.v[1], g, pixel.b, pixel.c, t.b, t.c);
          else
            value = reached(in.dy + y_group + pixel.a * g.ys.v[0] + t.a * g.ys.v[1], g, pixel.b, pixel.c, t.b, t.c);
        }
        right[at][pixel_col] = value;
      }
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      A a[kMicro], b[kMicro];
#pragma unroll
      for (int q = 0; q < kMicro; ++q) {
        a[q] = left[d][tid / 16 + q * 16];
        b[q] = right[d][tid % 16 + q * 16];
      }
#pragma unroll
      for (int p = 0; p < kMicro; ++p)
#pragma unroll
        for (int q = 0; q < kMicro; ++q) sum[p][q] += a[p] * b[q];
    }
    __syncthreads();
  }

#pragma unroll
  for (int q = 0; q < kMicro; ++q) {
    const std::int64_t col = col0 + tid % 16 + q * 16;
    if (col >= g.cols) continue;
    const Index3 at(col,
                    P == Pass::forward ? g.i
                    : P == Pass::data  ? g.h
                                       : g.r,
                    P == Pass::forward ? g.j
                    : P == Pass::data  ? g.w
                                       : g.s);
#pragma unroll
    for (int p = 0; p < kMicro; ++p) {
      const std::int64_t row = row0 + tid / 16 + p * 16;
      if (row >= g.rows) continue;
      if constexpr (P == Pass::forward) {
        const A bias = in.bias == nullptr ? A(0) : load(in.bias[group * g.k + row]);
        in.out[y_group + at.a * g.ys.v[0] + row * g.ys.v[1] + at.b * g.ys.v[2] + at.c * g.ys.v[3]] =
            store<N>(sum[p][q] + bias);
      } else if constexpr (P == Pass::data) {
        const A bias = in.bias == nullptr ? A(0) : load(in.bias[group * g.c + row]);
        in.out[x_group + at.a * g.xs.v[0] + row * g.xs.v[1] + at.b * g.xs.v[2] + at.c * g.xs.v[3]] =
            store<N>(sum[p][q] + bias);
      } else if (in.partial != nullptr) {
        in.partial[((slice * g.groups + group) * g.rows + row) * g.cols + col] = sum[p][q];
      } else {
        in.out[w_group + row * g.ws.v[0] + at.a * g.ws.v[1] + at.b * g.ws.v[2] + at.c * g.ws.v[3]] =
            store<N>(sum[p][q]);
      }
    }
  }
}

template <class N, class A>
__global__ void __launch_bounds__(kThreads) add_slices(const Geometry g, N* dw, const A* partial) {
  const std::int64_t count = g.groups * g.rows * g.cols;
  for (std::int64_t at = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; at < count;
       at += std::int64_t{gridDim.x} * kThreads) {
    A sum = 0;
    for (std::int64_t slice = 0; slice < g.slices; ++slice) sum += partial[slice * count + at];
    const std::int64_t k = at / g.cols;  // over all groups
    const Index3 tap(at - k * g.cols, g.r, g.s);
    dw[k * g.ws.v[0] + tap.a * g.ws.v[1] + tap.b * g.ws.v[2] + tap.c * g.ws.v[3]] = store<N>(sum);
  }
}

void cut(Geometry& g, std::int64_t rows, std::int64_t cols, std::int64_t depth) {
  g.rows = rows;
  g.cols = cols;
  g.depth = g.slice = depth;
  g.row_tiles = ceil_div(rows, kTile);
  g.col_tiles = ceil_div(cols, kTile);
}

template <Pass P, class N>
void launch(const Context& ctx, const Geometry& g, const Operands<N, compute_t<N>>& in) {
  if (g.blocks() > 0x7fffffff) fail(Kind::unsupported, "conv2d: the tensors are too large for this kernel");
  product<P, N, compute_t<N>><<<static_cast<unsigned>(g.blocks()), kThreads, 0, stream_of(ctx)>>>(g, in);
  check_launch("conv2d");
}

}  // namespace

void forward(const Context& ctx, View y, ConstView x, ConstView w, ConstView bias, const Conv2dOptions& options) {
  Geometry g(x, w, y, options);
  cut(g, g.k, g.n * g.i * g.j, g.c * g.r * g.s);
  visit_floating(x.dtype, "conv2d", [&]<class T>() {
    using N = native_t<T>;
    launch<Pass::forward, N>(ctx, g,
                             {.x = x.as<N>(),
                              .w = w.as<N>(),
                              .dy = nullptr,
                              .bias = bias.defined() ? bias.as<N>() : nullptr,
                              .out = y.as<N>(),
                              .partial = nullptr});
  });
}

void backward_data(const Context& ctx, View dx, ConstView dy, ConstView w, ConstView bias,
                   const Conv2dOptions& options) {
  Geometry g(dx, w, dy, options);
  cut(g, g.c, g.n * g.h * g.w, g.k * g.r * g.s);
  visit_floating(dx.dtype, "conv2d_backward", [&]<class T>() {
    using N = native_t<T>;
    launch<Pass::data, N>(ctx, g,
                          {.x = nullptr,
                           .w = w.as<N>(),
                           .dy = dy.as<N>(),
                           .bias = bias.defined() ? bias.as<N>() : nullptr,
                           .out = dx.as<N>(),
                           .partial = nullptr});
  });
}

void backward_weight(const Context& ctx, View dw, ConstView dy, ConstView x, const Conv2dOptions& options) {
  Geometry g(x, dw, dy, options);
  cut(g, g.k, g.c * g.r * g.s, g.n * g.i * g.j);
  // About 1024 blocks, at least 512 terms each: by sizes only, so that any device adds in the same order.
  const std::int64_t tiles = g.row_tiles * g.col_tiles * g.groups;
  const std::int64_t wanted = std::clamp<std::int64_t>(1024 / tiles, 1, std::max<std::int64_t>(g.depth / 512, 1));
  g.slice = ceil_div(ceil_div(g.depth, wanted), kDepth) * kDepth;
  g.slices = ceil_div(g.depth, g.slice);
  visit_floating(dw.dtype, "conv2d_backward", [&]<class T>() {
    using N = native_t<T>;
    using A = compute_t<N>;
    const std::int64_t count = g.groups * g.rows * g.cols;
    const Workspace partial = ctx.workspace(g.slices > 1 ? static_cast<std::size_t>(g.slices * count) * sizeof(A) : 0);
    launch<Pass::weight, N>(ctx, g,
                            {.x = x.as<N>(),
                             .w = nullptr,
                             .dy = dy.as<N>(),
                             .bias = nullptr,
                             .out = dw.as<N>(),
                             .partial = g.slices > 1 ? partial.as<A>() : nullptr});
    if (g.slices == 1) return;
    add_slices<N, A><<<grid_for(count, kThreads), kThreads, 0, stream_of(ctx)>>>(g, dw.as<N>(), partial.as<A>());
    check_launch("conv2d");
  });
}

}  // namespace apex::kernels::cuda::direct
