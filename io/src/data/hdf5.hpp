// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace apex::io {

/// Holds hdf5_mutex() and keeps HDF5 from printing its error stack: our messages take its place.
class Hdf5Session {
 public:
  Hdf5Session();
  Hdf5Session(const Hdf5Session&) = delete;
  Hdf5Session& operator=(const Hdf5Session&) = delete;
  ~Hdf5Session();

 private:
  std::unique_lock<std::recursive_mutex> lock_;
  H5E_auto2_t print_ = nullptr;
  void* print_data_ = nullptr;
};

/// Owns an HDF5 id of any kind; below zero is none. Lives inside an Hdf5Session.
class H5Id {
 public:
  using Close = herr_t (*)(hid_t);
  H5Id() = default;
  H5Id(hid_t id, Close close) noexcept : id_(id), close_(close) {}
  H5Id(H5Id&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  H5Id& operator=(H5Id other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~H5Id() {
    if (id_ >= 0) close_(id_);
  }
  hid_t get() const noexcept { return id_; }
  explicit operator bool() const noexcept { return id_ >= 0; }

 private:
  hid_t id_ = -1;
  Close close_ = nullptr;
};

/// How packs are opened: without file locks, which NFS and Lustre may lack and a file that is written under another
/// name and then renamed does not need.
H5Id h5_access_without_locks();

/// Whether every link on the way to `path` is there.
bool h5_exists(hid_t file, const std::string& path);

/// Attributes of the root; nothing when missing or of another type.
std::optional<std::string> h5_string_attribute(hid_t file, const char* name);
std::optional<std::int64_t> h5_integer_attribute(hid_t file, const char* name);
std::optional<std::vector<double>> h5_double_attribute(hid_t file, const char* name);
/// False on failure.
bool h5_write_attribute(hid_t file, const char* name, const std::string& value);
bool h5_write_attribute(hid_t file, const char* name, std::int64_t value);
bool h5_write_attribute(hid_t file, const char* name, std::span<const double> values);

}  // namespace apex::io
