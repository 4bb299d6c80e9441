// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../batch_norm_impl.hpp"

#include <initializer_list>

#include "batch_norm_passes.cuh"

// Forward is three launches: statistics of blocks, their merge, the affine pass. Backward alike: sums of blocks, their
// merge, dx. The passes over the tensor are in batch_norm_kernels.cuh, one file an element type.

namespace apex::kernels::cuda {
namespace {

using namespace batch_norm;

// Blocks of the passes: as many as the multiprocessors of an H200 hold at once. Those of a sum are fixed, so that its
// order does not depend on the device; the others follow the device.
constexpr std::int64_t kStatisticsBlocks = 132 * 2, kSumBlocks = 132 * 2;

struct Layout {
  std::int64_t n, c, inner = 1;
  bool rows;

  explicit Layout(const ConstView& x) : n(x.size(0)), c(x.size(1)) {
    for (int d = 2; d < x.rank(); ++d) inner *= x.sizes[d];
    rows = inner == 1 || !x.is_contiguous();
  }
  std::int64_t values_per_channel() const { return n * inner; }
};

/// How a pass over these tensors (null: not there) goes with about `blocks` blocks.
Walk walk_for(const ConstView& x, std::initializer_list<const void*> tensors, std::int64_t blocks) {
  const Layout l(x);
  Walk w;
  const int wide = static_cast<int>(16 / size_of(x.dtype));
  bool aligned = (l.rows ? l.c : l.inner) % wide == 0;
  for (const void* t : tensors) aligned = aligned && aligned_to(t, 16);
  w.vector = aligned ? wide : 1;
  w.c = l.c;
  w.rows = l.rows;
  w.past_cache = past_cache(x.numel() * static_cast<std::int64_t>(size_of(x.dtype)));
  if (l.rows) {
    const std::int64_t vectors = l.c / w.vector;
    w.items = l.n * l.inner;
    w.columns = 32;
    while (w.columns > 1 && w.columns / 2 >= vectors) w.columns /= 2;  // no wider than there are channels
    while (w.columns > 8 && ceil_div(vectors, w.columns) * w.columns - vectors > vectors / 8) w.columns /= 2;
    w.tiles = static_cast<unsigned>(ceil_div(vectors, w.columns));
  } else {
    w.line = l.inner / w.vector;
    w.items = l.n * w.line;
    w.columns = 1;
    w.tiles = static_cast<unsigned>(l.c);
  }
  w.groups = std::clamp<std::int64_t>(blocks / std::max<std::int64_t>(w.tiles, 1), 1,
                                      std::max<std::int64_t>(ceil_div(w.items, w.block_rows() * 4), 1));
  return w;
}

std::size_t partial_bytes(const Walk& w) { return static_cast<std::size_t>(w.groups * w.c) * sizeof(double2); }

/// A [C] view of any floating type on the device.
struct Slot {
  void* data = nullptr;  // null: not given
  DType dtype = DType::f32;

  Slot() = default;
  explicit Slot(const View& v) : data(v.defined() ? v.data : nullptr), dtype(v.dtype) {}
  explicit Slot(const ConstView& v) : data(v.defined() ? const_cast<void*>(v.data) : nullptr), dtype(v.dtype) {}

  __device__ double get(std::int64_t i) const {
    switch (dtype) {
      case DType::f64: return static_cast<const double*>(data)[i];
      case DType::f32: return static_cast<double>(static_cast<const float*>(data)[i]);
      case DType::f16: return static_cast<double>(load(static_cast<const __half*>(data)[i]));
      default: return static_cast<double>(load(static_cast<const __nv_bfloat16*>(data)[i]));
    }
  }
  __device__ void set(std::int64_t i, double value) const {
    switch (dtype) {
      case DType::f64: static_cast<double*>(data)[i] = value; return;
      case DType::f32: static_cast<float*>(data)[i] = static_cast<float>(value); return;
      case DType::f16: static_cast<__half*>(data)[i] = store<__half>(value); return;
      default: static_cast<__nv_bfloat16*>(data)[i] = store<__nv_bfloat16>(value);
    }
  }
};

/// Where statistics go, and how the running ones move.
struct Finish {
  Slot mean, var, inv_std, running_mean, running_var;
  std::int64_t* batches = nullptr;
  bool cumulative = false;  // then every channel reads the count, and it is raised by a kernel of its own
  double n = 0, momentum = 0, eps = 0;

