// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/random.hpp"

#include <utility>

namespace apex {

namespace {
thread_local SampleRows rows{};
}

Generator& default_generator() {
  static Generator generator;
  return generator;
}

void manual_seed(std::uint64_t seed) { default_generator() = {seed, 0}; }

SampleRows current_sample_rows() noexcept { return rows; }
SampleRowsGuard::SampleRowsGuard(SampleRows next) : before_(std::exchange(rows, next)) {}
SampleRowsGuard::~SampleRowsGuard() { rows = before_; }

}  // namespace apex
