// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "golden.hpp"

#include <hdf5.h>

#include <cmath>
#include <functional>

#include "apex/core/error.hpp"

namespace apex::conformance {
namespace {

/// Owns one HDF5 identifier.
template <herr_t (*Close)(hid_t)>
class Id {
 public:
  Id(hid_t id, const std::string& what) : id_(id) {
    if (id < 0) fail(Kind::data, what);
  }
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;
  ~Id() { Close(id_); }
  operator hid_t() const { return id_; }  // NOLINT: it is one

 private:
  hid_t id_;
};
using FileId = Id<H5Fclose>;
using ObjectId = Id<H5Oclose>;
using AttributeId = Id<H5Aclose>;
using TypeId = Id<H5Tclose>;
using SpaceId = Id<H5Sclose>;

/// What an attribute or a dataset holds, read through one function for both.
struct Content {
  Dims sizes;
  DType stored = DType::f64;
  std::vector<double> values;
  std::vector<std::string> strings;
};

Dims sizes_of(hid_t space, const std::string& where) {
  const int rank = H5Sget_simple_extent_ndims(space);
  if (rank < 0 || rank > kMaxRank) fail(Kind::data, concat(where, ": rank ", rank, " is not supported"));
  std::vector<hsize_t> extent(static_cast<std::size_t>(rank));
  H5Sget_simple_extent_dims(space, extent.data(), nullptr);
  return Dims(std::vector<std::int64_t>(extent.begin(), extent.end()));
}

DType stored_dtype(hid_t type, const std::string& where) {
  const auto bytes = H5Tget_size(type);
  switch (H5Tget_class(type)) {
    case H5T_FLOAT:
      if (bytes == 8) return DType::f64;
      if (bytes == 4) return DType::f32;
      break;
    case H5T_INTEGER:
      if (bytes == 8) return DType::i64;
      if (bytes == 4) return DType::i32;
      if (bytes == 1) return DType::u8;
      break;
    default: break;
  }
  fail(Kind::data, concat(where, ": a number type of ", bytes, " bytes that golden files do not have"));
}

using Read = std::function<herr_t(hid_t memory_type, void* destination)>;

std::vector<std::string> read_strings(hid_t type, hid_t space, std::size_t count, const Read& read,
                                      const std::string& where) {
  const TypeId memory(H5Tcopy(H5T_C_S1), where);
  H5Tset_cset(memory, H5Tget_cset(type));
  std::vector<std::string> result;
  if (H5Tis_variable_str(type) > 0) {
    H5Tset_size(memory, H5T_VARIABLE);
    std::vector<char*> texts(count, nullptr);
    if (read(memory, texts.data()) < 0) fail(Kind::data, concat(where, ": cannot be read"));
    for (const char* text : texts) result.emplace_back(text == nullptr ? "" : text);
    H5Dvlen_reclaim(memory, space, H5P_DEFAULT, texts.data());
  } else {
    const std::size_t width = H5Tget_size(type) + 1;  // room for the end mark of a full one
    H5Tset_size(memory, width);
    std::vector<char> bytes(count * width);
    if (read(memory, bytes.data()) < 0) fail(Kind::data, concat(where, ": cannot be read"));
    for (std::size_t i = 0; i < count; ++i) result.emplace_back(&bytes[i * width]);
  }
  return result;
}

Content read_content(hid_t type, hid_t space, const Read& read, const std::string& where) {
  Content content;
  content.sizes = sizes_of(space, where);
  const auto count = static_cast<std::size_t>(element_count(content.sizes));
  if (H5Tget_class(type) == H5T_STRING) {
    content.strings = read_strings(type, space, count, read, where);
    return content;
  }
  content.stored = stored_dtype(type, where);
  content.values.resize(count);
  if (count != 0 && read(H5T_NATIVE_DOUBLE, content.values.data()) < 0)
    fail(Kind::data, concat(where, ": cannot be read"));
  for (const double value : content.values)
    if (!is_floating(content.stored) && std::abs(value) > 9007199254740992.0)
      fail(Kind::data, concat(where, ": an integer beyond 2^53"));
  return content;
}

Content read_attribute(hid_t attribute, const std::string& where) {
  const TypeId type(H5Aget_type(attribute), where);
  const SpaceId space(H5Aget_space(attribute), where);
  return read_content(
      type, space, [&](hid_t memory, void* to) { return H5Aread(attribute, memory, to); }, where);
}

std::map<std::string, Attribute> read_attributes(hid_t object, const std::string& where) {
  H5O_info_t info;
  if (H5Oget_info2(object, &info, H5O_INFO_NUM_ATTRS) < 0) fail(Kind::data, concat(where, ": cannot be read"));
  std::map<std::string, Attribute> result;
  for (hsize_t i = 0; i < info.num_attrs; ++i) {
    const AttributeId attribute(H5Aopen_by_idx(object, ".", H5_INDEX_NAME, H5_ITER_INC, i, H5P_DEFAULT, H5P_DEFAULT),
                                where);
    std::string name(static_cast<std::size_t>(H5Aget_name(attribute, 0, nullptr)), '\0');
    H5Aget_name(attribute, name.size() + 1, name.data());
    const std::string here = where + "@" + name;
    Content content = read_attribute(attribute, here);
    if (!content.strings.empty()) {
      if (content.strings.size() != 1) fail(Kind::data, concat(here, ": not a single string"));
      result[name] = content.strings[0];
    } else {
      if (content.values.size() != 1) fail(Kind::data, concat(here, ": not a single number"));
      if (is_floating(content.stored))
        result[name] = content.values[0];
      else
        result[name] = static_cast<std::int64_t>(content.values[0]);
    }
  }
  return result;
}

std::vector<std::string> names_in(hid_t group, const std::string& where) {
  H5G_info_t info;
  if (H5Gget_info(group, &info) < 0) fail(Kind::data, concat(where, ": cannot be read"));
  std::vector<std::string> names;
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    const auto length = H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, nullptr, 0, H5P_DEFAULT);
    if (length < 0) fail(Kind::data, concat(where, ": cannot be read"));
    std::string name(static_cast<std::size_t>(length), '\0');
    H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, name.data(), name.size() + 1, H5P_DEFAULT);
    names.push_back(std::move(name));
  }
  return names;
}

