// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "tree.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace apex::io {
namespace {

static_assert(std::endian::native == std::endian::little, "checkpoint files are little-endian");

void check_path(std::string_view path) {
  if (path.empty() || path.size() > kMaxPathBytes)
    fail(Kind::argument, concat("checkpoint: a path has 1 to ", kMaxPathBytes, " bytes, this one has ", path.size()));
  const bool control = std::any_of(path.begin(), path.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (control) fail(Kind::argument, "checkpoint: a path holds a control character");
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const auto part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..")
      fail(Kind::argument, concat("checkpoint: path '", path, "' has an empty, '.' or '..' component"));
    begin = end + 1;
  }
}

std::string_view parent_of(std::string_view path) {
  const auto slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view{} : path.substr(0, slash);
}

void check_string(std::string_view text, std::string_view where) {
  if (text.size() > kMaxStringBytes)
    fail(Kind::argument, concat("checkpoint: a string at '", where, "' has ", text.size(), " bytes, at most ",
                                kMaxStringBytes, " are allowed"));
  if (text.find('\0') != text.npos) fail(Kind::argument, concat("checkpoint: a string at '", where, "' holds a NUL"));
}

class Hasher {
 public:
  Hasher() { XXH64_reset(&state_, 0); }
  // Not inlined: g++ 12 would see reads before the start of short values where xxHash makes none.
  [[gnu::noinline]] void bytes(const void* data, std::size_t size) { XXH64_update(&state_, data, size); }
  template <class T>
  void value(T v) {
    bytes(&v, sizeof v);
  }
  void text(std::string_view s) {
    value(static_cast<std::uint64_t>(s.size()));
    bytes(s.data(), s.size());
  }
  std::uint64_t result() const { return XXH64_digest(&state_); }

 private:
  XXH64_state_t state_;
};

void add_to(Hasher& hasher, const AttributeValue& value) {
  hasher.value(static_cast<std::uint64_t>(value.index()));
  std::visit(
      [&]<class T>(const T& v) {
        if constexpr (std::is_same_v<T, std::string>) {
          hasher.text(v);
        } else if constexpr (std::is_arithmetic_v<T>) {
          hasher.value(v);
        } else {
          hasher.value(static_cast<std::uint64_t>(v.size()));
          for (const auto& item : v) {
            if constexpr (std::is_same_v<T, std::vector<std::string>>)
              hasher.text(item);
            else
              hasher.value(typename T::value_type(item));
          }
        }
      },
      value);
}

void add_to(Hasher& hasher, const Attributes& attributes) {
  hasher.value(static_cast<std::uint64_t>(attributes.size()));
  for (const auto& [name, value] : attributes) {
    hasher.text(name);
    add_to(hasher, value);
  }
}

std::uint64_t digest_of(const TreeDataset& dataset) {
  Hasher hasher;
  if (dataset.holds_strings()) {
    hasher.text("strings");
    hasher.value(static_cast<std::uint64_t>(dataset.strings.size()));
    for (const auto& s : dataset.strings) hasher.text(s);
  } else {
    hasher.text(name_of(dataset.tensor.dtype()));
    hasher.value(dataset.tensor.dim());
    for (const auto s : dataset.tensor.sizes()) hasher.value(s);
    hasher.value(dataset.in_parts());
  }
  add_to(hasher, dataset.attributes);
  return hasher.result();
}

bool is_at_or_below(std::string_view path, std::string_view group) {
  return path.starts_with(group) && (path.size() == group.size() || path[group.size()] == '/');
}

/// Copies `count` elements of E bytes from the `first`-th in logical order on.
template <class E>
void gather(const Tensor& tensor, std::int64_t first, std::int64_t count, std::byte* out_bytes) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  const int last = tensor.dim() - 1;
  auto* out = reinterpret_cast<E*>(out_bytes);
  const auto* in = static_cast<const E*>(tensor.raw_data());
  if (last < 0) {
    std::memcpy(out, in, sizeof(E));
    return;
  }
  std::array<std::int64_t, kMaxRank> index{};
  std::int64_t offset = 0;
  for (int d = last; d >= 0; --d) {
    index[static_cast<std::size_t>(d)] = first % sizes[d];
    first /= sizes[d];
    offset += index[static_cast<std::size_t>(d)] * strides[d];
  }
  while (count > 0) {
    auto& inner = index[static_cast<std::size_t>(last)];
    const std::int64_t run = std::min(count, sizes[last] - inner);
    for (std::int64_t i = 0; i < run; ++i) std::memcpy(out + i, in + offset + i * strides[last], sizeof(E));
    out += run;
    count -= run;
    inner += run;
    offset += run * strides[last];
    for (int d = last; d > 0 && index[static_cast<std::size_t>(d)] == sizes[d]; --d) {
      offset += strides[d - 1] - sizes[d] * strides[d];
      index[static_cast<std::size_t>(d)] = 0;
      ++index[static_cast<std::size_t>(d - 1)];
    }
  }
}

}  // namespace

