// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace apex::io {

/// Event files for TensorBoard: scalars, texts and the hyper-parameters of a run. The file
/// `events.out.tfevents.<seconds>.<host>.<pid>.<count>` holds records
///   u64 length, u32 masked crc32c(length), bytes, u32 masked crc32c(bytes)      (little-endian)
/// whose bytes are a tensorflow.Event message: wall_time, step and either file_version "brain.Event:2" or a summary.
/// Each record is in the file when the call returns; a run that is killed leaves at most its last one torn, which
/// TensorBoard passes over. One writer at a time: a run that goes on opens a further file in the same folder, whose
/// name comes after those that are there, whatever the clock says.
class TensorBoardWriter {
 public:
  /// Makes `directory` where it is missing.
  /// @param purge_step  TensorBoard forgets what earlier files hold of this step and later ones, since it comes again:
  ///                    one past the checkpoint of a run that goes on, 0 for a run that starts anew; unset keeps all
  /// @throws Kind::data naming path and cause
  explicit TensorBoardWriter(const std::filesystem::path& directory, std::optional<std::int64_t> purge_step = {});
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;
  ~TensorBoardWriter();

  /// One scalar, stored as f32. @throws Kind::data when it could not be written (Kind::exhausted: disk full)
  void scalar(std::string_view tag, double value, std::int64_t step);
  /// A text, shown as Markdown. @throws as scalar
  void text(std::string_view tag, std::string_view value, std::int64_t step);

  using Hyperparameters = std::vector<std::pair<std::string, std::string>>;
  /// Names and values of the run for the page HPARAMS; a value that is a finite number or a truth value is stored as
  /// one. Once a file. @throws as scalar
  void hparams(const Hyperparameters& values);
  /// Marks a run of which hparams() told as ended. @throws as scalar
  void end(bool success);

  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  void summary(const std::string& value, std::int64_t step);
  void record(const std::string& event);

  std::filesystem::path path_;
  int fd_ = -1;
};

/// CRC-32C (Castagnoli), as of RFC 3720, and TensorFlow's masking of it.
std::uint32_t crc32c(std::string_view bytes) noexcept;
std::uint32_t masked_crc32c(std::string_view bytes) noexcept;

}  // namespace apex::io
