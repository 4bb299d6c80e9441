// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/contrib/optimizers/shard_layout.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "apex/core/error.hpp"

namespace apex::contrib::optimizers {

std::int64_t shard_alignment(DType dtype) { return 128 / static_cast<std::int64_t>(size_of(dtype)); }

std::int64_t shard_size(DType dtype, int ranks, double bucket_cap_mb) {
  if (!(bucket_cap_mb > 0) || !std::isfinite(bucket_cap_mb))
    fail(Kind::argument, concat("bucket_cap_mb ", bucket_cap_mb, " is not a positive number"));
  if (ranks < 1) fail(Kind::argument, concat("a bucket cannot be cut among ", ranks, " ranks"));
  const std::int64_t alignment = shard_alignment(dtype);
  const double elements = 1048576.0 * bucket_cap_mb / static_cast<double>(size_of(dtype)) / ranks;
  if (elements > 4e18) fail(Kind::argument, concat("bucket_cap_mb ", bucket_cap_mb, " is too large"));
  return std::max(alignment, static_cast<std::int64_t>(elements) / alignment * alignment);
}

ShardLayout::ShardLayout(DType dtype, int ranks, std::int64_t shard)
    : alignment_(shard_alignment(dtype)), shard_(shard), ranks_(ranks) {
  if (ranks < 1) fail(Kind::argument, concat("a bucket cannot be cut among ", ranks, " ranks"));
  if (shard < 1 || shard % alignment_ != 0)
    fail(Kind::argument, concat("a shard of ", shard, " elements is no multiple of ", alignment_));
}

void ShardLayout::add(std::int64_t numel) {
  const std::int64_t param = params();
  auto& own = of_param_.emplace_back();
  for (std::int64_t done = 0; done < numel;) {
    std::int64_t at = open_ ? (filled_.back() + alignment_ - 1) / alignment_ * alignment_ : bucket_size();
    if (at >= bucket_size()) {
      filled_.push_back(0);
      of_bucket_.emplace_back();
      open_ = true;
      at = 0;
    }
    const std::int64_t count = std::min(numel - done, bucket_size() - at);
    own.push_back(fragments_.size());
    of_bucket_.back().push_back(fragments_.size());
    fragments_.push_back({param, buckets() - 1, {done, done + count}, {at, at + count}});
    filled_.back() = at + count;
    done += count;
  }
}

double ShardLayout::fill_ratio() const noexcept {
  if (filled_.empty()) return 1.0;
  const auto sum = std::accumulate(filled_.begin(), filled_.end(), std::int64_t{0});
  return static_cast<double>(sum) / (static_cast<double>(bucket_size()) * static_cast<double>(filled_.size()));
}

std::optional<LocalPart> ShardLayout::local(std::size_t fragment, int rank) const {
  const Fragment& f = fragments_.at(fragment);
  const std::int64_t first = rank * shard_;
  const Range in_bucket{std::max(f.in_bucket.begin, first), std::min(f.in_bucket.end, first + shard_)};
  if (in_bucket.size() <= 0) return {};
  const std::int64_t to_param = f.in_param.begin - f.in_bucket.begin;
  return LocalPart{fragment,
                   {in_bucket.begin - first, in_bucket.end - first},
                   in_bucket,
                   {in_bucket.begin + to_param, in_bucket.end + to_param}};
}

}  // namespace apex::contrib::optimizers
