// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "apex/collectives/process_group.hpp"
#include "apex/core/tensor.hpp"

namespace apex::parallel::detail {

/// How gradients are reduced.
struct ReduceRule {
  bool average = true;
  bool always_fp32 = false;
  bool retain = false;  ///< gradients become views of the flat buffer
  double predivide = 1.0;
};

/// A parameter's part in a reduction.
struct Contribution {
  Tensor parameter;
  bool used = true;  ///< false: this rank has no gradient for it and contributes zeros
};

/// One flat all-reduce of gradients of one dtype, from packing to writing back. Gradients lie in the flat buffer in the
/// memory order of their parameters, which is the same on all ranks.
class GradientBucket {
 public:
  /// @param where  the stream to pack on; unset: the current one
  void launch(const std::vector<Contribution>& contributions, const ReduceRule& rule, const dist::ProcessGroup& group,
              std::string_view label, std::optional<Context> where = {});
  /// Waits, scales, and writes each parameter's gradient, but for those with wanted[i] == false.
  void finish(const std::vector<bool>& wanted);
  /// With ReduceRule::retain, after finish().
  const Tensor& flat() const { return flat_; }
  const dist::Work& work() const { return work_; }

 private:
  ReduceRule rule_;
  int ranks_ = 1;
  std::vector<Contribution> contributions_;
  std::vector<Tensor> gradients_;  ///< what is packed and unpacked: the parameter's own gradient, or zeros
  Tensor flat_;
  dist::Work work_;
};

/// Whether work on `device` is being captured into a graph.
bool capturing(Device device);

/// Gives all ranks root's values, some megabytes at a time. Writes without raising versions.
void broadcast_coalesced(const std::vector<Tensor>& tensors, int root, const dist::ProcessGroup& group,
                         std::string_view label);

}  // namespace apex::parallel::detail
