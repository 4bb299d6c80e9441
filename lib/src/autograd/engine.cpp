// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <array>
#include <deque>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "apex/core/profile.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/kernels/elementwise.hpp"
#include "apex/nn/functional.hpp"
#include "apex/tensor_ops.hpp"
#include "tape.hpp"

namespace apex {

using namespace detail;

namespace {

bool same_layout(const Tensor& a, const Tensor& b) {
  for (int d = 0; d < a.dim(); ++d)
    if (a.sizes()[d] != 1 && a.strides()[d] != b.strides()[d]) return false;
  return true;
}

/// sum += g, in the buffer of one of the two when nobody else sees it.
void add_gradient(Tensor& sum, Tensor g) {
  if (!sum.defined()) {
    sum = std::move(g);
  } else if (grad_mode() && (requires_grad(sum) || requires_grad(g))) {
    sum = nn::functional::add(sum, g);
  } else if (exclusive(sum)) {
    kernels::accumulate(sum.context(), sum.view(), g.view());
  } else if (exclusive(g)) {
    kernels::accumulate(g.context(), g.view(), sum.view());
    sum = std::move(g);
  } else {
    Tensor out = empty_like(sum);
    kernels::binary(out.context(), out.view(), sum.view(), g.view(), kernels::BinaryOp::add);
    sum = std::move(out);
  }
}

void check_gradient(const Tensor& g, const TensorMeta& want, const std::string& what) {
  if (g.sizes() != want.sizes || g.dtype() != want.dtype || g.device() != want.device)
    fail(Kind::argument, concat("backward: ", what, " is ", g.dtype(), ' ', g.sizes(), " on ", g.device(), ", but ",
                                want.dtype, ' ', want.sizes, " on ", want.device, " is needed"));
}

Tensor run_grad_hooks(const std::shared_ptr<GradHooks>& hooks, Tensor g, const TensorMeta& want) {
  if (!hooks || hooks->entries.empty()) return g;
  const auto entries = hooks->entries;  // a hook may add or remove hooks
  for (const auto& [id, hook] : entries) {
    Tensor replaced = hook(g);
    if (!replaced.defined()) continue;
    check_gradient(replaced, want, "the result of a gradient hook");
    g = std::move(replaced);
  }
  return g;
}

/// Adds `g` to leaf.grad, which keeps the leaf's strides.
void add_to_leaf(const Tensor& leaf, Tensor g) {
  Tensor& grad = slot_of(leaf).grad;
  if (grad.defined()) {
    if (grad_mode() || requires_grad(grad)) {
      grad = nn::functional::add(grad, g);
    } else {
      kernels::accumulate(grad.context(), grad.view(), g.view());
      grad.raise_version();
    }
  } else if (grad_mode() || (exclusive(g) && same_layout(g, leaf))) {
    grad = std::move(g);
  } else {
    grad = empty_like(leaf);
    kernels::copy(grad.context(), grad.view(), g.view());
  }
}

/// The nodes and leaves that roots lead to.
struct Reach {
  struct LeafState {
    Tensor leaf;
    Tensor sum;
    std::int64_t open = 0;  ///< contributions of this pass still to come
  };
  std::vector<std::shared_ptr<Node>> nodes;  ///< newest first after sort()
  std::vector<LeafState> leaves;
  std::unordered_map<const void*, std::size_t> leaf_index;

  void follow(const Edge& edge) {
    if (edge.node && seen_.insert(edge.node.get()).second) nodes.push_back(edge.node);
    if (!edge.leaf.defined()) return;
    const auto [at, fresh] = leaf_index.try_emplace(edge.leaf.id(), leaves.size());
    if (fresh) leaves.push_back({edge.leaf, {}, 0});
    ++leaves[at->second].open;
  }
  void complete() {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const auto node = nodes[i];  // follow() may move the vector
      for (const Edge& edge : node->edges) follow(edge);
    }
  }
  /// An op is newer than the ops that made its inputs, so newest first meets every consumer before its producer.
  void sort() {
    std::sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) { return a->sequence > b->sequence; });
  }

 private:
  std::unordered_set<const Node*> seen_;
};

[[noreturn]] void fail_released(const char* op) {
  fail(Kind::state, concat("backward: what '", op, "' saved was released by an earlier backward; ",
                           "pass retain_graph to run backward over it again"));
}

