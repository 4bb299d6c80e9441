// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace apex::io {

enum class ProgressMode {
  automatic,  ///< bar on a terminal, lines elsewhere
  bar,        ///< one line, rewritten in place
  lines,      ///< whole lines, now and then: what a batch job's log can bear
  none,
};
/// Takes "auto", "bar", "lines", "none".
std::optional<ProgressMode> parse_progress_mode(std::string_view text) noexcept;

struct ProgressOptions {
  ProgressMode mode = ProgressMode::automatic;
  std::int64_t every_steps = 0;  ///< lines: at least this many steps apart; 0 leaves only the time
  std::chrono::milliseconds every{std::chrono::seconds(10)};          ///< lines: at most one in this time
  std::chrono::milliseconds refresh{std::chrono::milliseconds(100)};  ///< bar
  bool counter = true;  ///< put "done/total" before the text; false where the text says it
  int fd = 1;           ///< where to write
  std::function<std::chrono::steady_clock::time_point()> now = {};  ///< the clock; empty: steady_clock
};

/// Shows how far a run is. Text in, nothing but bytes out: what is shown is the caller's. A closed output is no error.
/// The first update and the last (done = total) are always shown; others as the mode says.
class Progress {
 public:
  explicit Progress(const ProgressOptions& options = {});
  /// Ends an unfinished bar line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// The mode after `automatic` has been settled.
  ProgressMode mode() const noexcept { return mode_; }

  /// Whether update() would show anything now: spares the caller making the text.
  bool due(std::int64_t done, std::int64_t total) const;
  /// `done` of `total` steps, "text" beside it. Line breaks in the text become spaces.
  void update(std::int64_t done, std::int64_t total, std::string_view text);
  /// A whole line above the bar (or just a line), in every mode but none.
  void line(std::string_view text);
  /// Starts a new count, e.g. for the next epoch: the next update is shown.
  void restart();

 private:
  void write(std::string_view text) const;
  std::chrono::steady_clock::time_point now() const;

  ProgressOptions options_;
  ProgressMode mode_;
  bool bar_open_ = false;
  bool shown_ = false;
  std::int64_t shown_step_ = 0;
  std::chrono::steady_clock::time_point shown_at_{};
};

}  // namespace apex::io
