// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "host_link.hpp"

#include <chrono>
#include <deque>
#include <thread>

#include "apex/core/error.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#endif

namespace apex::train {

#ifdef APEX_HAS_CUDA

namespace {

/// Looks now and then instead of blocking in the driver: a step takes milliseconds.
void sleep_until_passed(const cuda::Event& event) {
  while (!event.passed()) std::this_thread::sleep_for(std::chrono::microseconds(20));
}

/// Page-locked doubles and the mark after which they may be touched.
struct Slot {
  std::shared_ptr<Storage> memory;
  std::size_t count = 0;
  cuda::Event done;

  double* values() const { return static_cast<double*>(memory->data()); }
  void reserve(std::size_t n) {
    if (memory == nullptr || memory->bytes() < n * sizeof(double))
      memory = cuda::pinned_pool::storage(n * sizeof(double));
    count = n;
  }
};

}  // namespace

struct Readback::Impl {
  Device device;
  std::vector<Slot> slots{static_cast<std::size_t>(kSlots)};
  std::size_t next = 0;             // slot of the next start
  std::deque<std::size_t> started;  // oldest first
};

Readback::Readback(Device device) {
  static_cast<void>(Context::current(device));  // events belong to the thread's device
  impl_ = std::make_unique<Impl>();
  impl_->device = device;
}

Readback::~Readback() {
  try {
    while (pending()) finish();  // the memory must not be handed on before
  } catch (const std::exception& error) {
    log_warning(error.what());
  }
}

bool Readback::pending() const noexcept { return !impl_->started.empty(); }

void Readback::start(const Tensor& values) {
  if (values.dtype() != DType::f64 || !values.is_contiguous() || values.device() != impl_->device)
    fail(Kind::argument, concat("Readback: ", values.dtype(), " values on ", values.device()));
  if (static_cast<int>(impl_->started.size()) == kSlots) fail(Kind::state, "Readback: every slot is on its way");
  const Context ctx = values.context();
  Slot& slot = impl_->slots[impl_->next];
  slot.reserve(static_cast<std::size_t>(values.numel()));
  APEX_CHECK(
      cudaMemcpyAsync(slot.values(), values.raw_data(), values.bytes(), cudaMemcpyDeviceToHost, cuda::stream_of(ctx)));
  slot.done.record(ctx);
  impl_->started.push_back(impl_->next);
  impl_->next = (impl_->next + 1) % impl_->slots.size();
}

std::vector<double> Readback::finish() {
  if (!pending()) fail(Kind::state, "Readback: nothing is on its way");
  const Slot& slot = impl_->slots[impl_->started.front()];
  impl_->started.pop_front();
  sleep_until_passed(slot.done);
  return {slot.values(), slot.values() + slot.count};
}

struct DeviceNumber::Impl {
  static constexpr std::size_t kSlots = 8;
  Tensor tensor;
  std::vector<Slot> slots{kSlots};
  std::size_t next = 0;
};

DeviceNumber::DeviceNumber(Device device) {
  static_cast<void>(Context::current(device));
  impl_ = std::make_unique<Impl>();
  impl_->tensor = empty({1}, DType::f64, device);
  for (auto& slot : impl_->slots) slot.reserve(1);
}

DeviceNumber::~DeviceNumber() {
  try {
    for (const auto& slot : impl_->slots) sleep_until_passed(slot.done);
  } catch (const std::exception& error) {
    log_warning(error.what());
  }
}

const Tensor& DeviceNumber::tensor() const noexcept { return impl_->tensor; }

void DeviceNumber::set(double value) {
  const Context ctx = impl_->tensor.context();
  Slot& slot = impl_->slots[impl_->next];
  impl_->next = (impl_->next + 1) % impl_->slots.size();
  sleep_until_passed(slot.done);
  *slot.values() = value;
  APEX_CHECK(cudaMemcpyAsync(impl_->tensor.raw_data(), slot.values(), sizeof value, cudaMemcpyHostToDevice,
                             cuda::stream_of(ctx)));
  slot.done.record(ctx);
  impl_->tensor.raise_version();
}

#else

struct Readback::Impl {};
Readback::Readback(Device device) { throw_not_built("Readback", device); }
Readback::~Readback() = default;
bool Readback::pending() const noexcept { return false; }
void Readback::start(const Tensor& values) { throw_not_built("Readback", values.device()); }
std::vector<double> Readback::finish() { fail(Kind::state, "Readback: nothing is on its way"); }

struct DeviceNumber::Impl {
  Tensor tensor;
};
DeviceNumber::DeviceNumber(Device device) { throw_not_built("DeviceNumber", device); }
DeviceNumber::~DeviceNumber() = default;
const Tensor& DeviceNumber::tensor() const noexcept { return impl_->tensor; }
void DeviceNumber::set(double) { fail(Kind::state, "DeviceNumber: no CUDA backend"); }

#endif

}  // namespace apex::train
