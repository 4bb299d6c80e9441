// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "probe.hpp"

#include <dlfcn.h>

#include "apex/core/error.hpp"

namespace bench {

Probe::Probe() {
  library_ = dlopen("libapex_probe.so", RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) {
    const char* why = dlerror();
    apex::fail(apex::Kind::unsupported, apex::concat("host waits are counted by libapex_probe.so and CUPTI: ",
                                                     why == nullptr ? "not found" : why));
  }
  begin_ = reinterpret_cast<int (*)()>(dlsym(library_, "apex_probe_begin"));
  end_ = reinterpret_cast<int (*)(HostWaits*)>(dlsym(library_, "apex_probe_end"));
  if (begin_ == nullptr || end_ == nullptr)
    apex::fail(apex::Kind::unsupported, "libapex_probe.so is of another version");
}

Probe::~Probe() = default;  // CUPTI does not take being unloaded well

void Probe::begin() {
  if (const int code = begin_(); code != 0)
    apex::fail(apex::Kind::unsupported, apex::concat("CUPTI does not work here (code ", code, ')'));
}

HostWaits Probe::end() {
  HostWaits waits;
  if (const int code = end_(&waits); code != 0)
    apex::fail(apex::Kind::unsupported, apex::concat("CUPTI failed (code ", code, ')'));
  return waits;
}

}  // namespace bench