  /// The statistics of a channel, already rounded to the accumulation type.
  __device__ void publish(std::int64_t c, double m, double v) const {
    if (inv_std.data != nullptr) inv_std.set(c, 1.0 / sqrt(v + eps));
    if (running_mean.data == nullptr) return;
    const double unbiased = n > 1 ? n / (n - 1) : 1.0;
    const double by = cumulative ? 1.0 / (static_cast<double>(*batches) + 1.0) : momentum;
    running_mean.set(c, (1 - by) * running_mean.get(c) + by * m);
    running_var.set(c, (1 - by) * running_var.get(c) + by * v * unbiased);
  }
};

constexpr int kColumns = 32, kParts = 32;

/// The sum of both values over the parts of the block, for part 0.
__device__ double2 sum_parts(double2 value) {
  __shared__ double2 sums[kParts][kColumns];
  sums[threadIdx.y][threadIdx.x] = value;
  for (unsigned half = kParts / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y < half) {
      const double2 other = sums[threadIdx.y + half][threadIdx.x];
      value.x += other.x;
      value.y += other.y;
      sums[threadIdx.y][threadIdx.x] = value;
    }
  }
  return value;
}

/// Merges (count, mean, M2) of all groups, in f64 and about the first group's mean.
template <class A>
__global__ void __launch_bounds__(kColumns* kParts)
    finish_statistics(const double2* partial, const Walk w, const std::int64_t groups, const Finish out) {
  const std::int64_t c = std::int64_t{blockIdx.x} * kColumns + threadIdx.x;
  const bool active = c < w.c && groups > 0;
  const double pivot = active ? partial[c].x : 0.0;
  double2 sums = make_double2(0, 0);
  if (active) {
#pragma unroll 4
    for (std::int64_t g = threadIdx.y; g < groups; g += kParts) {
      const double2 p = partial[g * w.c + c];
      const double count = static_cast<double>(w.values_of_group(g)), d = p.x - pivot;
      sums.x += count * d;
      sums.y += p.y + count * d * d;
    }
  }
  sums = sum_parts(sums);
  if (threadIdx.y != 0 || c >= w.c) return;
  const double off = active ? sums.x / out.n : 0.0;
  const double squares = active ? sums.y - sums.x * off : 0.0;
  const double m = static_cast<double>(static_cast<A>(pivot + off));
  const double v = active ? static_cast<double>(static_cast<A>((squares < 0 ? 0.0 : squares) / out.n)) : 0.0;
  if (out.mean.data != nullptr) out.mean.set(c, m);
  if (out.var.data != nullptr) out.var.set(c, v);
  out.publish(c, m, v);
  if (c == 0 && out.batches != nullptr && !out.cumulative) ++*out.batches;
}

__global__ void publish_statistics(const Slot mean, const Slot var, const Finish out, const std::int64_t channels) {
  const std::int64_t c = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c < channels) out.publish(c, mean.get(c), var.get(c));
}

/// Adds one where no channel can do it on the way.
__global__ void count_batch(std::int64_t* batches) { ++*batches; }

struct ParameterGradients {
  Slot sum_dy, sum_dy_xmu, dweight, dbias, spread;
  bool spread_is_variance = false;
  double eps = 0;
};

__global__ void __launch_bounds__(kColumns* kParts)
    finish_backward(const double2* partial, const std::int64_t groups, const std::int64_t channels,
                    const ParameterGradients out) {
  const std::int64_t c = std::int64_t{blockIdx.x} * kColumns + threadIdx.x;
  double2 sums = make_double2(0, 0);
  if (c < channels) {
#pragma unroll 4
    for (std::int64_t g = threadIdx.y; g < groups; g += kParts) {
      const double2 p = partial[g * channels + c];
      sums.x += p.x;
      sums.y += p.y;
    }
  }
  sums = sum_parts(sums);
  if (threadIdx.y != 0 || c >= channels) return;
  if (out.sum_dy.data != nullptr) {
    out.sum_dy.set(c, sums.x);
    out.sum_dy_xmu.set(c, sums.y);
  }
  if (out.dweight.data != nullptr) {
    const double spread = out.spread.get(c);
    out.dweight.set(c, sums.y * (out.spread_is_variance ? 1.0 / sqrt(spread + out.eps) : spread));
  }
  if (out.dbias.data != nullptr) out.dbias.set(c, sums.x);
}

unsigned finish_blocks(std::int64_t channels) { return static_cast<unsigned>(ceil_div(channels, kColumns)); }

/// Statistics of x through to where `out` says.
void run_statistics(const Context& ctx, const ConstView& x, Finish out) {
  const auto stream = stream_of(ctx);
  const Layout l(x);
  out.n = static_cast<double>(l.values_per_channel());
  if (l.c == 0) {
    if (out.batches != nullptr) count_batch<<<1, 1, 0, stream>>>(out.batches);
    return check_launch("batch_norm");
  }
  const Walk w = walk_for(x, {x.data}, kStatisticsBlocks);
  const std::int64_t groups = w.items > 0 ? w.groups : 0;
  const Workspace memory = ctx.workspace(partial_bytes(w));
  visit_floating(x.dtype, "batch_norm", [&]<class T>() {
    if (groups > 0) Passes<T>::statistics(stream, w, memory.as<double2>(), x.data);
    finish_statistics<accum_t<T>>
        <<<finish_blocks(w.c), dim3(kColumns, kParts), 0, stream>>>(memory.as<double2>(), w, groups, out);
  });
  if (out.cumulative) count_batch<<<1, 1, 0, stream>>>(out.batches);
  check_launch("batch_norm");
}

