// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apex/core/cuda.hpp"
#include "apex/train/step_graph.hpp"

namespace apex::train {

/// Owns what was captured and its executable form.
class CapturedGraph {
 public:
  struct Attempt {
    std::unique_ptr<CapturedGraph> graph;  ///< null when it failed
    std::string problem;                   ///< why, in one line
  };
  /// Captures what `body` queues on `ctx`; nothing of it runs. The stream is usable afterwards, come what may.
  static Attempt capture(const Context& ctx, const std::function<void()>& body);

  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  ~CapturedGraph();

  void launch(const Context& ctx);
  std::vector<StepGraph::Node> nodes() const;
  void write_dot(const std::string& path) const;

 private:
  explicit CapturedGraph(cudaGraph_t graph) : graph_(graph) {}

  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace apex::train
