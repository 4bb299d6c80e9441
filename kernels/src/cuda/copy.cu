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

template <class U>
void copy_same_type(const Context& ctx, U* dst, const U* src, const Index<2>& index) {
  if (index.rank == 1 && index.stride[0][0] == 1 && index.stride[1][0] == 1) {
    APEX_CHECK(cudaMemcpyAsync(dst, src, static_cast<std::size_t>(index.numel) * sizeof(U), cudaMemcpyDeviceToDevice,
                               stream_of(ctx)));
    return;
  }
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
