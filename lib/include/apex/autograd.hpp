// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "apex/autograd/record.hpp"
#include "apex/core/tensor.hpp"

/// Reverse-mode differentiation by a tape. Each differentiable op that sees an input requiring a gradient adds a node;
/// `backward` visits the nodes reachable from its roots in the reverse order of their creation, on the calling thread,
/// so the order of every sum is fixed. Grad mode is thread-local.
namespace apex {

namespace detail {
struct HookList;
struct HookAccess;
}  // namespace detail

/// Whether a gradient flows to this tensor: a leaf that asked for one, or the result of an op on such a tensor.
bool requires_grad(const Tensor& t);
/// Asks for a gradient (or no longer). Returns `t`.
/// @throws Kind::argument when `t` is not floating; Kind::state when it is not a leaf
const Tensor& set_requires_grad(const Tensor& t, bool on = true);
/// Not the result of a recorded op.
bool is_leaf(const Tensor& t);
/// The accumulated gradient of a leaf; undefined when there is none.
Tensor grad(const Tensor& t);
/// Replaces the gradient; an undefined `value` removes it. Its dtype may be another floating one than that of `t`.
/// @throws Kind::argument when sizes or device are not those of `t`; Kind::state when `t` is not a leaf
void set_grad(const Tensor& t, const Tensor& value);

struct BackwardOptions {
  bool retain_graph = false;  ///< keep what the nodes saved, so that backward may run again over them
  /// Record the backward itself (implies retain_graph); see OpRow::double_differentiable. Each leaf's gradient then
  /// holds a graph that holds the leaf: set_grad(leaf, {}) or zero_grad frees them; grad() below has no such cycle.
  bool create_graph = false;
};

/// Adds d root / d leaf, times `gradient`, to the `.grad` of every leaf reachable from `root`.
///
/// * `gradient` has the sizes, dtype and device of `root`; it may be left out when root has one element (then it is 1).
/// * The gradient of a leaf takes the leaf's strides. An existing `.grad` is added to in place; a first one is moved
///   into place when nothing else refers to it.
/// * Post-accumulate hooks fire once per call for each reachable leaf, when its last contribution of this call has been
///   added; then the callbacks queued by queue_backward_callback run. Whatever they throw leaves backward().
/// * What a node saved is released right after the node ran unless retain_graph is set.
///
/// @throws Kind::state when root requires no gradient, when the graph was released by an earlier call, and when a
///         tensor saved for the backward was changed in place or replaced since (the message names op and tensor);
///         Kind::argument for a gradient that does not fit; Kind::unsupported when a second derivative is asked of an
///         op that is not twice differentiable
void backward(const Tensor& root, const Tensor& gradient = {}, const BackwardOptions& options = {});
/// The same from several roots in one pass. `gradients` is empty or has one entry (maybe undefined) for each root.
void backward(std::span<const Tensor> roots, std::span<const Tensor> gradients, const BackwardOptions& options = {});

struct GradOptions {
  bool retain_graph = false;
  bool create_graph = false;  ///< the results can be differentiated again (implies retain_graph)
  bool allow_unused = false;  ///< an input that the outputs do not depend on gives an undefined tensor, not an error
};

/// d outputs / d inputs, summed over the outputs and times `gradients`: returned, one for each input, and added to no
/// `.grad`. Inputs are leaves or results of ops. Only what lies between inputs and outputs is run, and only there is
/// released what nodes saved. Hooks of add_grad_hook are called, post-accumulate hooks are not. Unlike
/// backward(create_graph), whose leaves then hold gradients that hold the leaves, this leaves no cycle behind: all is
/// freed with the last handle.
/// @throws what backward throws, and Kind::state for an input that requires no gradient or that no output depends on
std::vector<Tensor> grad(std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                         std::span<const Tensor> gradients = {}, const GradOptions& options = {});
/// The same of one output by one input.
Tensor grad(const Tensor& output, const Tensor& input, const Tensor& gradient = {}, const GradOptions& options = {});

/// Whether ops on this thread record.
bool grad_mode() noexcept;

/// Ops record nothing on this thread while it lives.
class NoGradGuard {
 public:
  NoGradGuard();
  NoGradGuard(const NoGradGuard&) = delete;
  NoGradGuard& operator=(const NoGradGuard&) = delete;
  ~NoGradGuard();

 private:
  bool before_;
};

/// Ops record again, inside a NoGradGuard, while it lives.
class EnableGradGuard {
 public:
  EnableGradGuard();
  EnableGradGuard(const EnableGradGuard&) = delete;
  EnableGradGuard& operator=(const EnableGradGuard&) = delete;
  ~EnableGradGuard();

 private:
  bool before_;
};

/// Takes a hook off again. Copyable; does nothing when empty, when already removed, or when the tensor is gone.
class HookHandle {
 public:
  HookHandle() = default;
  void remove();

 private:
  friend struct detail::HookAccess;
  std::weak_ptr<detail::HookList> list_;
  std::uint64_t id_ = 0;
};

/// Calls `hook(leaf)` once per backward call that reaches the leaf, after every contribution of that call is in
/// `grad(leaf)` (undefined if no contribution had a value). Hooks run in the order they were added.
/// @throws Kind::state when `leaf` is not a leaf that requires a gradient
HookHandle add_post_accumulate_hook(const Tensor& leaf, std::function<void(const Tensor& leaf)> hook);

/// Calls `hook(gradient)` once the gradient with respect to `t` (a leaf or the result of an op) is complete and before
/// it is used; a defined result of the same sizes and dtype replaces it. For looking at, delaying or altering a
/// gradient.
/// @throws Kind::state when `t` requires no gradient
HookHandle add_grad_hook(const Tensor& t, std::function<Tensor(const Tensor& gradient)> hook);

/// Runs `callback` at the end of the backward() now running on this thread, after the last leaf hook. Several run in
/// the order queued; one may queue more. What they throw leaves backward(); if backward fails before, they are dropped.
/// @throws Kind::state outside of backward()
void queue_backward_callback(std::function<void()> callback);

/// The leaves whose gradients backward(outputs) would touch: each once, in the order of discovery. For finding unused
/// parameters.
std::vector<Tensor> reachable_leaves(std::span<const Tensor> outputs);

}  // namespace apex
