// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "apex/io/checkpoint.hpp"

namespace apex::test {

/// A folder of its own, removed at the end. Every rank names the same one when they share `name`.
class Folder {
 public:
  explicit Folder(const std::string& name) : path_(std::filesystem::temp_directory_path() / ("apex_test_" + name)) {}
  ~Folder() {
    if (!owner_) return;
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  /// Empties it now and removes it at the end: one rank does.
  void own() {
    owner_ = true;
    std::filesystem::remove_all(path_);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  bool owner_ = false;
};

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::remove(path);  // file systems flush a file that is cut to nothing and filled again
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// Logical bytes of a tensor, row-major, by a plain walk over all indices.
inline std::vector<unsigned char> logical_bytes(const Tensor& t) {
  const auto element = static_cast<std::int64_t>(size_of(t.dtype()));
  std::vector<unsigned char> out;
  out.reserve(static_cast<std::size_t>(t.numel() * element));
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    std::int64_t rest = i, offset = 0;
    for (int d = t.dim() - 1; d >= 0; --d) {
      offset += rest % t.size(d) * t.strides()[d];
      rest /= t.size(d);
    }
    const auto* p = static_cast<const unsigned char*>(t.raw_data()) + offset * element;
    out.insert(out.end(), p, p + element);
  }
  return out;
}

/// Every byte of the storage from a counter; 0 or 1 for bool. The same everywhere.
inline Tensor filled(const Dims& sizes, DType dtype, unsigned seed, MemoryFormat format = MemoryFormat::contiguous) {
  const Tensor t = empty(sizes, dtype, kCpu, format);
  auto* bytes = static_cast<unsigned char*>(t.raw_data());
  unsigned state = seed * 2654435761u + 12345u;
  for (std::size_t i = 0; i < t.bytes(); ++i) {
    state = state * 1664525u + 1013904223u;
    bytes[i] = static_cast<unsigned char>(state >> 24);
    if (dtype == DType::boolean) bytes[i] &= 1;
  }
  return t;
}

inline constexpr DType kAllTypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16,
                                      DType::i64, DType::i32, DType::u8,  DType::boolean};

/// Every dtype, scalars, empty tensors, odd sizes, strides, strings, attributes of every type, and tensors of several
/// 4 MiB blocks. Small without `large`.
inline io::Tree sample_tree(bool large) {
  io::Tree tree;
  unsigned seed = 1;
  for (const DType dtype : kAllTypes) {
    const std::string name = name_of(dtype);
    tree.add("types/" + name + ".odd", filled({3, 5, 7}, dtype, seed++), {{"kind", std::string("parameter")}});
    tree.add("types/" + name + ".scalar", filled({}, dtype, seed++));
    tree.add("types/" + name + ".empty", filled({4, 0, 2}, dtype, seed++));
    tree.add("types/" + name + ".last", filled({6, 5, 3, 2}, dtype, seed++, MemoryFormat::channels_last));
    tree.add("types/" + name + ".transposed", views::transpose(filled({9, 4}, dtype, seed++), 0, 1));
    tree.add("types/" + name + ".row", views::narrow(filled({5, 3}, dtype, seed++), 0, 2, 2));
    tree.add("types/" + name + ".expanded", views::expand(filled({1, 3}, dtype, seed++), {4, 3}));
  }
  tree.add("names", std::vector<std::string>{"layer1.0.conv1.weight", "", "µ", "x"});
  tree.add("no_names", std::vector<std::string>{});
  auto& root = tree.group("");
  root["epoch"] = std::int64_t{7};
  auto& deep = tree.group("a/b/c");
  deep["yes"] = true;
  deep["no"] = false;
  deep["big"] = std::int64_t{-9223372036854775807};
  deep["real"] = 0.1;
  deep["text"] = std::string("naïve, with spaces");
  deep["empty"] = std::string();
  deep["flags"] = std::vector<bool>{true, false, true};
  deep["numbers"] = std::vector<std::int64_t>{1, -2, 3};
  deep["reals"] = std::vector<double>{0.5, -1e300};
  deep["texts"] = std::vector<std::string>{"T-shirt/top", "", "Sandal"};
  deep["none"] = std::vector<std::int64_t>{};
  deep["no_texts"] = std::vector<std::string>{};
  if (large) {
    tree.add("large/blocks", filled({3, 512, 1025}, DType::f32, 90));
    tree.add("large/exact", filled({2, 1 << 20}, DType::f32, 91));
    tree.add("large/last", filled({130, 129, 13, 10}, DType::f16, 92, MemoryFormat::channels_last));
    for (int i = 0; i < 12; ++i)
      tree.add("large/weight" + std::to_string(i), filled({100 + i, 1000}, DType::f32, 100 + static_cast<unsigned>(i)));
  }
  return tree;
}

}  // namespace apex::test
