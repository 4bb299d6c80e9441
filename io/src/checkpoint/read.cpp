// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "directory.hpp"
#include "metadata.hpp"
#include "posix_file.hpp"

namespace apex::io {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void damaged(const fs::path& file, std::string_view what) {
  fail(Kind::damaged, concat(file.string(), ": ", what));
}

std::vector<std::byte> read_exactly(const PosixFile& file, const fs::path& path, std::int64_t offset,
                                    std::int64_t bytes) {
  std::vector<std::byte> buffer(static_cast<std::size_t>(bytes));
  if (file.read_at(buffer, offset) != buffer.size()) damaged(path, "truncated while it was read");
  return buffer;
}

/// Size and sums are checked here, before HDF5 sees a byte.
Seal check_seal(const PosixFile& file, const fs::path& path) {
  const std::int64_t size = file.size();
  if (size == 0) damaged(path, "empty file, not an apex checkpoint");
  const auto seal = decode_seal(read_exactly(file, path, 0, std::min(size, kUserBlockBytes)), path.string());
  if (size != seal.file_bytes)
    damaged(path, concat(size < seal.file_bytes ? "truncated" : "damaged", ": ", size, " bytes instead of ",
                         seal.file_bytes));
  if (seal.metadata_bytes <= kUserBlockBytes || seal.metadata_bytes > std::min(size, kMaxMetadataBytes))
    damaged(path, "damaged: the size of its metadata cannot be right");
  return seal;
}

template <class T>
constexpr const char* kTypeName = "list";
template <>
constexpr const char* kTypeName<bool> = "bool";
template <>
constexpr const char* kTypeName<std::int64_t> = "integer";
template <>
constexpr const char* kTypeName<double> = "number";
template <>
constexpr const char* kTypeName<std::string> = "string";

}  // namespace

struct CheckpointFile::Impl {
  fs::path path;
  PosixFile file;
  Seal seal;
  ParsedMetadata metadata;
  std::int64_t step = 0;

  const ParsedDataset& dataset(std::string_view name) const {
    const auto it = metadata.layout.find(name);
    if (it == metadata.layout.end()) damaged(path, concat("has no dataset '/", name, "'"));
    return it->second;
  }

  /// Reads a dataset block by block and compares its sum.
  template <class Take>
  void read(std::string_view name, const ParsedDataset& d, Take&& block_at) const {
    std::vector<std::uint64_t> hashes;
    for (std::int64_t at = 0; at < d.info.bytes; at += kBlockBytes) {
      const std::span<std::byte> block = block_at(at, std::min(kBlockBytes, d.info.bytes - at));
      if (file.read_at(block, d.offset + at) != block.size())
        damaged(path, concat("truncated inside dataset '/", name, "'"));
      hashes.push_back(hash_bytes(block));
    }
    if (hash_of_hashes(hashes) != d.info.xxh64)
      damaged(path, concat("damaged: dataset '/", name, "' does not match its sum"));
  }
};

CheckpointFile::CheckpointFile(const fs::path& path) : CheckpointFile(path, First::here) {}

CheckpointFile::CheckpointFile(const fs::path& path, First first) : impl_(std::make_unique<Impl>()) {
  auto& m = *impl_;
  m.path = path;
  std::error_code error;
  if (fs::is_directory(path, error)) fail(Kind::data, concat(path.string(), ": a directory, not a checkpoint file"));
  m.file = PosixFile(path, O_RDONLY | O_NONBLOCK);
  m.seal = check_seal(m.file, path);
  auto bytes = read_exactly(m.file, path, 0, m.seal.metadata_bytes);
  if (hash_bytes(std::span(bytes).subspan(kUserBlockBytes)) != m.seal.metadata_hash)
    damaged(path, "damaged: its metadata do not match their sum");
  m.metadata = parse_metadata(std::move(bytes), m.seal, path.string(), first == First::in_child);
  const auto& root = m.metadata.groups.at("");
  const auto where = path.string();
  if (attribute<std::string>(root, "format", where) != kFormat) damaged(path, "not an apex checkpoint");
  if (const auto version = attribute<std::int64_t>(root, "format_version", where); version != kFormatVersion)
    damaged(path, concat("checkpoint of format version ", version, "; this program reads version ", kFormatVersion));
  if (!attribute<bool>(root, "complete", where)) damaged(path, "incomplete: it was never finished");
  m.step = attribute<std::int64_t>(root, "step", where);
}

CheckpointFile::CheckpointFile(CheckpointFile&&) noexcept = default;
CheckpointFile& CheckpointFile::operator=(CheckpointFile&&) noexcept = default;
CheckpointFile::~CheckpointFile() = default;

const fs::path& CheckpointFile::path() const noexcept { return impl_->path; }
std::int64_t CheckpointFile::step() const noexcept { return impl_->step; }
std::int64_t CheckpointFile::bytes() const noexcept { return impl_->seal.file_bytes; }
const std::map<std::string, Attributes, std::less<>>& CheckpointFile::groups() const noexcept {
  return impl_->metadata.groups;
}
const std::map<std::string, DatasetInfo, std::less<>>& CheckpointFile::datasets() const noexcept {
  return impl_->metadata.datasets;
}

