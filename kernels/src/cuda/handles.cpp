// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "handles.hpp"

#include <map>
#include <memory>
#include <utility>

namespace apex {

Kind StatusTraits<cudnnStatus_t>::kind(cudnnStatus_t status) noexcept {
  if (status == CUDNN_STATUS_ALLOC_FAILED) return Kind::exhausted;
  const bool not_supported = static_cast<int>(status) / 1000 == static_cast<int>(CUDNN_STATUS_NOT_SUPPORTED) / 1000;
  return not_supported ? Kind::unsupported : Kind::state;
}

std::string StatusTraits<cudnnStatus_t>::text(cudnnStatus_t status) { return cudnnGetErrorString(status); }

Kind StatusTraits<cublasStatus_t>::kind(cublasStatus_t status) noexcept {
  switch (status) {
    case CUBLAS_STATUS_ALLOC_FAILED: return Kind::exhausted;
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH: return Kind::unsupported;
    default: return Kind::state;
  }
}

std::string StatusTraits<cublasStatus_t>::text(cublasStatus_t status) { return cublasLtGetStatusName(status); }

namespace kernels::cuda {

OutsideCapture::OutsideCapture() { APEX_CHECK(cudaThreadExchangeStreamCaptureMode(&mode_)); }

OutsideCapture::~OutsideCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

CudnnHandle::CudnnHandle(const Context& ctx) {
  struct Entry {
    std::mutex used;
    cudnnHandle_t handle = nullptr;
  };
  static auto& guard = *new std::mutex;
  static auto& handles = *new std::map<std::pair<int, void*>, std::unique_ptr<Entry>>;
  Entry* entry = nullptr;
  {
    const std::lock_guard lock(guard);
    auto& slot = handles[{ctx.device.index, ctx.stream}];
    if (slot == nullptr) slot = std::make_unique<Entry>();
    entry = slot.get();
  }
  lock_ = std::unique_lock(entry->used);
  if (entry->handle == nullptr) {
    const OutsideCapture outside;
    cudnnHandle_t made = nullptr;
    APEX_CHECK(cudnnCreate(&made));
    APEX_CHECK(cudnnSetStream(made, apex::cuda::stream_of(ctx)));
    entry->handle = made;
  }
  handle_ = entry->handle;
}

cublasLtHandle_t cublaslt_handle(const Context& ctx) {
  static auto& guard = *new std::mutex;
  static auto& handles = *new std::map<int, cublasLtHandle_t>;
  const std::lock_guard lock(guard);
  auto& handle = handles[ctx.device.index];
  if (handle == nullptr) {
    const OutsideCapture outside;
    cublasLtHandle_t made = nullptr;
    APEX_CHECK(cublasLtCreate(&made));
    handle = made;
  }
  return handle;
}

}  // namespace kernels::cuda
}  // namespace apex
