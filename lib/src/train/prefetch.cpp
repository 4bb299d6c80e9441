// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/train/prefetch.hpp"

#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include "apex/core/error.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#endif

namespace apex::train {

#ifdef APEX_HAS_CUDA

namespace {

bool page_locked(const void* memory) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, memory) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return attributes.type == cudaMemoryTypeHost;
}

/// A host tensor as it is, or a copy of it in page-locked memory.
Tensor page_locked(const Tensor& host) {
  if (host.numel() == 0 || page_locked(host.raw_data())) return host;
  auto storage = cuda::pinned_pool::storage(host.bytes());
  std::memcpy(storage->data(), host.raw_data(), host.bytes());
  return Tensor::from_storage(std::move(storage), host.dtype(), host.sizes(), host.strides());
}

}  // namespace

struct Prefetch::Impl {
  /// One batch on the device, and what its copy reads.
  struct Buffer {
    Tensor images, labels;
    Tensor host_images, host_labels;
    cuda::Event filled;  // on the copy stream
    cuda::Event free;    // on the compute stream: whoever worked with it is done
  };

  explicit Impl(Device where) : device(where), stream(where) {}
  ~Impl();
  void send(Buffer& buffer, const io::Batch& batch);

  Device device;
  cuda::Stream stream;
  std::array<Buffer, 2> buffers;
  std::size_t turn = 0;
  Buffer* in_use = nullptr;
};

Prefetch::Impl::~Impl() {
  try {
    for (const auto& buffer : buffers) buffer.filled.synchronize();  // the host memory goes back to its pool
  } catch (const std::exception& error) {
    log_warning(error.what());
  }
}

void Prefetch::Impl::send(Buffer& buffer, const io::Batch& batch) {
  const Context compute = Context::current(device), copy = stream.context();
  while (!buffer.filled.passed())  // two batches ago: its host memory is about to go back
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  const auto fit = [&](Tensor& there, const Tensor& here) {
    if (!is_non_overlapping_and_dense(here.sizes(), here.strides()) || here.storage_offset() != 0)
      fail(Kind::argument, concat("Prefetch: a batch of sizes ", here.sizes(), " has gaps in memory"));
    if (there.defined() && there.sizes() == here.sizes() && there.dtype() == here.dtype() &&
        there.strides() == here.strides())
      return;
    there = Tensor::from_storage(Storage::allocate(here.bytes(), device), here.dtype(), here.sizes(), here.strides());
    buffer.free.record(compute);  // new memory is usable after what is queued here
  };
  fit(buffer.images, batch.images);
  fit(buffer.labels, batch.labels);
  buffer.host_images = page_locked(batch.images);
  buffer.host_labels = page_locked(batch.labels);
  buffer.free.block(copy);
  const auto enqueue = [&](const Tensor& there, const Tensor& here) {
    if (here.bytes() == 0) return;
    APEX_CHECK(cudaMemcpyAsync(there.raw_data(), here.raw_data(), here.bytes(), cudaMemcpyHostToDevice,
                               cuda::stream_of(copy)));
    there.raise_version();
  };
  enqueue(buffer.images, buffer.host_images);
  enqueue(buffer.labels, buffer.host_labels);
  buffer.filled.record(copy);
  buffer.filled.block(compute);
}

std::function<std::shared_ptr<Storage>(std::size_t)> batch_memory(Device device) {
  if (!device.is_cuda()) return {};
  return [device](std::size_t bytes) {
    cuda::set_device(device.index);  // a reader thread would start a context on device 0 otherwise
    return cuda::pinned_pool::storage(bytes);
  };
}

Prefetch::Prefetch(io::Loader& loader, Device device) : loader_(loader) {
  if (!device.is_cuda()) return;
  static_cast<void>(Context::current(device));  // events belong to the thread's device
  impl_ = std::make_unique<Impl>(device);
}

std::optional<io::Batch> Prefetch::next() {
  auto batch = loader_.next();
  if (impl_ == nullptr || !batch) return batch;
  Impl& self = *impl_;
  if (self.in_use != nullptr) self.in_use->free.record(Context::current(self.device));
  Impl::Buffer& buffer = self.buffers[self.turn];
  self.turn = (self.turn + 1) % self.buffers.size();
  self.in_use = &buffer;
  self.send(buffer, *batch);
  batch->images = buffer.images;
  batch->labels = buffer.labels;
  return batch;
}

#else

struct Prefetch::Impl {};

std::function<std::shared_ptr<Storage>(std::size_t)> batch_memory(Device device) {
  if (device.is_cuda()) throw_not_built("batch_memory", device);
  return {};
}

Prefetch::Prefetch(io::Loader& loader, Device device) : loader_(loader) {
  if (device.is_cuda()) throw_not_built("Prefetch", device);
}

std::optional<io::Batch> Prefetch::next() { return loader_.next(); }

#endif

Prefetch::~Prefetch() = default;

void Prefetch::start(std::int64_t epoch, std::int64_t step) { loader_.start(epoch, step); }

}  // namespace apex::train
