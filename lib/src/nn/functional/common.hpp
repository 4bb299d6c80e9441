// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>

#include "apex/autograd.hpp"
#include "apex/autograd/ops.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/nn/functional.hpp"
#include "apex/tensor_ops.hpp"

namespace apex::nn::functional {

inline Tensor copy_of(const Tensor& t, Tensor out) {
  kernels::copy(t.context(), out.view(), t.view());
  return out;
}

/// `t` itself when it is dense row-major or channels-last, else a dense copy.
inline Tensor dense(const Tensor& t) {
  if (t.is_contiguous() || t.is_contiguous(MemoryFormat::channels_last)) return t;
  return copy_of(t, empty(t.sizes(), t.dtype(), t.device(), t.memory_format()));
}

/// `t` with exactly the strides of the dense tensor `like` (same sizes), copied if need be.
inline Tensor with_strides_of(const Tensor& t, const Tensor& like) {
  if (t.strides() == like.strides()) return t;
  return copy_of(t, empty_like(like, t.dtype()));
}

/// `t` dense in the given format, copied if need be; other ranks than 4 and 5 become row-major.
inline Tensor with_format(const Tensor& t, MemoryFormat format) {
  if (t.dim() != 4 && t.dim() != 5) format = MemoryFormat::contiguous;
  return t.is_contiguous(format) && t.memory_format() == format ? t : to_format(t, format);
}

/// x > threshold, and -1, 0 or 1: constants for gradients, recorded nowhere.
Tensor where_above(const Tensor& x, double threshold);
Tensor sign_of(const Tensor& x);

/// Ties `gradient`, made by a kernel from `dy`, to dy where gradients are recorded: `backward` turns d / d gradient
/// into d / d dy, out of recorded ops. For backward functions of linear ops, whose own backward is the op itself.
inline Tensor record_linear(const char* name, Tensor gradient, const Tensor& dy,
                            std::function<Tensor(const Tensor&)> backward) {
  if (!grad_mode()) return gradient;
  return record(std::move(gradient),
                {.name = name,
                 .inputs = {dy},
                 .backward = [backward = std::move(backward)](const Tensor& g) -> Gradients { return {backward(g)}; },
                 .double_differentiable = true});
}

/// What a gradient needs to know of the tensor it is for, without holding its memory.
struct Like {
  explicit Like(const Tensor& t) : sizes(t.sizes()), format(t.memory_format()) {}
  /// A tensor for that gradient, of dy's type.
  Tensor empty_beside(const Tensor& dy) const { return empty(sizes, dy.dtype(), dy.device(), format); }
  Tensor zeros_beside(const Tensor& dy) const { return zeros(sizes, dy.dtype(), dy.device(), format); }
  Dims sizes;
  MemoryFormat format;
};

/// Sums what broadcasting to g's sizes had repeated. Differentiable.
Tensor unbroadcast(const Tensor& g, const Dims& sizes);

inline int wrap_dim(int dim, int rank, const char* op) {
  const int d = dim < 0 ? dim + rank : dim;
  if (d < 0 || d >= rank) fail(Kind::argument, concat(op, ": dimension ", dim, " of a tensor of rank ", rank));
  return d;
}

}  // namespace apex::nn::functional