Affine affine_of(const ConstView& mean, const ConstView& inv_std, const ConstView& weight, const ConstView& bias) {
  return {Vector(mean), Vector(inv_std), Vector(weight), Vector(bias)};
}
Affine affine_of_running(const ConstView& mean, const ConstView& var, const ConstView& weight, const ConstView& bias,
                         double eps) {
  Affine a = affine_of(mean, var, weight, bias);
  a.spread_is_variance = true;
  a.eps = eps;
  return a;
}

void run_apply(const Context& ctx, const View& y, const ConstView& x, const ConstView& residual, const Affine& affine,
               bool relu) {
  if (x.numel() == 0) return;
  const void* add = residual.defined() ? residual.data : nullptr;
  const Walk w = walk_for(x, {x.data, y.data, add}, std::int64_t{multiprocessors()} * 2);
  visit_floating(x.dtype, "batch_norm",
                 [&]<class T>() { Passes<T>::apply(stream_of(ctx), w, y.data, x.data, add, affine, relu); });
}

Gradient gradient_of(bool relu, const ConstView& dy, const ConstView& y, const ConstView& x) {
  const Mask mask = !relu ? Mask::none : y.defined() ? Mask::from_output : Mask::from_input;
  return {mask, dy.data, mask == Mask::from_output ? y.data : nullptr, x.data};
}

/// The sums of the masked gradient, what follows from them, and dresidual and constant_dx on the way.
void run_backward_sums(const Context& ctx, const ConstView& x, const Gradient& g, const Affine& affine,
                       const View& dresidual, const View& constant_dx, const ParameterGradients& out) {
  const auto stream = stream_of(ctx);
  if (x.size(1) == 0) return;
  void* masked = dresidual.defined() ? dresidual.data : nullptr;
  if (masked == g.dy && g.mask == Mask::none) masked = nullptr;  // it is there already
  void* dx = constant_dx.defined() ? constant_dx.data : nullptr;
  const Walk w = walk_for(x, {g.dy, g.more_dy, g.y, g.x, masked, dx}, kSumBlocks);
  const std::int64_t groups = w.items > 0 ? w.groups : 0;
  const Workspace memory = ctx.workspace(partial_bytes(w));
  if (groups > 0)
    visit_floating(x.dtype, "batch_norm_backward", [&]<class T>() {
      Passes<T>::backward_sums(stream, w, memory.as<double2>(), masked, dx, g, affine);
    });
  finish_backward<<<finish_blocks(w.c), dim3(kColumns, kParts), 0, stream>>>(memory.as<double2>(), groups, w.c, out);
  check_launch("batch_norm_backward");
}

void run_backward_apply(const Context& ctx, const View& dx, const ConstView& x, const Gradient& g, const Affine& affine,
                        const void* sum_dy, const void* sum_dy_xmu, double n) {
  if (x.numel() == 0) return;
  const Walk w = walk_for(x, {g.dy, g.y, g.x, dx.data}, std::int64_t{multiprocessors()} * 2);
  visit_floating(x.dtype, "batch_norm_backward", [&]<class T>() {
    Passes<T>::backward_apply(stream_of(ctx), w, dx.data, g, affine, sum_dy, sum_dy_xmu, n);
  });
}

}  // namespace

void batch_norm_statistics(const Context& ctx, View mean, View var, ConstView x) {
  Finish out;
  out.mean = Slot(mean);
  out.var = Slot(var);
  run_statistics(ctx, x, out);
}

void batch_norm_finish_statistics(const Context& ctx, View inv_std, View running_mean, View running_var, ConstView mean,
                                  ConstView var, double n, double momentum, double eps) {
  const std::int64_t c = mean.size(0);
  if (c == 0) return;
  Finish out;
  out.inv_std = Slot(inv_std);
  out.running_mean = Slot(running_mean);
  out.running_var = Slot(running_var);
  out.n = n;
  out.momentum = momentum;
  out.eps = eps;
  publish_statistics<<<static_cast<unsigned>(ceil_div(c, 256)), 256, 0, stream_of(ctx)>>>(Slot(mean), Slot(var), out,
                                                                                          c);
  check_launch("batch_norm");
}

void batch_norm_apply(const Context& ctx, View y, ConstView x, ConstView mean, ConstView inv_std, ConstView weight,
                      ConstView bias, ConstView residual, bool relu) {
  run_apply(ctx, y, x, residual, affine_of(mean, inv_std, weight, bias), relu);
}

