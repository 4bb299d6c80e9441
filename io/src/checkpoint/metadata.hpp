// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "tree.hpp"

namespace apex::io {

inline constexpr std::int64_t kUserBlockBytes = 512;
inline constexpr std::int64_t kMaxMetadataBytes = std::int64_t{1} << 30;
inline constexpr const char* kFormat = "apex-checkpoint";
inline constexpr std::int64_t kFormatVersion = 1;

/// What the user block says.
struct Seal {
  std::int64_t file_bytes = 0;
  std::int64_t metadata_bytes = 0;  ///< user block included: where the data begin
  std::uint64_t metadata_hash = 0;  ///< of [kUserBlockBytes, metadata_bytes)
};
std::vector<std::byte> encode(const Seal& seal);
/// @throws Kind::damaged naming `file` when `block` is not the user block of this format version
Seal decode_seal(std::span<const std::byte> block, std::string_view file);

/// The bytes of the file before its data, user block included. `hashes` has a sum per dataset of `tree`, in order.
/// @throws Kind::argument for an attribute that does not fit HDF5's limits
std::vector<std::byte> build_metadata(const Tree& tree, std::span<const std::uint64_t> hashes);

struct ParsedDataset {
  DatasetInfo info;
  std::int64_t offset = 0;
  std::size_t string_width = 0;
};
struct ParsedMetadata {
  std::map<std::string, Attributes, std::less<>> groups;
  std::map<std::string, DatasetInfo, std::less<>> datasets;
  std::map<std::string, ParsedDataset, std::less<>> layout;
};
/// The inverse. With `in_child` a child process does the same first: see try_in_child.
/// @throws Kind::damaged naming `file`, and the object, when they are not what build_metadata makes
ParsedMetadata parse_metadata(std::vector<std::byte> bytes, const Seal& seal, std::string_view file, bool in_child);

}  // namespace apex::io
