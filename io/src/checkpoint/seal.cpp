// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "metadata.hpp"

namespace apex::io {
namespace {

constexpr std::string_view kMagic = "apex-checkpoint ";
constexpr std::string_view kHdf5Signature = "\x89HDF\r\n\x1a\n";

[[noreturn]] void damaged(std::string_view file, std::string_view what) {
  fail(Kind::damaged, concat(file, ": ", what));
}

}  // namespace

std::vector<std::byte> encode(const Seal& seal) {
  char text[kUserBlockBytes] = {};
  std::snprintf(text, sizeof text, "%s%" PRId64 "\nbytes %" PRId64 "\nmetadata %" PRId64 "\nxxh64 %016" PRIx64 "\n",
                kMagic.data(), kFormatVersion, seal.file_bytes, seal.metadata_bytes, seal.metadata_hash);
  const auto* begin = reinterpret_cast<const std::byte*>(text);
  return {begin, begin + sizeof text};
}

Seal decode_seal(std::span<const std::byte> block, std::string_view file) {
  const std::string text(reinterpret_cast<const char*>(block.data()), block.size());
  if (text.starts_with(kHdf5Signature)) damaged(file, "an HDF5 file, but not an apex checkpoint");
  if (!text.starts_with(kMagic)) damaged(file, "not an apex checkpoint");
  if (text.size() < static_cast<std::size_t>(kUserBlockBytes))
    damaged(file, concat("truncated: only ", text.size(), " bytes are left of this checkpoint"));
  std::int64_t version = 0;
  Seal seal;
  // The copy ends with a zero at its last byte, so that sscanf stays inside.
  const int fields =
      std::sscanf(text.c_str(), "apex-checkpoint %" SCNd64 "\nbytes %" SCNd64 "\nmetadata %" SCNd64 "\nxxh64 %" SCNx64,
                  &version, &seal.file_bytes, &seal.metadata_bytes, &seal.metadata_hash);
  if (fields >= 1 && version != kFormatVersion)
    damaged(file, concat("checkpoint of format version ", version, "; this program reads version ", kFormatVersion));
  const auto expected = encode(seal);
  if (fields != 4 || std::memcmp(expected.data(), block.data(), expected.size()) != 0)
    damaged(file, "damaged: its first 512 bytes are not as they were written");
  return seal;
}

}  // namespace apex::io