std::vector<std::string> CheckpointFile::children(std::string_view group) const {
  const std::string head = group.empty() ? std::string() : std::string(group) + '/';
  std::vector<std::string> names;
  const auto collect = [&](const auto& map) {
    for (auto it = map.lower_bound(head); it != map.end() && it->first.starts_with(head); ++it) {
      const auto rest = std::string_view(it->first).substr(head.size());
      if (!rest.empty() && rest.find('/') == rest.npos) names.emplace_back(rest);
    }
  };
  collect(groups());
  collect(datasets());
  std::sort(names.begin(), names.end());
  return names;
}

const Attributes& CheckpointFile::attributes(std::string_view group) const {
  const auto it = groups().find(group);
  if (it == groups().end()) damaged(path(), concat("has no group '/", group, "'"));
  return it->second;
}

Tensor CheckpointFile::read(std::string_view name) const {
  const auto& d = impl_->dataset(name);
  if (d.info.strings) damaged(path(), concat("dataset '/", name, "' holds strings, not numbers"));
  Tensor tensor = empty(d.info.sizes, d.info.dtype);
  auto* begin = static_cast<std::byte*>(tensor.raw_data());
  impl_->read(name, d, [&](std::int64_t at, std::int64_t bytes) {
    return std::span(begin + at, static_cast<std::size_t>(bytes));
  });
  return tensor;
}

std::vector<std::string> CheckpointFile::read_strings(std::string_view name) const {
  const auto& d = impl_->dataset(name);
  if (!d.info.strings) damaged(path(), concat("dataset '/", name, "' holds numbers, not strings"));
  std::vector<std::byte> bytes(static_cast<std::size_t>(d.info.bytes));
  impl_->read(name, d, [&](std::int64_t at, std::int64_t count) {
    return std::span(bytes).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count));
  });
  std::vector<std::string> strings;
  for (std::size_t at = 0; at < bytes.size(); at += d.string_width) {
    const auto* text = reinterpret_cast<const char*>(bytes.data() + at);
    strings.emplace_back(text, strnlen(text, d.string_width));
  }
  return strings;
}

void CheckpointFile::verify(std::string_view name) const {
  const auto& d = impl_->dataset(name);
  std::vector<std::byte> scratch(static_cast<std::size_t>(std::min(d.info.bytes, kBlockBytes)));
  impl_->read(name, d, [&](std::int64_t, std::int64_t bytes) {
    return std::span(scratch).first(static_cast<std::size_t>(bytes));
  });
}

void CheckpointFile::verify(Verify how) const {
  constexpr std::size_t kSampleStride = 16;
  std::size_t i = 0;
  for (const auto& [name, info] : datasets()) {
    const bool in_sample = i % kSampleStride == 0 || i + 1 == datasets().size();
    if (how == Verify::full || (how == Verify::sample && in_sample)) verify(name);
    ++i;
  }
}

template <class T>
T attribute(const Attributes& attributes, std::string_view name, std::string_view where) {
  const auto it = attributes.find(name);
  if (it == attributes.end()) fail(Kind::damaged, concat(where, ": attribute '", name, "' is missing"));
  if (const auto* value = std::get_if<T>(&it->second)) return *value;
  if constexpr (std::is_same_v<T, double>)
    if (const auto* integer = std::get_if<std::int64_t>(&it->second)) return static_cast<double>(*integer);
  fail(Kind::damaged, concat(where, ": attribute '", name, "' is not a ", kTypeName<T>));
}

template bool attribute<bool>(const Attributes&, std::string_view, std::string_view);
template std::int64_t attribute<std::int64_t>(const Attributes&, std::string_view, std::string_view);
template double attribute<double>(const Attributes&, std::string_view, std::string_view);
template std::string attribute<std::string>(const Attributes&, std::string_view, std::string_view);
template std::vector<bool> attribute<std::vector<bool>>(const Attributes&, std::string_view, std::string_view);
template std::vector<std::int64_t> attribute<std::vector<std::int64_t>>(const Attributes&, std::string_view,
                                                                        std::string_view);
template std::vector<double> attribute<std::vector<double>>(const Attributes&, std::string_view, std::string_view);
template std::vector<std::string> attribute<std::vector<std::string>>(const Attributes&, std::string_view,
                                                                      std::string_view);

CheckpointFile open_checkpoint(const fs::path& path, Verify verify) {
  std::error_code error;
  const auto open = [&](const fs::path& file) {
    CheckpointFile checkpoint(file, CheckpointFile::First::in_child);
    checkpoint.verify(verify);
    return checkpoint;
  };
  if (!fs::is_directory(path, error)) {
    if (!fs::exists(path, error)) fail(Kind::data, concat(path.string(), ": no such checkpoint file or directory"));
    return open(is_note_name(path.filename().string()) ? named_by_note(path) : path);
  }
  const auto files = list_checkpoints(path);
  if (files.empty()) fail(Kind::data, concat(path.string(), ": holds no checkpoint (step_*.h5)"));
  for (std::size_t i = files.size(); i-- > 0;) {
    try {
      return open(files[i].path);
    } catch (const Error& e) {
      if (e.kind() != Kind::damaged && e.kind() != Kind::data) throw;
      if (i == 0) {
        fail(Kind::damaged, files.size() == 1 ? std::string(e.what())
                                              : concat(e.what(), "; none of the ", files.size(), " checkpoints in ",
                                                       path.string(), " can be used"));
      }
      log_warning(concat(e.what(), "; taking the older ", files[i - 1].path.string(), " instead"));
    }
  }
  fail(Kind::damaged, concat(path.string(), ": holds no checkpoint that can be used"));
}

}  // namespace apex::io
