// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <charconv>
#include <limits>
#include <ostream>

#include "apex/core/device.hpp"
#include "apex/core/dtype.hpp"
#include "apex/core/shape.hpp"
#include "apex/core/size_arithmetic.hpp"

namespace apex {

const char* name_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::i64: return "i64";
    case DType::i32: return "i32";
    case DType::u8: return "u8";
    case DType::boolean: return "bool";
  }
  return "unknown";
}

std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name_of(dtype); }

std::optional<DType> parse_dtype(std::string_view name) noexcept {
  struct Entry {
    std::string_view name;
    DType dtype;
  };
  static constexpr Entry kNames[] = {
      {"f64", DType::f64},     {"float64", DType::f64},  {"double", DType::f64},    {"f32", DType::f32},
      {"float32", DType::f32}, {"float", DType::f32},    {"f16", DType::f16},       {"float16", DType::f16},
      {"half", DType::f16},    {"bf16", DType::bf16},    {"bfloat16", DType::bf16}, {"i64", DType::i64},
      {"int64", DType::i64},   {"i32", DType::i32},      {"int32", DType::i32},     {"u8", DType::u8},
      {"uint8", DType::u8},    {"bool", DType::boolean},
  };
  for (const auto& entry : kNames)
    if (entry.name == name) return entry.dtype;
  return std::nullopt;
}

void throw_unsupported(const char* op, DType dtype) {
  fail(Kind::unsupported, concat(op, ": dtype ", dtype, " is not supported"));
}

std::string to_string(Device device) {
  return device.is_cpu() ? std::string("cpu") : "cuda:" + std::to_string(device.index);
}

std::ostream& operator<<(std::ostream& out, Device device) { return out << to_string(device); }

std::optional<Device> parse_device(std::string_view text) {
  if (text == "cpu") return kCpu;
  if (text == "cuda") return Device{DeviceKind::cuda, 0};
  constexpr std::string_view prefix = "cuda:";
  if (!text.starts_with(prefix)) return std::nullopt;
  const std::string_view digits = text.substr(prefix.size());
  int index = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (error != std::errc{} || end != digits.data() + digits.size() || index < 0) return std::nullopt;
  return Device{DeviceKind::cuda, index};
}

void throw_not_built(const char* op, Device device) {
  fail(Kind::unsupported, concat(op, ": this build of apex has no backend for ", device,
                                 "; configure with the cuda preset or use the CPU"));
}

Dims::Dims(std::span<const std::int64_t> values) {
  if (values.size() > static_cast<std::size_t>(kMaxRank))
    fail(Kind::argument, concat("a tensor has at most ", kMaxRank, " dimensions, got ", values.size()));
  for (const auto v : values) values_[static_cast<std::size_t>(size_++)] = v;
}

Dims Dims::filled(int count, std::int64_t value) {
  Dims out;
  for (int i = 0; i < count; ++i) out.push_back(value);
  return out;
}

void Dims::push_back(std::int64_t value) {
  if (size_ == kMaxRank) fail(Kind::argument, concat("a tensor has at most ", kMaxRank, " dimensions"));
  values_[static_cast<std::size_t>(size_++)] = value;
}

std::string to_string(const Dims& dims) { return concat(dims); }

std::ostream& operator<<(std::ostream& out, const Dims& dims) {
  out << '[';
  for (int i = 0; i < dims.size(); ++i) out << (i ? ", " : "") << dims[i];
  return out << ']';
}

std::int64_t size_of_sum(const char* op, std::int64_t a, std::int64_t b, std::int64_t c) {
  std::int64_t product = 0, sum = 0;
  if (__builtin_mul_overflow(a, b, &product) || __builtin_add_overflow(product, c, &sum))
    fail(Kind::argument, concat(op, ": a size of ", a, " * ", b, (c < 0 ? " - " : " + "),
                                c < 0 ? 0 - static_cast<std::uint64_t>(c) : static_cast<std::uint64_t>(c),
                                " is more than int64 counts"));
  return sum;
}

