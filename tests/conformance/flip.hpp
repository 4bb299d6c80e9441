// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

namespace apex::test {

/// One output of one backward kernel, "conv2d_backward_data.dx", at its n-th call in which that output is wanted.
struct Flip {
  std::string output;
  int call = 0;
};

/// While it lives, the chosen result has the opposite sign. The linker puts the wrappers of flip.cpp in the place of
/// the kernels (--wrap), so the library needs no hook for this.
class FlipGuard {
 public:
  explicit FlipGuard(const Flip& flip);
  FlipGuard(const FlipGuard&) = delete;
  FlipGuard& operator=(const FlipGuard&) = delete;
  ~FlipGuard();
  bool happened() const;
};

}  // namespace apex::test
