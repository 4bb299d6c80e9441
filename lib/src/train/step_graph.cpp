// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/train/step_graph.hpp"

#include <algorithm>

#include "../device_offset.hpp"
#include "apex/core/error.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/random.hpp"
#ifdef APEX_HAS_CUDA
#include "cuda/captured_graph.hpp"
#endif

namespace apex::train {

#ifndef APEX_HAS_CUDA
namespace {
/// Stands for a graph where there are none.
struct CapturedGraph {
  std::vector<StepGraph::Node> nodes() const { return {}; }
  void write_dot(const std::string&) const {}
};
}  // namespace
#endif

struct StepGraph::Impl {
  /// One key: how often it ran eagerly, then its graph.
  struct Entry {
    std::string key;
    int eager_runs = 0;
    std::int64_t last_used = 0;
    std::unique_ptr<CapturedGraph> graph;
    std::vector<Tensor> written;
    Tensor offset;            ///< of the generator, read by the graph; undefined when it draws nothing
    std::uint64_t seed = 0;   ///< of the generator when the graph was captured
    std::uint64_t draws = 0;  ///< calls in a step that draw
  };

  Device device;
  StepGraphOptions options;
  std::vector<Entry> entries;
  std::int64_t runs = 0, launches = 0;
  bool replays = false;
  std::string why_not;
  const CapturedGraph* last = nullptr;

  Entry& entry_of(const std::string& key);
  bool capture(Entry& entry, const std::function<void()>& body);
  void launch(Entry& entry);
  void give_up(const std::string& reason);
};

StepGraph::Impl::Entry& StepGraph::Impl::entry_of(const std::string& key) {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.key == key; });
  if (found != entries.end()) return *found;
  if (static_cast<int>(entries.size()) >= std::max(options.keep, 1)) {
    const auto oldest = std::min_element(entries.begin(), entries.end(),
                                         [](const Entry& a, const Entry& b) { return a.last_used < b.last_used; });
    if (oldest->graph.get() == last) last = nullptr;
    entries.erase(oldest);
  }
  entries.push_back({.key = key});
  return entries.back();
}

void StepGraph::Impl::give_up(const std::string& reason) {
  why_not = reason;
  log_warning(concat("the training step is not captured as a CUDA graph and runs eagerly: ", reason));
  last = nullptr;
  entries.clear();
}

#ifdef APEX_HAS_CUDA

bool StepGraph::Impl::capture(Entry& entry, const std::function<void()>& body) {
  cuda::trim(device);  // waits for the device, or eager and graph memory add up
  Generator& generator = default_generator();
  const Generator before = generator;
  const Tensor offset = empty({1}, DType::i64, device);
  auto attempt = [&] {
    const detail::DeviceOffsetGuard on_device(generator, offset);
    return CapturedGraph::capture(Context::current(device), body);
  }();
  entry.seed = before.seed;
  entry.draws = generator.offset - before.offset;
  entry.offset = entry.draws > 0 ? offset : Tensor();
  generator = before;  // nothing has been drawn yet
  if (attempt.graph == nullptr) {
    if (options.recover) options.recover();
    give_up(attempt.problem);
    return false;
  }
  entry.graph = std::move(attempt.graph);
  if (options.written) entry.written = options.written();
  return true;
}

void StepGraph::Impl::launch(Entry& entry) {
  if (entry.offset.defined()) {
    std::uint64_t& offset = default_generator().offset;
    if (offset >= std::uint64_t{1} << 53)  // fill takes a double
      fail(Kind::unsupported, concat("StepGraph: the generator's offset ", offset, " is beyond 2^53"));
    kernels::fill(entry.offset.context(), entry.offset.view(), static_cast<double>(offset));
    offset += entry.draws;
  }
  entry.graph->launch(Context::current(device));
  for (const auto& t : entry.written) t.raise_version();
  last = entry.graph.get();
  replays = true;
  ++launches;
  if (options.launched) options.launched(launches);
}

#else

bool StepGraph::Impl::capture(Entry&, const std::function<void()>&) { throw_not_built("StepGraph", device); }
void StepGraph::Impl::launch(Entry&) { throw_not_built("StepGraph", device); }

#endif

StepGraph::StepGraph(Device device, StepGraphOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->device = device;
  impl_->options = std::move(options);
  if (!device.is_cuda()) impl_->why_not = "graphs need a CUDA device";
}

StepGraph::~StepGraph() = default;

void StepGraph::run(const std::string& key, const std::function<void()>& body) {
  Impl& self = *impl_;
  self.replays = false;
  ++self.runs;
  if (!self.why_not.empty()) {
    body();
    return;
  }
  auto& entry = self.entry_of(key);
  entry.last_used = self.runs;
  if (entry.draws > 0 && entry.seed != default_generator().seed) {
    if (entry.graph.get() == self.last) self.last = nullptr;
    entry.graph.reset();
  }
  if (entry.graph == nullptr) {
    if (entry.eager_runs < self.options.warm_up) {
      ++entry.eager_runs;
      body();
      return;
    }
    if (!self.capture(entry, body)) {
      body();
      return;
    }
  }
  self.launch(entry);
}

bool StepGraph::replays() const noexcept { return impl_->replays; }
std::int64_t StepGraph::launches() const noexcept { return impl_->launches; }
const std::string& StepGraph::why_not() const noexcept { return impl_->why_not; }

std::vector<StepGraph::Node> StepGraph::nodes() const {
  return impl_->last == nullptr ? std::vector<Node>() : impl_->last->nodes();
}

bool StepGraph::depends(const std::vector<Node>& nodes, std::size_t later, std::size_t earlier) {
  std::vector<bool> seen(nodes.size(), false);
  std::vector<std::size_t> open = {later};
  while (!open.empty()) {
    const std::size_t at = open.back();
    open.pop_back();
    for (const std::size_t before : nodes[at].after) {
      if (before == earlier) return true;
      if (seen[before]) continue;
      seen[before] = true;
      open.push_back(before);
    }
  }
  return false;
}

namespace {
std::size_t count(const std::vector<StepGraph::Node>& nodes, StepGraph::Node::Type type) {
  return static_cast<std::size_t>(
      std::count_if(nodes.begin(), nodes.end(), [&](const auto& n) { return n.type == type; }));
}
}  // namespace

std::size_t StepGraph::kernel_nodes() const { return count(nodes(), Node::Type::kernel); }
std::size_t StepGraph::allocation_nodes() const { return count(nodes(), Node::Type::allocation); }
std::size_t StepGraph::release_nodes() const { return count(nodes(), Node::Type::release); }

void StepGraph::write_dot(const std::string& path) const {
  if (impl_->last == nullptr) fail(Kind::state, "StepGraph::write_dot: no graph has been launched");
  impl_->last->write_dot(path);
}

}  // namespace apex::train
