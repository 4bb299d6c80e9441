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

constexpr int kGatherPacks = 4;  // of a thread, on their way together
constexpr std::int64_t kNowhere = std::numeric_limits<std::int64_t>::min();

/// `index` counts packs of V elements: operands out, index, x without its dimension `dim`.
template <int V, class U>
__global__ void __launch_bounds__(kMapThreads)
    gather_kernel(U* out, const Indices indices, const U* x, const Index<3> index, std::int64_t size,
                  std::int64_t stride, U fault, bool past_cache) {
  const std::int64_t first = std::int64_t{blockIdx.x} * (kMapThreads * kGatherPacks) + threadIdx.x;
  std::int64_t to[kGatherPacks], from[kGatherPacks];
#pragma unroll
  for (int u = 0; u < kGatherPacks; ++u) {
    if (first + u * kMapThreads >= index.numel) continue;
    const auto at = index.at(first + u * kMapThreads);
    const std::int64_t i = indices.at(at.v[1]);
    to[u] = at.v[0];
    from[u] = i >= 0 && i < size ? at.v[2] + i * stride : kNowhere;
  }
  Pack<U, V> packs[kGatherPacks];
#pragma unroll
  for (int u = 0; u < kGatherPacks; ++u) {
    if (first + u * kMapThreads >= index.numel) continue;
    if (from[u] != kNowhere) {
      packs[u] = *reinterpret_cast<const Pack<U, V>*>(x + from[u]);
    } else {
#pragma unroll
      for (int v = 0; v < V; ++v) packs[u].v[v] = fault;
    }
  }
#pragma unroll
  for (int u = 0; u < kGatherPacks; ++u)
    if (first + u * kMapThreads < index.numel) put_pack(out + to[u], packs[u], past_cache);
}

constexpr std::int64_t kMostRowBytes = 32 << 10;  // of x in the shared memory of a block
constexpr int kRowThreads = 256;

/// Elements side by side that have their indices in 16 bytes.
template <class I>
inline constexpr int kIndexPack = 16 / static_cast<int>(sizeof(I));

/// Rows of x, of out and of indices, each with its elements side by side: a block holds the row of x and looks up
/// `count` elements of it. `index` counts rows: operands out, index, x; `row_packs` and `index_packs` say which of them
/// may be read in packs.
template <class U, class I>
__global__ void __launch_bounds__(kRowThreads)
    gather_rows(U* out, const I* indices, const U* x, const Index<3> index, int size, int count, bool row_packs,
                bool index_packs, U fault) {
  constexpr int V = kVector<U>, E = kIndexPack<I>, kEach = 8;
  extern __shared__ uint4 shared_row[];
  U* row = reinterpret_cast<U*>(shared_row);
  const auto at = index.at(blockIdx.x);
  const I* own = indices + at.v[1];
  U* to = out + at.v[0];
  const U* from = x + at.v[2];
  const int packs = index_packs ? count / E : 0;
  Pack<I, E> places[kEach];
  const auto read_places = [&](int first) {
#pragma unroll
    for (int u = 0; u < kEach; ++u)
      if (first + u * kRowThreads < packs)
        places[u] = *reinterpret_cast<const Pack<I, E>*>(own + (first + u * kRowThreads) * E);
  };
  const auto look_up = [&](I place) { return place >= 0 && place < static_cast<I>(size) ? row[place] : fault; };
  read_places(static_cast<int>(threadIdx.x));  // on their way while the row comes
  const int whole = row_packs ? size / V : 0;
  for (int p = threadIdx.x; p < whole; p += kRowThreads)
    reinterpret_cast<Pack<U, V>*>(row)[p] = *reinterpret_cast<const Pack<U, V>*>(from + p * V);
  for (int i = whole * V + static_cast<int>(threadIdx.x); i < size; i += kRowThreads) row[i] = from[i];
  __syncthreads();
  for (int first = threadIdx.x; first < packs; first += kEach * kRowThreads) {
    if (first >= kEach * kRowThreads) read_places(first);
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      const int p = first + u * kRowThreads;
      if (p >= packs) continue;
      Pack<U, E> found;
#pragma unroll
      for (int e = 0; e < E; ++e) found.v[e] = look_up(places[u].v[e]);
      *reinterpret_cast<Pack<U, E>*>(to + p * E) = found;
    }
  }
  for (int i = packs * E + static_cast<int>(threadIdx.x); i < count; i += kRowThreads) to[i] = look_up(own[i]);
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