/// What a grad() call asks for, and which nodes lie on the way there.
class Wanted {
 public:
  explicit Wanted(std::span<const Tensor> inputs) {
    for (const Tensor& t : inputs) {
      edges_.push_back(edge_to(t));
      if (edges_.back().node) outputs_[edges_.back().node.get()].resize(edges_.back().node->outputs.size());
      if (edges_.back().leaf.defined()) leaves_.try_emplace(t.id());
    }
  }
  /// `nodes`: newest first, so that all of a node's inputs come after it.
  void find_useful(const std::vector<std::shared_ptr<Node>>& nodes) {
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
      if ((*node)->released) released_ = (*node)->name;
      for (const Edge& edge : (*node)->edges)
        if (leads_on(edge)) useful_.insert(node->get());
    }
  }
  /// Whether a gradient is wanted there, or of something further on.
  bool leads_on(const Edge& edge) const {
    if (edge.leaf.defined()) return leaves_.contains(edge.leaf.id());
    if (!edge.node) return false;
    return useful_.contains(edge.node.get()) || outputs_.contains(edge.node.get());
  }
  bool useful(const Node& node) const { return useful_.contains(&node); }

  void keep(const Node& node, std::vector<Tensor>& grads) {
    const auto found = outputs_.find(&node);
    if (found == outputs_.end()) return;
    for (std::size_t i = 0; i < grads.size(); ++i) found->second[i] = grads[i];
  }
  void keep(const Tensor& leaf, Tensor g) { leaves_.at(leaf.id()) = std::move(g); }

  std::vector<Tensor> results(bool allow_unused) const {
    std::vector<Tensor> out;
    for (const Edge& edge : edges_) {
      out.push_back(edge.node ? outputs_.at(edge.node.get())[static_cast<std::size_t>(edge.output)]
                              : leaves_.at(edge.leaf.id()));
      if (!out.back().defined() && released_ != nullptr) fail_released(released_);  // what lay behind is not known
      if (!out.back().defined() && !allow_unused)
        fail(Kind::state,
             concat("grad: no output depends on input ", out.size() - 1, "; with allow_unused it gives no tensor"));
    }
    return out;
  }

 private:
  std::vector<Edge> edges_;
  std::unordered_map<const Node*, std::vector<Tensor>> outputs_;
  std::unordered_map<const void*, Tensor> leaves_;
  std::unordered_set<const Node*> useful_;
  const char* released_ = nullptr;  ///< a node on the way whose edges are gone
};

/// One backward call.
class Pass {
 public:
  /// With `wanted`: a grad() call.
  explicit Pass(const BackwardOptions& options, Wanted* wanted = nullptr)
      : options_(options), wanted_(wanted), outer_(std::exchange(current_, this)) {}
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;
  ~Pass() { current_ = outer_; }

  void run(std::span<const Tensor> roots, std::span<const Tensor> gradients) {
    const ProfileRange range("backward");
    std::vector<Edge> edges;
    for (const Tensor& root : roots) {
      edges.push_back(edge_to(root));
      reach_.follow(edges.back());
    }
    reach_.complete();
    reach_.sort();
    if (wanted_ != nullptr) wanted_->find_useful(reach_.nodes);
    const bool before = exchange_grad_mode(options_.create_graph);
    try {
      for (std::size_t i = 0; i < roots.size(); ++i) deliver(edges[i], gradients[i]);
      edges.clear();
      for (auto& node : reach_.nodes) visit(std::move(node));
      while (!callbacks_.empty()) {
        const auto callback = std::move(callbacks_.front());
        callbacks_.pop_front();
        callback();
      }
    } catch (...) {
      exchange_grad_mode(before);
      throw;
    }
    exchange_grad_mode(before);
  }

  void queue(std::function<void()> callback) { callbacks_.push_back(std::move(callback)); }
  static Pass* current() { return current_; }

 private:
  bool needed(const Edge& edge) const { return wanted_ == nullptr ? edge.needed() : wanted_->leads_on(edge); }

  /// Hands a gradient (maybe undefined) on to where the edge leads.
  void deliver(const Edge& edge, Tensor g) {
    if (!needed(edge)) return;
    if (edge.node) {
      Incoming& incoming = pending_[edge.node.get()];
      if (incoming.grads.empty()) incoming.grads.resize(edge.node->outputs.size());
      if (g.defined()) add_term(incoming, *edge.node, static_cast<std::size_t>(edge.output), std::move(g));
    } else if (edge.leaf.defined()) {
      auto& state = reach_.leaves[reach_.leaf_index.at(edge.leaf.id())];
      if (g.defined()) add_gradient(state.sum, std::move(g));
      if (--state.open == 0) finish(state);
    }
  }

