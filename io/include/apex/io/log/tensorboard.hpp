// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace apex::io {

/// Scalars for TensorBoard. The file events.out.tfevents.<seconds>.<host>.<pid>.<count> holds records
///   u64 length, u32 masked crc32c(length), bytes, u32 masked crc32c(bytes)      (little-endian)
/// whose bytes are a tensorflow.Event message: wall_time, step and either file_version "brain.Event:2" or a summary.
/// A resumed run opens a further file; TensorBoard drops the steps that the first one had beyond its start.
class TensorBoardWriter {
 public:
  /// Makes `directory` where it is missing. `start_step` > 0 marks a resume: earlier events of later steps are purged.
  /// @throws Kind::data naming path and cause
  explicit TensorBoardWriter(const std::filesystem::path& directory, std::int64_t start_step = 0);
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;
  ~TensorBoardWriter();

  /// One scalar, stored as f32. @throws Kind::data when it could not be written (Kind::exhausted: disk full)
  void scalar(std::string_view tag, double value, std::int64_t step);

  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  void record(const std::string& event);

  std::filesystem::path path_;
  int fd_ = -1;
};

/// CRC-32C (Castagnoli), as of RFC 3720, and TensorFlow's masking of it.
std::uint32_t crc32c(std::string_view bytes) noexcept;
std::uint32_t masked_crc32c(std::string_view bytes) noexcept;

}  // namespace apex::io
