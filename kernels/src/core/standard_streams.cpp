// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/core/standard_streams.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <initializer_list>

namespace apex {

void fill_standard_streams() noexcept {
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(number, F_GETFD) >= 0 || errno != EBADF) continue;
    const int fd = ::open("/dev/null", O_RDWR);  // the lowest free number: those below are open by now
    if (fd < 0) return;
    if (fd != number) {
      ::dup2(fd, number);
      ::close(fd);
    }
  }
}

}  // namespace apex
