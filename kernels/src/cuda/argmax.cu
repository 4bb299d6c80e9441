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
