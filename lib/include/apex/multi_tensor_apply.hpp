// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "apex/core/tensor.hpp"

namespace apex {

/// Ops over lists of tensors, in the argument order of the applier below: chunk size (elements one task takes, > 0), a
/// flag (i32, one element, on the tensors' device, cleared by the caller), the lists, then the op's own arguments.
/// Tensors at one index of the lists belong together; lists of no tensors do nothing. Errors name op, list and index.
/// See apex/kernels/multi_tensor.hpp for formulas and flag rules. What they write raises the tensors' version.
namespace multi_tensor {

using TensorLists = std::vector<std::vector<Tensor>>;

/// lists {in, out}: out = in * scale; the flag becomes 1 at a non-finite input or result.
void scale(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists, double factor);

/// lists {x, y, out}: out = a x + b y. check: -1 looks at both inputs (and the result), 0 at x, 1 at y.
void axpby(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists, double a, double b, int check);

/// lists {x}: {norm [1], norms of the single tensors [N] or undefined}, f32 (f64 for f64).
std::pair<Tensor, Tensor> l2norm(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists,
                                 bool per_tensor);

/// lists {gradient, parameter, momentum buffer [, 16-bit copy]}. first_run: buffers start from the gradient.
void sgd(std::int64_t chunk_size, const Tensor& flag, const TensorLists& lists, double weight_decay, double momentum,
         double dampening, double lr, bool nesterov, bool first_run, bool wd_after_momentum, double scale);

}  // namespace multi_tensor

namespace multi_tensor_apply {

/// applier(op, flag, lists, args...) calls op(chunk_size, flag, lists, args...).
class MultiTensorApply {
 public:
  static constexpr bool available = true;

  /// @throws Kind::argument for chunk_size < 1
  explicit MultiTensorApply(std::int64_t chunk_size) : chunk_size_(chunk_size) {
    if (chunk_size < 1) fail(Kind::argument, concat("MultiTensorApply: chunk size ", chunk_size, " must be positive"));
  }
  std::int64_t chunk_size() const { return chunk_size_; }

  template <class Op, class... Args>
  decltype(auto) operator()(Op&& op, const Tensor& flag, const multi_tensor::TensorLists& lists, Args&&... args) const {
    return std::forward<Op>(op)(chunk_size_, flag, lists, std::forward<Args>(args)...);
  }

 private:
  std::int64_t chunk_size_;
};

inline const MultiTensorApply multi_tensor_applier{2048 * 32};

}  // namespace multi_tensor_apply
}  // namespace apex
