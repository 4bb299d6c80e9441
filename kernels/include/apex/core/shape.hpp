// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>

namespace apex {

inline constexpr int kMaxRank = 8;

/// A short list of sizes or strides held in place; at most kMaxRank entries.
class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values)
      : Dims(std::span<const std::int64_t>(values.begin(), values.size())) {}
  /// @throws Kind::argument beyond kMaxRank entries
  Dims(std::span<const std::int64_t> values);  // NOLINT: a vector or an array is a list of sizes too
  /// `count` entries of `value`.
  static Dims filled(int count, std::int64_t value);

  int size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  std::int64_t& operator[](int i) noexcept { return values_[static_cast<std::size_t>(i)]; }
  std::int64_t operator[](int i) const noexcept { return values_[static_cast<std::size_t>(i)]; }
  const std::int64_t* begin() const noexcept { return values_.data(); }
  const std::int64_t* end() const noexcept { return values_.data() + size_; }
  std::int64_t* begin() noexcept { return values_.data(); }
  std::int64_t* end() noexcept { return values_.data() + size_; }
  std::int64_t back() const noexcept { return values_[static_cast<std::size_t>(size_ - 1)]; }
  void push_back(std::int64_t value);
  std::span<const std::int64_t> span() const noexcept { return {values_.data(), static_cast<std::size_t>(size_)}; }

  friend bool operator==(const Dims& a, const Dims& b) noexcept {
    if (a.size_ != b.size_) return false;
    for (int i = 0; i < a.size_; ++i)
      if (a[i] != b[i]) return false;
    return true;
  }

 private:
  std::array<std::int64_t, kMaxRank> values_{};
  int size_ = 0;
};

/// "[2, 3, 4]".
std::string to_string(const Dims& dims);
std::ostream& operator<<(std::ostream& out, const Dims& dims);

/// Product of the sizes; 1 for rank 0. @throws Kind::argument on a negative size or a product beyond int64
std::int64_t element_count(const Dims& sizes);

/// How a rank-4 (or 5) tensor lies in memory; logical order stays N, C, spatial.
enum class MemoryFormat : unsigned char { contiguous, channels_last };

/// Strides of a dense tensor. channels_last needs rank 4 or 5 and falls back to contiguous for any other rank.
Dims strides_for(const Dims& sizes, MemoryFormat format = MemoryFormat::contiguous);

/// Whether (sizes, strides) is dense in that format. Dimensions of size 1 (and empty tensors) match any stride.
bool is_dense(const Dims& sizes, const Dims& strides, MemoryFormat format) noexcept;

/// Whether the elements fill one gap-free block in some order of dimensions, without overlap.
bool is_non_overlapping_and_dense(const Dims& sizes, const Dims& strides) noexcept;

/// The common shape of two under the broadcasting rule (sizes from the right; 1 stretches).
/// @throws Kind::argument naming both shapes when they do not fit
Dims broadcast_shapes(const Dims& a, const Dims& b, const char* op = "broadcast");

/// Strides that present a tensor of `sizes`/`strides` as `target` (stride 0 where it stretches).
/// @throws Kind::argument when it does not broadcast to `target`
Dims broadcast_strides(const Dims& sizes, const Dims& strides, const Dims& target, const char* op = "broadcast");

}  // namespace apex
