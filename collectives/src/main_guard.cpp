// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "main_guard.hpp"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string_view>
#include <thread>

#include "runtime.hpp"

namespace apex::dist {
namespace {

bool mpi_is_up() noexcept {
  int up = 0, down = 0;
  MPI_Initialized(&up);
  MPI_Finalized(&down);
  return up != 0 && down == 0;
}

bool has_peers() noexcept {
  int size = 1;
  return mpi_is_up() && MPI_Comm_size(MPI_COMM_WORLD, &size) == MPI_SUCCESS && size > 1;
}

/// Whether another rank prints this error, because all ranks agreed on it.
bool printed_elsewhere(std::string_view message) {
  detail::Runtime* rt = detail::runtime_or_null();
  if (rt == nullptr) return false;
  const std::scoped_lock lock(rt->agreed_mutex);
  return !message.empty() && rt->agreed_elsewhere == message;
}

/// Prints the exception now handled and returns the exit code it asks for.
int report_current_exception() noexcept {
  const auto print = [](const char* what, bool agreed) {
    if (agreed)  // it names the rank itself
      std::fprintf(stderr, "apex: %s\n", what);
    else
      log_warning(what);
  };
  try {
    throw;
  } catch (const Error& e) {
    const int code = exit_code_of(e.kind());
    if (printed_elsewhere(e.what()))
      std::this_thread::sleep_for(std::chrono::seconds(3));  // the rank that prints it ends the job meanwhile
    else
      print(e.what(), std::string_view(e.what()).starts_with("rank "));
    return code;
  } catch (const std::bad_alloc&) {
    print("out of memory", false);
    return exit_code::kMemory;
  } catch (const std::exception& e) {
    print(e.what(), false);
    return exit_code::kInternal;
  } catch (...) {
    print("an exception of unknown type left main", false);
    return exit_code::kInternal;
  }
}

void on_terminate() {
  if (!std::current_exception()) {
    log_warning("std::terminate was called");
    abort_job(exit_code::kInternal);
  }
  abort_job(report_current_exception());
}

std::terminate_handler previous_handler = nullptr;
bool installed = false;

}  // namespace

namespace detail {

void install_terminate_handler() noexcept {
  previous_handler = std::set_terminate(&on_terminate);
  installed = true;
}

void restore_terminate_handler() noexcept {
  if (installed) std::set_terminate(previous_handler);
  installed = false;
}

}  // namespace detail

void abort_job(int code) noexcept {
  static std::atomic_flag entered;
  std::fflush(nullptr);
  if (entered.test_and_set())
    for (;;) ::pause();  // another thread is ending the job
  if (!mpi_is_up()) std::_Exit(code);
  try {
    detail::quiet_thread([code] {  // MPI_Abort can hang where another thread is stuck inside MPI
      std::this_thread::sleep_for(std::chrono::seconds(5));
      std::_Exit(code);
    })
        .detach();
  } catch (...) {
    ::alarm(5);  // no thread to be had: the default action ends the process too
  }
  MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);
}

int run_main(const std::function<int()>& body) {
  try {
    return body();
  } catch (...) {
    const int code = report_current_exception();
    if (has_peers()) abort_job(code);
    return code;
  }
}

}  // namespace apex::dist
