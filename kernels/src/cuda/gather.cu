// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <cstring>

#include "../copy_impl.hpp"
#include "../indexing_impl.hpp"
#include "index_access.cuh"

namespace apex::kernels::cuda {
namespace {

/// The bytes of an element that stands for a wrong index: NaN, or 0 where there is none. Hosts of GPUs are
/// little-endian.
std::uint64_t fault_bits(DType dtype) {
  std::uint64_t bits = 0;
  if (is_floating(dtype))
    visit_floating(dtype, "gather", [&]<class T>() {
      const auto element = convert<native_t<T>>(std::numeric_limits<double>::quiet_NaN());
      std::memcpy(&bits, &element, sizeof(element));
    });
  return bits;
}

/// `index` counts packs of V elements: operands out, index, x without its dimension `dim`.
template <int V, class U>
__global__ void __launch_bounds__(kMapThreads)
    gather_kernel(U* out, const Indices indices, const U* x, const Index<3> index, std::int64_t size,
                  std::int64_t stride, U fault) {
  const std::int64_t p = std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (p >= index.numel) return;
  const auto at = index.at(p);
  const std::int64_t i = indices.at(at.v[1]);
  Pack<U, V> pack;
  if (i >= 0 && i < size) {
    pack = *reinterpret_cast<const Pack<U, V>*>(x + at.v[2] + i * stride);
  } else {
#pragma unroll
    for (int v = 0; v < V; ++v) pack.v[v] = fault;
  }
  *reinterpret_cast<Pack<U, V>*>(out + at.v[0]) = pack;
}

template <class U>
__global__ void __launch_bounds__(kMapThreads)
    one_hot_kernel(U* out, const Indices labels, const Index<2> index, std::int64_t classes, std::int64_t stride, U one,
                   U fault) {
  const std::int64_t p = std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (p >= index.numel) return;
  const auto at = index.at(p);
  const std::int64_t label = labels.at(at.v[1]);
  U* row = out + at.v[0];
  if (label >= 0 && label < classes)
    row[label * stride] = one;
  else
    for (std::int64_t c = 0; c < classes; ++c) row[c * stride] = fault;
}

unsigned blocks_of(std::int64_t n) { return static_cast<unsigned>(ceil_div(n, kMapThreads)); }

}  // namespace

void gather(const Context& ctx, View out, ConstView x, ConstView index, int dim, const IndexSource& source) {
  if (out.numel() == 0) return;
  check_indices(ctx, {source.op, "index", x.sizes[dim]}, source.given.defined() ? source.given : index);
  const auto space = make_index<3>(out.sizes, {out.strides, index.strides, without(x.strides, dim)});
  const Indices indices(index);
  const std::int64_t size = x.sizes[dim], stride = x.strides[dim];
  const std::uint64_t fault = fault_bits(x.dtype);
  visit_width(x.dtype, [&]<class U>() {
    constexpr int V = kVector<U>;
    auto* to = static_cast<U*>(out.data);
    const auto* from = static_cast<const U*>(x.data);
    // Packs where an index is for a whole row: the rows of an embedding.
    const bool rows = space.stride[1][0] == 0 && space.size[0] % V == 0 && stride % V == 0 && space.stride[0][0] == 1 &&
                      space.stride[2][0] == 1 &&
                      packs<3>(space, V, {to, index.data, from}, {sizeof(U), size_of(index.dtype), sizeof(U)});
    if (rows) {
      const auto groups = packed(space, V);
      gather_kernel<V><<<blocks_of(groups.numel), kMapThreads, 0, stream_of(ctx)>>>(to, indices, from, groups, size,
                                                                                    stride, static_cast<U>(fault));
    } else {
      gather_kernel<1><<<blocks_of(space.numel), kMapThreads, 0, stream_of(ctx)>>>(to, indices, from, space, size,
                                                                                   stride, static_cast<U>(fault));
    }
  });
  check_launch("gather");
}

void one_hot(const Context& ctx, View out, ConstView labels) {
  if (out.numel() == 0) return;
  const int last = out.rank() - 1;
  check_indices(ctx, {"one_hot", "label", out.sizes[last]}, labels);
  fill(ctx, out, 0.0);
  Dims sizes = out.sizes, under = labels.strides;
  sizes[last] = 1;
  under.push_back(0);
  const auto space = make_index<2>(sizes, {out.strides, under});
  std::uint64_t one = 0;
  visit_any(out.dtype, "one_hot", [&]<class T>() {
    const auto element = convert<native_t<T>>(1.0);
    std::memcpy(&one, &element, sizeof(element));
  });
  visit_width(out.dtype, [&]<class U>() {
    one_hot_kernel<<<blocks_of(space.numel), kMapThreads, 0, stream_of(ctx)>>>(
        static_cast<U*>(out.data), Indices(labels), space, out.sizes[last], out.strides[last], static_cast<U>(one),
        static_cast<U>(fault_bits(out.dtype)));
  });
  check_launch("one_hot");
}

}  // namespace apex::kernels::cuda
