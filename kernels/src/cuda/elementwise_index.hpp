// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "apex/core/philox.hpp"
#include "apex/core/shape.hpp"

// The index space of strided operands, prepared on the host and walked on the device. Knows no CUDA, so that it can be
// tested without a device and at any size.

namespace apex::kernels::cuda {

/// Division of numbers below 2^31 by a fixed divisor in [1, 2^31): a multiplication and a shift.
struct Divider {
  std::uint32_t multiplier = 1, shift = 0;

  Divider() = default;
  explicit Divider(std::uint32_t divisor) {
    while ((std::uint64_t{1} << shift) < divisor) ++shift;
    multiplier = static_cast<std::uint32_t>((((std::uint64_t{1} << shift) - divisor) << 32) / divisor + 1);
  }
  APEX_HOST_DEVICE std::uint32_t quotient(std::uint32_t n) const {
    return (static_cast<std::uint32_t>((std::uint64_t{n} * multiplier) >> 32) + n) >> shift;
  }
};

/// Where N operands have their elements: position p of the space to one offset for each. Dimensions are innermost
/// first.
template <int N>
struct Index {
  struct Offsets {
    std::int64_t v[N];
  };

  int rank = 1;
  bool wide = false;  ///< positions need 64 bits
  std::int64_t numel = 1;
  std::int64_t size[kMaxRank] = {};
  Divider by[kMaxRank];
  std::int64_t stride[N][kMaxRank] = {};  ///< in elements

  /// Position of the outermost dimension is not bounded by its size: whoever asks stays below numel.
  APEX_HOST_DEVICE Offsets at(std::int64_t p) const {
    Offsets o;
    for (int k = 0; k < N; ++k) o.v[k] = 0;
    if (wide) {
      for (int d = 0; d < rank - 1; ++d) {
        const std::int64_t q = p / size[d], r = p - q * size[d];
        for (int k = 0; k < N; ++k) o.v[k] += r * stride[k][d];
        p = q;
      }
    } else {
      auto rest = static_cast<std::uint32_t>(p);
      for (int d = 0; d < rank - 1; ++d) {
        const std::uint32_t q = by[d].quotient(rest), r = rest - q * static_cast<std::uint32_t>(size[d]);
        for (int k = 0; k < N; ++k) o.v[k] += static_cast<std::int64_t>(r) * stride[k][d];
        rest = q;
      }
      p = rest;
    }
    for (int k = 0; k < N; ++k) o.v[k] += p * stride[k][rank - 1];
    return o;
  }

  /// Chooses the arithmetic; call after sizes or numel changed.
  void prepare() {
    wide = numel >= std::int64_t{1} << 31;
    for (int d = 0; d < rank && !wide; ++d) by[d] = Divider(static_cast<std::uint32_t>(size[d] > 0 ? size[d] : 1));
  }
};

enum class Order { memory, logical };

/// The space with as few dimensions as the strides allow: size-1 dimensions gone, dimensions in the order in which the
/// first operand lies in memory (Order::logical: row-major), neighbours that advance as one merged. strides[k] are
/// operand k's under `sizes`, 0 where it is broadcast.
template <int N>
Index<N> make_index(const Dims& sizes, const std::array<Dims, N>& strides, Order wanted = Order::memory) {
  Index<N> index;
  int order[kMaxRank], rank = 0;  // innermost first
  for (int d = sizes.size() - 1; d >= 0; --d) {
    index.numel *= sizes[d];
    if (sizes[d] != 1) order[rank++] = d;
  }
  const auto lies_inside = [&](int a, int b) {
    for (std::size_t k = 0; k < N; ++k)
      if (strides[k][a] != strides[k][b]) return strides[k][a] < strides[k][b];
    return a > b;
  };
  for (int i = 1; i < rank && wanted == Order::memory; ++i)  // insertion sort: at most eight entries
    for (int j = i; j > 0 && lies_inside(order[j], order[j - 1]); --j) std::swap(order[j], order[j - 1]);

  index.rank = 0;
  for (int i = 0; i < rank; ++i) {
    const int d = order[i];
    const int last = index.rank - 1;
    bool merges = last >= 0;
    for (std::size_t k = 0; merges && k < N; ++k) merges = strides[k][d] == index.stride[k][last] * index.size[last];
    if (merges) {
      index.size[last] *= sizes[d];
      continue;
    }
    index.size[index.rank] = sizes[d];
    for (std::size_t k = 0; k < N; ++k) index.stride[k][index.rank] = strides[k][d];
    ++index.rank;
  }
  if (index.rank == 0) {
    index.rank = 1;
    index.size[0] = 1;
    for (std::size_t k = 0; k < N; ++k) index.stride[k][0] = 1;
  }
  index.prepare();
  return index;
}

/// Whether the space can be walked in groups of `width` elements of the innermost dimension, each group one aligned
/// access for every operand that advances there (stride 1) and one element for every operand that does not (stride 0).
/// A space of one dimension may leave a rest.
template <int N>
bool packs(const Index<N>& index, int width, const std::array<const void*, N>& data,
           const std::array<std::size_t, N>& bytes) {
  if (index.rank > 1 && index.size[0] % width != 0) return false;
  for (std::size_t k = 0; k < N; ++k) {
    if (index.stride[k][0] == 0) continue;
    if (index.stride[k][0] != 1) return false;
    if (reinterpret_cast<std::uintptr_t>(data[k]) % (bytes[k] * static_cast<std::size_t>(width)) != 0) return false;
    for (int d = 1; d < index.rank; ++d)
      if (index.stride[k][d] % width != 0) return false;
  }
  return true;
}

/// The space of such groups (a rest is not in it).
template <int N>
Index<N> packed(Index<N> index, int width) {
  index.numel /= width;
  index.size[0] /= width;
  for (int k = 0; k < N; ++k) index.stride[k][0] *= width;
  index.prepare();
  return index;
}

}  // namespace apex::kernels::cuda
