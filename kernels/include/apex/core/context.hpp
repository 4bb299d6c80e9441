// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>

#include "apex/core/device.hpp"

namespace apex {

/// Scratch memory of one kernel call, stream-ordered: it may be handed on once the work queued so far is done.
class Workspace {
 public:
  Workspace() = default;
  Workspace(std::size_t bytes, Device device, void* stream);
  Workspace(Workspace&& other) noexcept;
  Workspace& operator=(Workspace&& other) noexcept;
  ~Workspace();

  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_{};
  void* stream_ = nullptr;
};

/// What a kernel runs on: a device and the stream its work is queued on. Library handles belong to (device, stream)
/// and are looked up by the backend. Cheap to copy.
struct Context {
  Device device{};
  void* stream = nullptr;  ///< cudaStream_t on CUDA, unused on the CPU

  /// Uninitialised scratch, 64-byte aligned. @throws Kind::exhausted
  Workspace workspace(std::size_t bytes) const { return Workspace(bytes, device, stream); }

  /// The calling thread's current context of `device`: the innermost StreamGuard, else the library's main stream of
  /// that device. Makes a CUDA device the thread's own.
  static Context current(Device device);
};

/// Makes `context` the current one of its device for this thread until the end of the scope.
class StreamGuard {
 public:
  explicit StreamGuard(const Context& context);
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;
  ~StreamGuard();
};

}  // namespace apex
