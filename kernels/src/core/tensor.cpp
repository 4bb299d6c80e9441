// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/core/tensor.hpp"

#include <cstring>

#include "apex/core/size_arithmetic.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#endif

namespace apex {

AutogradSlot::~AutogradSlot() = default;

struct Tensor::Impl {
  std::shared_ptr<Storage> storage;
  DType dtype = DType::f32;
  Dims sizes, strides;
  std::int64_t offset = 0;
  std::int64_t numel = 0;
  std::unique_ptr<AutogradSlot> autograd;
};

namespace {

int wrap_dim(int dim, int rank, const char* op) {
  const int d = dim < 0 ? dim + rank : dim;
  if (d < 0 || d >= rank) fail(Kind::argument, concat(op, ": dimension ", dim, " of a tensor of rank ", rank));
  return d;
}

}  // namespace

const Tensor::Impl& Tensor::impl() const {
  if (!impl_) fail(Kind::argument, "an undefined tensor was used");
  return *impl_;
}

DType Tensor::dtype() const { return impl().dtype; }
Device Tensor::device() const { return impl().storage->device(); }
int Tensor::dim() const { return impl().sizes.size(); }
const Dims& Tensor::sizes() const { return impl().sizes; }
const Dims& Tensor::strides() const { return impl().strides; }
std::int64_t Tensor::size(int i) const { return impl().sizes[wrap_dim(i, dim(), "size")]; }
std::int64_t Tensor::numel() const { return impl().numel; }
std::int64_t Tensor::storage_offset() const { return impl().offset; }
const std::shared_ptr<Storage>& Tensor::storage() const { return impl().storage; }

bool Tensor::is_contiguous(MemoryFormat format) const { return is_dense(impl().sizes, impl().strides, format); }

MemoryFormat Tensor::memory_format() const {
  if (!is_contiguous(MemoryFormat::channels_last)) return MemoryFormat::contiguous;
  if (!is_contiguous()) return MemoryFormat::channels_last;
  // Both at once, as with one channel or one pixel: the strides of the dimensions of size 1 tell what was meant.
  const bool meant = strides() == strides_for(sizes(), MemoryFormat::channels_last) &&
                     strides() != strides_for(sizes(), MemoryFormat::contiguous);
  return meant ? MemoryFormat::channels_last : MemoryFormat::contiguous;
}

View Tensor::view() const {
  if (!impl_) return {};
  View v;
  v.data = raw_data();
  v.dtype = impl_->dtype;
  v.device = impl_->storage->device();
  v.sizes = impl_->sizes;
  v.strides = impl_->strides;
  v.present = true;
  return v;
}

void* Tensor::raw_data() const {
  const auto& i = impl();
  auto* base = static_cast<std::byte*>(i.storage->data());
  return base == nullptr ? nullptr : base + i.offset * static_cast<std::int64_t>(size_of(i.dtype));
}

void Tensor::check_dtype(DType wanted) const {
  if (dtype() != wanted) fail(Kind::argument, concat("tensor of ", dtype(), " read as ", wanted));
}

double Tensor::item() const {
  if (numel() != 1) fail(Kind::argument, concat("item: tensor of sizes ", sizes(), " is not a single element"));
  alignas(8) std::byte bytes[8];
  if (device().is_cpu()) {
    std::memcpy(bytes, raw_data(), size_of(dtype()));
  } else {
#ifdef APEX_HAS_CUDA
    const Context ctx = context();
    APEX_CHECK(cudaMemcpyAsync(bytes, raw_data(), size_of(dtype()), cudaMemcpyDeviceToHost, cuda::stream_of(ctx)));
    cuda::synchronize(ctx);
#else
    throw_not_built("item", device());
#endif
  }
  return visit_any(dtype(), "item", [&]<class T>() {
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return static_cast<double>(value);
  });
}

void Tensor::set_data(const Tensor& source) const {
  if (!impl_) fail(Kind::argument, "set_data: the tensor is undefined");
  const auto& from = source.impl();
  impl_->storage = from.storage;
  impl_->dtype = from.dtype;
  impl_->sizes = from.sizes;
  impl_->strides = from.strides;
  impl_->offset = from.offset;
  impl_->numel = from.numel;
}

Tensor Tensor::detach() const {
  const auto& i = impl();
  return from_storage(i.storage, i.dtype, i.sizes, i.strides, i.offset);
}

std::unique_ptr<AutogradSlot>& Tensor::autograd_slot() const {
  if (!impl_) fail(Kind::argument, "an undefined tensor was used");
  return impl_->autograd;
}

Tensor Tensor::from_storage(std::shared_ptr<Storage> storage, DType dtype, const Dims& sizes, const Dims& strides,
                            std::int64_t offset) {
  if (!storage) fail(Kind::argument, "from_storage: no storage");
  if (sizes.size() != strides.size())
    fail(Kind::argument, concat("from_storage: sizes ", sizes, " and strides ", strides, " differ in rank"));
  const std::int64_t n = element_count(sizes);
  if (n > 0) {
    std::int64_t first = offset, last = offset;
    for (int d = 0; d < sizes.size(); ++d) {
      auto& end = strides[d] < 0 ? first : last;
      end = size_of_sum("from_storage", sizes[d] - 1, strides[d], end);
    }
    const auto available = static_cast<std::int64_t>(storage->bytes() / size_of(dtype));
    if (first < 0 || last >= available)
      fail(Kind::argument, concat("sizes ", sizes, ", strides ", strides, ", offset ", offset,
                                  " reach outside a storage of ", available, " elements of ", dtype));
  }
  auto impl = std::make_shared<Impl>();
  impl->storage = std::move(storage);
  impl->dtype = dtype;
  impl->sizes = sizes;
  impl->strides = strides;
  impl->offset = offset;
  impl->numel = n;
  return Tensor(std::move(impl));
}

namespace {
Tensor empty_strided(const Dims& sizes, const Dims& strides, DType dtype, Device device) {
  const std::int64_t n = element_count(sizes);
  if (n > (std::int64_t{1} << 59))
    fail(Kind::exhausted, concat("a tensor of sizes ", sizes, " cannot be held in memory"));
  auto storage = Storage::allocate(static_cast<std::size_t>(n) * size_of(dtype), device);
  return Tensor::from_storage(std::move(storage), dtype, sizes, strides);
}
}  // namespace

Tensor empty(const Dims& sizes, DType dtype, Device device, MemoryFormat format) {
  element_count(sizes);  // throws before strides of a bad size are formed
  return empty_strided(sizes, strides_for(sizes, format), dtype, device);
}

Tensor empty_like(const Tensor& like) { return empty_like(like, like.dtype()); }

Tensor empty_like(const Tensor& like, DType dtype) { return empty_like(like, dtype, like.device()); }

Tensor empty_like(const Tensor& like, DType dtype, Device device) {
  if (is_non_overlapping_and_dense(like.sizes(), like.strides()))
    return empty_strided(like.sizes(), like.strides(), dtype, device);
  return empty(like.sizes(), dtype, device, like.memory_format());
}

template <class T>
Tensor from_values(const Dims& sizes, std::span<const T> values) {
  if (static_cast<std::int64_t>(values.size()) != element_count(sizes))
    fail(Kind::argument, concat("from_values: ", values.size(), " values for sizes ", sizes));
  Tensor out = empty(sizes, dtype_of<T>);
  if (!values.empty()) std::memcpy(out.raw_data(), values.data(), values.size_bytes());
  return out;
}
template Tensor from_values<double>(const Dims&, std::span<const double>);
template Tensor from_values<float>(const Dims&, std::span<const float>);
template Tensor from_values<float16>(const Dims&, std::span<const float16>);
template Tensor from_values<bfloat16>(const Dims&, std::span<const bfloat16>);
template Tensor from_values<std::int64_t>(const Dims&, std::span<const std::int64_t>);
template Tensor from_values<std::int32_t>(const Dims&, std::span<const std::int32_t>);
template Tensor from_values<std::uint8_t>(const Dims&, std::span<const std::uint8_t>);
template Tensor from_values<bool>(const Dims&, std::span<const bool>);

namespace views {

Tensor as_strided(const Tensor& t, const Dims& sizes, const Dims& strides, std::int64_t offset) {
  return Tensor::from_storage(t.storage(), t.dtype(), sizes, strides, offset);
}

Tensor permute(const Tensor& t, const Dims& order) {
  if (order.size() != t.dim()) fail(Kind::argument, concat("permute: order ", order, " for sizes ", t.sizes()));
  bool seen[kMaxRank] = {};
  Dims sizes, strides;
  for (const auto entry : order) {
    const int d = wrap_dim(static_cast<int>(entry), t.dim(), "permute");
    if (seen[d]) fail(Kind::argument, concat("permute: order ", order, " names dimension ", d, " twice"));
    seen[d] = true;
    sizes.push_back(t.sizes()[d]);
    strides.push_back(t.strides()[d]);
  }
  return as_strided(t, sizes, strides, t.storage_offset());
}

Tensor transpose(const Tensor& t, int a, int b) {
  const int x = wrap_dim(a, t.dim(), "transpose"), y = wrap_dim(b, t.dim(), "transpose");
  Dims sizes = t.sizes(), strides = t.strides();
  std::swap(sizes[x], sizes[y]);
  std::swap(strides[x], strides[y]);
  return as_strided(t, sizes, strides, t.storage_offset());
}

Tensor narrow(const Tensor& t, int dim, std::int64_t start, std::int64_t length) {
  const int d = wrap_dim(dim, t.dim(), "narrow");
  if (start < 0 || length < 0 || start > t.sizes()[d] - length)
    fail(Kind::argument,
         concat("narrow: [", start, ", ", start, "+", length, ") of dimension ", dim, " of sizes ", t.sizes()));
  Dims sizes = t.sizes();
  sizes[d] = length;
  const std::int64_t skipped = t.numel() == 0 ? 0 : start * t.strides()[d];
  return as_strided(t, sizes, t.strides(), t.storage_offset() + skipped);
}

Tensor select(const Tensor& t, int dim, std::int64_t index) {
  const int d = wrap_dim(dim, t.dim(), "select");
  if (index < 0 || index >= t.sizes()[d])
    fail(Kind::argument, concat("select: index ", index, " of dimension ", dim, " of sizes ", t.sizes()));
  Dims sizes, strides;
  for (int i = 0; i < t.dim(); ++i) {
    if (i == d) continue;
    sizes.push_back(t.sizes()[i]);
    strides.push_back(t.strides()[i]);
  }
  const std::int64_t skipped = t.numel() == 0 ? 0 : index * t.strides()[d];
  return as_strided(t, sizes, strides, t.storage_offset() + skipped);
}

Tensor expand(const Tensor& t, const Dims& sizes) {
  return as_strided(t, sizes, broadcast_strides(t.sizes(), t.strides(), sizes, "expand"), t.storage_offset());
}

Tensor unsqueeze(const Tensor& t, int dim) {
  const int d = wrap_dim(dim, t.dim() + 1, "unsqueeze");
  Dims sizes, strides;
  for (int i = 0; i <= t.dim(); ++i) {
    if (i == d) {
      sizes.push_back(1);
      strides.push_back(i < t.dim() && t.numel() > 0 ? t.sizes()[i] * t.strides()[i] : 1);
    }
    if (i < t.dim()) {
      sizes.push_back(t.sizes()[i]);
      strides.push_back(t.strides()[i]);
    }
  }
  return as_strided(t, sizes, strides, t.storage_offset());
}

Tensor squeeze(const Tensor& t, int dim) {
  const int d = wrap_dim(dim, t.dim(), "squeeze");
  if (t.sizes()[d] != 1) fail(Kind::argument, concat("squeeze: dimension ", dim, " of sizes ", t.sizes(), " is not 1"));
  return select(t, d, 0);
}

Dims infer_sizes(const Dims& sizes, std::int64_t numel) {
  Dims out = sizes, given = sizes;
  int open = -1;
  for (int i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == -1) {
      if (open >= 0) fail(Kind::argument, concat("reshape: more than one -1 in ", sizes));
      open = i;
      given[i] = 1;
    } else if (sizes[i] < 0) {
      fail(Kind::argument, concat("reshape: negative size in ", sizes));
    }
  }
  const std::int64_t known = element_count(given);
  if (open >= 0) {
    if (known == 0 || numel % known != 0)
      fail(Kind::argument, concat("reshape: ", numel, " elements do not fit ", sizes));
    out[open] = numel / known;
  } else if (known != numel) {
    fail(Kind::argument, concat("reshape: ", numel, " elements do not fit ", sizes));
  }
  return out;
}

namespace {
/// Strides of `t` seen under `sizes` (no -1), or nothing when a copy would be needed.
std::optional<Dims> reshape_strides(const Tensor& t, const Dims& sizes) {
  if (t.numel() == 0) return strides_for(sizes);
  // Blocks of dimensions that advance as one, from the innermost: each must be a product of new sizes.
  Dims strides = Dims::filled(sizes.size(), 1);
  int next = sizes.size() - 1;
  std::int64_t block_elements = 1, block_stride = t.dim() > 0 ? t.strides()[t.dim() - 1] : 1;
  for (int d = t.dim() - 1; d >= 0; --d) {
    block_elements *= t.sizes()[d];
    const bool block_ends = d == 0 || (t.sizes()[d - 1] != 1 && t.strides()[d - 1] != block_elements * block_stride);
    if (!block_ends) continue;
    std::int64_t covered = 1;
    while (next >= 0 && (covered < block_elements || sizes[next] == 1)) {
      strides[next] = covered * block_stride;
      covered *= sizes[next--];
    }
    if (covered != block_elements) return std::nullopt;
    if (d > 0) {
      block_elements = 1;
      block_stride = t.strides()[d - 1];
    }
  }
  while (next >= 0 && sizes[next] == 1) strides[next--] = 1;
  return next < 0 ? std::optional(strides) : std::nullopt;
}
}  // namespace

bool can_reshape(const Tensor& t, const Dims& sizes) {
  return reshape_strides(t, infer_sizes(sizes, t.numel())).has_value();
}

Tensor reshape(const Tensor& t, const Dims& sizes) {
  const Dims wanted = infer_sizes(sizes, t.numel());
  const auto strides = reshape_strides(t, wanted);
  if (!strides)
    fail(Kind::argument,
         concat("views::reshape: sizes ", t.sizes(), " with strides ", t.strides(), " need a copy to become ", wanted));
  return as_strided(t, wanted, *strides, t.storage_offset());
}

}  // namespace views
}  // namespace apex