Attributes& Tree::group(std::string_view path) {
  if (const auto it = groups_.find(path); it != groups_.end()) return it->second;
  check_path(path);
  if (datasets_.contains(path)) fail(Kind::argument, concat("checkpoint: '", path, "' is a dataset, not a group"));
  group(parent_of(path));
  return groups_[std::string(path)];
}

void Tree::add(std::string_view path, const Tensor& tensor, Attributes attributes) {
  check_path(path);
  if (!tensor.defined()) fail(Kind::argument, concat("checkpoint: the tensor for '", path, "' is undefined"));
  if (!tensor.device().is_cpu())
    fail(Kind::argument,
         concat("checkpoint: the tensor for '", path, "' is on ", tensor.device(), "; copy it to the host"));
  if (datasets_.contains(path) || groups_.contains(path))
    fail(Kind::argument, concat("checkpoint: '", path, "' is added twice"));
  group(parent_of(path));
  datasets_[std::string(path)] = {.tensor = tensor, .attributes = std::move(attributes)};
}

void Tree::add_part(std::string_view path, const Dims& sizes, std::int64_t begin, const Tensor& values,
                    Attributes attributes) {
  check_path(path);
  const auto refuse = [&](const char* why) {
    fail(Kind::argument, concat("checkpoint: the part of '", path, "' ", why));
  };
  if (!values.defined() || values.dim() != 1 || !values.is_contiguous() || !values.device().is_cpu())
    refuse("is no contiguous host tensor of one dimension");
  if (begin < 0 || begin + values.numel() > element_count(sizes)) refuse("reaches outside of it");
  // One element stands for all: of this tensor only dtype and sizes count.
  Tensor shape = empty(Dims::filled(sizes.size(), 1), values.dtype());
  add(path, views::expand(shape, sizes), std::move(attributes));
  TreeDataset& dataset = datasets_.find(path)->second;
  dataset.part = values;
  dataset.part_begin = begin;
}

void Tree::add(std::string_view path, std::vector<std::string> strings, Attributes attributes) {
  check_path(path);
  for (const auto& s : strings) check_string(s, path);
  if (datasets_.contains(path) || groups_.contains(path))
    fail(Kind::argument, concat("checkpoint: '", path, "' is added twice"));
  group(parent_of(path));
  datasets_[std::string(path)] = {.strings = std::move(strings), .attributes = std::move(attributes)};
}

std::uint64_t hash_bytes(std::span<const std::byte> bytes) noexcept { return XXH64(bytes.data(), bytes.size(), 0); }

std::uint64_t hash_of_hashes(std::span<const std::uint64_t> block_hashes) noexcept {
  return hash_bytes(std::as_bytes(block_hashes));
}

std::size_t string_width(const std::vector<std::string>& strings) noexcept {
  std::size_t width = 1;
  for (const auto& s : strings) width = std::max(width, s.size());
  return width;
}

DatasetBytes::DatasetBytes(const TreeDataset& dataset) : tensor_(dataset.tensor) {
  if (!dataset.holds_strings()) {
    size_ = static_cast<std::int64_t>(tensor_.bytes());
    return;
  }
  const std::size_t width = string_width(dataset.strings);
  packed_.resize(width * dataset.strings.size());
  for (std::size_t i = 0; i < dataset.strings.size(); ++i)
    if (!dataset.strings[i].empty())
      std::memcpy(packed_.data() + i * width, dataset.strings[i].data(), dataset.strings[i].size());
  size_ = static_cast<std::int64_t>(packed_.size());
}

std::span<const std::byte> DatasetBytes::block(std::int64_t offset, std::int64_t count,
                                               std::vector<std::byte>& scratch) const {
  const auto bytes = static_cast<std::size_t>(count);
  if (!tensor_.defined()) return {packed_.data() + offset, bytes};
  if (tensor_.is_contiguous()) return {static_cast<const std::byte*>(tensor_.raw_data()) + offset, bytes};
  scratch.resize(std::max(scratch.size(), bytes));
  const auto element = static_cast<std::int64_t>(size_of(tensor_.dtype()));
  switch (element) {
    case 1: gather<std::uint8_t>(tensor_, offset, count, scratch.data()); break;
    case 2: gather<std::uint16_t>(tensor_, offset / 2, count / 2, scratch.data()); break;
    case 4: gather<std::uint32_t>(tensor_, offset / 4, count / 4, scratch.data()); break;
    default: gather<std::uint64_t>(tensor_, offset / 8, count / 8, scratch.data()); break;
  }
  return {scratch.data(), bytes};
}

std::vector<EntryDigest> digest(const Tree& tree, const std::vector<std::string>& excluded) {
  std::vector<EntryDigest> entries;
  entries.reserve(tree.groups().size() + tree.datasets().size());
  for (const auto& [path, attributes] : tree.groups()) {
    const bool own = std::any_of(excluded.begin(), excluded.end(),
                                 [&](const std::string& group) { return is_at_or_below(path, group); });
    Hasher hasher;
    hasher.text("group");
    if (!own) add_to(hasher, attributes);
    entries.push_back({path, hasher.result()});
  }
  for (const auto& [path, dataset] : tree.datasets()) entries.push_back({path, digest_of(dataset)});
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return entries;
}

}  // namespace apex::io