void batch_norm_forward(const Context& ctx, View y, View mean, View inv_std, View running_mean, View running_var,
                        ConstView x, ConstView weight, ConstView bias, ConstView residual, double momentum,
                        const BatchNormOptions& options) {
  Finish out;
  out.mean = Slot(mean);
  out.inv_std = Slot(inv_std);
  if (Layout(x).values_per_channel() > 0) {
    out.running_mean = Slot(running_mean);
    out.running_var = Slot(running_var);
    if (options.batches_tracked.defined()) out.batches = options.batches_tracked.as<std::int64_t>();
    out.cumulative = options.cumulative;
  }
  out.momentum = momentum;
  out.eps = options.eps;
  run_statistics(ctx, x, out);
  run_apply(ctx, y, x, residual, affine_of(mean, inv_std, weight, bias), options.relu);
}

void batch_norm_inference(const Context& ctx, View y, ConstView x, ConstView running_mean, ConstView running_var,
                          ConstView weight, ConstView bias, ConstView residual, const BatchNormOptions& options) {
  run_apply(ctx, y, x, residual, affine_of_running(running_mean, running_var, weight, bias, options.eps), options.relu);
}

void batch_norm_backward(const Context& ctx, View dx, View dresidual, View dweight, View dbias, ConstView dy,
                         ConstView y, ConstView x, ConstView weight, ConstView bias, ConstView mean, ConstView inv_std,
                         const BatchNormOptions& options) {
  const std::int64_t c = x.size(1);
  const DType dtype = accum_dtype(x.dtype);
  const Affine affine = affine_of(mean, inv_std, weight, bias);
  const std::size_t bytes = static_cast<std::size_t>(c) * size_of(dtype);
  const Workspace memory = ctx.workspace(2 * bytes);
  ParameterGradients out{.dweight = Slot(dweight), .dbias = Slot(dbias), .spread = Slot(inv_std)};
  out.sum_dy.dtype = out.sum_dy_xmu.dtype = dtype;
  out.sum_dy.data = memory.data();
  out.sum_dy_xmu.data = memory.as<char>() + bytes;
  Gradient given = gradient_of(options.relu, dy, y, x);
  if (options.more_dy.defined()) {  // the front has seen to it that there are an output and a dresidual
    given.mask = Mask::two_terms;
    given.more_dy = options.more_dy.data;
  }
  run_backward_sums(ctx, x, given, affine, dresidual, {}, out);
  if (!dx.defined()) return;
  const double n = static_cast<double>(Layout(x).values_per_channel());
  // dresidual is the masked gradient already: one tensor less to read.
  const Gradient g = dresidual.defined() ? gradient_of(false, dresidual, {}, x) : gradient_of(options.relu, dy, y, x);
  run_backward_apply(ctx, dx, x, g, affine, out.sum_dy.data, out.sum_dy_xmu.data, n);
}

void batch_norm_inference_backward(const Context& ctx, View dx, View dresidual, View dweight, View dbias, ConstView dy,
                                   ConstView y, ConstView x, ConstView weight, ConstView bias, ConstView running_mean,
                                   ConstView running_var, const BatchNormOptions& options) {
  const Affine affine = affine_of_running(running_mean, running_var, weight, bias, options.eps);
  const ParameterGradients out{.dweight = Slot(dweight),
                               .dbias = Slot(dbias),
                               .spread = Slot(running_var),
                               .spread_is_variance = true,
                               .eps = options.eps};
  run_backward_sums(ctx, x, gradient_of(options.relu, dy, y, x), affine, dresidual, dx, out);
}

void batch_norm_backward_reduce(const Context& ctx, View sum_dy, View sum_dy_xmu, View dresidual, ConstView dy,
                                ConstView y, ConstView x, ConstView weight, ConstView bias, ConstView mean,
                                ConstView inv_std, bool relu) {
  const ParameterGradients out{.sum_dy = Slot(sum_dy), .sum_dy_xmu = Slot(sum_dy_xmu)};
  run_backward_sums(ctx, x, gradient_of(relu, dy, y, x), affine_of(mean, inv_std, weight, bias), dresidual, {}, out);
}

void batch_norm_backward_apply(const Context& ctx, View dx, ConstView dy, ConstView y, ConstView x, ConstView weight,
                               ConstView bias, ConstView mean, ConstView inv_std, ConstView sum_dy,
                               ConstView sum_dy_xmu, double n, bool relu) {
  run_backward_apply(ctx, dx, x, gradient_of(relu, dy, y, x), affine_of(mean, inv_std, weight, bias), sum_dy.data,
                     sum_dy_xmu.data, n);
}

}  // namespace apex::kernels::cuda
