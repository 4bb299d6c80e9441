// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "apex/core/dtype.hpp"
#include "apex/core/shape.hpp"

/// Recorded results in HDF5 ("golden files"): one file for an op, its name in the file attribute `op`, one group for a
/// case. A case holds attributes (the op's parameters) and datasets, of its own or in one level of groups (inputs,
/// upstream, outputs, grads).
namespace apex::conformance {

using Attribute = std::variant<std::int64_t, double, std::string>;

struct Dataset {
  Dims sizes;                        ///< rank 0 for a scalar
  DType dtype = DType::f64;          ///< the type the op ran in or returned (attribute `dtype`), else the stored type
  std::vector<double> values;        ///< numbers, row-major
  std::vector<std::string> strings;  ///< instead of values in a dataset of strings
};

/// One case, and a note of what was asked of it: an op reads all it knows, and what is left over it does not know.
class Case {
 public:
  std::string op, name;
  std::map<std::string, Attribute> attributes;
  std::map<std::string, Dataset> datasets;  ///< by path: "losses", "inputs/x"

  /// @throws Kind::data when there is none of that name and type
  std::int64_t integer(const std::string& attribute) const;
  double number(const std::string& attribute) const;  ///< an integer will do
  const std::string& text(const std::string& attribute) const;
  bool has(const std::string& dataset) const { return datasets.count(dataset) != 0; }
  const Dataset& dataset(const std::string& path) const;
  /// A dataset of numbers of exactly these sizes.
  const std::vector<double>& numbers(const std::string& path, const Dims& sizes) const;
  const std::vector<std::string>& strings(const std::string& path) const;

  /// @throws Kind::data naming every attribute and dataset nobody asked for
  void require_all_read() const;

 private:
  const Attribute& attribute(const std::string& name) const;
  std::string label() const { return op + "/" + name; }
  mutable std::set<std::string> read_;
};

struct GoldenFile {
  std::string op;
  std::vector<Case> cases;
};

/// @throws Kind::data naming file and object: not HDF5, no attribute `op`, no case, or an object of a kind the format
///         does not have
GoldenFile read_golden(const std::string& path);

}  // namespace apex::conformance
