// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace apex::test {

/// A program run from a test: its output (stdout and stderr as they come) and how it ended.
class Subprocess {
 public:
  /// `extra_environment` entries read "NAME=value"; of several for one name the last counts, and all come before
  /// those of this process.
  Subprocess(const std::vector<std::string>& command, const std::vector<std::string>& extra_environment = {}) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) throw std::runtime_error("pipe failed");
    out_ = ends[0];
    std::map<std::string, std::string> by_name;  // a name that came twice would be read as the first
    const auto set = [&](const std::string& v) { by_name[v.substr(0, v.find('='))] = v; };
    for (char** v = environ; *v != nullptr; ++v) set(*v);
    for (const auto& v : extra_environment) set(v);
    std::vector<std::string> variables;
    for (const auto& [name, entry] : by_name) variables.push_back(entry);
    auto pointers = [](const std::vector<std::string>& strings) {
      std::vector<char*> p;
      for (const auto& s : strings) p.push_back(const_cast<char*>(s.c_str()));
      p.push_back(nullptr);
      return p;
    };
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    auto argv = pointers(command), envp = pointers(variables);
    const int status = ::posix_spawnp(&pid_, argv[0], &actions, nullptr, argv.data(), envp.data());
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (status != 0) throw std::runtime_error("cannot start " + command[0]);
  }
  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;
  ~Subprocess() {
    if (!ended_) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(out_);
  }

  pid_t pid() const { return pid_; }
  const std::string& output() const { return output_; }
  /// Exit code, or 128 + signal; -1 while it runs.
  int exit_code() const { return exit_code_; }
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

  /// Reads on until `done(output)` or the end of the program. @returns false when `seconds` passed before
  bool read_until(const std::function<bool(const std::string&)>& done, double seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    for (;;) {
      drain();
      if (done(output_)) return true;
      if (ended_) return false;
      int status = 0;
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        ended_ = true;
        exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        continue;  // what it wrote last
      }
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  /// Waits for the end. @returns false when `seconds` passed before
  bool finish(double seconds) {
    read_until([this](const std::string&) { return ended_; }, seconds);
    return ended_;
  }

 private:
  void drain() {
    char buffer[4096];
    for (ssize_t n = 0; (n = ::read(out_, buffer, sizeof buffer)) > 0;)
      output_.append(buffer, static_cast<std::size_t>(n));
  }

  pid_t pid_ = -1;
  int out_ = -1, exit_code_ = -1;
  bool ended_ = false;
  std::string output_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

inline bool process_exists(pid_t pid) { return ::kill(pid, 0) == 0; }

/// A folder that goes away at the end of the scope.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::filesystem::path& where = std::filesystem::temp_directory_path()) {
    std::string name = (where / "apex_test_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed in " + where.string());
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace apex::test
