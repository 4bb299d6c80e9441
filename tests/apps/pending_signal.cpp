// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// pending_signal NUMBER PROGRAM ARGUMENTS...: becomes PROGRAM with that signal blocked and already sent, so that it
// arrives at the very moment at which the program can take it: before it starts MPI.
#include <unistd.h>

#include <csignal>
#include <cstdlib>

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const int number = std::atoi(argv[1]);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, number);
  if (sigprocmask(SIG_BLOCK, &set, nullptr) != 0 || raise(number) != 0) return 3;
  execv(argv[2], argv + 2);
  return 127;
}
