// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "../copy_impl.hpp"
#include "apex/core/cuda.hpp"

namespace apex::kernels::cuda {
namespace {

std::size_t bytes_of(const ConstView& v) { return static_cast<std::size_t>(v.numel()) * size_of(v.dtype); }

bool equal_strides(const ConstView& a, const ConstView& b) {
  for (int d = 0; d < a.rank(); ++d)
    if (a.sizes[d] != 1 && a.strides[d] != b.strides[d]) return false;
  return true;
}

/// The context of `device` in a transfer queued on ctx.
Context side(const Context& ctx, Device device) {
  if (ctx.device == device) {
    if (device.is_cuda()) apex::cuda::set_device(device.index);
    return ctx;
  }
  return Context::current(device);
}

void order(const Context& before, const Context& after) {
  if (before.device.is_cuda() && after.device.is_cuda()) apex::cuda::order(before, after);
}

/// A dense block on ctx's device that holds what `like` holds, under the given strides.
View block(const Context& ctx, const ConstView& like, const Dims& strides, Workspace& memory) {
  memory = ctx.workspace(bytes_of(like));
  View v;
  v.data = memory.data();
  v.dtype = like.dtype;
  v.device = ctx.device;
  v.sizes = like.sizes;
  v.strides = strides;
  v.present = true;
  return v;
}

void copy_here(const Context& ctx, const View& dst, const ConstView& src) {
  if (ctx.device.is_cpu()) return cpu::copy(ctx, dst, src);
  apex::cuda::set_device(ctx.device.index);
  copy(ctx, dst, src);
}

}  // namespace

// Three steps, of which most transfers need the second alone: the source into the order of bytes that travels, the
// bytes, and these into the order of the destination. Laying out is done where it costs least: on the device if the
// other side is dense.
void transfer(const Context& ctx, View dst, ConstView src) {
  if (src.numel() == 0) return;
  const Context from = side(ctx, src.device), to = side(ctx, dst.device);
  const Context wire = ctx.device.is_cuda() ? side(ctx, ctx.device) : from.device.is_cuda() ? from : to;
  const bool dense_src = is_non_overlapping_and_dense(src.sizes, src.strides),
             dense_dst = is_non_overlapping_and_dense(dst.sizes, dst.strides);
  const bool direct = dense_src && dense_dst && equal_strides(src, dst);
  const Dims travels = dense_dst && (src.device.is_cuda() || !dense_src) ? dst.strides
                       : dense_src                                       ? src.strides
                                                                         : strides_for(src.sizes);
  Workspace near, far;
  ConstView sent = src;
  if (!direct && !(dense_src && travels == src.strides)) {
    const View laid_out = block(from, src, travels, near);
    copy_here(from, laid_out, src);
    sent = laid_out;
  }
  View received = dst;
  if (!direct && !(dense_dst && travels == dst.strides)) received = block(to, dst, travels, far);

  order(from, wire);
  order(to, wire);
  apex::cuda::set_device(wire.device.index);
  APEX_CHECK(cudaMemcpyAsync(received.data, sent.data, bytes_of(src), cudaMemcpyDefault, apex::cuda::stream_of(wire)));
  order(wire, from);
  order(wire, to);

  const bool laid_out_on_host = dst.device.is_cpu() && far.data() != nullptr;
  // Host scratch goes back to its pool at once; a CPU context is done when the call returns.
  const bool host_scratch = (src.device.is_cpu() && near.data() != nullptr) || laid_out_on_host;
  if (host_scratch || (ctx.device.is_cpu() && dst.device.is_cpu())) apex::cuda::synchronize(wire);
  if (far.data() != nullptr) copy_here(to, dst, received);
}

}  // namespace apex::kernels::cuda
