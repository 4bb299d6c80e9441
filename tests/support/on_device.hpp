// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <initializer_list>
#include <span>

#include "support/tensors.hpp"

// apex::empty and apex::from_values on the device that this run of the test program is for.

namespace apex::test {

inline Tensor make(const Dims& sizes, DType dtype = DType::f32, Device where = device(),
                   MemoryFormat format = MemoryFormat::contiguous) {
  return empty(sizes, dtype, where, format);
}
template <class T>
Tensor values(const Dims& sizes, std::span<const T> list) {
  return on_device(from_values<T>(sizes, list));
}
template <class T>
Tensor values(const Dims& sizes, std::initializer_list<T> list) {
  return on_device(from_values<T>(sizes, list));
}

}  // namespace apex::test