Dataset read_dataset(hid_t dataset, const std::string& where) {
  const TypeId type(H5Dget_type(dataset), where);
  const SpaceId space(H5Dget_space(dataset), where);
  Content content = read_content(
      type, space, [&](hid_t memory, void* to) { return H5Dread(dataset, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, to); },
      where);
  Dataset result{content.sizes, content.stored, std::move(content.values), std::move(content.strings)};
  for (const auto& [name, value] : read_attributes(dataset, where)) {
    const auto* text = std::get_if<std::string>(&value);
    const auto dtype = text != nullptr ? parse_dtype(*text) : std::nullopt;
    if (name != "dtype" || !dtype)
      fail(Kind::data, concat(where, "@", name, ": an attribute that datasets do not have"));
    result.dtype = *dtype;
  }
  return result;
}

void read_group(hid_t group, const std::string& where, const std::string& prefix, Case& into) {
  for (const auto& name : names_in(group, where)) {
    const std::string here = where + "/" + name;
    const ObjectId object(H5Oopen(group, name.c_str(), H5P_DEFAULT), here);
    switch (H5Iget_type(object)) {
      case H5I_DATASET: into.datasets.emplace(prefix + name, read_dataset(object, here)); break;
      case H5I_GROUP:
        if (!prefix.empty()) fail(Kind::data, concat(here, ": a group too deep"));
        if (!read_attributes(object, here).empty()) fail(Kind::data, concat(here, ": only a case has attributes"));
        read_group(object, here, name + "/", into);
        break;
      default: fail(Kind::data, concat(here, ": neither a group nor a dataset"));
    }
  }
}

