// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace apex::io {

/// A value of a metrics record. A floating NaN or infinity is written as null: JSON has none.
using MetricValue = std::variant<double, std::int64_t, bool, std::string>;
using MetricField = std::pair<std::string, MetricValue>;

/// metrics.jsonl: one JSON object a line, {"step": N, "kind": "train", ...}, written and flushed whole, so that a
/// reader following the file sees only whole lines and a crash loses none that were written.
class MetricsWriter {
 public:
  /// Starts a new file at `path`, or goes on with one. `resume_step` < 0 starts anew (an existing file is replaced);
  /// otherwise records with step > resume_step, which the resumed run will write again, and a torn last line are
  /// dropped first (rewritten into a temporary file, then renamed) and the rest is kept as it is.
  /// @throws Kind::data naming path and cause
  explicit MetricsWriter(const std::filesystem::path& path, std::int64_t resume_step = -1);
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;
  ~MetricsWriter();

  /// Fields keep their order; "step" and "kind" come first. Non-ASCII text stays UTF-8.
  /// @throws Kind::data when the line could not be written (Kind::exhausted: disk full)
  void write(std::int64_t step, const std::string& kind, std::span<const MetricField> fields);
  void write(std::int64_t step, const std::string& kind, std::initializer_list<MetricField> fields) {
    write(step, kind, std::span<const MetricField>(fields.begin(), fields.size()));
  }

  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace apex::io
