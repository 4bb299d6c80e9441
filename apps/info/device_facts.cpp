// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/core/error.hpp"
#include "facts.hpp"

#ifdef APEX_HAS_CUDA
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <memory>
#endif

namespace info {
using apex::concat;

#ifdef APEX_HAS_CUDA

namespace {

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string out = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char byte[3];
    std::snprintf(byte, sizeof byte, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    out += byte;
    if (i == 3 || i == 5 || i == 7 || i == 9) out += '-';
  }
  return out;
}

/// How many NVLinks of a device are up, from the driver's management library where it is there; -1 otherwise. Declared
/// here, since toolkits for compiling often come without its header.
class Management {
 public:
  Management() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    const auto init = find<int (*)()>("nvmlInit_v2");
    handle_ = find<Handle>("nvmlDeviceGetHandleByPciBusId_v2");
    state_ = find<State>("nvmlDeviceGetNvLinkState");
    ready_ = init != nullptr && handle_ != nullptr && state_ != nullptr && init() == 0;
  }
  Management(const Management&) = delete;
  Management& operator=(const Management&) = delete;
  ~Management() {
    if (ready_)
      if (const auto shutdown = find<int (*)()>("nvmlShutdown")) shutdown();
    if (library_ != nullptr) dlclose(library_);
  }

  int links_up(const char* bus_id) const {
    void* device = nullptr;
    if (!ready_ || handle_(bus_id, &device) != 0) return -1;
    int up = 0;
    for (unsigned link = 0; link < kMostLinks; ++link) {
      int on = 0;
      if (state_(device, link, &on) != 0) break;  // beyond the last, or none at all
      up += on;
    }
    return up;
  }

 private:
  static constexpr unsigned kMostLinks = 64;
  using Handle = int (*)(const char*, void**);
  using State = int (*)(void*, unsigned, int*);
  template <class Function>
  Function find(const char* name) const {
    return reinterpret_cast<Function>(dlsym(library_, name));
  }

  void* library_;
  Handle handle_ = nullptr;
  State state_ = nullptr;
  bool ready_ = false;
};

int visible() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

}  // namespace

Section devices() {
  Section out{"devices", {}};
  int count = 0;
  const auto status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    int driver = 0;
    cudaDriverGetVersion(&driver);
    out.facts.emplace_back("none", driver == 0             ? "this host has no CUDA driver"
                                   : status == cudaSuccess ? "no GPU is visible"
                                                           : cudaGetErrorString(status));
    return out;
  }
  const Management management;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p{};
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess) {
      out.facts.emplace_back(concat("cuda:", i), cudaGetErrorString(cudaGetLastError()));
      continue;
    }
    char bus_id[32] = "?";
    cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, i);
    const int links = management.links_up(bus_id);
    std::string text = concat(p.name, ", ", uuid_text(p.uuid), ", PCI ", bus_id, ", compute ", p.major, '.', p.minor,
                              ", ", p.multiProcessorCount, " multiprocessors, ", p.totalGlobalMem >> 20, " MiB, L2 ",
                              p.l2CacheSize >> 20, " MiB");
    if (links >= 0) text += concat(", ", links, " NVLinks up");
    out.facts.emplace_back(concat("cuda:", i), text);
  }
  return out;
}

Section links() {
  Section out{"links between devices", {}};
  const int count = visible();
  for (int a = 0; a < count; ++a) {
    for (int b = a + 1; b < count; ++b) {
      int access = 0, rank = 0, atomics = 0;
      cudaDeviceCanAccessPeer(&access, a, b);
      cudaDeviceGetP2PAttribute(&rank, cudaDevP2PAttrPerformanceRank, a, b);
      cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, a, b);
      out.facts.emplace_back(concat("cuda:", a, " - cuda:", b),
                             access == 0 ? std::string("through the host")
                                         : concat("peer access, performance rank ", rank,
                                                  atomics != 0 ? ", atomics (NVLink)" : ", no atomics (PCIe)"));
    }
  }
  return out;
}

#else

Section devices() { return {"devices", {{"none", "this build has no CUDA backend"}}}; }
Section links() { return {"links between devices", {}}; }

#endif

}  // namespace info
