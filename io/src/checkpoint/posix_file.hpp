// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "apex/core/error.hpp"

namespace apex::io {

/// Throws for errno `error`: Kind::exhausted when space ran out, else Kind::data; "PATH: cannot WHAT: TEXT".
[[noreturn]] void fail_errno(const std::filesystem::path& path, std::string_view what, int error);

/// A write beyond RLIMIT_FSIZE reports EFBIG in this scope and thread instead of ending the process with SIGXFSZ.
class FileSizeSignalGuard {
 public:
  FileSizeSignalGuard();
  ~FileSizeSignalGuard();
  FileSizeSignalGuard(const FileSizeSignalGuard&) = delete;
  FileSizeSignalGuard& operator=(const FileSizeSignalGuard&) = delete;

 private:
  sigset_t before_;
};

/// An open file whose every call is checked.
class PosixFile {
 public:
  PosixFile() = default;
  /// @throws Error as fail_errno. Waits a few seconds for a file that another host has just made.
  PosixFile(const std::filesystem::path& path, int flags);
  PosixFile(PosixFile&& other) noexcept;
  PosixFile& operator=(PosixFile&& other) noexcept;
  ~PosixFile();

  std::int64_t size() const;
  /// Gives the file its final size, and its blocks where the file system can.
  void reserve(std::int64_t bytes) const;
  void write_at(std::span<const std::byte> bytes, std::int64_t offset) const;
  /// Fewer bytes than asked for only at the end of the file.
  std::size_t read_at(std::span<std::byte> bytes, std::int64_t offset) const;
  void sync() const;
  /// Reports what a destructor cannot.
  void close();

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

void sync_directory(const std::filesystem::path& directory);
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace apex::io
