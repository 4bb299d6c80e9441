// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apex/core/tensor.hpp"

namespace apex::train {

struct StepGraphOptions {
  /// Eager runs of a key before it is captured: they choose plans, make the optimizer's state and load kernels, none of
  /// which a capture may do.
  int warm_up = 2;
  /// Graphs kept; beyond that the one used longest ago goes.
  int keep = 4;
  /// Everything the body changes in place and outsiders may hold (parameters, buffers, optimizer state): their versions
  /// are raised after each launch. Asked for once a capture.
  std::function<std::vector<Tensor>()> written = {};
  /// After each launch, with its number from 1 on (the watchdog's entry).
  std::function<void(std::int64_t launch)> launched = {};
  /// Puts right what a capture that failed half-way left behind, before the body runs eagerly: drops gradients.
  std::function<void()> recover = {};
};

/// One training step as a CUDA graph: the first runs of a key are eager, then the step is captured once and from then
/// on launched as a whole. What runs is the same work in the same order, so results are bit-equal to eager runs.
///
/// What the body must keep to:
/// * it works on the current stream of the device (others may fork from it and join it again) and never waits for it;
/// * what it reads and leaves behind are persistent tensors, filled before run(): inputs, learning rate, sums;
/// * every other tensor made in it is dropped in it; gradients too, so zero_grad(set_to_none) comes last;
/// * random numbers (dropout) come from default_generator(): its offset then lies on the device, each launch draws what
///   an eager run would have drawn, and the generator on the host follows. Another seed means another capture.
///
/// A step that cannot be captured stays eager for good, with one warning; so does every step on the CPU, without one.
class StepGraph {
 public:
  explicit StepGraph(Device device, StepGraphOptions options = {});
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;
  ~StepGraph();

  /// Makes one step. `key` names the shapes and whatever else the launched work depends on: another key is warmed up
  /// and captured anew. Before a capture the device is waited for and the memory pool trimmed; otherwise nothing waits.
  void run(const std::string& key, const std::function<void()>& body);

  /// Whether the last run() was a launch.
  bool replays() const noexcept;
  /// Launches so far.
  std::int64_t launches() const noexcept;
  /// Why steps stay eager; empty as long as they do not have to.
  const std::string& why_not() const noexcept;

  /// One node of the graph launched last.
  struct Node {
    enum class Type { kernel, copy, fill, allocation, release, other };
    Type type = Type::other;
    std::string name;                ///< of a kernel, as the compiler mangled it
    std::vector<std::size_t> after;  ///< nodes it waits for directly
  };
  std::vector<Node> nodes() const;
  /// Whether node `later` can only start after `earlier`.
  static bool depends(const std::vector<Node>& nodes, std::size_t later, std::size_t earlier);
  std::size_t kernel_nodes() const;
  /// Allocations and releases inside the graph: equal when everything made in the step is dropped in it.
  std::size_t allocation_nodes() const;
  std::size_t release_nodes() const;
  /// Writes the graph launched last in Graphviz' language. @throws Kind::state when there is none
  void write_dot(const std::string& path) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace apex::train
