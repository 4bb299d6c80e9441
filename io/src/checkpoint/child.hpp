// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace apex::io {

/// Runs `work` in a copy of this process first, so that a crash or an endless loop in it is an answer and not the end.
/// `work` may allocate and throw; it takes no lock, starts no thread and prints nothing. What it changes is lost.
/// Where no child can be made, or it gets no time to run, the file is taken as it is.
/// @throws what an apex::Error of `work` says: its kind and message
/// @throws Kind::damaged `file` + what became of the child: killed by a signal, out of memory, more than `cpu_seconds`
void try_in_child(const std::function<void()>& work, unsigned cpu_seconds, std::string_view file);

}  // namespace apex::io
