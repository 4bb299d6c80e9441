// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>

#include "apex/core/cuda.hpp"

namespace apex::cuda {
namespace {

constexpr int kMaxDevices = 64;

/// What this process has handed out on one device. Counted here because the driver's pool does not see the memory of
/// graphs, and rounds.
struct Counters {
  std::atomic<std::size_t> live{0}, peak{0}, largest{0};
};

Counters& counters(int device) {
  static std::array<Counters, kMaxDevices> all;
  return all[static_cast<std::size_t>(device)];
}

void raise_to(std::atomic<std::size_t>& mark, std::size_t value) {
  std::size_t seen = mark.load(std::memory_order_relaxed);
  while (seen < value && !mark.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {}
}

cudaMemPool_t pool_of(int device) {
  cudaMemPool_t pool{};
  APEX_CHECK(cudaDeviceGetDefaultMemPool(&pool, device));
  return pool;
}

/// Freed memory stays with the process: a training step in its steady state never asks the driver.
void prepare_pool(int device) {
  static std::array<std::once_flag, kMaxDevices> once;
  std::call_once(once[static_cast<std::size_t>(device)], [device] {
    std::uint64_t keep = ~std::uint64_t{0};
    APEX_CHECK(cudaMemPoolSetAttribute(pool_of(device), cudaMemPoolAttrReleaseThreshold, &keep));
  });
}

std::string gib(std::size_t bytes) {
  std::ostringstream out;
  out.precision(3);
  const double mib = static_cast<double>(bytes) / (1 << 20);
  if (mib < 1)
    out << bytes << " bytes";
  else if (mib < 1024)
    out << mib << " MiB";
  else
    out << mib / 1024 << " GiB";
  return out.str();
}

[[noreturn]] void fail_out_of_memory(std::size_t bytes, Device device) {
  cudaGetLastError();
  const auto s = memory_stats(device);
  fail(Kind::exhausted, concat("out of memory on ", device, ": wanted ", gib(bytes), " while ", gib(s.live),
                               " are in use (largest block ", gib(s.largest), "), ", gib(s.reserved + s.graphs),
                               " are held and ", gib(s.free), " of ", gib(s.total),
                               " are free; use a smaller batch, 16-bit weights, or a GPU that nobody else uses"));
}

}  // namespace

void* allocate(std::size_t bytes, const Context& ctx) {
  if (bytes == 0) return nullptr;
  prepare_pool(ctx.device.index);
  void* data = nullptr;
  auto status = cudaMallocAsync(&data, bytes, stream_of(ctx));
  if (status == cudaErrorMemoryAllocation && !capturing(ctx)) {
    cudaGetLastError();
    trim(ctx.device);
    status = cudaMallocAsync(&data, bytes, stream_of(ctx));
  }
  if (status == cudaErrorMemoryAllocation) fail_out_of_memory(bytes, ctx.device);
  APEX_CHECK(status);
  auto& c = counters(ctx.device.index);
  raise_to(c.peak, c.live.fetch_add(bytes, std::memory_order_relaxed) + bytes);
  raise_to(c.largest, bytes);
  return data;
}

void deallocate(void* data, std::size_t bytes, const Context& ctx) noexcept {
  if (data == nullptr) return;
  counters(ctx.device.index).live.fetch_sub(bytes, std::memory_order_relaxed);
  const auto status = cudaFreeAsync(data, stream_of(ctx));
  if (status == cudaSuccess) return;
  cudaGetLastError();
  // At the end of a process the driver may be gone before the last tensor; a capture that failed owns no memory.
  if (status != cudaErrorCudartUnloading && status != cudaErrorContextIsDestroyed &&
      status != cudaErrorStreamCaptureInvalidated) {
    log_warning(concat("freeing device memory failed: ", cudaGetErrorString(status)));
  }
}

void forget(std::size_t bytes, Device device) noexcept {
  counters(device.index).live.fetch_sub(bytes, std::memory_order_relaxed);
}

MemoryStats memory_stats(Device device) {
  MemoryStats out;
  const auto& c = counters(device.index);
  out.live = c.live.load();
  out.peak = c.peak.load();
  out.largest = c.largest.load();
  std::uint64_t value = 0;
  if (cudaMemPoolGetAttribute(pool_of(device.index), cudaMemPoolAttrReservedMemCurrent, &value) == cudaSuccess)
    out.reserved = value;
  if (cudaDeviceGetGraphMemAttribute(device.index, cudaGraphMemAttrReservedMemCurrent, &value) == cudaSuccess)
    out.graphs = value;
  set_device(device.index);
  cudaMemGetInfo(&out.free, &out.total);
  return out;
}

void reset_peak(Device device) {
  auto& c = counters(device.index);
  c.peak.store(c.live.load());
}

void trim(Device device) {
  set_device(device.index);
  APEX_CHECK(cudaDeviceSynchronize());
  APEX_CHECK(cudaMemPoolTrimTo(pool_of(device.index), 0));
  APEX_CHECK(cudaDeviceGraphMemTrim(device.index));
}

namespace pinned_pool {
namespace {

/// Blocks by size; sizes are rounded up to a power of two so that a few serve all.
class Pool {
 public:
  static std::size_t rounded(std::size_t bytes) {
    std::size_t size = 4096;
    while (size < bytes) size *= 2;
    return size;
  }
  void* take(std::size_t bytes) {
    const std::size_t size = rounded(bytes);
    const std::lock_guard lock(mutex_);
    live_ += size;
    const auto found = free_.find(size);
    if (found != free_.end()) {
      void* block = found->second;
      free_.erase(found);
      cached_ -= size;
      return block;
    }
    void* block = nullptr;
    auto status = cudaHostAlloc(&block, size, cudaHostAllocPortable);
    if (status == cudaErrorMemoryAllocation && !free_.empty()) {  // give back what is cached and try once more
      cudaGetLastError();
      release_cached();
      status = cudaHostAlloc(&block, size, cudaHostAllocPortable);
    }
    if (status == cudaSuccess) return block;
    cudaGetLastError();
    live_ -= size;
    if (status == cudaErrorMemoryAllocation)
      fail(Kind::exhausted, concat("out of page-locked memory: wanted ", gib(size), " while ", gib(live_),
                                   " are in use; use fewer ranks on this host or raise its memlock limit"));
    APEX_CHECK(status);
    return nullptr;
  }
  void put(void* block, std::size_t bytes) noexcept {
    const std::size_t size = rounded(bytes);
    const std::lock_guard lock(mutex_);
    live_ -= size;
    try {
      free_.emplace(size, block);
      cached_ += size;
    } catch (const std::bad_alloc&) {
      cudaFreeHost(block);
    }
  }
  void trim() noexcept {
    const std::lock_guard lock(mutex_);
    release_cached();
  }
  Stats stats() noexcept {
    const std::lock_guard lock(mutex_);
    return {live_, cached_};
  }

 private:
  void release_cached() noexcept {  // under the lock
    for (const auto& [size, block] : free_) cudaFreeHost(block);
    free_.clear();
    cached_ = 0;
  }

  std::mutex mutex_;
  std::multimap<std::size_t, void*> free_;
  std::size_t live_ = 0, cached_ = 0;
};

Pool& pool() {
  static Pool* const instance = new Pool;  // never destroyed: tensors may outlive every static
  return *instance;
}

}  // namespace

void* allocate(std::size_t bytes) { return bytes == 0 ? nullptr : pool().take(bytes); }
void deallocate(void* data, std::size_t bytes) noexcept {
  if (data != nullptr) pool().put(data, bytes);
}
Stats stats() noexcept { return pool().stats(); }
void trim() noexcept { pool().trim(); }

std::shared_ptr<Storage> storage(std::size_t bytes) {
  return Storage::adopt(allocate(bytes), bytes, kCpu, [bytes](void* data) { deallocate(data, bytes); });
}

}  // namespace pinned_pool
}  // namespace apex::cuda
