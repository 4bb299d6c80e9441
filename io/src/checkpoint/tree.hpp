// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <span>

#include "apex/io/checkpoint.hpp"

namespace apex::io {

inline constexpr std::int64_t kBlockBytes = std::int64_t{4} << 20;
inline constexpr std::size_t kMaxPathBytes = 1024;
inline constexpr std::size_t kMaxStringBytes = std::size_t{64} << 10;

/// XXH64 with seed 0 of every block, then of those sums in little-endian order.
std::uint64_t hash_bytes(std::span<const std::byte> bytes) noexcept;
std::uint64_t hash_of_hashes(std::span<const std::uint64_t> block_hashes) noexcept;
inline std::int64_t block_count(std::int64_t bytes) noexcept { return (bytes + kBlockBytes - 1) / kBlockBytes; }

/// The bytes of one dataset as the file holds them: row-major, little-endian.
class DatasetBytes {
 public:
  explicit DatasetBytes(const TreeDataset& dataset);
  std::int64_t size() const noexcept { return size_; }
  /// `count` bytes from `offset` on (both multiples of the element size), in place where they lie so already, else
  /// gathered into `scratch`.
  std::span<const std::byte> block(std::int64_t offset, std::int64_t count, std::vector<std::byte>& scratch) const;

 private:
  Tensor tensor_;
  std::vector<std::byte> packed_;  // strings only
  std::int64_t size_ = 0;
};

/// Bytes each string takes in the file: the longest one, at least 1.
std::size_t string_width(const std::vector<std::string>& strings) noexcept;

/// Everything of an entry that ranks must agree on: path, kind, dtype, shape, attributes (not the data).
struct EntryDigest {
  std::string path;
  std::uint64_t hash = 0;
};
/// Sorted by path. Groups at or below one of `excluded` count with their name alone.
std::vector<EntryDigest> digest(const Tree& tree, const std::vector<std::string>& excluded);

}  // namespace apex::io
