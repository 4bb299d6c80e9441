// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "apex/io/data/loader.hpp"

namespace apex::train {

/// For io::LoaderOptions::memory: page-locked memory when batches go to a GPU, the loader's own otherwise.
std::function<std::shared_ptr<Storage>(std::size_t bytes)> batch_memory(Device device);

/// The batches of a loader with images and labels on `device`; ids stay on the host. On the CPU they are the loader's
/// own.
///
/// To a GPU they travel on a stream of their own, beside the step that is being computed, into two buffers that take
/// turns. Batches that do not lie in page-locked memory (batch_memory) are copied there first.
class Prefetch {
 public:
  /// The loader outlives it.
  Prefetch(io::Loader& loader, Device device);
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;
  ~Prefetch();

  /// As io::Loader::start.
  void start(std::int64_t epoch, std::int64_t step = 0);
  /// As io::Loader::next. Images and labels may be used by what is queued on the current stream until the call after
  /// the next one; the thread waits for the loader only.
  std::optional<io::Batch> next();

 private:
  struct Impl;
  io::Loader& loader_;
  std::unique_ptr<Impl> impl_;  // null on the CPU
};

}  // namespace apex::train
