// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cudnn.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apex/core/dtype.hpp"

// Convolutions as cuDNN graphs. Only conv_graph.cpp includes cudnn-frontend.

namespace apex::kernels::cuda::cudnn {

enum class Pass : std::int64_t { forward, data, weight };

/// Everything a plan depends on. All tensors are dense, in one layout, and start at multiples of 16 bytes. Only whole
/// numbers of one width: it is compared, and written to files, as bytes.
struct ConvKey {
  std::int64_t device = 0, pass = 0, dtype = 0;
  std::int64_t channels_last = 0;
  std::int64_t x[4] = {}, w[4] = {}, y[4] = {};
  std::int64_t stride[2] = {}, padding[2] = {}, dilation[2] = {};
  std::int64_t bias = 0;  ///< result + bias of its channel in one pass, rounded once; forward and data
  std::int64_t tf32 = 0, deterministic = 0;

  auto operator<=>(const ConvKey&) const = default;
};

/// Addresses for one run; what the pass writes is written.
struct Buffers {
  const void* x = nullptr;
  const void* w = nullptr;
  const void* y = nullptr;
  const void* bias = nullptr;
};

/// One way to compute a convolution, ready to run.
class Plan {
 public:
  struct Impl;
  explicit Plan(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  std::size_t workspace() const;
  bool deterministic() const;
  /// Bytes that load() makes the plan from without asking heuristics, and without compiling again where cuDNN can write
  /// compiled code.
  std::string serialized() const;
  /// @throws Error(Domain::cudnn)
  void run(cudnnHandle_t handle, const Buffers& buffers, void* workspace) const;

  /// Null when this cuDNN does not take the bytes.
  static std::unique_ptr<const Plan> load(cudnnHandle_t handle, const ConvKey& key, const std::string& bytes);

 private:
  std::shared_ptr<Impl> impl_;
};

/// What cuDNN suggests for a key, best guess first, each once; what the key forbids is left out.
class Suggestions {
 public:
  /// @param broad  ask every heuristic there is, not only the quick one
  Suggestions(cudnnHandle_t handle, const ConvKey& key, bool broad);
  ~Suggestions();
  Suggestions(const Suggestions&) = delete;
  Suggestions& operator=(const Suggestions&) = delete;

  std::size_t size() const;
  /// Whether building it runs a compiler, which can take a second.
  bool compiles(std::size_t i) const;
  /// Null when it does not build.
  std::unique_ptr<const Plan> build(std::size_t i) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace apex::kernels::cuda::cudnn
