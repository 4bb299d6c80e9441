// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

/// \file
/// The named points of apex/io/checkpoint.hpp at which tests make a rank die, stop or fail (APEX_FAULT).

namespace apex::io::fault {

/// Passes a point: does nothing unless APEX_FAULT names it for this rank. `kill` and `stop` act at once, the other
/// actions wait for the next call of take().
void point(const char* name, int rank);

struct Injected {
  int error = 0;             ///< errno that the next call shall report; 0: none
  bool short_write = false;  ///< after having written half
};
/// The failure that is due, once.
Injected take();

}  // namespace apex::io::fault
