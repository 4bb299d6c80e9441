// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <vector>

#include "apex/collectives/process_group.hpp"
#include "apex/nn/module.hpp"

namespace apex::parallel {

/// Averages over the ranks when told to, and only then: one flat all-reduce per dtype (in the order the dtypes appear).
class Reducer {
 public:
  /// reduce() works on the gradients of the module's parameters. Gives all ranks rank 0's parameters. Collective.
  explicit Reducer(std::shared_ptr<nn::Module> module, const dist::ProcessGroup& group = {});
  /// reduce() works on exactly these tensors. Nothing is sent now.
  /// @throws Kind::argument for an undefined tensor
  explicit Reducer(std::vector<Tensor> tensors, const dist::ProcessGroup& group = {});

  /// tensor = (sum over ranks) / ranks, in the tensor's dtype, in place. Gradients that other ranks have and this one
  /// has not count as zero and are there afterwards; one that no rank has stays undefined. Collective.
  void reduce();

 private:
  dist::ProcessGroup group_;
  std::shared_ptr<nn::Module> module_;
  std::vector<Tensor> tensors_;
};

}  // namespace apex::parallel
