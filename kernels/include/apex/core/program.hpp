// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>

/// What every program does alike.
namespace apex {

/// Version of this library, "1.2.3".
const char* version() noexcept;
/// What `program --version` prints: "program 1.2.3 (apex)" and a newline.
std::string version_text(std::string_view program);

/// The end of a program whose result is what it printed: flushes std::cout and stdout. @returns code, or after one line
/// on stderr exit_code::kMemory where something could not be written. A program whose results are files (a training
/// run, a pack) goes without: a full disk behind its log does not make the files worse.
int finish_output(std::string_view program, int code) noexcept;

}  // namespace apex
