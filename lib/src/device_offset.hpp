// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/core/tensor.hpp"
#include "apex/kernels/random.hpp"
#include "apex/random.hpp"

namespace apex::detail {

/// The numbers of one drawing call, and what keeps their base alive.
struct Draw {
  kernels::RandomState state;
  Tensor base;  ///< undefined: the offset is all in `state`
};
/// Takes the next offset of `generator`, for the sample rows in flight.
/// @throws Kind::state inside a DeviceOffsetGuard of another generator: its offset would be drawn once and for all
Draw draw_from(Generator& generator);

/// While it lives, calls on this thread that draw from `generator` count their offsets from 0 on and find the rest,
/// what `generator.offset` is when the work runs, in `base` (i64, one element on their device). For capturing a step.
class DeviceOffsetGuard {
 public:
  DeviceOffsetGuard(const Generator& generator, const Tensor& base);
  DeviceOffsetGuard(const DeviceOffsetGuard&) = delete;
  DeviceOffsetGuard& operator=(const DeviceOffsetGuard&) = delete;
  ~DeviceOffsetGuard();

 private:
  friend Draw draw_from(Generator& generator);
  const Generator* generator_;
  std::uint64_t start_;
  Tensor base_;
  DeviceOffsetGuard* outer_;
};

}  // namespace apex::detail
