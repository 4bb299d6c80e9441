// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace apex {

/// Where random numbers come from: Philox under key `seed`, one `offset` for each call that draws (Mechanics 7). Two
/// integers are the whole state, so a checkpoint stores them and a resume continues the same stream. What a call draws
/// depends on (seed, offset) and the position of the element, never on threads or ranks.
struct Generator {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;

  /// The offset for one drawing call.
  std::uint64_t next() { return offset++; }
  friend bool operator==(const Generator&, const Generator&) = default;
};

/// The process's generator: initialisation of modules and dropout draw from it unless told otherwise. Not synchronised:
/// one thread builds and runs the model.
Generator& default_generator();
/// default_generator() = {seed, 0}.
void manual_seed(std::uint64_t seed);

/// Which global samples the rows of the tensors in flight are: row i is sample first + i * stride. Dropout masks are
/// drawn by global sample, so they are the same at any world size. Without a guard: first 0, stride 1.
struct SampleRows {
  std::int64_t first = 0;
  std::int64_t stride = 1;
};
SampleRows current_sample_rows() noexcept;

/// Sets the rows for this thread until the end of the scope; the training loop opens one around forward.
class SampleRowsGuard {
 public:
  explicit SampleRowsGuard(SampleRows rows);
  SampleRowsGuard(const SampleRowsGuard&) = delete;
  SampleRowsGuard& operator=(const SampleRowsGuard&) = delete;
  ~SampleRowsGuard();

 private:
  SampleRows before_;
};

}  // namespace apex
