// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/core/tensor.hpp"

namespace apex::optimizers {

/// Whether elements of `a` and `b`, of equal sizes, lie in the same order.
inline bool same_order(const Tensor& a, const Tensor& b) {
  for (int d = 0; d < a.dim(); ++d)
    if (a.sizes()[d] != 1 && a.strides()[d] != b.strides()[d]) return false;
  return true;
}

}  // namespace apex::optimizers
