// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
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

}  // namespace

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
