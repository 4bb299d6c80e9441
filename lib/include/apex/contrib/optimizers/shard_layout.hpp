// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "apex/core/dtype.hpp"

/// Where the elements of parameters lie when their gradients travel in buckets and every rank keeps a part of each.
/// Arithmetic alone: the same numbers on every rank.
namespace apex::contrib::optimizers {

/// [begin, end)
struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const noexcept { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// Elements that fragments and shards are aligned to: 128 bytes on the wire.
std::int64_t shard_alignment(DType grad_sync_dtype);
/// Elements of a bucket that one of `ranks` keeps, for buckets of at most `bucket_cap_mb` MiB (but one alignment unit
/// for each rank at least). @throws Kind::argument unless the cap is a finite number > 0 and ranks >= 1
std::int64_t shard_size(DType grad_sync_dtype, int ranks, double bucket_cap_mb);

/// Consecutive elements of a parameter, in its memory order, that lie together in a bucket.
struct Fragment {
  std::int64_t param = 0, bucket = 0;
  Range in_param, in_bucket;  ///< of one size
};

/// What one rank keeps of a fragment.
struct LocalPart {
  std::size_t fragment = 0;
  Range in_shard, in_bucket, in_param;  ///< of one size
};

/// Buckets of one size, each cut into `ranks` shards; rank r keeps [r * shard, (r + 1) * shard) of every bucket.
/// A parameter starts at the next aligned place of the last bucket and goes on in new ones until it ends.
class ShardLayout {
 public:
  ShardLayout() = default;
  /// @throws Kind::argument for ranks < 1 or a shard that is no positive multiple of the alignment
  ShardLayout(DType grad_sync_dtype, int ranks, std::int64_t shard);

  /// Places the next parameter, number params().
  void add(std::int64_t numel);
  /// The next parameter opens a bucket.
  void close() { open_ = false; }

  int ranks() const noexcept { return ranks_; }
  std::int64_t shard() const noexcept { return shard_; }
  std::int64_t bucket_size() const noexcept { return shard_ * ranks_; }
  std::int64_t params() const noexcept { return static_cast<std::int64_t>(of_param_.size()); }
  std::int64_t buckets() const noexcept { return static_cast<std::int64_t>(filled_.size()); }
  const std::vector<Fragment>& fragments() const noexcept { return fragments_; }
  /// Numbers of the fragments of a parameter, and of a bucket in the order in which they lie there.
  const std::vector<std::size_t>& of_param(std::int64_t param) const { return of_param_.at(index(param)); }
  const std::vector<std::size_t>& of_bucket(std::int64_t bucket) const { return of_bucket_.at(index(bucket)); }
  /// The end of the last fragment.
  std::int64_t filled(std::int64_t bucket) const { return filled_.at(index(bucket)); }
  /// Filled elements over all there is; 1 without buckets.
  double fill_ratio() const noexcept;

  /// Nothing when no element of the fragment belongs to the rank.
  std::optional<LocalPart> local(std::size_t fragment, int rank) const;

 private:
  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
  std::int64_t alignment_ = 1, shard_ = 0;
  int ranks_ = 1;
  bool open_ = false;
  std::vector<Fragment> fragments_;
  std::vector<std::vector<std::size_t>> of_param_, of_bucket_;
  std::vector<std::int64_t> filled_;
};

}  // namespace apex::contrib::optimizers
