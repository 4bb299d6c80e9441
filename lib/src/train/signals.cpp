// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/train/signals.hpp"

#include <csignal>
#include <cstring>

#include "apex/core/error.hpp"

namespace apex::train {
namespace {

volatile std::sig_atomic_t caught_signal = 0;

extern "C" void note_signal(int number) {
  if (caught_signal == 0) caught_signal = number;
}

}  // namespace

StopSignals::StopSignals(const std::vector<int>& signals) : signals_(signals) {
  std::signal(SIGPIPE, SIG_IGN);  // whoever read our output may go; training goes on
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int number : signals_) {
    sigaddset(&wanted, number);
    struct sigaction action {};
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    if (sigaction(number, &action, nullptr) != 0)
      fail(Kind::argument, concat("cannot catch signal ", number, ": ", std::strerror(errno)));
  }
  pthread_sigmask(SIG_UNBLOCK, &wanted, nullptr);  // a launcher may leave them blocked to whom it starts
}

StopSignals::~StopSignals() {
  // A signal that has been obeyed may come once more (preemption repeats it) while the program ends: it must not change
  // the exit code.
  for (const int number : signals_) std::signal(number, caught_signal != 0 ? SIG_IGN : SIG_DFL);
}

int StopSignals::caught() noexcept { return caught_signal; }

std::string signal_name(int number) {
  const char* name = sigabbrev_np(number);
  return name ? name : std::to_string(number);
}

std::vector<int> stop_signals_for(const std::string& option) {
  if (option == "none") return {};
  if (option == "TERM") return {SIGTERM};
  if (option == "USR2") return {SIGUSR2, SIGTERM};
  return {SIGUSR1, SIGTERM};
}

}  // namespace apex::train
