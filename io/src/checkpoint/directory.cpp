// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "directory.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>

#include "fault.hpp"
#include "posix_file.hpp"

namespace apex::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporary = ".tmp.";
constexpr std::size_t kMaxNoteBytes = 4096;

/// The step of "step_<digits>.h5", or -1.
std::int64_t step_of(std::string_view name) {
  constexpr std::string_view kHead = "step_", kTail = ".h5";
  if (name.size() < kHead.size() + kTail.size() + 8 || !name.starts_with(kHead) || !name.ends_with(kTail)) return -1;
  name = name.substr(kHead.size(), name.size() - kHead.size() - kTail.size());
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  return error == std::errc{} && end == name.data() + name.size() && step >= 0 ? step : -1;
}

/// What the environment says, if a file name can hold it.
std::string from_environment(const char* variable) {
  const char* value = std::getenv(variable);
  if (!value || !*value || std::strlen(value) > 64 || std::strpbrk(value, "/. \t\n")) return {};
  return value;
}

struct Job {
  std::string id, restart;
};

const Job& this_job() {
  static const Job job = [] {
    Job j{from_environment("SLURM_JOB_ID"), from_environment("SLURM_RESTART_COUNT")};
    // std::to_string: a program may have a locale that groups digits, and names in files must not change with it.
    if (j.id.empty()) j.id = host_name() + '-' + std::to_string(getpid());
    if (j.restart.empty()) j.restart.push_back('0');
    return j;
  }();
  return job;
}

/// A process that has ended but that nobody has waited for still has its number.
bool is_zombie(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(in, text);
  const auto name_end = text.rfind(") ");
  return name_end != text.npos && name_end + 2 < text.size() && text[name_end + 2] == 'Z';
}

/// Whether "<host>-<pid>" names a process of this host that is gone.
bool is_dead_process(const std::string& job) {
  const auto dash = job.rfind('-');
  if (dash == job.npos || job.substr(0, dash) != host_name()) return false;
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(job.data() + dash + 1, job.data() + job.size(), pid);
  if (error != std::errc{} || end != job.data() + job.size() || pid <= 0) return false;
  return (kill(pid, 0) != 0 && errno == ESRCH) || is_zombie(pid);
}

bool is_stale(const fs::path& path) {
  constexpr double kUntouchedSeconds = 3600;
  const std::string name = path.filename().string();
  const auto at = name.find(kTemporary);
  const bool ours = name.starts_with("step_") || name.starts_with("LATEST.") || name.starts_with("BEST.") ||
                    name.starts_with("ATTEMPTS.");
  if (at == name.npos || !ours) return false;
  const std::string owner = name.substr(at + kTemporary.size());
  const auto dot = owner.rfind('.');
  const std::string job = owner.substr(0, dot), restart = dot == owner.npos ? "" : owner.substr(dot + 1);
  if (job == this_job().id) return restart != this_job().restart;
  if (is_dead_process(job)) return true;
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && std::difftime(std::time(nullptr), info.st_mtime) > kUntouchedSeconds;
}

std::string read_note(const fs::path& path) {
  std::array<std::byte, kMaxNoteBytes> bytes;
  const PosixFile file(path, O_RDONLY | O_NONBLOCK);  // a FIFO must not block us
  file.size();                                        // refuses what is no regular file
  const std::size_t n = file.read_at(bytes, 0);
  return {reinterpret_cast<const char*>(bytes.data()), n};
}

std::optional<fs::path> named_by(const fs::path& directory, const char* note) {
  try {
    std::string name = read_note(directory / note);
    name = name.substr(0, name.find_last_not_of(" \r\n\t") + 1);
    std::error_code ignored;
    if (step_of(name) >= 0 && fs::is_regular_file(directory / name, ignored)) return directory / name;
  } catch (const Error&) {}
  return std::nullopt;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "host";
  const std::string text = name.data();
  return text.substr(0, text.find('.'));
}

std::string step_file_name(std::int64_t step) {
  char name[48];
  std::snprintf(name, sizeof name, "step_%08lld.h5", static_cast<long long>(step));
  return name;
}

