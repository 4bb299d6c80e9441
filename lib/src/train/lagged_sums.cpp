// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/train/lagged_sums.hpp"

#include "host_link.hpp"

namespace apex::train {

LaggedSums::LaggedSums(dist::ProcessGroup group, Device device) : group_(std::move(group)) {
  if (device.is_cuda()) copy_ = std::make_unique<Readback>(device);
}

LaggedSums::~LaggedSums() = default;

void LaggedSums::reduce(std::vector<double> values, bool stop) {
  values.push_back(stop ? 1.0 : 0.0);
  pending_ = from_values<double>({static_cast<std::int64_t>(values.size())}, std::span<const double>(values));
  work_ = group_.all_reduce(pending_, dist::ReduceOp::sum, "step statistics");
}

void LaggedSums::collect(std::vector<Result>& out) {
  if (!pending_.defined()) return;
  work_.wait();
  const double* values = pending_.data<double>();
  out.push_back({{values, values + pending_.numel() - 1}, values[pending_.numel() - 1] > 0});
  pending_ = Tensor();
}

std::vector<LaggedSums::Result> LaggedSums::push(const Tensor& sums, bool stop) {
  std::vector<Result> out;
  collect(out);
  if (copy_ == nullptr) {
    const double* values = sums.data<double>();
    reduce({values, values + sums.numel()}, stop);
    return out;
  }
  const bool before = copy_->pending();
  copy_->start(sums);
  if (before) reduce(copy_->finish(), stop_);
  stop_ = stop;
  return out;
}

std::vector<LaggedSums::Result> LaggedSums::drain() {
  std::vector<Result> out;
  collect(out);
  if (copy_ != nullptr && copy_->pending()) {
    reduce(copy_->finish(), stop_);
    collect(out);
  }
  return out;
}

}  // namespace apex::train
