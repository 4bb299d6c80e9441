// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <vector>

#include "apex/core/tensor.hpp"

// Small values between host and device in stream order, through page-locked memory, without waiting.

namespace apex::train {

/// Device sums on their way to the host, first in, first out.
class Readback {
 public:
  explicit Readback(Device device);
  ~Readback();

  /// Copies an f64 vector as of now. At most kSlots are on their way at a time.
  void start(const Tensor& values);
  bool pending() const noexcept;
  /// The oldest, once the device has passed its copy; the thread sleeps until then.
  std::vector<double> finish();

  static constexpr int kSlots = 4;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// One f64 on the device that the host sets for all that is queued later.
class DeviceNumber {
 public:
  explicit DeviceNumber(Device device);
  ~DeviceNumber();

  const Tensor& tensor() const noexcept;
  void set(double value);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace apex::train
