// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "apex/core/context.hpp"
#include "apex/core/dtype.hpp"
#include "apex/core/shape.hpp"
#include "apex/core/storage.hpp"
#include "apex/core/view.hpp"

namespace apex {

/// The slot a Tensor keeps for whoever records gradients. Core knows nothing of what is in it.
struct AutogradSlot {
  virtual ~AutogradSlot();
};

/// A tensor: a handle to shared identity (Mechanics 1). Copying a Tensor copies the handle, never the data.
/// Value only: the functions here record no gradient; differentiable ones are in apex/nn/functional.hpp.
class Tensor {
 public:
  /// Undefined: stands for "no tensor".
  Tensor() = default;

  bool defined() const noexcept { return impl_ != nullptr; }
  explicit operator bool() const noexcept { return defined(); }
  /// Two handles of one identity.
  bool is_same(const Tensor& other) const noexcept { return impl_ == other.impl_; }
  /// Address of the identity: equal for handles of one tensor, stable over set_data(). A key for maps.
  const void* id() const noexcept { return impl_.get(); }
  /// Handles that share this identity.
  long use_count() const noexcept { return impl_.use_count(); }

  DType dtype() const;
  Device device() const;
  int dim() const;
  const Dims& sizes() const;
  const Dims& strides() const;
  /// Size of dimension i; negative i counts from the end. @throws Kind::argument out of range
  std::int64_t size(int i) const;
  std::int64_t numel() const;
  std::size_t bytes() const { return static_cast<std::size_t>(numel()) * size_of(dtype()); }
  /// Elements from the start of the storage.
  std::int64_t storage_offset() const;
  const std::shared_ptr<Storage>& storage() const;
  std::uint64_t version() const { return storage()->version(); }
  void raise_version() const { storage()->raise_version(); }

  bool is_contiguous(MemoryFormat format = MemoryFormat::contiguous) const;
  /// channels_last if the strides say so, those of dimensions of size 1 included where both would fit (one channel, one
  /// pixel); else contiguous.
  MemoryFormat memory_format() const;

  /// The current context of this tensor's device.
  Context context() const { return Context::current(device()); }
  /// What kernels take. A view of an undefined tensor is an undefined view.
  View view() const;

  /// First element as T*. @throws Kind::argument when T is not the dtype
  template <class T>
  T* data() const {
    check_dtype(dtype_of<T>);
    return static_cast<T*>(raw_data());
  }
  void* raw_data() const;

  /// The only element, converted, on the host; on CUDA it waits for the stream.
  /// @throws Kind::argument when numel() != 1
  double item() const;

  /// Gives this identity the storage, dtype, sizes and strides of `source`: casting, moving and converting a model
  /// keep every optimizer, hook and checkpoint that holds the tensor.
  void set_data(const Tensor& source) const;

  /// A new identity over the same storage, without the autograd slot.
  Tensor detach() const;

  std::unique_ptr<AutogradSlot>& autograd_slot() const;

  /// Makes a tensor over existing storage. @throws Kind::argument when it would reach outside the storage
  static Tensor from_storage(std::shared_ptr<Storage> storage, DType dtype, const Dims& sizes, const Dims& strides,
                             std::int64_t offset = 0);

 private:
  struct Impl;
  explicit Tensor(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  const Impl& impl() const;
  void check_dtype(DType wanted) const;

  std::shared_ptr<Impl> impl_;
};

/// Uninitialised.
Tensor empty(const Dims& sizes, DType dtype = DType::f32, Device device = kCpu,
             MemoryFormat format = MemoryFormat::contiguous);
/// Uninitialised, with the strides of `like` where it is dense, else its memory format.
Tensor empty_like(const Tensor& like);
Tensor empty_like(const Tensor& like, DType dtype);
Tensor empty_like(const Tensor& like, DType dtype, Device device);
/// A host tensor with a copy of `values`, row-major. @throws Kind::argument when the count does not fit the sizes
template <class T>
Tensor from_values(const Dims& sizes, std::span<const T> values);
template <class T>
Tensor from_values(const Dims& sizes, std::initializer_list<T> values) {
  return from_values<T>(sizes, std::span<const T>(values.begin(), values.size()));
}

/// Views of one storage under other sizes and strides. No copy, and no gradient is recorded.
namespace views {
Tensor as_strided(const Tensor& t, const Dims& sizes, const Dims& strides, std::int64_t offset);
/// Dimension order[i] of t becomes dimension i.
Tensor permute(const Tensor& t, const Dims& order);
Tensor transpose(const Tensor& t, int a, int b);
/// length elements of dimension dim from start on.
Tensor narrow(const Tensor& t, int dim, std::int64_t start, std::int64_t length);
/// Element index of dimension dim; the dimension goes away.
Tensor select(const Tensor& t, int dim, std::int64_t index);
/// Stretches dimensions of size 1 (stride 0) and adds leading ones.
Tensor expand(const Tensor& t, const Dims& sizes);
Tensor unsqueeze(const Tensor& t, int dim);
Tensor squeeze(const Tensor& t, int dim);
/// The same elements in logical order under other sizes (one may be -1), if strides allow that without a copy.
/// @throws Kind::argument otherwise; can_reshape asks first
Tensor reshape(const Tensor& t, const Dims& sizes);
bool can_reshape(const Tensor& t, const Dims& sizes);
/// Replaces a -1 in sizes. @throws Kind::argument when the element counts differ
Dims infer_sizes(const Dims& sizes, std::int64_t numel);
}  // namespace views

}  // namespace apex
