// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>

#include "apex/core/context.hpp"
#include "apex/core/error.hpp"
#include "apex/core/storage.hpp"

/// The CUDA side of core: streams, events, device and pinned memory. Only in builds with the CUDA backend.
///
/// Everything queued through apex runs on the current context's stream of the calling thread. Each device has a main
/// stream of the library's own (non-blocking, so that it can be captured); work of other libraries on the legacy
/// default stream is not ordered with it.
namespace apex {

template <>
struct StatusTraits<cudaError_t> {
  static constexpr Domain domain = Domain::cuda;
  static bool ok(cudaError_t status) noexcept { return status == cudaSuccess; }
  static int code(cudaError_t status) noexcept { return static_cast<int>(status); }
  static Kind kind(cudaError_t status) noexcept;
  static std::string text(cudaError_t status);
};

namespace cuda {

/// Visible devices; 0 where there is no driver.
int device_count() noexcept;
/// Makes `index` the calling thread's CUDA device. @throws Kind::unsupported when there is no such device
void set_device(int index);
/// Whether the thread's work on `ctx` is being captured into a graph.
bool capturing(const Context& ctx);

inline cudaStream_t stream_of(const Context& ctx) noexcept { return static_cast<cudaStream_t>(ctx.stream); }

/// Owns a non-blocking stream. The driver's stream is kept and handed to a later owner, so that tensors made on it may
/// outlive this one.
class Stream {
 public:
  /// @param high_priority  work queued here goes before that of other streams where both could run
  explicit Stream(Device device, bool high_priority = false);
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  ~Stream();

  cudaStream_t get() const noexcept { return stream_; }
  Device device() const noexcept { return device_; }
  Context context() const noexcept { return {device_, stream_}; }

 private:
  Device device_;
  bool high_priority_;
  cudaStream_t stream_ = nullptr;
};

/// Owns an event: a mark in a stream's queue.
class Event {
 public:
  explicit Event(bool timing = false);
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  void record(const Context& ctx);
  /// Makes what is queued on ctx from now on wait for the mark.
  void block(const Context& ctx) const;
  /// Whether the mark has been passed (true when it was never recorded). @throws what the device reports
  bool passed() const;
  /// Makes the calling thread wait.
  void synchronize() const;
  /// From this mark to `end`, both passed and made with timing.
  double milliseconds_to(const Event& end) const;
  cudaEvent_t get() const noexcept { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// What is queued on `after` from now on waits for what is queued on `before` so far. Works under capture, where it
/// forks and joins.
void order(const Context& before, const Context& after);

/// Makes the calling thread wait for everything queued on ctx.
void synchronize(const Context& ctx);

/// Says that `storage`, made on one stream, is also used by what is queued on `ctx` so far and from now on until the
/// storage goes away: its memory is handed out again only after that work. Needed for every tensor that is used on a
/// stream other than the one it was made on and may be dropped before that work is known to be done.
void record_use(const std::shared_ptr<Storage>& storage, const Context& ctx);

/// Device memory handed out by this process's pools.
struct MemoryStats {
  std::size_t live = 0;      ///< bytes in use
  std::size_t peak = 0;      ///< highest `live` since reset_peak
  std::size_t largest = 0;   ///< largest single block so far
  std::size_t reserved = 0;  ///< what the pool holds of the device, blocks kept for reuse included
  std::size_t graphs = 0;    ///< what captured graphs hold besides
  std::size_t free = 0, total = 0;  ///< of the device, as the driver says
};
MemoryStats memory_stats(Device device);
void reset_peak(Device device);
/// Waits for the device and gives what the pool does not use back to the driver.
void trim(Device device);

/// Stream-ordered memory: usable by what is queued on ctx from now on.
/// @throws Kind::exhausted naming what was asked for, what is in use, held and largest, and what to try
void* allocate(std::size_t bytes, const Context& ctx);
void deallocate(void* data, std::size_t bytes, const Context& ctx) noexcept;
/// Takes bytes out of the count of what is live, for memory that passes to another owner.
void forget(std::size_t bytes, Device device) noexcept;

/// Page-locked host memory: copies to and from it need no staging and do not stop the host. Blocks are kept for reuse;
/// whoever gives one back says so only after the device has finished with it.
namespace pinned_pool {
struct Stats {
  std::size_t live = 0, cached = 0;
};
/// @throws Kind::exhausted
void* allocate(std::size_t bytes);
void deallocate(void* data, std::size_t bytes) noexcept;
Stats stats() noexcept;
void trim() noexcept;
/// A CPU storage of page-locked memory.
std::shared_ptr<Storage> storage(std::size_t bytes);
}  // namespace pinned_pool

/// Multiprocessors of the calling thread's device, and its L2 cache in bytes.
int multiprocessors();
std::size_t l2_bytes();

}  // namespace cuda
}  // namespace apex
