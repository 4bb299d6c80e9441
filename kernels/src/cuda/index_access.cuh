// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "../index_faults.hpp"
#include "elementwise.cuh"

namespace apex::kernels::cuda {

/// Elements of a tensor of i64 or i32.
struct Indices {
  const void* data;
  bool wide;

  explicit Indices(const ConstView& v) : data(v.data), wide(v.dtype == DType::i64) {}
  __device__ __forceinline__ std::int64_t at(std::int64_t offset) const {
    return wide ? static_cast<const std::int64_t*>(data)[offset] : static_cast<const std::int32_t*>(data)[offset];
  }
};

/// A broadcast index has each of its elements once.
inline ConstView distinct(ConstView index) {
  for (int d = 0; d < index.rank(); ++d)
    if (index.strides[d] == 0 && index.sizes[d] > 1) index.sizes[d] = 1;
  return index;
}

inline Dims without(Dims strides, int dim) {
  strides[dim] = 0;
  return strides;
}

}  // namespace apex::kernels::cuda
