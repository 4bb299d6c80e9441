// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/parallel/bucket_plan.hpp"

#include <utility>

#include "apex/core/error.hpp"

namespace apex::parallel {

std::vector<std::int32_t> BucketPlan::encode() const {
  std::vector<std::int32_t> code{static_cast<std::int32_t>(buckets.size())};
  for (const auto& bucket : buckets) code.push_back(static_cast<std::int32_t>(bucket.size()));
  for (const auto& bucket : buckets) code.insert(code.end(), bucket.begin(), bucket.end());
  return code;
}

BucketPlan BucketPlan::decode(std::span<const std::int32_t> code) {
  const auto damaged = [] { fail(Kind::argument, "bucket plan: the list of numbers is not one that encode() makes"); };
  if (code.empty() || code[0] < 0 || static_cast<std::size_t>(code[0]) + 1 > code.size()) damaged();
  const auto count = static_cast<std::size_t>(code[0]);
  std::size_t at = 1 + count;
  BucketPlan plan;
  for (std::size_t b = 0; b < count; ++b) {
    if (code[1 + b] < 1 || static_cast<std::size_t>(code[1 + b]) > code.size() - at) damaged();
    const auto size = static_cast<std::size_t>(code[1 + b]);
    const auto entries = code.subspan(at, size);
    for (const std::int32_t index : entries)
      if (index < 0) damaged();
    plan.buckets.emplace_back(entries.begin(), entries.end());
    at += size;
  }
  if (at != code.size()) damaged();
  return plan;
}

void BucketRecorder::close(Open& open) {
  plan_.buckets.push_back(std::exchange(open.entries, {}));
  open.numel = 0;
  ++open.closed;
}

void BucketRecorder::add(std::int32_t index, DType dtype, std::int64_t numel, bool trigger) {
  Open& open = open_[dtype];
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const auto cap = [&] {
    return open.closed == 0 && rule_.first_cap_bytes > 0 ? rule_.first_cap_bytes : rule_.cap_bytes;
  };
  const bool capped = rule_.cap_bytes > 0 && !rule_.triggers;
  if (capped && !open.entries.empty() && (open.numel + numel) * element > cap()) close(open);
  open.entries.push_back(index);
  open.numel += numel;
  const bool full = rule_.triggers ? trigger
                    : capped       ? open.numel * element >= cap()
                                   : open.numel >= rule_.message_size;
  if (full) close(open);
}

BucketPlan BucketRecorder::finish() {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64})
    if (const auto at = open_.find(dtype); at != open_.end() && !at->second.entries.empty()) close(at->second);
  open_.clear();
  return std::exchange(plan_, {});
}

}  // namespace apex::parallel
