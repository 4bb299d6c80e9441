// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "apex/core/context.hpp"

// The memory of tensors on CUDA devices: stream-ordered, and aware of graph capture.

namespace apex::cuda {

struct Block {
  void* data;
  bool of_graph;  ///< made during capture: an allocation node of the graph
};

Block acquire(std::size_t bytes, const Context& ctx);
/// Gives memory back after what is queued on ctx and on `uses`. What was made before a capture and is dropped during it
/// is given back after it; what was made during a capture and is dropped later stays with the graph.
void release(void* data, std::size_t bytes, const Context& ctx, bool of_graph,
             const std::vector<Context>& uses) noexcept;

}  // namespace apex::cuda
