// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/train/prefetch.hpp"

#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "apex/core/error.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#endif
#ifdef APEX_HAS_NVJPEG
#include "cuda/nvjpeg_decoder.hpp"
#endif

namespace apex::train {
namespace {

[[noreturn, maybe_unused]] void throw_no_decoder(Device device) {
  fail(Kind::unsupported,
       device.is_cuda() ? std::string("JPEG files stay encoded, but this build has no nvJPEG to decode them on a GPU; "
                                      "configure where it is found (APEX_ENABLE_NVJPEG=ON), or decode on the CPU")
                        : concat("JPEG files stay encoded, but batches go to the ", device, ", which decodes none"));
}

}  // namespace

std::string gpu_decoder() {
#ifdef APEX_HAS_NVJPEG
  return NvjpegDecoder::version();
#else
  return {};
#endif
}

std::function<bool(const io::JpegInfo&)> gpu_decodes(Device device) {
#ifdef APEX_HAS_NVJPEG
  if (device.is_cuda()) return &NvjpegDecoder::takes;
#endif
  throw_no_decoder(device);
}

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
    std::vector<io::EncodedRow> encoded;
    cuda::Event filled;  // on the copy stream
    cuda::Event free;    // on the compute stream: whoever worked with it is done

    char* row(std::int64_t k) const {
      return static_cast<char*>(images.raw_data()) + static_cast<std::size_t>(k) * row_bytes();
    }
    std::size_t row_bytes() const {
      return images.size(0) == 0 ? 0 : images.bytes() / static_cast<std::size_t>(images.size(0));
    }
  };

  Impl(io::Loader& from, Device where)
      : loader(from), device(where), stream(where, /*high_priority=*/from.leaves_encoded()) {}
  ~Impl();
  void send(Buffer& buffer, io::Batch& batch);
  void decode(Buffer& buffer, io::Batch& batch);
  void copy_rows(Buffer& buffer);

  io::Loader& loader;

  Device device;
  cuda::Stream stream;
  std::array<Buffer, 2> buffers;
  std::size_t turn = 0;
  Buffer* in_use = nullptr;
#ifdef APEX_HAS_NVJPEG
  std::unique_ptr<NvjpegDecoder> decoder;
#endif
};

Prefetch::Impl::~Impl() {
  try {
    for (const auto& buffer : buffers) buffer.filled.synchronize();  // the host memory goes back to its pool
  } catch (const std::exception& error) {
    log_warning(error.what());
  }
}

#ifdef APEX_HAS_NVJPEG
/// Queues the encoded rows. What is refused goes to the loader, after which it is a row like others. If it leaves one
/// out, those behind move up, here too.
void Prefetch::Impl::decode(Buffer& buffer, io::Batch& batch) {
  const Context copy = stream.context();
  std::vector<std::int64_t> written;  // where the decoder puts them
  for (const auto& row : batch.encoded) written.push_back(row.row);
  try {
    for (const auto k : decoder->decode(batch.encoded, buffer.images, [&] { buffer.free.block(copy); }))
      loader.decode(batch, k);
    for (std::size_t k = 0; k < written.size(); ++k) {  // by row: none is overwritten before it has moved
      const auto& now = batch.encoded[k];
      if (now.bytes.empty() || now.row == written[k]) continue;
      APEX_CHECK(cudaMemcpyAsync(buffer.row(now.row), buffer.row(written[k]), buffer.row_bytes(),
                                 cudaMemcpyDeviceToDevice, stream.get()));
    }
  } catch (...) {
    cuda::synchronize(copy);  // what is queued reads the files' bytes
    throw;
  }
}
#else
void Prefetch::Impl::decode(Buffer&, io::Batch&) {}
#endif

/// Queues the pictures that were not decoded on the device, neighbours in one piece.
void Prefetch::Impl::copy_rows(Buffer& buffer) {
  const std::int64_t rows = buffer.images.size(0);
  const std::size_t row_bytes = buffer.row_bytes();
  const auto copy_range = [&](std::int64_t begin, std::int64_t end) {
    const auto offset = static_cast<std::size_t>(begin) * row_bytes;
    const auto bytes = static_cast<std::size_t>(end - begin) * row_bytes;
    if (begin >= end || bytes == 0) return;
    APEX_CHECK(cudaMemcpyAsync(buffer.row(begin), static_cast<const char*>(buffer.host_images.raw_data()) + offset,
                               bytes, cudaMemcpyHostToDevice, stream.get()));
  };
  std::int64_t next = 0;
  for (const auto& row : buffer.encoded) {
    if (row.bytes.empty()) continue;
    copy_range(next, row.row);
    next = row.row + 1;
  }
  copy_range(next, rows);
  buffer.images.raise_version();
}

void Prefetch::Impl::send(Buffer& buffer, io::Batch& batch) {
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
  if (batch.encoded.empty())
    buffer.free.block(copy);
  else
    decode(buffer, batch);
  buffer.host_images = page_locked(batch.images);
  buffer.host_labels = page_locked(batch.labels);
  buffer.encoded = std::move(batch.encoded);
  copy_rows(buffer);
  if (buffer.labels.bytes() > 0)
    APEX_CHECK(cudaMemcpyAsync(buffer.labels.raw_data(), buffer.host_labels.raw_data(), buffer.labels.bytes(),
                               cudaMemcpyHostToDevice, stream.get()));
  buffer.labels.raise_version();
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
  if (!device.is_cuda()) {
    if (loader.leaves_encoded()) throw_no_decoder(device);
    return;
  }
  static_cast<void>(Context::current(device));  // events belong to the thread's device
  impl_ = std::make_unique<Impl>(loader, device);
#ifdef APEX_HAS_NVJPEG
  if (loader.leaves_encoded()) impl_->decoder = std::make_unique<NvjpegDecoder>(impl_->stream.context());
#else
  if (loader.leaves_encoded()) throw_no_decoder(device);
#endif
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
  if (loader.leaves_encoded()) throw_no_decoder(device);
}

std::optional<io::Batch> Prefetch::next() { return loader_.next(); }

#endif

Prefetch::~Prefetch() = default;

void Prefetch::start(std::int64_t epoch, std::int64_t step) { loader_.start(epoch, step); }

}  // namespace apex::train
