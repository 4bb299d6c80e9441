// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "posix_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "fault.hpp"

namespace apex::io {
namespace {

constexpr int kFileMode = 0666;  // the umask takes away what the user wants taken away

bool is_out_of_space(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

}  // namespace

void fail_errno(const std::filesystem::path& path, std::string_view what, int error) {
  const Kind kind = is_out_of_space(error) ? Kind::exhausted : Kind::data;
  throw Error(kind, Domain::system, error, concat(path.string(), ": cannot ", what, ": ", std::strerror(error)));
}

FileSizeSignalGuard::FileSizeSignalGuard() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &signals, &before_);
}

FileSizeSignalGuard::~FileSizeSignalGuard() {
  if (sigismember(&before_, SIGXFSZ)) return;
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGXFSZ);
  const timespec now{0, 0};
  sigtimedwait(&signals, nullptr, &now);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

PosixFile::PosixFile(const std::filesystem::path& path, int flags) : path_(path) {
  // A network file system may remember for a moment that the name was not there.
  constexpr int kTries = 50;
  const bool writing = (flags & O_ACCMODE) != O_RDONLY && !(flags & O_CREAT);
  for (int i = 0;; ++i) {
    fd_ = ::open(path.c_str(), flags | O_CLOEXEC, kFileMode);
    if (fd_ >= 0) return;
    if (errno == EINTR) continue;
    if (!(writing && errno == ENOENT && i < kTries)) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  fail_errno(path_, "open", errno);
}

PosixFile::PosixFile(PosixFile&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

PosixFile& PosixFile::operator=(PosixFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

PosixFile::~PosixFile() {
  if (fd_ >= 0) ::close(fd_);
}

std::int64_t PosixFile::size() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) fail_errno(path_, "stat", errno);
  if (!S_ISREG(info.st_mode)) fail(Kind::data, concat(path_.string(), ": not a regular file"));
  return info.st_size;
}

void PosixFile::reserve(std::int64_t bytes) const {
  const auto what = concat("reserve ", bytes, " bytes");
  if (const auto injected = fault::take(); injected.error) fail_errno(path_, what, injected.error);
  if (bytes > 0) {
    int rc = 0;
    do rc = ::fallocate(fd_, 0, 0, bytes);
    while (rc != 0 && errno == EINTR);
    if (rc == 0) return;
    if (errno != EOPNOTSUPP && errno != ENOSYS) fail_errno(path_, what, errno);
  }
  if (::ftruncate(fd_, bytes) != 0) fail_errno(path_, what, errno);
}

void PosixFile::write_at(std::span<const std::byte> bytes, std::int64_t offset) const {
  const auto fail_here = [&](int error) {
    fail_errno(path_, concat("write ", bytes.size(), " bytes at ", offset), error);
  };
  const auto injected = fault::take();
  if (injected.error && !injected.short_write) fail_here(injected.error);
  const std::size_t wanted = injected.short_write ? bytes.size() / 2 : bytes.size();
  std::size_t done = 0;
  while (done < wanted) {
    const auto n =
        ::pwrite(fd_, bytes.data() + done, wanted - done, static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_here(n < 0 ? errno : EIO);
    done += static_cast<std::size_t>(n);
  }
  if (injected.error) fail_here(injected.error);
}

std::size_t PosixFile::read_at(std::span<std::byte> bytes, std::int64_t offset) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const auto n =
        ::pread(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(path_, concat("read ", bytes.size(), " bytes at ", offset), errno);
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

void PosixFile::sync() const {
  if (const auto injected = fault::take(); injected.error) fail_errno(path_, "fsync", injected.error);
  if (::fsync(fd_) != 0) fail_errno(path_, "fsync", errno);
}

void PosixFile::close() {
  const int fd = std::exchange(fd_, -1);
  if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) fail_errno(path_, "close", errno);
}

void sync_directory(const std::filesystem::path& directory) {
  const auto where = directory.empty() ? std::filesystem::path(".") : directory;
  const PosixFile handle(where, O_RDONLY | O_DIRECTORY);
  handle.sync();
}

void rename_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  const auto what = concat("rename to ", to.filename().string());
  if (const auto injected = fault::take(); injected.error) fail_errno(from, what, injected.error);
  if (std::rename(from.c_str(), to.c_str()) != 0) fail_errno(from, what, errno);
}

}  // namespace apex::io
