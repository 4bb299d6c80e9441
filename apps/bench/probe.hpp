// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

namespace bench {

/// What a program asked of the CUDA driver between two marks that makes the host wait, or can. Counted over all threads
/// and all libraries of the process, by CUPTI's callbacks.
struct HostWaits {
  long synchronizations = 0;  ///< of a device, a stream or an event
  long blocking_copies = 0;   ///< copies that return when they are done
  long pageable_copies = 0;   ///< asynchronous ones from or to host memory that is not page-locked
  long allocations = 0;       ///< of device or page-locked memory outside the stream-ordered pool, and their release
  char first[128] = {};       ///< the driver's name of the first of them
  long kernel_launches = 0;   ///< of single kernels; like the next, no wait
  long graph_launches = 0;
  long total() const { return synchronizations + blocking_copies + pageable_copies + allocations; }
};

/// The library libapex_probe, which holds what needs CUPTI, loaded when it is asked for.
class Probe {
 public:
  /// @throws Kind::unsupported when it, or CUPTI, is not there
  Probe();
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;
  ~Probe();

  void begin();
  HostWaits end();

 private:
  void* library_ = nullptr;
  int (*begin_)() = nullptr;
  int (*end_)(HostWaits*) = nullptr;
};

}  // namespace bench