const std::string& temporary_suffix() {
  static const std::string suffix = concat(kTemporary, this_job().id, '.', this_job().restart);
  return suffix;
}

void remove_stale_temporaries(const fs::path& directory) noexcept {
  try {
    for (const auto& entry : fs::directory_iterator(directory)) {
      std::error_code ignored;
      if (is_stale(entry.path())) fs::remove(entry.path(), ignored);
    }
  } catch (const std::exception& e) {
    log_warning(concat("cannot look for old temporary files in ", directory.string(), ": ", e.what()));
  }
}

void write_note(const fs::path& directory, const std::string& name, const std::string& text, const char* label) {
  const auto pass = [&](const char* when) {
    if (label) fault::point(concat(when, label).c_str(), 0);
  };
  const fs::path path = directory / name, temporary = directory / (name + temporary_suffix());
  pass("before_");
  try {
    PosixFile file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    file.write_at(std::as_bytes(std::span(text)), 0);
    pass("mid_");
    file.sync();
    file.close();
    rename_file(temporary, path);
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
  sync_directory(directory);
  pass("after_");
}

std::vector<StepFile> list_checkpoints(const fs::path& directory) {
  std::vector<StepFile> files;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const auto step = step_of(it->path().filename().string());
    if (step >= 0 && !it->is_directory(error)) files.push_back({step, it->path()});
  }
  std::sort(files.begin(), files.end(),
            [](const StepFile& a, const StepFile& b) { return a.step != b.step ? a.step < b.step : a.path < b.path; });
  return files;
}

bool is_note_name(const std::string& name) { return name == "LATEST" || name == "BEST"; }

fs::path named_by_note(const fs::path& note) {
  if (const auto file = named_by(note.parent_path(), note.filename().c_str())) return *file;
  fail(Kind::data, concat(note.string(), ": names no checkpoint that is there"));
}

std::optional<fs::path> latest_checkpoint(const fs::path& directory) { return named_by(directory, "LATEST"); }
std::optional<fs::path> best_checkpoint(const fs::path& directory) { return named_by(directory, "BEST"); }

std::vector<fs::path> prune(const fs::path& directory, int keep, const fs::path& written, const fs::path& loaded_from) {
  std::vector<fs::path> deleted;
  if (keep <= 0) return deleted;
  auto files = list_checkpoints(directory);
  const auto best = best_checkpoint(directory);
  const auto is_same = [](const fs::path& a, const fs::path& b) {
    std::error_code ignored;
    return !b.empty() && fs::equivalent(a, b, ignored);
  };
  // Files beyond the one just written are damaged or of another branch: they are neither counted nor touched.
  while (!files.empty() && !is_same(files.back().path, written)) files.pop_back();
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < files.size(); ++i) {
    const auto& path = files[i].path;
    if (is_same(path, written) || is_same(path, loaded_from) || (best && is_same(path, *best))) continue;
    std::error_code error;
    if (fs::remove(path, error)) deleted.push_back(path);
    if (error) log_warning(concat("cannot delete the old checkpoint ", path.string(), ": ", error.message()));
  }
  return deleted;
}

Attempts read_attempts(const fs::path& directory) {
  Attempts attempts;
  try {
    long long step = 0;
    const std::string text = read_note(directory / "ATTEMPTS");
    if (std::sscanf(text.c_str(), "start_step %lld count %d", &step, &attempts.count) == 2 && step >= 0 &&
        attempts.count > 0) {
      attempts.start_step = step;
      return attempts;
    }
  } catch (const Error&) {}
  return {};
}

Attempts record_attempt(const fs::path& directory, std::int64_t start_step) {
  Attempts attempts = read_attempts(directory);
  const bool again = attempts.count > 0 && attempts.start_step == start_step && attempts.count < 1'000'000;
  attempts = {start_step, again ? attempts.count + 1 : 1};
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) fail_errno(directory, "make the directory", error.value());
  const FileSizeSignalGuard guard;
  write_note(directory, "ATTEMPTS",
             "start_step " + std::to_string(start_step) + " count " + std::to_string(attempts.count) + '\n');
  return attempts;
}

}  // namespace apex::io
