// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace apex {

/// Name of an instruction set that this library was compiled for (configure option APEX_MARCH) and this machine lacks;
/// null when there is none. Programs need not ask: one that links apex ends before main with one line on stderr and
/// exit code 1, instead of an illegal instruction somewhere later.
const char* missing_cpu_feature() noexcept;

}  // namespace apex
