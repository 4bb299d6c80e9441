// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/core/dlpack.hpp"

#include <dlpack/dlpack.h>

#include <memory>
#include <type_traits>
#include <vector>

#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#endif

#if defined(DLPACK_MAJOR_VERSION) && DLPACK_MAJOR_VERSION >= 1
#define APEX_DLPACK_VERSIONED 1
#endif

namespace apex {
namespace {

using Stream = std::optional<void*>;

constexpr std::uint8_t kBool = 6;  // kDLBool, which headers before 0.8 do not name

DLDataType dl_type(DType dtype) {
  const auto make = [](int code, int bits) {
    return DLDataType{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
  };
  switch (dtype) {
    case DType::f64: return make(kDLFloat, 64);
    case DType::f32: return make(kDLFloat, 32);
    case DType::f16: return make(kDLFloat, 16);
    case DType::bf16: return make(kDLBfloat, 16);
    case DType::i64: return make(kDLInt, 64);
    case DType::i32: return make(kDLInt, 32);
    case DType::u8: return make(kDLUInt, 8);
    case DType::boolean: return make(kBool, 8);
  }
  throw_unsupported("to_dlpack", dtype);
}

DType dtype_from(DLDataType type) {
  if (type.lanes == 1) {
    for (const DType candidate :
         {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8, DType::boolean}) {
      const DLDataType known = dl_type(candidate);
      if (known.code == type.code && known.bits == type.bits) return candidate;
    }
  }
  fail(Kind::unsupported, concat("from_dlpack: type code ", int{type.code}, ", ", int{type.bits}, " bits, ", type.lanes,
                                 " lanes is none of ours"));
}

/// Whether this process can use CUDA device `index`.
bool is_visible([[maybe_unused]] int index) {
#ifdef APEX_HAS_CUDA
  return index >= 0 && index < cuda::device_count();
#else
  return false;
#endif
}

void check_stream(const char* call, Device device, const Stream& stream) {
  if (stream && device.is_cpu())
    fail(Kind::argument, concat(call, ": a tensor on the CPU has no stream; leave the stream out"));
}

/// What is queued on `after` from now on waits for what is queued on `before` so far.
void order([[maybe_unused]] Device device, [[maybe_unused]] void* before, [[maybe_unused]] void* after) {
#ifdef APEX_HAS_CUDA
  cuda::set_device(device.index);
  cuda::order({device, before}, {device, after});
#endif
}

/// The consumer's work so far counts as use of the storage until it goes.
void note_use([[maybe_unused]] const Tensor& tensor, [[maybe_unused]] void* stream) {
#ifdef APEX_HAS_CUDA
  cuda::record_use(tensor.storage(), {tensor.device(), stream});
#endif
}

template <class Managed>
struct Export {
  Tensor tensor;
  Dims sizes, strides;
  Managed managed{};
};

template <class Managed>
std::unique_ptr<Export<Managed>> make_export(const char* call, const Tensor& tensor, const Stream& stream) {
  if (!tensor.defined()) fail(Kind::argument, concat(call, ": the tensor is undefined"));
  check_stream(call, tensor.device(), stream);
  auto out = std::make_unique<Export<Managed>>();
  out->tensor = tensor.detach();
  out->sizes = tensor.sizes();
  out->strides = tensor.strides();
  auto& dl = out->managed.dl_tensor;
  dl.data = tensor.raw_data();
  dl.device = {tensor.device().is_cpu() ? kDLCPU : kDLCUDA, tensor.device().index};
  dl.ndim = tensor.dim();
  dl.dtype = dl_type(tensor.dtype());
  dl.shape = out->sizes.begin();
  dl.strides = out->strides.begin();
  dl.byte_offset = 0;
  out->managed.manager_ctx = out.get();
  out->managed.deleter = [](Managed* self) { delete static_cast<Export<Managed>*>(self->manager_ctx); };
  if (stream) {
    order(tensor.device(), tensor.context().stream, *stream);
    note_use(tensor, *stream);
  }
  return out;
}

/// What a tensor of somebody else's is to us, and the bytes it spans.
struct Import {
  DType dtype;
  Device device;
  Dims sizes, strides;
  void* data;
  std::size_t bytes;
};

Import examine(const char* call, const DLTensor& dl, const Stream& stream) {
  if (dl.ndim < 0 || dl.ndim > kMaxRank)
    fail(Kind::argument, concat(call, ": rank ", dl.ndim, ", at most ", kMaxRank, " are supported"));
  const bool on_host = dl.device.device_type == kDLCPU || dl.device.device_type == kDLCUDAHost;
  if (!on_host && !(dl.device.device_type == kDLCUDA && is_visible(dl.device.device_id)))
    fail(Kind::unsupported, concat(call, ": this build has no backend for DLPack device type ",
                                   static_cast<int>(dl.device.device_type), " number ", dl.device.device_id));
  const DType dtype = dtype_from(dl.dtype);
  const auto rank = static_cast<std::size_t>(dl.ndim);
  if (rank > 0 && dl.shape == nullptr) fail(Kind::argument, concat(call, ": no shape"));
  const Dims sizes(std::span<const std::int64_t>(dl.shape, rank));
  for (int d = 0; d < sizes.size(); ++d)
    if (sizes[d] < 0) fail(Kind::argument, concat(call, ": negative size in ", sizes));
  const Dims strides =
      dl.strides != nullptr ? Dims(std::span<const std::int64_t>(dl.strides, rank)) : strides_for(sizes);
  std::int64_t extent = element_count(sizes) == 0 ? 0 : 1;
  for (int d = 0; d < sizes.size(); ++d) {
    if (strides[d] < 0)
      fail(Kind::argument, concat(call, ": negative stride in ", strides, "; copy the tensor on its side"));
    if (extent > 0) extent += (sizes[d] - 1) * strides[d];
  }
  auto* const data = static_cast<std::byte*>(dl.data) + (dl.data != nullptr ? dl.byte_offset : 0);
  if (extent > 0 && dl.data == nullptr) fail(Kind::argument, concat(call, ": no data for sizes ", sizes));
  if (reinterpret_cast<std::uintptr_t>(data) % size_of(dtype) != 0)
    fail(Kind::argument, concat(call, ": the address of the data does not fit ", name_of(dtype), " (it must be a ",
                                "multiple of ", size_of(dtype), "); copy the tensor on its side"));
  const Device device = on_host ? kCpu : Device{DeviceKind::cuda, dl.device.device_id};
  check_stream(call, device, stream);
  return {dtype, device, sizes, strides, data, static_cast<std::size_t>(extent) * size_of(dtype)};
}

template <class Managed>
Tensor take_over(const char* call, Managed* managed, const Stream& stream) {
  const Import theirs = examine(call, managed->dl_tensor, stream);
  if (stream) order(theirs.device, *stream, Context::current(theirs.device).stream);
  // Should something throw before the tensor is whole, the caller keeps what is his.
  const auto taken = std::make_shared<bool>(false);
  auto storage =
      Storage::adopt(theirs.data, theirs.bytes, theirs.device, [managed, stream, taken, device = theirs.device](void*) {
        if (!*taken) return;
        if (stream) {
          try {
            order(device, Context::current(device).stream, *stream);
          } catch (const Error&) {
            // The driver is going away with the process: there is no work left to order.
          }
        }
        if (managed->deleter != nullptr) managed->deleter(managed);
      });
  Tensor out = Tensor::from_storage(std::move(storage), theirs.dtype, theirs.sizes, theirs.strides);
  *taken = true;
  return out;
}

}  // namespace

DLManagedTensor* to_dlpack(const Tensor& tensor, Stream consumer_stream) {
  auto out = make_export<DLManagedTensor>("to_dlpack", tensor, consumer_stream);
  // Readers of the time of this structure know no type for it.
  if (tensor.dtype() == DType::boolean) out->managed.dl_tensor.dtype = dl_type(DType::u8);
  return &out.release()->managed;
}

Tensor from_dlpack(DLManagedTensor* managed, Stream producer_stream) {
  if (managed == nullptr) fail(Kind::argument, "from_dlpack: null");
  return take_over("from_dlpack", managed, producer_stream);
}

#ifdef APEX_DLPACK_VERSIONED

bool has_versioned_dlpack() noexcept { return true; }

DLManagedTensorVersioned* to_dlpack_versioned(const Tensor& tensor, Stream consumer_stream) {
  auto out = make_export<DLManagedTensorVersioned>("to_dlpack_versioned", tensor, consumer_stream);
  out->managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  out->managed.flags = 0;
  return &out.release()->managed;
}

Tensor from_dlpack_versioned(DLManagedTensorVersioned* managed, Stream producer_stream) {
  constexpr const char* call = "from_dlpack_versioned";
  if (managed == nullptr) fail(Kind::argument, concat(call, ": null"));
  if (managed->version.major != DLPACK_MAJOR_VERSION)  // nothing but the deleter is where we think it is
    fail(Kind::unsupported, concat(call, ": the tensor is of DLPack ", managed->version.major, '.',
                                   managed->version.minor, ", this build reads ", DLPACK_MAJOR_VERSION, ".x"));
  if ((managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0)
    fail(Kind::unsupported, concat(call, ": the tensor is read-only; copy it on its side"));
  return take_over(call, managed, producer_stream);
}

#else

namespace {
[[noreturn]] void throw_no_versioned(const char* call) {
  fail(Kind::unsupported, concat(call,
                                 ": apex was built with a header of DLPack 0.x; use the structure without a "
                                 "version, or build with DLPACK_INCLUDE_DIR naming DLPack 1.x"));
}
}  // namespace

bool has_versioned_dlpack() noexcept { return false; }
DLManagedTensorVersioned* to_dlpack_versioned(const Tensor&, Stream) { throw_no_versioned("to_dlpack_versioned"); }
Tensor from_dlpack_versioned(DLManagedTensorVersioned*, Stream) { throw_no_versioned("from_dlpack_versioned"); }

#endif

}  // namespace apex
