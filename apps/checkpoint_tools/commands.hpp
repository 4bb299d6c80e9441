// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apex/io/checkpoint.hpp"

namespace apex::checkpoint_tools {

using Path = std::filesystem::path;
using Json = nlohmann::ordered_json;

// Each prints to stdout, text or one JSON document, and returns the exit code; what cannot be read is thrown as
// apex::Error.

/// A directory: its step files. A file: its groups and datasets.
int list(const Path& path, bool json);

struct ShowOptions {
  std::string object;  ///< group or dataset; empty: the whole in a page
  bool list = false;   ///< every dataset at or below `object`
  bool stats = false;  ///< with the range and mean of its values
  bool json = false;
};
int show(const Path& path, const ShowOptions& options);

struct VerifyOptions {
  bool all = false;  ///< goes on after the first bad dataset and names every one
  bool json = false;
};
/// Reads everything and checks every sum; a directory means all of its step files. What is not there is
/// MISSING and what cannot be read UNREAD, not DAMAGED.
int verify(const std::vector<Path>& paths, const VerifyOptions& options);

struct DiffOptions {
  std::optional<double> atol, rtol;  ///< neither: the bits must be the same
  std::vector<std::string> ignored;  ///< groups or datasets; "/": the root's attributes
  bool json = false;
  bool tolerant() const { return atol || rtol; }
};
/// Group by group, how two checkpoints differ. @returns 1 when a group that must be the same is not
int diff(const Path& a, const Path& b, const DiffOptions& options);

// format.cpp
std::string to_text(const io::AttributeValue& value);
Json to_json(const io::AttributeValue& value);
Json to_json(const io::Attributes& attributes);
std::string to_text(double value);
std::string describe(const io::DatasetInfo& info);
std::string hash_text(std::uint64_t hash);
std::string bytes_text(std::int64_t bytes);
/// Without slashes at its ends: how the library names an object.
std::string bare(std::string path);
bool is_at_or_below(const std::string& path, const std::string& group);
/// The part of `path` before its first '/'.
std::string top_of(const std::string& path);
/// Everything a dataset is besides its values.
Json to_json(const std::string& path, const io::DatasetInfo& info);
/// Pretty, with what is not UTF-8 replaced.
void print(const Json& document);

// values.cpp
/// Of the finite values of a tensor of any type.
struct Statistics {
  double min = 0, max = 0, mean = 0;
  std::int64_t finite = 0, not_finite = 0;
};
Statistics statistics(const Tensor& t);

/// How the values of two tensors of one shape and type differ. Two NaNs are equal, and so are two equal infinities.
struct Distance {
  std::int64_t outside = 0;  ///< elements with |a - b| > atol + rtol |b|
  std::int64_t unequal = 0;  ///< elements with a != b
  double largest = 0;        ///< |a - b|; infinite where one of the two is not finite
};
Distance distance(const Tensor& a, const Tensor& b, double atol, double rtol);

}  // namespace apex::checkpoint_tools
