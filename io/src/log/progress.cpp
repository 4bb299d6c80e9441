// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/io/log/progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "apex/core/error.hpp"

namespace apex::io {
namespace {

/// A terminal somebody looks at has a size. Open MPI puts a pseudo-terminal without one between a rank and mpirun, even
/// where mpirun itself writes to a file.
bool shows_a_bar(int fd) {
  winsize size{};
  return ::isatty(fd) && ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
}

ProgressMode settle(ProgressMode mode, int fd) {
  if (mode != ProgressMode::automatic) return mode;
  return shows_a_bar(fd) ? ProgressMode::bar : ProgressMode::lines;
}

std::string one_line(std::string_view text) {
  std::string out(text);
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return out;
}

int columns_of(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/// Cut to what a terminal shows in one row, or rewriting it would scroll; never inside a UTF-8 sequence.
void cut(std::string& text, int columns) {
  const auto most = static_cast<std::size_t>(columns);
  if (text.size() <= most) return;
  std::size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  text.resize(end);
}

/// "[=====>    ]  50%"
std::string bar(std::int64_t done, std::int64_t total) {
  constexpr int kWidth = 20;
  const double part = total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 1.0;
  const int full = static_cast<int>(part * kWidth);
  std::string out = "[" + std::string(static_cast<std::size_t>(full), '=');
  if (full < kWidth) out += ">" + std::string(static_cast<std::size_t>(kWidth - full - 1), ' ');
  const std::string percent = std::to_string(static_cast<int>(part * 100));
  return out + "] " + std::string(percent.size() < 3 ? 3 - percent.size() : 0, ' ') + percent + "% ";
}

}  // namespace

std::optional<ProgressMode> parse_progress_mode(std::string_view text) noexcept {
  if (text == "auto") return ProgressMode::automatic;
  if (text == "bar") return ProgressMode::bar;
  if (text == "lines") return ProgressMode::lines;
  if (text == "none") return ProgressMode::none;
  return std::nullopt;
}

Progress::Progress(const ProgressOptions& options) : options_(options), mode_(settle(options.mode, options.fd)) {}

Progress::~Progress() {
  if (bar_open_) write("\n");
}

std::chrono::steady_clock::time_point Progress::now() const {
  return options_.now ? options_.now() : std::chrono::steady_clock::now();
}

bool Progress::due(std::int64_t done, std::int64_t total) const {
  if (mode_ == ProgressMode::none) return false;
  if (!shown_) return true;
  if (done == total) return shown_step_ != done;
  const auto since = now() - shown_at_;
  if (mode_ == ProgressMode::bar) return since >= options_.refresh;
  return done - shown_step_ >= options_.every_steps && since >= options_.every;
}

void Progress::update(std::int64_t done, std::int64_t total, std::string_view text) {
  if (!due(done, total)) return;
  shown_ = true;
  shown_step_ = done;
  shown_at_ = now();
  if (mode_ == ProgressMode::lines) {
    write((options_.counter ? concat('[', done, '/', total, "] ") : "") + one_line(text) + '\n');
    return;
  }
  std::string line = bar(done, total) + (options_.counter ? concat(done, '/', total, ' ') : "") + one_line(text);
  std::replace(line.begin(), line.end(), '\t', ' ');  // a tab is one byte, but not one column
  cut(line, columns_of(options_.fd) - 1);
  const bool last = done == total;
  write("\r" + line + "\x1b[K" + (last ? "\n" : ""));  // ESC [ K clears what a longer line left
  bar_open_ = !last;
}

void Progress::line(std::string_view text) {
  if (mode_ == ProgressMode::none) return;
  write((bar_open_ ? "\r\x1b[K" : "") + one_line(text) + '\n');
  bar_open_ = false;
}

void Progress::restart() {
  if (bar_open_) write("\n");
  bar_open_ = false;
  shown_ = false;
}

void Progress::write(std::string_view text) const {
  while (!text.empty()) {
    const ssize_t put = ::write(options_.fd, text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(put));
  }
}

}  // namespace apex::io