  /// What has arrived for the outputs of a node: sums, and second terms where its function adds them itself.
  struct Incoming {
    std::vector<Tensor> grads, more;
  };

  void add_term(Incoming& incoming, const Node& node, std::size_t i, Tensor g) const {
    Tensor& sum = incoming.grads[i];
    if (node.takes_terms && !options_.create_graph && sum.defined()) {
      incoming.more.resize(incoming.grads.size());
      Tensor& more = incoming.more[i];
      if (more.defined()) add_gradient(sum, std::exchange(more, {}));  // in the order of arrival, as everywhere
      if (sum.strides() == g.strides()) {
        more = std::move(g);
        return;
      }
    }
    add_gradient(sum, std::move(g));
  }

  void finish(Reach::LeafState& state) {
    const Tensor leaf = state.leaf;
    Tensor g = std::exchange(state.sum, {});
    if (g.defined()) {
      check_gradient(g, meta_of(leaf), "the gradient of a leaf that was converted since the forward pass");
      g = run_grad_hooks(slot_of(leaf).grad_hooks, std::move(g), meta_of(leaf));
      if (wanted_ != nullptr) return wanted_->keep(leaf, std::move(g));
      add_to_leaf(leaf, std::move(g));
    }
    if (wanted_ != nullptr) return;
    const auto& hooks = slot_of(leaf).leaf_hooks;
    if (!hooks) return;
    const auto entries = hooks->entries;
    for (const auto& [id, hook] : entries) hook(leaf);
  }

  void visit(std::shared_ptr<Node> node) {
    auto incoming = take_gradients(*node);
    const auto& grads = incoming.grads;
    if (wanted_ != nullptr) {
      for (std::size_t i = 0; i < incoming.more.size(); ++i)
        if (incoming.more[i].defined()) add_gradient(incoming.grads[i], std::exchange(incoming.more[i], {}));
      wanted_->keep(*node, incoming.grads);
      if (!wanted_->useful(*node)) return;
    }
    const bool any = std::any_of(grads.begin(), grads.end(), [](const Tensor& g) { return g.defined(); });
    Gradients results(node->edges.size());
    auto edges = node->edges;
    if (any) results = call(node, incoming);
    incoming = {};
    if (!options_.retain_graph && !options_.create_graph) node->release();
    node.reset();
    for (std::size_t i = 0; i < edges.size(); ++i) deliver(edges[i], std::move(results[i]));
  }

  Incoming take_gradients(const Node& node) {
    const auto found = pending_.find(&node);
    if (found == pending_.end()) return {};
    auto incoming = std::move(found->second);
    pending_.erase(found);
    for (std::size_t i = 0; i < node.output_hooks.size(); ++i) {
      Tensor& g = incoming.grads[i];
      if (!g.defined() || !node.output_hooks[i]) continue;
      if (i < incoming.more.size() && incoming.more[i].defined())  // hooks see the whole
        add_gradient(g, std::exchange(incoming.more[i], {}));
      g = run_grad_hooks(node.output_hooks[i], std::move(g), node.outputs[i]);
    }
    return incoming;
  }

  Gradients call(const std::shared_ptr<Node>& node, Incoming& terms) {
    std::vector<Tensor>& grads = terms.grads;
    if (node->released) fail_released(node->name);
    check_versions(*node);
    const auto count = node->edges.size();
    const auto needs = std::make_unique<bool[]>(count);
    for (std::size_t i = 0; i < count; ++i) needs[i] = needed(node->edges[i]);

    const bool differentiable = options_.create_graph && node->double_differentiable;
    const std::vector<Tensor> incoming = options_.create_graph ? grads : std::vector<Tensor>{};
    const ProfileRange range(node->name);
    BackwardCall arguments{grads, terms.more, {needs.get(), count}, &node};
    const bool before = exchange_grad_mode(differentiable);
    Gradients results;
    try {
      results = node->backward(arguments);
    } catch (...) {
      exchange_grad_mode(before);
      throw;
    }
    exchange_grad_mode(before);
    for (std::size_t i = 0; i < std::min(count, results.size()); ++i)
      if (!needs[i]) results[i] = Tensor();
    check_results(*node, results);
    if (options_.create_graph && !differentiable) forbid_second(*node, incoming, results);
    return results;
  }

  static void check_versions(const Node& node) {
    for (const auto& saved : node.saved) {
      if (saved.tensor.storage() == saved.storage && saved.storage->version() == saved.version) continue;
      fail(Kind::state, concat("backward: tensor '", saved.name, "' (", saved.tensor.sizes(), ") saved by '", node.name,
                               "' was changed in place after the forward pass; change a copy, or after backward"));
    }
  }

