// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "pack_seal.hpp"

#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "apex/core/error.hpp"
#include "file.hpp"

namespace apex::io {
using namespace files;
namespace {

constexpr char kMagic[8] = {'a', 'p', 'e', 'x', 'p', 'a', 'c', 'k'};
constexpr std::size_t kMostParts = 2;

struct Seal {  // as it lies in the file, little-endian
  char magic[8] = {};
  std::int64_t file_bytes = 0;
  FileRange samples[kMostParts];
  std::uint32_t content_crc = 0;  // from the end of the user block to the end of the file, without the samples
  std::uint32_t own_crc = 0;      // of all before it
};
static_assert(sizeof(Seal) == 56 && sizeof(Seal) <= kPackUserBlock);

std::uint32_t own_crc_of(const Seal& seal) {
  return static_cast<std::uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(&seal), offsetof(Seal, own_crc)));
}

std::uint32_t content_crc_of(int fd, const Seal& seal, const std::filesystem::path& path) {
  std::vector<std::uint8_t> buffer(1 << 20);
  std::uint32_t crc = 0;
  const auto add = [&](std::int64_t from, std::int64_t to) {
    while (from < to) {
      const auto bytes =
          static_cast<std::size_t>(std::min<std::int64_t>(to - from, static_cast<std::int64_t>(buffer.size())));
      read_at(fd, buffer.data(), bytes, from, path);
      crc = static_cast<std::uint32_t>(crc32_z(crc, buffer.data(), bytes));
      from += static_cast<std::int64_t>(bytes);
    }
  };
  std::int64_t at = kPackUserBlock;
  for (const auto& range : seal.samples) {
    if (range.bytes == 0) continue;
    add(at, range.begin);
    at = range.begin + range.bytes;
  }
  add(at, seal.file_bytes);
  return crc;
}

}  // namespace

void seal_pack(int fd, const std::vector<FileRange>& samples, const std::filesystem::path& path) {
  Seal seal;
  std::memcpy(seal.magic, kMagic, sizeof kMagic);
  seal.file_bytes = file_size(fd, path);
  std::copy(samples.begin(), samples.end(), seal.samples);
  std::sort(std::begin(seal.samples), std::end(seal.samples),
            [](const FileRange& a, const FileRange& b) { return a.begin < b.begin; });
  seal.content_crc = content_crc_of(fd, seal, path);
  seal.own_crc = own_crc_of(seal);
  write_at(fd, &seal, sizeof seal, 0, path);
}

bool pack_is_sealed(int fd, const std::filesystem::path& path) {
  char start[sizeof kMagic] = {};
  if (file_size(fd, path) < static_cast<std::int64_t>(sizeof start)) return false;
  read_at(fd, start, sizeof start, 0, path);
  return std::memcmp(start, kMagic, sizeof kMagic) == 0;
}

void check_pack_seal(int fd, const std::filesystem::path& path) {
  const auto fail_damaged = [&](const char* what) {
    fail(Kind::damaged, concat("pack '", path.string(), "' is damaged: ", what));
  };
  const std::int64_t bytes = file_size(fd, path);
  Seal seal;
  if (bytes < kPackUserBlock) fail_damaged("it is cut short");
  read_at(fd, &seal, sizeof seal, 0, path);
  if (seal.own_crc != own_crc_of(seal)) fail_damaged("its first bytes fail their checksum");
  if (bytes < seal.file_bytes) fail_damaged("it is cut short");
  if (bytes > seal.file_bytes) fail_damaged("it is longer than it was written");
  for (const auto& range : seal.samples) {
    const bool inside =
        range.begin >= 0 && range.bytes >= 0 && range.bytes <= bytes && range.begin <= bytes - range.bytes;
    if (!inside) fail_damaged("its first bytes do not fit the file");
  }
  if (seal.content_crc != content_crc_of(fd, seal, path))
    fail_damaged("its tables fail their checksum; the file was changed, pack it again");
}

}  // namespace apex::io
