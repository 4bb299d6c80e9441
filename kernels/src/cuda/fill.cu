// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <cstring>

#include "../copy_impl.hpp"
#include "elementwise.cuh"

namespace apex::kernels::cuda {
namespace {

template <class U>
struct Constant {
  U value;
  __device__ U operator()() const { return value; }
};

template <class N>
__global__ void __launch_bounds__(kMapThreads)
    arange_kernel(N* out, std::int64_t n, std::int64_t stride, double start, double step, bool whole) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (i >= n) return;
  if constexpr (std::is_integral_v<N>) {
    if (whole) {
      out[i * stride] = convert<N>(static_cast<std::int64_t>(start) + i * static_cast<std::int64_t>(step));
      return;
    }
  }
  out[i * stride] = convert<N>(start + static_cast<double>(i) * step);
}

}  // namespace

void arange(const Context& ctx, View dst, double start, double step) {
  const std::int64_t n = dst.sizes[0];
  if (n == 0) return;
  const bool whole = start == std::trunc(start) && step == std::trunc(step);
  visit_any(dst.dtype, "arange", [&]<class T>() {
    arange_kernel<<<static_cast<unsigned>(ceil_div(n, kMapThreads)), kMapThreads, 0, stream_of(ctx)>>>(
        native<T>(dst), n, dst.strides[0], start, step, whole);
  });
  check_launch("arange");
}

void fill(const Context& ctx, View dst, double value) {
  const auto index = index_of(dst);
  std::uint64_t bits = 0;  // the element's bytes come first: hosts of GPUs are little-endian
  visit_any(dst.dtype, "fill", [&]<class T>() {
    const auto element = convert<native_t<T>>(value);
    std::memcpy(&bits, &element, sizeof(element));
  });
  visit_width(dst.dtype, [&]<class U>() {
    map(ctx, "fill", Constant<U>{static_cast<U>(bits)}, index, static_cast<U*>(dst.data));
  });
}

}  // namespace apex::kernels::cuda
