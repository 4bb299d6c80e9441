// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "directory.hpp"
#include "posix_file.hpp"

namespace apex::io {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// A descriptor that is closed when something throws.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const noexcept { return fd_; }
  int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

/// Whether the open file is still the one of that name: the holder before may have removed it after we opened it.
bool is_file_at(int fd, const fs::path& path) {
  struct stat mine {
  }, there{};
  return ::fstat(fd, &mine) == 0 && ::stat(path.c_str(), &there) == 0 && mine.st_dev == there.st_dev &&
         mine.st_ino == there.st_ino;
}

std::string owner_of(int fd) {
  std::array<char, 512> text{};
  const auto n = ::pread(fd, text.data(), text.size(), 0);
  std::string owner(text.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
  owner = owner.substr(0, owner.find('\n'));
  return owner.empty() ? "who has not said its name" : owner;
}

/// Only people read it, so a full disk does not matter here.
void write_owner(int fd) {
  const char* job = std::getenv("SLURM_JOB_ID");
  const std::string text =
      concat("host ", host_name(), ", process ", ::getpid(), job && *job ? concat(", job ", job) : std::string(), '\n');
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, text.data(), text.size(), 0) < 0) return;
}

}  // namespace

DirectoryLock::DirectoryLock(const fs::path& directory, double seconds) : path_(directory / "LOCK") {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) fail_errno(directory, "make the directory", error.value());
  const FileSizeSignalGuard guard;
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds(50))) {
    Descriptor file(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
    if (file.get() < 0) fail_errno(path_, "open", errno);
    if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
      if (!is_file_at(file.get(), path_)) continue;
      write_owner(file.get());
      fd_ = file.release();
      return;
    }
    if (errno != EWOULDBLOCK && errno != EINTR) {
      log_warning(concat(path_.string(), ": cannot lock: ", std::strerror(errno),
                         "; a second run in this directory will not be noticed"));
      return;
    }
    if (Clock::now() >= deadline)
      fail(Kind::data, concat("'", directory.string(), "' is in use by another run (", owner_of(file.get()),
                              "); wait for its end, or give another directory"));
  }
}

DirectoryLock::~DirectoryLock() {
  if (fd_ < 0) return;
  // While it is still locked: whoever opened the file meanwhile finds another or none of that name, and tries again.
  if (is_file_at(fd_, path_)) ::unlink(path_.c_str());
  ::close(fd_);
}

}  // namespace apex::io
