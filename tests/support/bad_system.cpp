// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// A library for LD_PRELOAD that makes the system misbehave, below everything that the library under test knows of.
// BAD_SYSTEM="WHAT[,PATH]" acts on files whose path holds PATH:
//   write_eio      the second write fails with EIO
//   write_enospc   every write fails with ENOSPC
//   write_short    every write takes at most 1000 bytes: legal, and the rest must follow
//   write_lost     the second write says it worked, and wrote nothing
//   write_wrong    the second write stores one bit the wrong way round
//   fsync_eio, close_eio, rename_eio, reserve_enospc
//   no_fallocate   as file systems without it
//   slow_folder    each entry of a folder takes 50 ms to read
//   clock          the time of day starts just before midnight of the year's last day, and from its 20th reading on
//   goes
//                  back by a day and on by a year in turns
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

namespace {

bool wants(const char* what) {
  const char* text = std::getenv("BAD_SYSTEM");
  const std::size_t length = std::strlen(what);
  return text && std::strncmp(text, what, length) == 0 && (text[length] == ',' || text[length] == '\0');
}
bool meant(const char* path) {
  const char* text = std::getenv("BAD_SYSTEM");
  const char* comma = text ? std::strchr(text, ',') : nullptr;
  return !comma || std::strstr(path, comma + 1) != nullptr;
}
bool meant(int fd) {
  char link[64], path[4096] = {};
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  return ::readlink(link, path, sizeof path - 1) > 0 && meant(path);
}
bool is_second() {
  static std::atomic<int> calls{0};
  return ++calls == 2;
}
int failed(int error) {
  errno = error;
  return -1;
}
template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

ssize_t write_at(int fd, const void* data, std::size_t size, off_t offset) {
  static auto* const real = next<ssize_t(int, const void*, std::size_t, off_t)>("pwrite");
  const std::size_t some = 1000;
  if (!meant(fd)) return real(fd, data, size, offset);
  if (wants("write_enospc")) return failed(ENOSPC);
  if (wants("write_short")) return real(fd, data, std::min(size, some), offset);
  if (wants("write_eio") && is_second()) return failed(EIO);
  if (wants("write_lost") && is_second()) return static_cast<ssize_t>(size);
  if (wants("write_wrong") && size > 0 && is_second()) {
    std::vector<char> bytes(static_cast<const char*>(data), static_cast<const char*>(data) + size);
    bytes[size / 2] = static_cast<char>(bytes[size / 2] ^ 4);
    return real(fd, bytes.data(), size, offset);
  }
  return real(fd, data, size, offset);
}

/// Seconds that the clock is off.
time_t clock_error(time_t now) {
  constexpr time_t kDay = 86400, kYear = 365 * kDay;
  static const time_t to_midnight = 1'798'761'598 - now;  // 2026-12-31 23:59:58 UTC
  static std::atomic<int> readings{0};
  const int n = ++readings;
  return to_midnight + (n < 20 ? 0 : n % 2 == 0 ? kYear : -kDay);
}

}  // namespace

extern "C" {

ssize_t pwrite(int fd, const void* data, std::size_t size, off_t offset) { return write_at(fd, data, size, offset); }
ssize_t pwrite64(int fd, const void* data, std::size_t size, off64_t offset) {
  return write_at(fd, data, size, offset);
}

int fsync(int fd) {
  static auto* const real = next<int(int)>("fsync");
  return wants("fsync_eio") && meant(fd) ? failed(EIO) : real(fd);
}

int close(int fd) {
  static auto* const real = next<int(int)>("close");
  if (!wants("close_eio") || !meant(fd)) return real(fd);
  real(fd);
  return failed(EIO);
}

int rename(const char* from, const char* to) noexcept {
  static auto* const real = next<int(const char*, const char*)>("rename");
  return wants("rename_eio") && meant(from) ? failed(EIO) : real(from, to);
}

int fallocate(int fd, int mode, off_t offset, off_t length) {
  static auto* const real = next<int(int, int, off_t, off_t)>("fallocate");
  if (wants("reserve_enospc") && meant(fd)) return failed(ENOSPC);
  return wants("no_fallocate") ? failed(EOPNOTSUPP) : real(fd, mode, offset, length);
}
int fallocate64(int fd, int mode, off64_t offset, off64_t length) { return fallocate(fd, mode, offset, length); }

struct dirent* readdir(DIR* folder) {
  static auto* const real = next<struct dirent*(DIR*)>("readdir");
  if (wants("slow_folder") && meant(::dirfd(folder))) ::usleep(50'000);
  return real(folder);
}
struct dirent64* readdir64(DIR* folder) {
  static auto* const real = next<struct dirent64*(DIR*)>("readdir64");
  if (wants("slow_folder") && meant(::dirfd(folder))) ::usleep(50'000);
  return real(folder);
}

int clock_gettime(clockid_t which, struct timespec* out) noexcept {
  static auto* const real = next<int(clockid_t, struct timespec*)>("clock_gettime");
  const int status = real(which, out);
  if (which == CLOCK_REALTIME && wants("clock")) out->tv_sec += clock_error(out->tv_sec);
  return status;
}
time_t time(time_t* out) noexcept {
  static auto* const real = next<time_t(time_t*)>("time");
  time_t now = real(nullptr);
  if (wants("clock")) now += clock_error(now);
  if (out) *out = now;
  return now;
}
int gettimeofday(struct timeval* out, void* zone) noexcept {
  static auto* const real = next<int(struct timeval*, void*)>("gettimeofday");
  const int status = real(out, zone);
  if (wants("clock")) out->tv_sec += clock_error(out->tv_sec);
  return status;
}

}  // extern "C"
