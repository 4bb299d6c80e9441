// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "tape.hpp"

#include <atomic>

namespace apex {

namespace detail {

namespace {
thread_local bool grad_mode_on = true;

std::atomic<std::uint64_t> next_sequence{1};

/// Deletes nodes in a loop: what a node holds may be the last handle to other nodes, which then join the list.
void bury(Node* node) {
  thread_local std::vector<Node*>* graves = nullptr;  // a pointer: nodes may outlive the thread's other objects
  if (graves != nullptr) {
    graves->push_back(node);
    return;
  }
  std::vector<Node*> list{node};
  graves = &list;
  while (!list.empty()) {
    Node* next = list.back();
    list.pop_back();
    delete next;
  }
  graves = nullptr;
}
}  // namespace

std::shared_ptr<Node> make_node() {
  std::shared_ptr<Node> node(new Node, bury);
  node->sequence = next_sequence.fetch_add(1, std::memory_order_relaxed);
  return node;
}

void Node::release() {
  released = true;
  backward = {};
  saved.clear();
  edges.clear();
}

bool exchange_grad_mode(bool on) noexcept { return std::exchange(grad_mode_on, on); }

TapeSlot* find_slot(const Tensor& t) { return static_cast<TapeSlot*>(t.autograd_slot().get()); }

TapeSlot& slot_of(const Tensor& t) {
  auto& slot = t.autograd_slot();
  if (!slot) slot = std::make_unique<TapeSlot>();
  return static_cast<TapeSlot&>(*slot);
}

Edge edge_to(const Tensor& t) {
  if (!t.defined()) return {};
  const TapeSlot* slot = find_slot(t);
  if (slot == nullptr || !slot->requires_grad) return {};
  if (slot->node) return {slot->node, slot->output, {}};
  return {nullptr, 0, t};
}

void attach(const Tensor& t, const std::shared_ptr<Node>& node, int index) {
  TapeSlot& slot = slot_of(t);
  slot.requires_grad = true;
  slot.node = node;
  slot.output = index;
}

}  // namespace detail

using namespace detail;

bool requires_grad(const Tensor& t) {
  const TapeSlot* slot = find_slot(t);
  return slot != nullptr && slot->requires_grad;
}

const Tensor& set_requires_grad(const Tensor& t, bool on) {
  if (!on && find_slot(t) == nullptr) return t;
  if (on && !is_floating(t.dtype()))
    fail(Kind::argument,
         concat("set_requires_grad: a tensor of ", t.dtype(), " has no gradient; only floating ones have"));
  if (!is_leaf(t)) fail(Kind::state, "set_requires_grad: the tensor is the result of a recorded op; use detach()");
  slot_of(t).requires_grad = on;
  return t;
}

bool is_leaf(const Tensor& t) {
  const TapeSlot* slot = find_slot(t);
  return slot == nullptr || slot->node == nullptr;
}

Tensor grad(const Tensor& t) {
  const TapeSlot* slot = find_slot(t);
  return slot == nullptr ? Tensor() : slot->grad;
}

void set_grad(const Tensor& t, const Tensor& value) {
  if (!is_leaf(t)) fail(Kind::state, "set_grad: the tensor is the result of a recorded op, not a leaf");
  if (!value.defined()) {
    if (TapeSlot* slot = find_slot(t)) slot->grad = Tensor();
    return;
  }
  if (value.sizes() != t.sizes() || !is_floating(value.dtype()) || value.device() != t.device())
    fail(Kind::argument, concat("set_grad: a gradient of ", value.dtype(), ' ', value.sizes(), " on ", value.device(),
                                " for a tensor of ", t.dtype(), ' ', t.sizes(), " on ", t.device()));
  slot_of(t).grad = value;
}

bool grad_mode() noexcept { return grad_mode_on; }
NoGradGuard::NoGradGuard() : before_(exchange_grad_mode(false)) {}
NoGradGuard::~NoGradGuard() { exchange_grad_mode(before_); }
EnableGradGuard::EnableGradGuard() : before_(exchange_grad_mode(true)) {}
EnableGradGuard::~EnableGradGuard() { exchange_grad_mode(before_); }

bool exclusive(const Tensor& t) noexcept {
  return t.defined() && t.use_count() == 1 && t.storage().use_count() == 1 &&
         is_non_overlapping_and_dense(t.sizes(), t.strides());
}

namespace {

bool any_requires_grad(const std::vector<Tensor>& inputs) {
  return std::any_of(inputs.begin(), inputs.end(), [](const Tensor& t) { return t.defined() && requires_grad(t); });
}

void check_outputs(std::span<const Tensor> outputs, const OpRecord& op) {
  for (const Tensor& output : outputs) {
    if (!output.defined()) continue;
    const bool aliases =
        std::any_of(op.inputs.begin(), op.inputs.end(), [&](const Tensor& t) { return t.is_same(output); });
    if (aliases || !is_leaf(output))
      fail(Kind::state, concat("record: an output of '", op.name, "' is one of its inputs or already recorded"));
  }
}

void record_outputs(std::span<const Tensor> outputs, OpRecord op) {
  if (!grad_mode_on || !any_requires_grad(op.inputs)) return;
  check_outputs(outputs, op);
  auto node = make_node();
  node->name = op.name;
  node->double_differentiable = op.double_differentiable;
  node->edges.reserve(op.inputs.size());
  node->inputs.reserve(op.inputs.size());
  for (const Tensor& input : op.inputs) {
    node->edges.push_back(edge_to(input));
    node->inputs.push_back(input.defined() ? meta_of(input) : TensorMeta{});
  }
  node->saved.reserve(op.saved.size());
  for (Saved& saved : op.saved) {
    if (!saved.tensor.defined()) continue;
    auto storage = saved.tensor.storage();
    const std::uint64_t version = storage->version();
    node->saved.push_back({saved.name, std::move(saved.tensor), std::move(storage), version});
  }
  node->backward = std::move(op.backward);
  node->takes_terms = op.takes_terms;
  node->outputs.reserve(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    node->outputs.push_back(outputs[i].defined() ? meta_of(outputs[i]) : TensorMeta{});
    if (outputs[i].defined() && is_floating(outputs[i].dtype())) attach(outputs[i], node, static_cast<int>(i));
  }
}

}  // namespace

Tensor record(Tensor output, OpRecord op) {
  record_outputs({&output, 1}, std::move(op));
  return output;
}

std::vector<Tensor> record(std::vector<Tensor> outputs, OpRecord op) {
  record_outputs(outputs, std::move(op));
  return outputs;
}

Tensor BackwardCall::attached(const Tensor& saved_output, int index) const {
  if (!grad_mode_on || node == nullptr) return saved_output;
  Tensor t = saved_output.detach();
  attach(t, *node, index);
  return t;
}

void HookHandle::remove() {
  if (const auto list = list_.lock()) list->remove(id_);
  list_.reset();
}

HookHandle add_post_accumulate_hook(const Tensor& leaf, std::function<void(const Tensor& leaf)> hook) {
  if (!is_leaf(leaf) || !requires_grad(leaf))
    fail(Kind::state, "add_post_accumulate_hook: the tensor is not a leaf that requires a gradient");
  TapeSlot& slot = slot_of(leaf);
  if (!slot.leaf_hooks) slot.leaf_hooks = std::make_shared<LeafHooks>();
  const auto id = slot.leaf_hooks->add(std::move(hook));
  return HookAccess::make(slot.leaf_hooks, id);
}

HookHandle add_grad_hook(const Tensor& t, std::function<Tensor(const Tensor& gradient)> hook) {
  if (!requires_grad(t)) fail(Kind::state, "add_grad_hook: the tensor requires no gradient");
  TapeSlot& slot = slot_of(t);
  if (slot.node && slot.node->output_hooks.empty()) slot.node->output_hooks.resize(slot.node->outputs.size());
  auto& hooks = slot.node ? slot.node->output_hooks[static_cast<std::size_t>(slot.output)] : slot.grad_hooks;
  if (!hooks) hooks = std::make_shared<GradHooks>();
  const auto id = hooks->add(std::move(hook));
  return HookAccess::make(hooks, id);
}

}  // namespace apex
