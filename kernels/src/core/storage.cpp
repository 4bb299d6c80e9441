// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/core/storage.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <new>

#include "apex/core/error.hpp"
#ifdef APEX_HAS_CUDA
#include "cuda/device_storage.hpp"
#endif

namespace apex {
namespace host_pool {
namespace {

constexpr std::size_t kSmall = std::size_t{64} << 10;  // below: straight from malloc, which is good at these
constexpr std::size_t kPage = std::size_t{4} << 10;
constexpr std::size_t kHuge = std::size_t{2} << 20;
constexpr std::size_t kSlack = std::size_t{32} << 20;  // cached beyond the peak of what was live

std::size_t rounded(std::size_t bytes) {
  const std::size_t step = bytes < (std::size_t{1} << 20) ? kPage : std::size_t{64} << 10;
  return (bytes + step - 1) / step * step;
}

/// Cached blocks by size. Blocks are mapped one by one and unmapped whole, so nothing fragments.
class Pool {
 public:
  void* take(std::size_t bytes) {
    const std::size_t size = rounded(bytes);
    {
      const std::lock_guard lock(mutex_);
      const auto found = free_.find(size);
      if (found != free_.end()) {
        void* block = found->second;
        free_.erase(found);
        cached_ -= size;
        note_live(size);
        return block;
      }
      evict_down_to(room_for(size));
    }
    void* block = map(size);
    if (block == nullptr) {  // give back all that is cached and try once more
      trim();
      block = map(size);
    }
    if (block == nullptr) return nullptr;
    const std::lock_guard lock(mutex_);
    note_live(size);
    return block;
  }

  void put(void* block, std::size_t bytes) noexcept {
    const std::size_t size = rounded(bytes);
    const std::lock_guard lock(mutex_);
    live_ -= size;
    try {
      free_.emplace(size, block);
      cached_ += size;
    } catch (const std::bad_alloc&) {
      ::munmap(block, size);
    }
  }

  void trim() noexcept {
    const std::lock_guard lock(mutex_);
    evict_down_to(0);
  }

  Stats stats() noexcept {
    const std::lock_guard lock(mutex_);
    return {live_, cached_, peak_};
  }

 private:
  static void* map(std::size_t size) {
    void* block = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) return nullptr;
    if (size >= kHuge) ::madvise(block, size, MADV_HUGEPAGE);
    return block;
  }
  /// How much may stay cached while `size` fresh bytes are mapped, so that held memory stays near the peak.
  std::size_t room_for(std::size_t size) const {
    const std::size_t limit = std::max(peak_, live_ + size) + kSlack;
    return limit - live_ - size;
  }
  void evict_down_to(std::size_t target) noexcept {
    while (cached_ > target && !free_.empty()) {
      const auto victim = std::prev(free_.end());
      ::munmap(victim->second, victim->first);
      cached_ -= victim->first;
      free_.erase(victim);
    }
  }
  void note_live(std::size_t size) {
    live_ += size;
    peak_ = std::max(peak_, live_);
  }

  std::mutex mutex_;
  std::multimap<std::size_t, void*> free_;
  std::size_t live_ = 0, cached_ = 0, peak_ = 0;
};

Pool& pool() {
  static Pool* const instance = new Pool;  // never destroyed: tensors may outlive every static
  return *instance;
}

}  // namespace

void* allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  void* data = nullptr;
  if (bytes < kSmall) {
    data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  } else if (bytes < (std::size_t{1} << 62)) {
    data = pool().take(bytes);
  }
  if (data == nullptr) {
    const auto held = stats();
    fail(Kind::exhausted, concat("out of host memory: wanted ", bytes, " bytes while ", held.live, " are in use and ",
                                 held.cached, " cached; use a smaller batch or fewer ranks on this host"));
  }
  return data;
}

void deallocate(void* data, std::size_t bytes) noexcept {
  if (data == nullptr) return;
  if (bytes < kSmall)
    std::free(data);
  else
    pool().put(data, bytes);
}

Stats stats() noexcept { return pool().stats(); }
void trim() noexcept { pool().trim(); }

}  // namespace host_pool

Storage::Storage(void* data, std::size_t bytes, Device device, Deleter deleter)
    : data_(data), bytes_(bytes), device_(device), deleter_(std::move(deleter)) {}

Storage::~Storage() {
  if (deleter_) {
    deleter_(data_);
    return;
  }
#ifdef APEX_HAS_CUDA
  if (device_.is_cuda()) {
    cuda::release(data_, bytes_, {device_, stream_}, of_graph_, uses_);
    return;
  }
#endif
  host_pool::deallocate(data_, bytes_);
}

void Storage::add_use(const Context& ctx) {
  if (ctx.device != device_ || ctx.stream == stream_) return;
  static std::mutex guard;  // of the lists of all storages: threads with streams of their own share tensors
  const std::lock_guard lock(guard);
  for (const auto& use : uses_)
    if (use.stream == ctx.stream) return;
  uses_.push_back(ctx);
}

std::shared_ptr<Storage> Storage::allocate(std::size_t bytes, Device device) {
#ifdef APEX_HAS_CUDA
  if (device.is_cuda()) {
    const Context ctx = Context::current(device);
    const auto block = cuda::acquire(bytes, ctx);
    try {
      std::shared_ptr<Storage> out(new Storage(block.data, bytes, device, nullptr));
      out->stream_ = ctx.stream;
      out->of_graph_ = block.of_graph;
      return out;
    } catch (...) {
      cuda::release(block.data, bytes, ctx, block.of_graph, {});
      throw;
    }
  }
#endif
  if (!device.is_cpu()) throw_not_built("Storage::allocate", device);
  void* data = host_pool::allocate(bytes);
  try {
    return std::shared_ptr<Storage>(new Storage(data, bytes, device, nullptr));
  } catch (...) {
    host_pool::deallocate(data, bytes);
    throw;
  }
}

std::shared_ptr<Storage> Storage::adopt(void* data, std::size_t bytes, Device device, Deleter deleter) {
  if (!deleter) deleter = [](void*) {};
  return std::shared_ptr<Storage>(new Storage(data, bytes, device, std::move(deleter)));
}

}  // namespace apex
