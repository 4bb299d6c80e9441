// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "apex/autograd.hpp"

namespace apex::detail {

struct HookList {
  virtual ~HookList() = default;
  virtual void remove(std::uint64_t id) = 0;
};

template <class F>
struct Hooks : HookList {
  std::vector<std::pair<std::uint64_t, F>> entries;
  std::uint64_t next_id = 1;

  std::uint64_t add(F hook) {
    entries.emplace_back(next_id, std::move(hook));
    return next_id++;
  }
  void remove(std::uint64_t id) override {
    std::erase_if(entries, [id](const auto& entry) { return entry.first == id; });
  }
};
using LeafHooks = Hooks<std::function<void(const Tensor&)>>;
using GradHooks = Hooks<std::function<Tensor(const Tensor&)>>;

struct HookAccess {
  static HookHandle make(std::weak_ptr<HookList> list, std::uint64_t id) {
    HookHandle handle;
    handle.list_ = std::move(list);
    handle.id_ = id;
    return handle;
  }
};

/// What a gradient must look like.
struct TensorMeta {
  Dims sizes;
  DType dtype = DType::f32;
  Device device{};
};
inline TensorMeta meta_of(const Tensor& t) { return {t.sizes(), t.dtype(), t.device()}; }

/// Where the gradient of one input of a node goes: to the node that made the input, or to a leaf; neither when the
/// input wants none.
struct Edge {
  std::shared_ptr<Node> node;
  int output = 0;
  Tensor leaf;
  bool needed() const { return node != nullptr || leaf.defined(); }
};

struct SavedVersion {
  const char* name;
  Tensor tensor;
  std::shared_ptr<Storage> storage;  ///< at the time of recording: a replaced storage is noticed too
  std::uint64_t version;
};

/// One recorded op.
struct Node {
  std::uint64_t sequence = 0;
  const char* name = "";
  std::vector<Edge> edges;
  std::vector<TensorMeta> inputs, outputs;
  std::vector<SavedVersion> saved;
  BackwardFunction backward;
  std::vector<std::shared_ptr<GradHooks>> output_hooks;  ///< empty, or one entry (maybe null) for each output
  bool double_differentiable = false;
  bool takes_terms = false;
  bool released = false;

  /// Lets go of everything kept for the backward.
  void release();
};

/// A node with its sequence number set. Nodes are destroyed one after another, never from inside one another: a chain
/// of a million ops must not need a million stack frames.
std::shared_ptr<Node> make_node();

/// The slot of a tensor that takes part in differentiation.
struct TapeSlot : AutogradSlot {
  bool requires_grad = false;
  std::shared_ptr<Node> node;  ///< null for leaves
  int output = 0;
  Tensor grad;
  std::shared_ptr<LeafHooks> leaf_hooks;
  std::shared_ptr<GradHooks> grad_hooks;  ///< of a leaf
};
TapeSlot* find_slot(const Tensor& t);
TapeSlot& slot_of(const Tensor& t);
/// The edge that leads from an op to its input `t`.
Edge edge_to(const Tensor& t);
/// Makes `t` output `index` of `node`.
void attach(const Tensor& t, const std::shared_ptr<Node>& node, int index);

/// Sets the thread's grad mode and returns the former one.
bool exchange_grad_mode(bool on) noexcept;

}  // namespace apex::detail
