// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace apex {

/// A named stretch of the calling thread in a profiler's timeline (NVTX); nothing in a build without the CUDA backend.
class ProfileRange {
 public:
  explicit ProfileRange(const char* name) noexcept;
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;
  ~ProfileRange();
};

}  // namespace apex
