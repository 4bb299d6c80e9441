// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "copy_parts.hpp"
#include "copy_transpose.cuh"
#include "elementwise.cuh"

namespace apex::kernels::cuda {
namespace {

struct Same {
  template <class U>
  __device__ U operator()(U value) const {
    return value;
  }
};

/// A pack's elements in the other order.
template <class U>
struct TurnedRound {
  __device__ uint4 operator()(uint4 pack) const {
    constexpr int V = kVector<U>;
    const auto& from = reinterpret_cast<const Pack<U, V>&>(pack);
    Pack<U, V> to;
#pragma unroll
    for (int v = 0; v < V; ++v) to.v[v] = from.v[V - 1 - v];
    return reinterpret_cast<const uint4&>(to);
  }
};

/// Rows that lie in src the other way round (flip), in packs; false where they cannot be.
template <class U>
bool copy_turned_round(const Context& ctx, U* dst, const U* src, const Index<2>& index) {
  constexpr int V = kVector<U>;
  const U* first = src - (V - 1);  // of the first pack; src is its last element
  if (index.stride[0][0] != 1 || index.stride[1][0] != -1 || index.size[0] % V != 0) return false;
  if (!aligned_to(dst, 16) || !aligned_to(first, 16)) return false;
  Index<2> packs = index;
  packs.numel /= V;
  packs.size[0] /= V;
  for (int d = 1; d < packs.rank; ++d)
    for (auto& stride : packs.stride) {
      if (stride[d] % V != 0) return false;
      stride[d] /= V;
    }
  packs.prepare();
  map(ctx, "copy", TurnedRound<U>{}, packs, reinterpret_cast<uint4*>(dst), reinterpret_cast<const uint4*>(first));
  return true;
}

template <class U>
void copy_same_type(const Context& ctx, U* dst, const U* src, const Index<2>& index) {
  if (index.rank == 1 && index.stride[0][0] == 1 && index.stride[1][0] == 1) {
    APEX_CHECK(cudaMemcpyAsync(dst, src, static_cast<std::size_t>(index.numel) * sizeof(U), cudaMemcpyDeviceToDevice,
                               stream_of(ctx)));
    return;
  }
  if (copy_turned_round(ctx, dst, src, index)) return;
  Transpose t;
  if (as_transpose(index, t)) return transpose(ctx, dst, src, t);
  map(ctx, "copy", Same{}, index, dst, src);
}

}  // namespace

void copy(const Context& ctx, View dst, ConstView src) {
  const auto index = index_of(dst, src);
  if (index.numel == 0) return;
  // A boolean is the byte 0 or 1, so that as a source it is u8.
  const bool bytes = dst.dtype == DType::u8 && src.dtype == DType::boolean;
  if (dst.dtype == src.dtype || bytes) {
    if (dst.data == src.data && std::equal(index.stride[0], index.stride[0] + index.rank, index.stride[1])) return;
    return visit_width(dst.dtype, [&]<class U>() {
      copy_same_type(ctx, static_cast<U*>(dst.data), static_cast<const U*>(src.data), index);
    });
  }
  if (is_floating(dst.dtype))
    return is_floating(src.dtype) ? convert_floating(ctx, dst, src, index) : convert_from_integer(ctx, dst, src, index);
  return is_floating(src.dtype) ? convert_to_integer(ctx, dst, src, index) : convert_integer(ctx, dst, src, index);
}

}  // namespace apex::kernels::cuda
