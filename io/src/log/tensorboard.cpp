// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/io/log/tensorboard.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <system_error>

#include "../data/file.hpp"
#include "apex/core/error.hpp"

namespace apex::io {
using namespace files;
namespace {

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;  // the polynomial, reflected
    table[i] = crc;
  }
  return table;
}
constexpr auto kCrcTable = make_crc_table();

template <class T>
std::string little_endian(T value) {
  std::string out;
  for (std::size_t i = 0; i < sizeof value; ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
  return out;
}

// Protocol buffers: a field is a key (number * 8 + wire type) and a value; wire types are 0 varint, 1 eight bytes,
// 2 length and bytes, 5 four bytes.
std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>((value & 0x7f) | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}
std::string integer_field(int number, std::int64_t value) {
  return varint(static_cast<std::uint64_t>(number) << 3) + varint(static_cast<std::uint64_t>(value));
}
std::string double_field(int number, double value) {
  return varint(static_cast<std::uint64_t>(number) << 3 | 1) + little_endian(std::bit_cast<std::uint64_t>(value));
}
std::string float_field(int number, float value) {
  return varint(static_cast<std::uint64_t>(number) << 3 | 5) + little_endian(std::bit_cast<std::uint32_t>(value));
}
std::string bytes_field(int number, std::string_view value) {
  return varint(static_cast<std::uint64_t>(number) << 3 | 2) + varint(value.size()) + std::string(value);
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// tensorflow.Event: 1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log. Summary: 1 value {1 tag, 2
// simple_value}. SessionLog: 1 status, START = 1.
std::string event(std::int64_t step, const std::string& what) {
  return double_field(1, wall_time()) + integer_field(2, step) + what;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) noexcept {
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) noexcept { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; }

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& directory, std::int64_t start_step) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) fail_system("create folder", directory, error.value());
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  static std::atomic<int> count{0};  // two writers of one process in one second
  path_ = directory / concat("events.out.tfevents.", static_cast<std::int64_t>(wall_time()), '.', host, '.', ::getpid(),
                             '.', count++);
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail_system("open event file", path_);
  record(double_field(1, wall_time()) + bytes_field(3, "brain.Event:2"));
  if (start_step > 0) record(event(start_step, bytes_field(7, integer_field(1, 1))));
}

TensorBoardWriter::~TensorBoardWriter() { ::close(fd_); }

void TensorBoardWriter::scalar(std::string_view tag, double value, std::int64_t step) {
  const std::string entry = bytes_field(1, tag) + float_field(2, static_cast<float>(value));
  record(event(step, bytes_field(5, bytes_field(1, entry))));
}

void TensorBoardWriter::record(const std::string& content) {
  const std::string length = little_endian(static_cast<std::uint64_t>(content.size()));
  const std::string whole =
      length + little_endian(masked_crc32c(length)) + content + little_endian(masked_crc32c(content));
  write_all(fd_, whole.data(), whole.size(), path_);
}

}  // namespace apex::io
