// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/data_checks.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "index_faults.hpp"

namespace apex::kernels {
namespace {

std::atomic<bool>& checks_on() noexcept {
  static std::atomic<bool> on = [] {
    const char* wish = std::getenv("APEX_DATA_CHECKS");
    return wish != nullptr && std::strcmp(wish, "1") == 0;
  }();
  return on;
}

}  // namespace

bool data_checks() noexcept { return checks_on(); }
void set_data_checks(bool on) noexcept { checks_on() = on; }

void throw_index_fault(const IndexBounds& bounds, const ConstView& index, std::int64_t flat, std::int64_t value) {
  Dims place = Dims::filled(index.rank(), 0);
  for (int d = index.rank() - 1; d >= 0; --d) {
    place[d] = flat % index.sizes[d];
    flat /= index.sizes[d];
  }
  const std::string wanted =
      bounds.below > 0 ? concat("wanted 0 to ", bounds.below - 1) : std::string("there is nothing to point at");
  const std::string ignored = bounds.ignore ? concat(" or ", *bounds.ignore, " (ignored)") : std::string();
  fail(Kind::argument, concat(bounds.op, ": the ", bounds.what, " at ", place, " is ", value, ", ", wanted, ignored));
}

}  // namespace apex::kernels
