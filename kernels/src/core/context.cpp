// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/core/context.hpp"

#include <utility>
#include <vector>

#include "apex/core/storage.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#include "cuda/main_stream.hpp"
#endif

namespace apex {
namespace {
std::vector<Context>& context_stack() {
  thread_local std::vector<Context> stack;
  return stack;
}
}  // namespace

Workspace::Workspace(std::size_t bytes, Device device, void* stream) : bytes_(bytes), device_(device), stream_(stream) {
#ifdef APEX_HAS_CUDA
  if (device.is_cuda()) {
    data_ = cuda::allocate(bytes, {device, stream});
    return;
  }
#endif
  if (!device.is_cpu()) throw_not_built("Context::workspace", device);
  data_ = host_pool::allocate(bytes);
}

Workspace::Workspace(Workspace&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      device_(other.device_),
      stream_(other.stream_) {}

Workspace& Workspace::operator=(Workspace&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  std::swap(stream_, other.stream_);
  return *this;
}

Workspace::~Workspace() {
#ifdef APEX_HAS_CUDA
  if (device_.is_cuda()) {
    cuda::deallocate(data_, bytes_, {device_, stream_});
    return;
  }
#endif
  host_pool::deallocate(data_, bytes_);
}

Context Context::current(Device device) {
#ifdef APEX_HAS_CUDA
  if (device.is_cuda()) cuda::set_device(device.index);
#endif
  const auto& stack = context_stack();
  for (auto it = stack.rbegin(); it != stack.rend(); ++it)
    if (it->device == device) return *it;
#ifdef APEX_HAS_CUDA
  if (device.is_cuda()) return Context{device, cuda::main_stream(device.index)};
#endif
  return Context{device, nullptr};
}

StreamGuard::StreamGuard(const Context& context) { context_stack().push_back(context); }
StreamGuard::~StreamGuard() { context_stack().pop_back(); }

}  // namespace apex
