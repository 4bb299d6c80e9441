// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/train/lagged_sums.hpp"

namespace apex::train {

std::optional<LaggedSums::Result> LaggedSums::push(const std::vector<double>& sums, bool stop) {
  std::vector<double> values = sums;
  values.push_back(stop ? 1.0 : 0.0);
  auto before = drain();
  pending_ = from_values<double>({static_cast<std::int64_t>(values.size())}, std::span<const double>(values));
  work_ = group_.all_reduce(pending_, dist::ReduceOp::sum, "step statistics");
  return before;
}

std::optional<LaggedSums::Result> LaggedSums::drain() {
  if (!pending_.defined()) return std::nullopt;
  work_.wait();
  const double* values = pending_.data<double>();
  Result out{{values, values + pending_.numel() - 1}, values[pending_.numel() - 1] > 0};
  pending_ = Tensor();
  return out;
}

}  // namespace apex::train
