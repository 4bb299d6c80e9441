// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace apex {

/// What went wrong, as far as a caller can act on it.
enum class Kind {
  argument,       ///< a wrong argument: shape, dtype, device, option
  state,          ///< a call in the wrong order
  unsupported,    ///< well formed, but this build or this op does not do it
  exhausted,      ///< memory or disk space ran out
  timeout,        ///< a limit passed while waiting for somebody
  communication,  ///< a peer or the transport failed
  data,           ///< input data or configuration cannot be used
  damaged,        ///< a checkpoint or a pack failed its own checks
  numerical,      ///< NaN, infinity, a loss scale at its floor
};

/// Which library reported it. `code()` is that library's own status.
enum class Domain { apex, system, cuda, cudnn, cublas, nccl, mpi, hdf5, dnnl };

const char* to_string(Kind kind) noexcept;
const char* to_string(Domain domain) noexcept;

/// Process exit codes of every apex program. Signals stay at 128+n; usage errors of a command line end with kUsage.
namespace exit_code {
inline constexpr int kOk = 0;
inline constexpr int kInternal = 1;
inline constexpr int kUsage = 2;
inline constexpr int kData = 3;
inline constexpr int kNumerical = 4;
inline constexpr int kDamaged = 5;
inline constexpr int kMemory = 6;
inline constexpr int kCommunication = 7;
inline constexpr int kRequeue = 99;
}  // namespace exit_code

/// The exit code a program ends with when an Error of this kind leaves main.
int exit_code_of(Kind kind) noexcept;

/// The only exception type the library throws. `what()` is one line: what happened, where, what to do.
class Error : public std::runtime_error {
 public:
  Error(Kind kind, std::string_view message, std::source_location where = std::source_location::current());
  Error(Kind kind, Domain domain, int code, std::string_view message,
        std::source_location where = std::source_location::current());

  Kind kind() const noexcept { return kind_; }
  Domain domain() const noexcept { return domain_; }
  int code() const noexcept { return code_; }
  const char* file() const noexcept { return where_.file_name(); }
  unsigned line() const noexcept { return where_.line(); }

 private:
  Kind kind_;
  Domain domain_ = Domain::apex;
  int code_ = 0;
  std::source_location where_;
};

/// Streams its arguments into one string.
template <class... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

/// Throws Error(kind, message).
[[noreturn]] void fail(Kind kind, std::string_view message,
                       std::source_location where = std::source_location::current());

/// What `check` needs to know of a status type; specialised beside the include of each library:
///   static bool ok(Status), int code(Status), std::string text(Status); static constexpr Domain domain; static Kind
///   kind(Status).
template <class Status>
struct StatusTraits;

/// Throws when `status` is a failure; the message reads `file:line: call failed (code: text)`.
template <class Status>
void check(Status status, const char* call, std::source_location where = std::source_location::current()) {
  using T = StatusTraits<Status>;
  if (!T::ok(status)) [[unlikely]] {
    throw Error(T::kind(status), T::domain, T::code(status),
                concat(where.file_name(), ':', where.line(), ": ", call, " failed (", T::code(status), ": ",
                       T::text(status), ')'),
                where);
  }
}

/// A macro because a function cannot see its argument's text.
#define APEX_CHECK(call) ::apex::check((call), #call)

/// One line on stderr, "apex: rank N: text" once a rank is known. Never throws; for destructors and handlers.
void log_warning(std::string_view text) noexcept;
/// Set by dist::Session so that every later warning names its rank.
void set_log_rank(int rank) noexcept;

}  // namespace apex
