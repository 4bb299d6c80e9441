// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../device_link.hpp"
#include "apex/core/cuda.hpp"

namespace apex::dist::detail {

int visible_devices() noexcept { return cuda::device_count(); }

void describe_device(DeviceFacts& facts) {
  cudaDeviceProp properties{};
  APEX_CHECK(cudaGetDeviceProperties(&properties, facts.index));
  char pci[32] = "unknown";
  APEX_CHECK(cudaDeviceGetPCIBusId(pci, sizeof pci, facts.index));
  static_assert(sizeof properties.uuid.bytes == sizeof facts.uuid);
  std::memcpy(facts.uuid, properties.uuid.bytes, sizeof facts.uuid);
  char uuid[40];
  const unsigned char* u = facts.uuid;
  std::snprintf(uuid, sizeof uuid, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
                u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
  const std::string name = concat(properties.name, ", GPU-", uuid, ", PCI ", pci);
  std::snprintf(facts.name, sizeof facts.name, "%s", name.c_str());
}

void prepare_nccl_environment(bool deterministic) {
  // NVLink multicast makes communicators fail where the fabric manager is not well, and can take GPUs of a shared host
  // out of service: off, whatever the environment says.
  const char* multicast = std::getenv("NCCL_NVLS_ENABLE");
  if (multicast != nullptr && std::strcmp(multicast, "0") != 0)
    log_warning(concat("NCCL_NVLS_ENABLE=", multicast, " is overridden: apex keeps NVLink multicast off"));
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  // Kernels of several communicators start in the order they were issued: out of order they could wait for each other.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  if (deterministic) {
    setenv("NCCL_ALGO", "Ring", 0);
    setenv("NCCL_PROTO", "Simple", 0);
  }
}

}  // namespace apex::dist::detail