  static void check_results(const Node& node, Gradients& results) {
    if (results.size() != node.edges.size())
      fail(Kind::state, concat("backward: '", node.name, "' returned ", results.size(), " gradients for ",
                               node.edges.size(), " inputs"));
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (results[i].defined())
        check_gradient(results[i], node.inputs[i], concat("the gradient of input ", i, " of '", node.name, '\''));
    }
  }

  /// Gradients of an op that is not twice differentiable: usable as values, an error when differentiated.
  static void forbid_second(const Node& node, const std::vector<Tensor>& incoming, Gradients& results) {
    auto edges = node.edges;
    for (const Tensor& g : incoming) edges.push_back(edge_to(g));
    for (Tensor& result : results) {
      if (!result.defined()) continue;
      auto guard = make_node();
      guard->name = node.name;
      guard->edges = edges;
      guard->inputs.resize(edges.size());
      guard->outputs = {meta_of(result)};
      guard->backward = [name = node.name](const Tensor&) -> Gradients {
        fail(Kind::unsupported, concat("backward: '", name, "' is not twice differentiable"));
      };
      result = result.detach();
      attach(result, guard, 0);
    }
  }

  BackwardOptions options_;
  Wanted* wanted_;
  Pass* outer_;
  Reach reach_;
  std::unordered_map<const Node*, Incoming> pending_;
  std::deque<std::function<void()>> callbacks_;
  static thread_local Pass* current_;
};

thread_local Pass* Pass::current_ = nullptr;

Tensor first_gradient(const Tensor& root, const Tensor& given) {
  if (!root.defined()) fail(Kind::argument, "backward: the root is an undefined tensor");
  if (!requires_grad(root))
    fail(Kind::state,
         "backward: the root requires no gradient: no input of the ops that made it does, or grad mode was off");
  if (given.defined()) {
    check_gradient(given, meta_of(root), "the gradient given");
    return given;
  }
  if (root.numel() != 1)
    fail(Kind::argument,
         concat("backward: a root of sizes ", root.sizes(), " needs a gradient; only a single element may go without"));
  return ones_like(root);
}

}  // namespace

void backward(const Tensor& root, const Tensor& gradient, const BackwardOptions& options) {
  backward(std::span(&root, 1), std::span(&gradient, 1), options);
}

void backward(std::span<const Tensor> roots, std::span<const Tensor> gradients, const BackwardOptions& options) {
  if (!gradients.empty() && gradients.size() != roots.size())
    fail(Kind::argument, concat("backward: ", gradients.size(), " gradients for ", roots.size(), " roots"));
  std::vector<Tensor> first;
  for (std::size_t i = 0; i < roots.size(); ++i)
    first.push_back(first_gradient(roots[i], gradients.empty() ? Tensor() : gradients[i]));
  Pass(options).run(roots, first);
}

std::vector<Tensor> grad(std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                         std::span<const Tensor> gradients, const GradOptions& options) {
  if (!gradients.empty() && gradients.size() != outputs.size())
    fail(Kind::argument, concat("grad: ", gradients.size(), " gradients for ", outputs.size(), " outputs"));
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (!inputs[i].defined() || !requires_grad(inputs[i]))
      fail(Kind::state, concat("grad: input ", i, " requires no gradient"));
  std::vector<Tensor> first;
  for (std::size_t i = 0; i < outputs.size(); ++i)
    first.push_back(first_gradient(outputs[i], gradients.empty() ? Tensor() : gradients[i]));
  Wanted wanted(inputs);
  Pass({.retain_graph = options.retain_graph, .create_graph = options.create_graph}, &wanted).run(outputs, first);
  return wanted.results(options.allow_unused);
}

Tensor grad(const Tensor& output, const Tensor& input, const Tensor& gradient, const GradOptions& options) {
  return grad(std::span(&output, 1), std::span(&input, 1), std::span(&gradient, 1), options)[0];
}

void queue_backward_callback(std::function<void()> callback) {
  if (Pass::current() == nullptr) fail(Kind::state, "queue_backward_callback: no backward is running on this thread");
  Pass::current()->queue(std::move(callback));
}

std::vector<Tensor> reachable_leaves(std::span<const Tensor> outputs) {
  Reach reach;
  for (const Tensor& output : outputs)
    if (output.defined()) reach.follow(edge_to(output));
  reach.complete();
  std::vector<Tensor> leaves;
  for (auto& state : reach.leaves) leaves.push_back(state.leaf);
  return leaves;
}

}  // namespace apex
