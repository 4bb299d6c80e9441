// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "apex/core/context.hpp"
#include "apex/core/device.hpp"

namespace apex {

/// A block of bytes on a device, shared by every tensor that views it, and the version counter they share:
/// raised by in-place functional ops, optimizer steps and loads, so that autograd notices a saved tensor that changed.
class Storage {
 public:
  using Deleter = std::function<void(void*)>;

  /// Fresh, uninitialised bytes (at least 64-byte aligned) from the device's pool. On CUDA they belong to the current
  /// context's stream: usable by what is queued there from now on, and given back there, in order.
  /// @throws Kind::exhausted saying what was asked for and what is held
  static std::shared_ptr<Storage> allocate(std::size_t bytes, Device device);
  /// Adopts memory of somebody else's; `deleter` runs when the last tensor lets go.
  static std::shared_ptr<Storage> adopt(void* data, std::size_t bytes, Device device, Deleter deleter);

  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  ~Storage();

  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  Device device() const noexcept { return device_; }
  std::uint64_t version() const noexcept { return version_.load(std::memory_order_relaxed); }
  void raise_version() noexcept { version_.fetch_add(1, std::memory_order_relaxed); }

  /// Notes that work on another stream uses these bytes (cuda::record_use).
  void add_use(const Context& ctx);

 private:
  Storage(void* data, std::size_t bytes, Device device, Deleter deleter);

  void* data_;
  std::size_t bytes_;
  Device device_;
  Deleter deleter_;
  void* stream_ = nullptr;     // CUDA: where it was made
  bool of_graph_ = false;      // CUDA: made while the stream was captured, so that it belongs to the graph
  std::vector<Context> uses_;  // CUDA: other streams that work with it
  std::atomic<std::uint64_t> version_{0};
};

/// Host memory of the pool that Storage and workspaces draw from. Freed blocks are kept and handed out again, so a
/// training step in its steady state neither maps nor faults pages; what is held never exceeds the peak of what was
/// live by more than a few per cent.
namespace host_pool {
struct Stats {
  std::size_t live = 0;       ///< bytes handed out now
  std::size_t cached = 0;     ///< bytes kept for reuse
  std::size_t peak_live = 0;  ///< highest `live` so far
};
void* allocate(std::size_t bytes);
void deallocate(void* data, std::size_t bytes) noexcept;
Stats stats() noexcept;
/// Gives every cached block back to the operating system.
void trim() noexcept;
}  // namespace host_pool

}  // namespace apex