std::int64_t element_count(const Dims& sizes) {
  std::int64_t n = 1;
  bool overflow = false, none = false;
  for (const auto s : sizes) {
    if (s < 0) fail(Kind::argument, concat("negative size in ", sizes));
    none |= s == 0;
    overflow = overflow || __builtin_mul_overflow(n, s, &n);
  }
  if (none) return 0;
  if (overflow) fail(Kind::argument, concat("sizes ", sizes, " hold more elements than int64 counts"));
  return n;
}

namespace {
/// Dimensions from the outermost in memory to the innermost.
Dims memory_order(int rank, MemoryFormat format) {
  if (format == MemoryFormat::channels_last && rank == 4) return {0, 2, 3, 1};
  if (format == MemoryFormat::channels_last && rank == 5) return {0, 2, 3, 4, 1};
  Dims order;
  for (int i = 0; i < rank; ++i) order.push_back(i);
  return order;
}
}  // namespace

Dims strides_for(const Dims& sizes, MemoryFormat format) {
  const Dims order = memory_order(sizes.size(), format);
  Dims strides = Dims::filled(sizes.size(), 1);
  std::int64_t next = 1;
  for (int k = sizes.size() - 1; k >= 0; --k) {
    const int d = static_cast<int>(order[k]);
    strides[d] = next;
    // Only a tensor without elements gets beyond int64, and nobody steps through that.
    if (__builtin_mul_overflow(next, std::max<std::int64_t>(sizes[d], 1), &next))
      next = std::numeric_limits<std::int64_t>::max();
  }
  return strides;
}

bool is_dense(const Dims& sizes, const Dims& strides, MemoryFormat format) noexcept {
  if (format == MemoryFormat::channels_last && sizes.size() != 4 && sizes.size() != 5) return false;
  for (const auto s : sizes)
    if (s == 0) return true;
  const Dims order = memory_order(sizes.size(), format);
  std::int64_t expected = 1;
  for (int k = sizes.size() - 1; k >= 0; --k) {
    const int d = static_cast<int>(order[k]);
    if (sizes[d] == 1) continue;
    if (strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

bool is_non_overlapping_and_dense(const Dims& sizes, const Dims& strides) noexcept {
  for (const auto s : sizes)
    if (s == 0) return true;
  bool used[kMaxRank] = {};
  std::int64_t expected = 1;
  for (int step = 0; step < sizes.size(); ++step) {
    int best = -1;
    for (int d = 0; d < sizes.size(); ++d)
      if (!used[d] && sizes[d] != 1 && (best < 0 || strides[d] < strides[best])) best = d;
    if (best < 0) break;
    if (strides[best] != expected) return false;
    used[best] = true;
    expected *= sizes[best];
  }
  return true;
}

Dims broadcast_shapes(const Dims& a, const Dims& b, const char* op) {
  const int rank = std::max(a.size(), b.size());
  Dims out = Dims::filled(rank, 1);
  for (int i = 1; i <= rank; ++i) {
    const std::int64_t x = i <= a.size() ? a[a.size() - i] : 1, y = i <= b.size() ? b[b.size() - i] : 1;
    if (x != y && x != 1 && y != 1) fail(Kind::argument, concat(op, ": shapes ", a, " and ", b, " do not broadcast"));
    out[rank - i] = x == 1 ? y : x;
  }
  return out;
}

Dims broadcast_strides(const Dims& sizes, const Dims& strides, const Dims& target, const char* op) {
  const int lead = target.size() - sizes.size();
  if (lead < 0) fail(Kind::argument, concat(op, ": shape ", sizes, " does not broadcast to ", target));
  Dims out = Dims::filled(target.size(), 0);
  for (int i = 0; i < sizes.size(); ++i) {
    const bool stretches = sizes[i] == 1 && target[lead + i] != 1;
    if (!stretches && sizes[i] != target[lead + i])
      fail(Kind::argument, concat(op, ": shape ", sizes, " does not broadcast to ", target));
    out[lead + i] = stretches ? 0 : strides[i];
  }
  return out;
}

}  // namespace apex
