// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/random.hpp"

#include <utility>

#include "apex/core/error.hpp"
#include "device_offset.hpp"

namespace apex {

namespace {
thread_local SampleRows rows{};
thread_local detail::DeviceOffsetGuard* offset_guard = nullptr;
}  // namespace

Generator& default_generator() {
  static Generator generator;
  return generator;
}

void manual_seed(std::uint64_t seed) { default_generator() = {seed, 0}; }

SampleRows current_sample_rows() noexcept { return rows; }
SampleRowsGuard::SampleRowsGuard(SampleRows next) : before_(std::exchange(rows, next)) {}
SampleRowsGuard::~SampleRowsGuard() { rows = before_; }

namespace detail {

DeviceOffsetGuard::DeviceOffsetGuard(const Generator& generator, const Tensor& base)
    : generator_(&generator), start_(generator.offset), base_(base), outer_(std::exchange(offset_guard, this)) {}
DeviceOffsetGuard::~DeviceOffsetGuard() { offset_guard = outer_; }

Draw draw_from(Generator& generator) {
  Draw draw{{generator.seed, 0, rows.first, rows.stride}, {}};
  if (offset_guard == nullptr) {
    draw.state.offset = generator.next();
    return draw;
  }
  if (offset_guard->generator_ != &generator)
    fail(Kind::state,
         "random numbers in a captured step come from the default generator; another's offset stays on the host");
  draw.state.offset = generator.next() - offset_guard->start_;
  draw.base = offset_guard->base_;
  draw.state.base = draw.base.data<std::int64_t>();
  return draw;
}

}  // namespace detail

}  // namespace apex
