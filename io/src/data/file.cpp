// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <system_error>

#include "apex/core/error.hpp"
#include "apex/io/data/sources.hpp"

namespace apex::io {
namespace files {
namespace {

/// Makes a rename inside `directory` survive a power cut.
void sync_directory(const std::filesystem::path& directory) {
  const std::filesystem::path where = directory.empty() ? "." : directory;
  const UniqueFd fd(::open(where.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) fail_system("open", where);
  // Some file systems have no fsync for folders; they order renames by themselves.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) fail_system("sync", where);
}

}  // namespace

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}

void fail_system(std::string_view action, const std::filesystem::path& path, int error) {
  const bool space = error == ENOSPC || error == EDQUOT || error == EFBIG || error == ENOMEM;
  throw Error(space ? Kind::exhausted : Kind::data, Domain::system, error,
              concat("cannot ", action, " '", path.string(), "': ", std::generic_category().message(error)));
}

UniqueFd open_to_read(const std::filesystem::path& path) {
  // Without O_NONBLOCK the open of a pipe would wait for a writer.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) fail_system("open", path);
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) fail_system("read", path);
  if (S_ISDIR(info.st_mode)) fail_system("read", path, EISDIR);
  if (!S_ISREG(info.st_mode)) fail(Kind::data, concat("'", path.string(), "' is not a regular file"));
  return fd;
}

std::int64_t file_size(int fd, const std::filesystem::path& path) {
  struct stat info;
  if (::fstat(fd, &info) != 0) fail_system("read", path);
  return info.st_size;
}

void read_at(int fd, void* to, std::size_t bytes, std::int64_t offset, const std::filesystem::path& path) {
  auto* out = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd, out, bytes, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_system("read", path);
    if (got == 0)
      fail(Kind::damaged, concat("'", path.string(), "' ends at byte ", offset, ", ", bytes, " bytes early"));
    out += got;
    offset += got;
    bytes -= static_cast<std::size_t>(got);
  }
}

void write_all(int fd, const void* from, std::size_t bytes, const std::filesystem::path& path) {
  const auto* in = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = ::write(fd, in, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_system("write", path);
    in += put;
    bytes -= static_cast<std::size_t>(put);
  }
}

void write_at(int fd, const void* from, std::size_t bytes, std::int64_t offset, const std::filesystem::path& path) {
  const auto* in = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = ::pwrite(fd, in, bytes, offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_system("write", path);
    in += put;
    offset += put;
    bytes -= static_cast<std::size_t>(put);
  }
}

TemporaryFile::TemporaryFile(const std::filesystem::path& path)
    : target_(path), temporary_(path.string() + concat(".tmp.", ::getpid())) {
  fd_ = UniqueFd(::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (fd_.get() < 0) fail_system("create", temporary_);
}

TemporaryFile::~TemporaryFile() {
  if (!committed_) ::unlink(temporary_.c_str());
}

void TemporaryFile::commit() {
  if (::fsync(fd_.get()) != 0) fail_system("sync", temporary_);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail_system("rename to", target_);
  committed_ = true;
  sync_directory(target_.parent_path());
}

}  // namespace files

using namespace files;

std::vector<std::uint8_t> read_file(const std::filesystem::path& path) {
  const UniqueFd fd = open_to_read(path);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(file_size(fd.get(), path)));
  std::size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t got = ::read(fd.get(), bytes.data() + have, bytes.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_system("read", path);
    if (got == 0) break;  // it shrank since; whoever decodes it will say so
    have += static_cast<std::size_t>(got);
  }
  bytes.resize(have);
  return bytes;
}

}  // namespace apex::io
