// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <array>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "apex/core/cuda.hpp"
#include "main_stream.hpp"

namespace apex {

Kind StatusTraits<cudaError_t>::kind(cudaError_t status) noexcept {
  switch (status) {
    case cudaErrorMemoryAllocation: return Kind::exhausted;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDevice: return Kind::unsupported;
    default: return Kind::state;
  }
}

std::string StatusTraits<cudaError_t>::text(cudaError_t status) {
  return concat(cudaGetErrorName(status), ", ", cudaGetErrorString(status));
}

namespace cuda {
namespace {

thread_local int current_device = -1;

/// For destructors: at the end of a process the driver may be gone first.
void ignore_unloading(cudaError_t status, const char* what) noexcept {
  if (status == cudaSuccess || status == cudaErrorCudartUnloading || status == cudaErrorContextIsDestroyed) return;
  cudaGetLastError();
  log_warning(concat(what, " failed: ", cudaGetErrorString(status)));
}

/// Streams that nobody owns at present. They are never destroyed: tensors made on one may outlive its owner, and give
/// their memory back in its order.
class IdleStreams {
 public:
  cudaStream_t take(int device, bool high_priority) {
    const std::lock_guard lock(mutex_);
    auto& idle = idle_[{device, high_priority}];
    if (idle.empty()) return nullptr;
    const cudaStream_t stream = idle.back();
    idle.pop_back();
    return stream;
  }
  void put(int device, bool high_priority, cudaStream_t stream) noexcept {
    try {
      const std::lock_guard lock(mutex_);
      idle_[{device, high_priority}].push_back(stream);
    } catch (const std::bad_alloc&) {  // then it is not used again
    }
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, bool>, std::vector<cudaStream_t>> idle_;
};

IdleStreams& idle_streams() {
  static auto* const instance = new IdleStreams;
  return *instance;
}

}  // namespace

int device_count() noexcept {
  static const int count = [] {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) {
      cudaGetLastError();
      n = 0;
    }
    return n;
  }();
  return count;
}

void set_device(int index) {
  if (index == current_device) return;
  if (index < 0 || index >= device_count())
    fail(Kind::unsupported, concat("there is no device cuda:", index, "; ", device_count(),
                                   " are visible (nvidia-smi lists them, CUDA_VISIBLE_DEVICES selects)"));
  APEX_CHECK(cudaSetDevice(index));
  current_device = index;
}

cudaStream_t main_stream(int device) {
  static std::array<std::once_flag, 64> once;
  static std::array<cudaStream_t, 64> streams;
  const auto i = static_cast<std::size_t>(device);
  set_device(device);
  std::call_once(once[i], [&] { APEX_CHECK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking)); });
  return streams[i];
}

bool capturing(const Context& ctx) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  APEX_CHECK(cudaStreamIsCapturing(stream_of(ctx), &status));
  return status != cudaStreamCaptureStatusNone;
}

Stream::Stream(Device device, bool high_priority) : device_(device), high_priority_(high_priority) {
  set_device(device.index);
  stream_ = idle_streams().take(device.index, high_priority);
  if (stream_ != nullptr) return;
  int least = 0, greatest = 0;
  APEX_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  APEX_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, high_priority ? greatest : least));
}
Stream::Stream(Stream&& other) noexcept
    : device_(other.device_), high_priority_(other.high_priority_), stream_(std::exchange(other.stream_, nullptr)) {}
Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(high_priority_, other.high_priority_);
  std::swap(stream_, other.stream_);
  return *this;
}
Stream::~Stream() {
  if (stream_ != nullptr) idle_streams().put(device_.index, high_priority_, stream_);
}

Event::Event(bool timing) {
  APEX_CHECK(cudaEventCreateWithFlags(&event_, timing ? cudaEventDefault : cudaEventDisableTiming));
}
Event::Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
Event& Event::operator=(Event&& other) noexcept {
  std::swap(event_, other.event_);
  return *this;
}
Event::~Event() {
  if (event_ != nullptr) ignore_unloading(cudaEventDestroy(event_), "destroying an event");
}
void Event::record(const Context& ctx) { APEX_CHECK(cudaEventRecord(event_, stream_of(ctx))); }
void Event::block(const Context& ctx) const { APEX_CHECK(cudaStreamWaitEvent(stream_of(ctx), event_, 0)); }
bool Event::passed() const {
  const auto status = cudaEventQuery(event_);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  APEX_CHECK(status);
  return true;
}
void Event::synchronize() const { APEX_CHECK(cudaEventSynchronize(event_)); }
double Event::milliseconds_to(const Event& end) const {
  float ms = 0;
  APEX_CHECK(cudaEventElapsedTime(&ms, event_, end.event_));
  return ms;
}

void order(const Context& before, const Context& after) {
  if (before.stream == after.stream) return;
  Event mark;
  mark.record(before);
  mark.block(after);
}

void record_use(const std::shared_ptr<Storage>& storage, const Context& ctx) { storage->add_use(ctx); }

void synchronize(const Context& ctx) { APEX_CHECK(cudaStreamSynchronize(stream_of(ctx))); }

int multiprocessors() {
  int device = 0, count = 0;
  APEX_CHECK(cudaGetDevice(&device));
  static std::array<int, 64> cache{};
  int& cached = cache[static_cast<std::size_t>(device)];
  if (cached == 0) {
    APEX_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    cached = count;
  }
  return cached;
}

std::size_t l2_bytes() {
  int device = 0, bytes = 0;
  APEX_CHECK(cudaGetDevice(&device));
  APEX_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device));
  return static_cast<std::size_t>(bytes);
}

}  // namespace cuda
}  // namespace apex
