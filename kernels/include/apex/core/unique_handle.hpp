// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <utility>

namespace apex {

/// Owns one C handle; a moved-from object owns nothing. Same size as the handle.
/// `Destroy` takes the handle; its result is ignored, so wrap it where a failure must be logged.
template <class Handle, auto Destroy>
class UniqueHandle {
 public:
  UniqueHandle() = default;
  explicit UniqueHandle(Handle handle) noexcept : handle_(handle) {}
  UniqueHandle(UniqueHandle&& other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
  UniqueHandle& operator=(UniqueHandle other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~UniqueHandle() {
    if (handle_ != Handle{}) static_cast<void>(Destroy(handle_));
  }
  Handle get() const noexcept { return handle_; }
  Handle release() noexcept { return std::exchange(handle_, Handle{}); }
  explicit operator bool() const noexcept { return handle_ != Handle{}; }

 private:
  Handle handle_{};
};

}  // namespace apex
