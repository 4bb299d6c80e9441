// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cublasLt.h>
#include <cudnn.h>

#include <mutex>

#include "apex/core/cuda.hpp"

namespace apex {

template <>
struct StatusTraits<cudnnStatus_t> {
  static constexpr Domain domain = Domain::cudnn;
  static bool ok(cudnnStatus_t status) noexcept { return status == CUDNN_STATUS_SUCCESS; }
  static int code(cudnnStatus_t status) noexcept { return static_cast<int>(status); }
  static Kind kind(cudnnStatus_t status) noexcept;
  static std::string text(cudnnStatus_t status);
};

template <>
struct StatusTraits<cublasStatus_t> {
  static constexpr Domain domain = Domain::cublas;
  static bool ok(cublasStatus_t status) noexcept { return status == CUBLAS_STATUS_SUCCESS; }
  static int code(cublasStatus_t status) noexcept { return static_cast<int>(status); }
  static Kind kind(cublasStatus_t status) noexcept;
  static std::string text(cublasStatus_t status);
};

namespace kernels::cuda {

/// cuDNN's handle of the context's device and stream, held by one thread until the end of the scope. Made on first
/// use; never destroyed, since the driver may be gone before static objects are.
class CudnnHandle {
 public:
  explicit CudnnHandle(const Context& ctx);
  cudnnHandle_t get() const noexcept { return handle_; }

 private:
  cudnnHandle_t handle_ = nullptr;
  std::unique_lock<std::mutex> lock_;
};

/// cuBLASLt's handle of the context's device; it holds no stream and any number of threads may use it.
cublasLtHandle_t cublaslt_handle(const Context& ctx);

/// While it lives, this thread may do what a stream capture forbids by default (load modules, allocate), on condition
/// that none of it belongs to the capture.
class OutsideCapture {
 public:
  OutsideCapture();
  OutsideCapture(const OutsideCapture&) = delete;
  OutsideCapture& operator=(const OutsideCapture&) = delete;
  ~OutsideCapture();

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace kernels::cuda
}  // namespace apex
