// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "apex/core/device.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#endif

// Which device the Session of a test or a probe runs on: the CPU unless APEX_TEST_DEVICE says otherwise, also where
// there are GPUs.

namespace apex::test {

inline DeviceKind session_device() {
  const char* name = std::getenv("APEX_TEST_DEVICE");
  const auto parsed = parse_device(name == nullptr ? "cpu" : name);
  return parsed ? parsed->kind : DeviceKind::cpu;
}

/// 0, or the code to end with because there is no GPU for each rank of this host: 77 (skipped). With
/// APEX_REQUIRE_CUDA=1 a host without any GPU is a failure.
inline int code_without_devices(bool share = false) {
  if (session_device() == DeviceKind::cpu) return 0;
  int devices = 0, ranks = 1;
#ifdef APEX_HAS_CUDA
  devices = cuda::device_count();
#endif
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"})
    if (const char* text = std::getenv(name)) ranks = std::atoi(text);
  const char* required = std::getenv("APEX_REQUIRE_CUDA");
  if (devices == 0 && required != nullptr && std::string(required) == "1") {
    std::fprintf(stderr, "APEX_REQUIRE_CUDA=1, but there is no CUDA device here or no CUDA backend in this build\n");
    return 1;
  }
  if (devices >= (share ? 1 : ranks)) return 0;
  std::printf("%d CUDA device(s) for %d rank(s): skipped\n", devices, ranks);
  return 77;
}

}  // namespace apex::test
