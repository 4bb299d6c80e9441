// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/core/program.hpp"

#include <cstdio>
#include <iostream>

#include "apex/core/error.hpp"

#ifndef APEX_VERSION
#error "APEX_VERSION comes from the build"
#endif

namespace apex {

const char* version() noexcept { return APEX_VERSION; }

std::string version_text(std::string_view program) { return concat(program, ' ', version(), " (apex)\n"); }

int finish_output(std::string_view program, int code) noexcept {
  std::cout.flush();
  const bool flushed = std::fflush(stdout) == 0;
  if (std::cout && flushed && std::ferror(stdout) == 0) return code;
  std::fprintf(stderr, "%.*s: the output cannot be written: is the disk full?\n", static_cast<int>(program.size()),
               program.data());
  return exit_code::kMemory;
}

}  // namespace apex
