// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace apex::dist::detail {

/// From now on an exception that leaves main (or a thread) prints one line and ends the job with its exit code.
void install_terminate_handler() noexcept;
void restore_terminate_handler() noexcept;

}  // namespace apex::dist::detail
