// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "apex/core/dtype.hpp"

namespace apex::parallel {

/// Which gradients travel together, and in which order the buckets are reduced. Entries are indices into the list of
/// active parameters (those that require a gradient, in registration order).
struct BucketPlan {
  std::vector<std::vector<std::int32_t>> buckets;

  bool empty() const noexcept { return buckets.empty(); }
  friend bool operator==(const BucketPlan&, const BucketPlan&) = default;

  /// [B, size of bucket 0 .. B-1, entries of bucket 0, of bucket 1, ...]; [0] for the empty plan.
  std::vector<std::int32_t> encode() const;
  /// @throws Kind::argument for a list that encode() cannot have made
  static BucketPlan decode(std::span<const std::int32_t> code);
};

/// When a bucket is full. Exactly one of the rules applies: `triggers` over `cap_bytes` over `message_size`.
struct BucketRule {
  std::int64_t message_size = 10'000'000;  ///< closes with the gradient that makes it this many elements or more
  std::int64_t cap_bytes = 0;              ///< > 0: closes before the gradient that would take it beyond
  std::int64_t first_cap_bytes = 0;        ///< the same for the first bucket of each dtype
  bool triggers = false;                   ///< closes with a gradient marked as trigger, and only then
};

/// Builds a plan from gradients in the order they arrive. One bucket is open for each dtype; closed ones are numbered
/// in the order they close.
class BucketRecorder {
 public:
  explicit BucketRecorder(const BucketRule& rule) : rule_(rule) {}

  void add(std::int32_t index, DType dtype, std::int64_t numel, bool trigger = false);
  /// Closes what is open, in the order f16, bf16, f32, f64, and hands the plan over.
  BucketPlan finish();

 private:
  struct Open {
    std::vector<std::int32_t> entries;
    std::int64_t numel = 0;
    std::int64_t closed = 0;  ///< buckets of this dtype so far
  };
  void close(Open& open);

  BucketRule rule_;
  std::map<DType, Open> open_;
  BucketPlan plan_;
};

}  // namespace apex::parallel
