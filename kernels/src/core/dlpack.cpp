// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/core/dlpack.hpp"

#include <dlpack/dlpack.h>

#include <memory>
#include <vector>

#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#endif

namespace apex {
namespace {

DLDataType dl_type(DType dtype) {
  const auto make = [](DLDataTypeCode code, int bits) {
    return DLDataType{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
  };
  switch (dtype) {
    case DType::f64: return make(kDLFloat, 64);
    case DType::f32: return make(kDLFloat, 32);
    case DType::f16: return make(kDLFloat, 16);
    case DType::bf16: return make(kDLBfloat, 16);
    case DType::i64: return make(kDLInt, 64);
    case DType::i32: return make(kDLInt, 32);
    case DType::u8:
    case DType::boolean: return make(kDLUInt, 8);
  }
  throw_unsupported("to_dlpack", dtype);
}

DType dtype_from(DLDataType type) {
  if (type.lanes == 1) {
    for (const DType candidate : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8}) {
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

struct Export {
  Tensor tensor;
  Dims sizes, strides;
  DLManagedTensor managed{};
};

}  // namespace

DLManagedTensor* to_dlpack(const Tensor& tensor) {
  auto out = std::make_unique<Export>();
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
  out->managed.deleter = [](DLManagedTensor* self) { delete static_cast<Export*>(self->manager_ctx); };
  return &out.release()->managed;
}

Tensor from_dlpack(DLManagedTensor* managed) {
  if (managed == nullptr) fail(Kind::argument, "from_dlpack: null");
  const auto& dl = managed->dl_tensor;
  if (dl.ndim < 0 || dl.ndim > kMaxRank)
    fail(Kind::argument, concat("from_dlpack: rank ", dl.ndim, ", at most ", kMaxRank, " are supported"));
  const bool on_host = dl.device.device_type == kDLCPU || dl.device.device_type == kDLCUDAHost;
  if (!on_host && !(dl.device.device_type == kDLCUDA && is_visible(dl.device.device_id)))
    fail(Kind::unsupported,
         concat("from_dlpack: this build has no backend for DLPack device type ", int{dl.device.device_type}));
  const DType dtype = dtype_from(dl.dtype);
  const auto rank = static_cast<std::size_t>(dl.ndim);
  const Dims sizes(std::span<const std::int64_t>(dl.shape, rank));
  const Dims strides =
      dl.strides != nullptr ? Dims(std::span<const std::int64_t>(dl.strides, rank)) : strides_for(sizes);
  std::int64_t extent = element_count(sizes) == 0 ? 0 : 1;
  for (int d = 0; d < sizes.size(); ++d) {
    if (strides[d] < 0) fail(Kind::argument, concat("from_dlpack: negative stride in ", strides));
    if (extent > 0) extent += (sizes[d] - 1) * strides[d];
  }
  const Device device = on_host ? kCpu : Device{DeviceKind::cuda, dl.device.device_id};
  auto storage = Storage::adopt(static_cast<std::byte*>(dl.data) + dl.byte_offset,
                                static_cast<std::size_t>(extent) * size_of(dtype), device, [managed](void*) {
                                  if (managed->deleter != nullptr) managed->deleter(managed);
                                });
  return Tensor::from_storage(std::move(storage), dtype, sizes, strides);
}

}  // namespace apex
