// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <nvjpeg.h>

#include <exception>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "apex/core/cuda.hpp"

namespace apex::train {

/// nvJPEG's memory from the library's pools, in stream order: its own cudaMalloc and cudaFree would make the host wait
/// for the whole device whenever a buffer grows.
class NvjpegMemory {
 public:
  explicit NvjpegMemory(const Context& ctx) : ctx_(ctx) {}
  NvjpegMemory(const NvjpegMemory&) = delete;
  NvjpegMemory& operator=(const NvjpegMemory&) = delete;
  /// After nvJPEG is gone and its streams have been passed.
  ~NvjpegMemory() {
    for (const auto& block : returned_) cuda::pinned_pool::deallocate(block.data, block.bytes);
  }

  nvjpegDevAllocatorV2_t device() { return {&allocate<&NvjpegMemory::take_device>, &release_device, this}; }
  nvjpegPinnedAllocatorV2_t pinned() { return {&allocate<&NvjpegMemory::take_pinned>, &release_pinned, this}; }

  /// What made the last allocation fail, if any did; once.
  std::exception_ptr take_failure() {
    const std::lock_guard lock(mutex_);
    return std::exchange(failure_, nullptr);
  }

 private:
  struct Returned {
    void* data;
    std::size_t bytes;
    cuda::Event passed;
  };

  Context on(cudaStream_t stream) const { return {ctx_.device, stream == nullptr ? ctx_.stream : stream}; }

  void* take_device(std::size_t bytes, cudaStream_t stream) { return cuda::allocate(bytes, on(stream)); }

  void* take_pinned(std::size_t bytes, cudaStream_t) {
    std::erase_if(returned_, [](const Returned& block) {
      if (!block.passed.passed()) return false;
      cuda::pinned_pool::deallocate(block.data, block.bytes);
      return true;
    });
    return cuda::pinned_pool::allocate(bytes);
  }

  template <void* (NvjpegMemory::*take)(std::size_t, cudaStream_t)>
  static int allocate(void* self, void** data, std::size_t bytes, cudaStream_t stream) noexcept {
    auto& memory = *static_cast<NvjpegMemory*>(self);
    const std::lock_guard lock(memory.mutex_);
    try {
      *data = (memory.*take)(bytes, stream);
      if (*data != nullptr) memory.sizes_[*data] = bytes;
      return 0;
    } catch (...) {
      memory.failure_ = std::current_exception();
      return 1;
    }
  }

  std::size_t forget(void* data) {
    const auto found = sizes_.find(data);
    if (found == sizes_.end()) return 0;
    const std::size_t bytes = found->second;
    sizes_.erase(found);
    return bytes;
  }

  static int release_device(void* self, void* data, std::size_t, cudaStream_t stream) noexcept {
    auto& memory = *static_cast<NvjpegMemory*>(self);
    const std::lock_guard lock(memory.mutex_);
    cuda::deallocate(data, memory.forget(data), memory.on(stream));
    return 0;
  }

  /// Copies from the block may still be queued: it goes back to its pool once they have been passed.
  static int release_pinned(void* self, void* data, std::size_t, cudaStream_t stream) noexcept {
    if (data == nullptr) return 0;
    auto& memory = *static_cast<NvjpegMemory*>(self);
    const std::lock_guard lock(memory.mutex_);
    const std::size_t bytes = memory.forget(data);
    try {
      Returned block{data, bytes, cuda::Event()};
      block.passed.record(memory.on(stream));
      memory.returned_.push_back(std::move(block));
      return 0;
    } catch (...) {  // better lost than handed out too early
      return 1;
    }
  }

  Context ctx_;
  std::mutex mutex_;
  std::map<void*, std::size_t> sizes_;
  std::vector<Returned> returned_;
  std::exception_ptr failure_;
};

}  // namespace apex::train
