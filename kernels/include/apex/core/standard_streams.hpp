// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace apex {

/// Opens /dev/null in place of standard input, output and error where the caller closed one (`program >&-`, some
/// daemons): the next file that a program opens would get its number, and what it prints would end up in that file,
/// a checkpoint perhaps. dist::Session does this; a program without one calls it before it opens a file.
void fill_standard_streams() noexcept;

}  // namespace apex
