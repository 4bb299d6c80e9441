// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "child.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <initializer_list>
#include <new>

#include "apex/core/error.hpp"

namespace apex::io {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kGood = 'g', kRefused = 'r', kMemory = 'm';

/// A crash of the child is expected: it leaves no core file, no handler of this process speaks up for it, and what the
/// C library has to say ("free(): invalid pointer") is not for the user.
void prepare(unsigned cpu_seconds) {
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGXCPU, SIGTERM}) std::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
  const rlimit no_core{0, 0}, cpu{cpu_seconds, cpu_seconds + 1};
  setrlimit(RLIMIT_CORE, &no_core);
  setrlimit(RLIMIT_CPU, &cpu);
  if (const int nowhere = ::open("/dev/null", O_WRONLY); nowhere >= 0) {
    ::dup2(nowhere, STDOUT_FILENO);
    ::dup2(nowhere, STDERR_FILENO);
  }
}

std::string verdict_of(const std::function<void()>& work) {
  try {
    work();
    return {kGood};
  } catch (const Error& e) {
    return std::string{kRefused, static_cast<char>(e.kind())} + e.what();
  } catch (const std::bad_alloc&) {
    return {kMemory};
  } catch (const std::exception& e) {
    return std::string{kRefused, static_cast<char>(Kind::damaged)} + e.what();
  }
}

[[noreturn]] void be_the_child(const std::function<void()>& work, unsigned cpu_seconds, int out) {
  prepare(cpu_seconds);
  const std::string verdict = verdict_of(work);
  for (std::size_t done = 0; done < verdict.size();) {
    const auto n = ::write(out, verdict.data() + done, verdict.size() - done);
    if (n < 0 && errno != EINTR) break;
    if (n > 0) done += static_cast<std::size_t>(n);
  }
  ::_exit(0);  // no destructors, no exit handlers: they belong to the parent
}

/// What the child says until it ends. @returns false when `end` came first
bool listen(int in, Clock::time_point end, std::string& text) {
  std::array<char, 4096> buffer;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return false;
    pollfd wait{in, POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(left)) <= 0) continue;
    const auto n = ::read(in, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return true;
    text.append(buffer.data(), static_cast<std::size_t>(n));
  }
}

struct End {
  int status = 0;          ///< 0 when nobody knows any more (a program that ignores SIGCHLD)
  double cpu_seconds = 0;  ///< that it used
};

End collect(pid_t child) {
  End end;
  rusage used{};
  while (::wait4(child, &end.status, 0, &used) < 0)
    if (errno != EINTR) return {};
  for (const timeval& t : {used.ru_utime, used.ru_stime})
    end.cpu_seconds += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  return end;
}

std::string death(int status, unsigned cpu_seconds) {
  const int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  if (number == SIGXCPU) return concat("HDF5 did not come to an end with its metadata in ", cpu_seconds, " s");
  if (number == SIGKILL) return "the process that looked at its metadata was killed (out of memory?)";
  const char* name = sigabbrev_np(number);
  return concat("HDF5 crashed on its metadata", name ? concat(" (SIG", name, ')') : std::string());
}

}  // namespace

void try_in_child(const std::function<void()>& work, unsigned cpu_seconds, std::string_view file) {
  // The limit is one of CPU time, which a busy or suspended host does not use up. Real time ends a child that gets
  // nowhere: one that worked all the same was in the loop we fear, one that did not says nothing about the file.
  const auto limit = Clock::now() + std::chrono::seconds(30 * cpu_seconds);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return;
  const pid_t child = ::fork();
  if (child == 0) be_the_child(work, cpu_seconds, ends[1]);
  ::close(ends[1]);
  std::string text;
  bool late = false;
  End end;
  if (child > 0) {
    late = !listen(ends[0], limit, text);
    if (late) ::kill(child, SIGKILL);
    end = collect(child);
  }
  ::close(ends[0]);
  if (child < 0 || text.starts_with(kGood)) return;
  if (late && end.cpu_seconds < 0.5 * cpu_seconds) return;
  if (late) end.status = SIGXCPU;
  if (text.empty()) fail(Kind::damaged, concat(file, ": damaged: ", death(end.status, cpu_seconds)));
  if (text.front() == kRefused && text.size() > 1) fail(static_cast<Kind>(text[1]), text.substr(2));
  fail(Kind::damaged, concat(file, ": damaged: its metadata ask for more memory than there is"));
}

}  // namespace apex::io