/// HDF5 prints its own error stack unless told otherwise; our one line says what matters.
struct QuietHdf5 {
  QuietHdf5() {
    H5Eget_auto2(H5E_DEFAULT, &function, &data);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~QuietHdf5() { H5Eset_auto2(H5E_DEFAULT, function, data); }
  H5E_auto2_t function = nullptr;
  void* data = nullptr;
};

}  // namespace

GoldenFile read_golden(const std::string& path) {
  const QuietHdf5 quiet;
  const FileId file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), path + ": not a readable HDF5 file");
  GoldenFile result;
  for (const auto& [name, value] : read_attributes(file, path)) {
    const auto* text = std::get_if<std::string>(&value);
    if (name != "op" || text == nullptr)
      fail(Kind::data, concat(path, "@", name, ": an attribute that golden files do not have"));
    result.op = *text;
  }
  if (result.op.empty()) fail(Kind::data, concat(path, ": no attribute op, so not a golden file"));
  for (const auto& name : names_in(file, path)) {
    const std::string here = path + ":/" + name;
    const ObjectId object(H5Oopen(file, name.c_str(), H5P_DEFAULT), here);
    if (H5Iget_type(object) != H5I_GROUP) fail(Kind::data, concat(here, ": not a case, which is a group"));
    Case recorded;
    recorded.op = result.op;
    recorded.name = name;
    recorded.attributes = read_attributes(object, here);
    read_group(object, here, "", recorded);
    result.cases.push_back(std::move(recorded));
  }
  if (result.cases.empty()) fail(Kind::data, concat(path, ": no case in it"));
  return result;
}

const Attribute& Case::attribute(const std::string& name) const {
  const auto found = attributes.find(name);
  if (found == attributes.end()) fail(Kind::data, concat(label(), ": lacks the attribute ", name));
  read_.insert("attribute " + name);
  return found->second;
}

std::int64_t Case::integer(const std::string& name) const {
  if (const auto* value = std::get_if<std::int64_t>(&attribute(name))) return *value;
  fail(Kind::data, concat(label(), ": attribute ", name, " is not an integer"));
}

double Case::number(const std::string& name) const {
  const Attribute& value = attribute(name);
  if (const auto* real = std::get_if<double>(&value)) return *real;
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  fail(Kind::data, concat(label(), ": attribute ", name, " is not a number"));
}

const std::string& Case::text(const std::string& name) const {
  if (const auto* value = std::get_if<std::string>(&attribute(name))) return *value;
  fail(Kind::data, concat(label(), ": attribute ", name, " is not a string"));
}

const Dataset& Case::dataset(const std::string& path) const {
  const auto found = datasets.find(path);
  if (found == datasets.end()) fail(Kind::data, concat(label(), ": lacks the dataset ", path));
  read_.insert("dataset " + path);
  return found->second;
}

const std::vector<double>& Case::numbers(const std::string& path, const Dims& sizes) const {
  const Dataset& data = dataset(path);
  if (!data.strings.empty() || !(data.sizes == sizes))
    fail(Kind::data, concat(label(), ": dataset ", path, " should hold numbers ", sizes, ", not ", data.sizes));
  return data.values;
}

const std::vector<std::string>& Case::strings(const std::string& path) const {
  const Dataset& data = dataset(path);
  if (!data.values.empty() || data.sizes.size() != 1)
    fail(Kind::data, concat(label(), ": dataset ", path, " should hold a list of strings"));
  return data.strings;
}

void Case::require_all_read() const {
  std::string unknown;
  const auto note = [&](const std::string& what) {
    if (read_.count(what) == 0) unknown += (unknown.empty() ? "" : ", ") + what;
  };
  for (const auto& entry : attributes) note("attribute " + entry.first);
  for (const auto& entry : datasets) note("dataset " + entry.first);
  if (!unknown.empty()) fail(Kind::data, concat(label(), ": ", op, " does not know ", unknown));
}

}  // namespace apex::conformance
