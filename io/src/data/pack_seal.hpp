// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace apex::io {

inline constexpr std::int64_t kPackUserBlock = 512;  // the least that HDF5 takes

/// Bytes begin .. begin + bytes of a file.
struct FileRange {
  std::int64_t begin = 0;
  std::int64_t bytes = 0;
};

/// Writes the seal into the user block: the file's size, and a checksum over all but `samples` (one or two ranges).
void seal_pack(int fd, const std::vector<FileRange>& samples, const std::filesystem::path& path);

/// Whether the file starts with a seal.
bool pack_is_sealed(int fd, const std::filesystem::path& path);
/// @throws Kind::damaged when what the seal says does not hold
void check_pack_seal(int fd, const std::filesystem::path& path);

}  // namespace apex::io
