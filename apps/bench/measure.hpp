// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apex/core/tensor.hpp"

namespace bench {

double median(std::vector<double> values);

/// Times work on one device. Between any two runs a buffer larger than the caches is written, so that each run starts
/// with cold caches, as it would in a training step.
class Stopwatch {
 public:
  Stopwatch(apex::Device device, int runs);
  ~Stopwatch();

  /// Median milliseconds of `runs` runs, after three that do not count (they choose plans and load kernels). On CUDA
  /// the time between two events around what `run` queues on the current stream; all runs are queued before the first
  /// is looked at, so that the host stays ahead of the device.
  double time(const std::function<void()>& run);
  int runs() const noexcept { return runs_; }
  apex::Device device() const noexcept { return device_; }

 private:
  void flush();
  double time_on_cpu(const std::function<void()>& run);
  double time_on_cuda(const std::function<void()>& run);

  apex::Device device_;
  int runs_;
  apex::Tensor buffer_;
};

/// Waits for the device; nothing on the CPU.
void synchronize(apex::Device device);

/// Kernels that `run`, which has run before, queues on the current stream, counted by a capture; 0 on the CPU.
int kernels_queued(apex::Device device, const std::function<void()>& run);

/// "NVIDIA H200" or the CPU's model name.
std::string device_name(apex::Device device);
/// "CUDA 13.0, driver 13.0, cuDNN 9.19.0" or the like; empty on the CPU.
std::string device_versions(apex::Device device);

/// All elements of t, which may be a view, as double in row-major order. Waits.
std::vector<double> values_of(const apex::Tensor& t);

/// Uniform in [low, high), the same numbers on every device for the same seed.
apex::Tensor uniform(const apex::Dims& sizes, apex::DType dtype, apex::Device device, std::uint64_t seed,
                     double low = -1, double high = 1, apex::MemoryFormat format = apex::MemoryFormat::contiguous);

/// i64 numbers below `classes`, made on the host: label i is (i * 7919) mod classes.
apex::Tensor labels(std::int64_t count, std::int64_t classes, apex::Device device);

/// Compares a few of a row's results with values worked out in double from the same inputs.
class Check {
 public:
  /// Off by more than `relative * |want| + absolute`, or not finite: remembered, with `what` and the place.
  void near(const char* what, std::int64_t at, double got, double want, double relative, double absolute);
  /// Empty when all was well.
  const std::string& problem() const noexcept { return problem_; }
  int compared() const noexcept { return compared_; }

 private:
  std::string problem_;
  int compared_ = 0;
};

/// Half a unit in the last place of 1.0 in `dtype`, twice: the relative error that one rounding can make, with room.
double rounding_of(apex::DType dtype);

}  // namespace bench
