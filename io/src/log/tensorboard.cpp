// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/io/log/tensorboard.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <charconv>
#include <chrono>
#include <cmath>
#include <system_error>

#include "../data/file.hpp"
#include "apex/core/error.hpp"

namespace apex::io {
using namespace files;
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr std::int64_t kFarAway = 9'999'999'999;  // names sort as text only while seconds have ten digits

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

// tensorflow.Event: 1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log. SessionLog: 1 status, START = 1.
std::string event(std::int64_t step, const std::string& what) {
  return double_field(1, wall_time()) + integer_field(2, step) + what;
}

// Summary: 1 value {1 tag, 2 simple_value, 8 tensor, 9 metadata}. SummaryMetadata: 1 plugin_data {1 plugin_name,
// 2 content}, 4 data_class (2: tensor). TensorProto: 1 dtype (1 float, 7 string), 2 tensor_shape {2 dim {1 size}},
// 8 string_val.
std::string plugin(std::string_view name, const std::string& content) {
  std::string data = bytes_field(1, name);
  if (!content.empty()) data += bytes_field(2, content);
  return bytes_field(9, bytes_field(1, data) + integer_field(4, 2));
}
std::string string_tensor(std::string_view value) {  // of one element
  return bytes_field(8,
                     integer_field(1, 7) + bytes_field(2, bytes_field(2, integer_field(1, 1))) + bytes_field(8, value));
}
std::string empty_tensor() { return bytes_field(8, integer_field(1, 1) + bytes_field(2, bytes_field(2, ""))); }

// google.protobuf.Value: 2 number_value, 3 string_value, 4 bool_value.
std::string typed_value(const std::string& text) {
  if (text == "true" || text == "false") return integer_field(4, text == "true" ? 1 : 0);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && std::isfinite(number)) return double_field(2, number);
  return bytes_field(3, text);
}

/// Seconds for the name of a new file: now, or later than every file there, since readers go by name.
std::int64_t seconds_after(const std::filesystem::path& directory) {
  auto seconds = static_cast<std::int64_t>(wall_time());
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), last; !error && it != last; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    std::int64_t theirs = 0;
    const auto* begin = name.data() + kPrefix.size();
    const auto [end, wrong] = std::from_chars(begin, name.data() + name.size(), theirs);
    if (wrong == std::errc() && end != begin && theirs < kFarAway) seconds = std::max(seconds, theirs + 1);
  }
  return seconds;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) noexcept {
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) noexcept { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; }

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& directory, std::optional<std::int64_t> purge_step) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) fail_system("create folder", directory, error.value());
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  static std::atomic<int> count{0};  // two writers of one process in one second
  path_ = directory / concat(kPrefix, seconds_after(directory), '.', host, '.', ::getpid(), '.', count++);
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail_system("open event file", path_);
  try {
    record(double_field(1, wall_time()) + bytes_field(3, "brain.Event:2"));
    if (purge_step) record(event(*purge_step, bytes_field(7, integer_field(1, 1))));
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

TensorBoardWriter::~TensorBoardWriter() { ::close(fd_); }

void TensorBoardWriter::summary(const std::string& value, std::int64_t step) {
  record(event(step, bytes_field(5, bytes_field(1, value))));
}

void TensorBoardWriter::scalar(std::string_view tag, double value, std::int64_t step) {
  summary(bytes_field(1, tag) + float_field(2, static_cast<float>(value)), step);
}

void TensorBoardWriter::text(std::string_view tag, std::string_view value, std::int64_t step) {
  summary(bytes_field(1, tag) + string_tensor(value) + plugin("text", ""), step);
}

// HParamsPluginData: 3 session_start_info {1 hparams, a map {1 key, 2 value}; 5 start_time_secs},
// 4 session_end_info {1 status: 1 success, 2 failure; 2 end_time_secs}.
void TensorBoardWriter::hparams(const Hyperparameters& values) {
  std::string start;
  for (const auto& [name, value] : values)
    start += bytes_field(1, bytes_field(1, name) + bytes_field(2, typed_value(value)));
  start += double_field(5, wall_time());
  summary(bytes_field(1, "_hparams_/session_start_info") + empty_tensor() + plugin("hparams", bytes_field(3, start)),
          0);
}

void TensorBoardWriter::end(bool success) {
  const std::string end = integer_field(1, success ? 1 : 2) + double_field(2, wall_time());
  summary(bytes_field(1, "_hparams_/session_end_info") + empty_tensor() + plugin("hparams", bytes_field(4, end)), 0);
}

void TensorBoardWriter::record(const std::string& content) {
  const std::string length = little_endian(static_cast<std::uint64_t>(content.size()));
  const std::string whole =
      length + little_endian(masked_crc32c(length)) + content + little_endian(masked_crc32c(content));
  write_all(fd_, whole.data(), whole.size(), path_);
}

}  // namespace apex::io
