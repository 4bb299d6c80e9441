// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/train/lagged_sums.hpp"

#include "host_link.hpp"

namespace apex::train {

LaggedSums::LaggedSums(dist::ProcessGroup group, Device device) : group_(std::move(group)) {
  if (device.is_cuda()) copy_ = std::make_unique<Readback>(device);
}

LaggedSums::~LaggedSums() = default;

void LaggedSums::reduce(std::vector<double> values, const Word& word) {
  values.insert(values.end(), {word.stop ? 1.0 : 0.0, static_cast<double>(word.bad_samples)});
  pending_ = from_values<double>({static_cast<std::int64_t>(values.size())}, std::span<const double>(values));
  work_ = group_.all_reduce(pending_, dist::ReduceOp::sum, "step statistics");
}

void LaggedSums::collect(std::vector<Result>& out) {
  if (!pending_.defined()) return;
  work_.wait();
  const double* values = pending_.data<double>();
  const double* words = values + pending_.numel() - 2;
  out.push_back({{values, words}, words[0] > 0, static_cast<std::int64_t>(words[1])});
  pending_ = Tensor();
}

std::vector<LaggedSums::Result> LaggedSums::push(const Tensor& sums, bool stop, std::int64_t bad_samples) {
  const Word word{stop, bad_samples};
  std::vector<Result> out;
  collect(out);
  if (copy_ == nullptr) {
    const double* values = sums.data<double>();
    reduce({values, values + sums.numel()}, word);
    return out;
  }
  const bool before = copy_->pending();
  copy_->start(sums);
  if (before) reduce(copy_->finish(), word_);
  word_ = word;
  return out;
}

std::vector<LaggedSums::Result> LaggedSums::drain() {
  std::vector<Result> out;
  collect(out);
  if (copy_ != nullptr && copy_->pending()) {
    reduce(copy_->finish(), word_);
    collect(out);
  }
  return out;
}

}  // namespace apex::train