/// Whether pointer and the strides of operand k let every row begin at a multiple of `bytes`.
bool rows_aligned(const void* data, const Index<3>& lines, std::size_t k, std::int64_t item, std::int64_t bytes) {
  if (!aligned_to(data, static_cast<std::size_t>(bytes))) return false;
  for (int d = 0; d < lines.rank; ++d)
    if (lines.size[d] > 1 && lines.stride[k][d] * item % bytes != 0) return false;
  return true;
}

/// Rows that fit in shared memory and are looked up in at least as often as they are long; false: not done.
template <class U>
bool gather_in_rows(const Context& ctx, const View& out, const ConstView& x, const ConstView& index, int dim, U fault) {
  const std::int64_t size = x.sizes[dim], count = out.sizes[dim];
  const auto item = static_cast<std::int64_t>(sizeof(U));
  if (x.strides[dim] != 1 || out.strides[dim] != 1 || index.strides[dim] != 1) return false;
  if (size * item > kMostRowBytes || count < size || count < 128 || count >= std::int64_t{1} << 30) return false;
  Dims sizes = out.sizes;
  sizes[dim] = 1;
  const auto lines = make_index<3>(sizes, {out.strides, index.strides, x.strides});
  // A block for each row: few rows must not be long.
  if (lines.numel >= std::int64_t{1} << 31 || (lines.numel < 256 && count > 16384)) return false;
  auto* to = static_cast<U*>(out.data);
  const auto* from = static_cast<const U*>(x.data);
  const auto bytes = static_cast<std::size_t>(ceil_div(size * item, 16) * 16);
  const auto launch = [&]<class I>() {
    constexpr int E = kIndexPack<I>;
    const bool in_packs =
        rows_aligned(index.data, lines, 1, sizeof(I), 16) && rows_aligned(to, lines, 0, item, E * item);
    gather_rows<U, I><<<static_cast<unsigned>(lines.numel), kRowThreads, bytes, stream_of(ctx)>>>(
        to, static_cast<const I*>(index.data), from, lines, static_cast<int>(size), static_cast<int>(count),
        rows_aligned(from, lines, 2, item, 16), in_packs, fault);
  };
  if (index.dtype == DType::i64)
    launch.template operator()<std::int64_t>();
  else
    launch.template operator()<std::int32_t>();
  return true;
}

}  // namespace

void gather(const Context& ctx, View out, ConstView x, ConstView index, int dim, const IndexSource& source) {
  if (out.numel() == 0) return;
  check_indices(ctx, {source.op, "index", x.sizes[dim]}, source.given.defined() ? source.given : index);
  const auto space = make_index<3>(out.sizes, {out.strides, index.strides, without(x.strides, dim)});
  const Indices indices(index);
  const std::int64_t size = x.sizes[dim], stride = x.strides[dim];
  const std::uint64_t fault = fault_bits(x.dtype);
  const bool past = past_cache(out.numel() * static_cast<std::int64_t>(size_of(out.dtype)));
  visit_width(x.dtype, [&]<class U>() {
    constexpr int V = kVector<U>;
    if (gather_in_rows<U>(ctx, out, x, index, dim, static_cast<U>(fault))) return;
    auto* to = static_cast<U*>(out.data);
    const auto* from = static_cast<const U*>(x.data);
    const auto launch = [&](auto kernel, const Index<3>& groups) {
      kernel<<<static_cast<unsigned>(ceil_div(groups.numel, kMapThreads * kGatherPacks)), kMapThreads, 0,
               stream_of(ctx)>>>(to, indices, from, groups, size, stride, static_cast<U>(fault), past);
    };
    // Packs where an index is for a whole row: the rows of an embedding.
    const bool rows = space.stride[1][0] == 0 && space.size[0] % V == 0 && stride % V == 0 && space.stride[0][0] == 1 &&
                      space.stride[2][0] == 1 &&
                      packs<3>(space, V, {to, index.data, from}, {sizeof(U), size_of(index.dtype), sizeof(U)});
    if (rows)
      launch(gather_kernel<V, U>, packed(space, V));
    else
      launch(gather_kernel<1, U>, space);
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
