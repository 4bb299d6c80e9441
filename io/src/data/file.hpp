// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace apex::io::files {

/// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();
  int get() const noexcept { return fd_; }
  int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// Throws "cannot <action> '<path>': <text of error>" with Domain::system; Kind::exhausted when space or memory ran
/// out, else Kind::data.
[[noreturn]] void fail_system(std::string_view action, const std::filesystem::path& path, int error = errno);

/// Opens a regular file to read; anything else (a folder, a pipe) is an error at once, never a wait.
UniqueFd open_to_read(const std::filesystem::path& path);
std::int64_t file_size(int fd, const std::filesystem::path& path);

/// Exactly `bytes` bytes at `offset`; fewer there is Kind::damaged.
void read_at(int fd, void* to, std::size_t bytes, std::int64_t offset, const std::filesystem::path& path);
void write_all(int fd, const void* from, std::size_t bytes, const std::filesystem::path& path);
void write_at(int fd, const void* from, std::size_t bytes, std::int64_t offset, const std::filesystem::path& path);

/// A file beside `path` that becomes `path` by commit() or goes away.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& path);
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile();

  int fd() const noexcept { return fd_.get(); }
  const std::filesystem::path& path() const noexcept { return temporary_; }
  /// fsync, rename, fsync of the folder.
  void commit();

 private:
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  UniqueFd fd_;
  bool committed_ = false;
};

/// "3 .webp, 1 .gif"
std::string count_by_extension(const std::map<std::string, std::int64_t>& counts);

}  // namespace apex::io::files
