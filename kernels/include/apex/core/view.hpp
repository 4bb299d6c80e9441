// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/core/device.hpp"
#include "apex/core/dtype.hpp"
#include "apex/core/shape.hpp"

namespace apex {

/// What a kernel sees of a tensor: an address, a type, sizes and strides (in elements). Owns nothing.
/// A default-made view is undefined and stands for "not given".
template <class Pointer>
struct BasicView {
  Pointer data = nullptr;
  DType dtype = DType::f32;
  Device device{};
  Dims sizes{};
  Dims strides{};
  bool present = false;

  bool defined() const noexcept { return present; }
  int rank() const noexcept { return sizes.size(); }
  /// Size of dimension i; negative i counts from the end.
  std::int64_t size(int i) const noexcept { return sizes[i < 0 ? i + sizes.size() : i]; }
  std::int64_t stride(int i) const noexcept { return strides[i < 0 ? i + sizes.size() : i]; }
  std::int64_t numel() const noexcept {
    std::int64_t n = 1;
    for (const auto s : sizes) n *= s;
    return n;
  }
  bool is_contiguous(MemoryFormat format = MemoryFormat::contiguous) const noexcept {
    return is_dense(sizes, strides, format);
  }
  /// The address as T*; the caller has visited the dtype.
  template <class T>
  auto as() const noexcept {
    if constexpr (std::is_const_v<std::remove_pointer_t<Pointer>>)
      return static_cast<const T*>(data);
    else
      return static_cast<T*>(data);
  }
};

struct View : BasicView<void*> {};

struct ConstView : BasicView<const void*> {
  ConstView() = default;
  ConstView(const View& v)  // NOLINT: reading what may be written is always allowed
      : BasicView<const void*>{v.data, v.dtype, v.device, v.sizes, v.strides, v.present} {}
  explicit ConstView(const BasicView<const void*>& v) : BasicView<const void*>(v) {}
};

}  // namespace apex
