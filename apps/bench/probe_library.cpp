// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// libapex_probe: sees every call of the CUDA driver through CUPTI, those of cuDNN, cuBLAS and NCCL too.
//   apex_probe_begin, apex_probe_end  count what makes the host wait (apex_bench step --count-syncs)
//   CUDA_INJECTION64_PATH=.../libapex_probe.so APEX_KERNEL_LOG=FILE program ...
//                                     appends the name of each distinct kernel that the program launched
#include <cuda_runtime_api.h>
#include <cupti.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "probe.hpp"

namespace {

// Callbacks come from any thread, while the driver is at work: they only note what they see.
class Recorder {
 public:
  static Recorder& instance() {
    static Recorder recorder;
    return recorder;
  }
  ~Recorder() {
    if (log_.empty()) return;
    if (std::FILE* file = std::fopen(log_.c_str(), "a"); file != nullptr) {
      for (const std::string& name : kernels_) std::fprintf(file, "%s\n", name.c_str());
      std::fclose(file);
    }
  }

  int subscribe() {
    if (subscribed_) return 0;
    const int code =
        static_cast<int>(cuptiSubscribe(&subscriber_, reinterpret_cast<CUpti_CallbackFunc>(&Recorder::called), this));
    subscribed_ = code == 0;
    return code;
  }
  int count(bool on) {
    if (const int code = subscribe(); code != 0) return code;
    const int code = static_cast<int>(cuptiEnableDomain(on ? 1 : 0, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API));
    return code != 0 || on || log_.empty() ? code : watch_launches();  // the log goes on
  }
  int log_kernels(const char* file) {
    log_ = file;
    const int code = subscribe();
    return code != 0 ? code : watch_launches();
  }
  int watch_launches() {
    for (const CUpti_CallbackId id :
         {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
          CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz,
          CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel, CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz})
      if (const auto code = cuptiEnableCallback(1, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API, id); code != CUPTI_SUCCESS)
        return static_cast<int>(code);
    return 0;
  }

  void start() {
    const std::lock_guard lock(mutex_);
    waits_ = {};
    copies_.clear();
    counting_ = true;
  }
  bench::HostWaits stop() {
    const std::lock_guard lock(mutex_);
    counting_ = false;
    // Asked only now: a callback must not call the driver. Memory that was page-locked then still is.
    for (const void* address : copies_) {
      cudaPointerAttributes attributes{};
      const bool known = cudaPointerGetAttributes(&attributes, address) == cudaSuccess;
      if (!known) cudaGetLastError();
      if (!known || attributes.type == cudaMemoryTypeUnregistered)
        note(waits_.pageable_copies, "copy of pageable memory");
    }
    return waits_;
  }

 private:
  static void CUPTIAPI called(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
    if (domain != CUPTI_CB_DOMAIN_DRIVER_API) return;
    const auto& info = *static_cast<const CUpti_CallbackData*>(data);
    if (info.callbackSite == CUPTI_API_ENTER) static_cast<Recorder*>(self)->record(id, info);
  }

  void record(CUpti_CallbackId id, const CUpti_CallbackData& info) {
    const std::lock_guard lock(mutex_);
    if (!log_.empty() && info.symbolName != nullptr) kernels_.insert(info.symbolName);
    if (!counting_) return;
    switch (id) {
      case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel:
      case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz:
      case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx:
      case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz:
      case CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel:
      case CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz: ++waits_.kernel_launches; break;
      case CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch:
      case CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz: ++waits_.graph_launches; break;
      case CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize:
      case CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize_v2:
      case CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize:
      case CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize_ptsz:
      case CUPTI_DRIVER_TRACE_CBID_cuEventSynchronize: note(waits_.synchronizations, info.functionName); break;
      case CUPTI_DRIVER_TRACE_CBID_cuMemcpy:
      case CUPTI_DRIVER_TRACE_CBID_cuMemcpy_ptds:
      case CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoD_v2:
      case CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoD_v2_ptds:
      case CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2:
      case CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2_ptds:
      case CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoD_v2:
      case CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoD_v2_ptds: note(waits_.blocking_copies, info.functionName); break;
      case CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2:
      case CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2:
      case CUPTI_DRIVER_TRACE_CBID_cuMemAllocHost_v2:
      case CUPTI_DRIVER_TRACE_CBID_cuMemHostAlloc:
      case CUPTI_DRIVER_TRACE_CBID_cuMemHostAlloc_v2:
      case CUPTI_DRIVER_TRACE_CBID_cuMemFreeHost: note(waits_.allocations, info.functionName); break;
      case CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoDAsync_v2:
      case CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoDAsync_v2_ptsz:
        copies_.push_back(static_cast<const cuMemcpyHtoDAsync_v2_params*>(info.functionParams)->srcHost);
        break;
      case CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoHAsync_v2:
      case CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoHAsync_v2_ptsz:
        copies_.push_back(static_cast<const cuMemcpyDtoHAsync_v2_params*>(info.functionParams)->dstHost);
        break;
      case CUPTI_DRIVER_TRACE_CBID_cuMemcpyAsync:
      case CUPTI_DRIVER_TRACE_CBID_cuMemcpyAsync_ptsz: {
        const auto& p = *static_cast<const cuMemcpyAsync_params*>(info.functionParams);
        copies_.push_back(reinterpret_cast<const void*>(p.dst));
        copies_.push_back(reinterpret_cast<const void*>(p.src));
        break;
      }
      default: break;
    }
  }

  void note(long& counter, const char* name) {
    if (waits_.total() == 0) std::snprintf(waits_.first, sizeof waits_.first, "%s", name);
    ++counter;
  }

  std::mutex mutex_;
  CUpti_SubscriberHandle subscriber_{};
  bool subscribed_ = false, counting_ = false;
  bench::HostWaits waits_;
  std::vector<const void*> copies_;
  std::string log_;
  std::set<std::string> kernels_;
};

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int apex_probe_begin() {
  const int code = Recorder::instance().count(true);
  if (code == 0) Recorder::instance().start();
  return code;
}

__attribute__((visibility("default"))) int apex_probe_end(bench::HostWaits* waits) {
  const int code = Recorder::instance().count(false);
  *waits = Recorder::instance().stop();
  return code;
}

/// Called by the driver, once, in a process that has CUDA_INJECTION64_PATH set to this library. 1: all is well.
__attribute__((visibility("default"))) int InitializeInjection() {
  const char* file = std::getenv("APEX_KERNEL_LOG");
  if (file != nullptr && *file != 0) {
    if (const int code = Recorder::instance().log_kernels(file); code != 0)
      std::fprintf(stderr, "apex_probe: CUPTI does not work here (code %d), no kernels are logged\n", code);
  }
  return 1;
}
}
