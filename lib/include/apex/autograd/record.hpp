// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "apex/core/tensor.hpp"

namespace apex {

/// One entry for each input of the op, in their order; undefined where no gradient flows.
using Gradients = std::vector<Tensor>;

namespace detail {
struct Node;
}

/// What a backward function is called with.
struct BackwardCall {
  /// d root / d output, one for each output of the op; undefined for outputs that got none. The function may move from
  /// an entry, and may write over one that `exclusive()` says nobody else holds.
  std::span<Tensor> grads;
  /// Second terms, for functions recorded with takes_terms: where more[i] is defined, d root / d output i is
  /// grads[i] + more[i], of the same strides. Empty for all others.
  std::span<Tensor> more;
  /// needs[i]: input i wants a gradient. A function should not compute others.
  std::span<const bool> needs;

  /// An output that was saved detached, tied to the tape again for the length of the call: for functions whose own
  /// derivative is wanted (double_differentiable).
  Tensor attached(const Tensor& saved_output, int index = 0) const;

  const std::shared_ptr<detail::Node>* node = nullptr;  ///< the engine's
};

/// The backward of one op. Made from any of
///   Gradients(const Tensor& dy)                            one output
///   Gradients(const Tensor& dy, std::span<const bool>)     one output, with the mask of wanted inputs
///   Gradients(BackwardCall&)                               everything
class BackwardFunction {
 public:
  BackwardFunction() = default;
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, BackwardFunction>)
      BackwardFunction(F f) {  // NOLINT: a lambda is a backward function
    if constexpr (std::is_invocable_v<F&, BackwardCall&>) {
      call_ = std::move(f);
    } else if constexpr (std::is_invocable_v<F&, const Tensor&, std::span<const bool>>) {
      call_ = [f = std::move(f)](BackwardCall& c) mutable -> Gradients {
        return f(std::as_const(c.grads[0]), c.needs);
      };
    } else {
      call_ = [f = std::move(f)](BackwardCall& c) mutable -> Gradients { return f(std::as_const(c.grads[0])); };
    }
  }
  Gradients operator()(BackwardCall& call) const { return call_(call); }
  explicit operator bool() const noexcept { return static_cast<bool>(call_); }

 private:
  std::function<Gradients(BackwardCall&)> call_;
};

/// A tensor the backward function reads. Its version is noted when the op is recorded and compared before the function
/// runs.
struct Saved {
  const char* name;
  Tensor tensor;
};

/// One op as the tape keeps it. The function captures what it needs, but never an output of the op itself: that would
/// be a cycle. It captures output.detach() instead.
struct OpRecord {
  const char* name = "";  ///< a string literal
  std::vector<Tensor> inputs = {};
  std::vector<Saved> saved = {};
  BackwardFunction backward = {};
  /// The function is made of differentiable ops, so that its own backward can be taken.
  bool double_differentiable = false;
  /// The function adds up to two gradients of an output by itself (BackwardCall::more) where it reads them.
  bool takes_terms = false;
};

/// Ties `output` to the tape and returns it. Keeps nothing when grad mode is off or no input requires a gradient.
/// Outputs that are not floating take part in no gradient.
/// @throws Kind::state when an output already belongs to the tape or is one of the inputs
Tensor record(Tensor output, OpRecord op);
std::vector<Tensor> record(std::vector<Tensor> outputs, OpRecord op);

/// Whether this handle is the only one to the tensor and to its storage, and no two elements share an address: then it
/// may be written over.
bool exclusive(const Tensor& t) noexcept;

}  // namespace apex
