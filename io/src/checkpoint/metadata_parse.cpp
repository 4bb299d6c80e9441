// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstring>

#include "apex/io/hdf5_lock.hpp"
#include "child.hpp"
#include "h5.hpp"
#include "metadata.hpp"

namespace apex::io {
namespace {

using namespace h5;

// Bounds on what a file may ask us to hold; far above any real checkpoint.
constexpr std::size_t kMaxObjects = 1'000'000;
constexpr std::size_t kMaxAttributes = 4096;
constexpr std::int64_t kMaxDepth = 32;

class Parser {
 public:
  Parser(std::string_view file, const Seal& seal) : file_(file), seal_(seal) {}

  ParsedMetadata parse(hid_t root) {
    group(root, "", 0);
    check_layout();
    return std::move(result_);
  }

 private:
  [[noreturn]] void damaged(std::string_view path, std::string_view what) const {
    fail(Kind::damaged, concat(file_, ": damaged: '/", path, "' ", what));
  }

  void group(hid_t id, const std::string& path, std::int64_t depth) {
    if (depth > kMaxDepth) damaged(path, "lies too deep");
    if (result_.groups.size() + result_.datasets.size() > kMaxObjects) damaged(path, "is one object too many");
    result_.groups[path] = attributes(id, path);
    for (const auto& name : link_names(id, path)) {
      const std::string child = path.empty() ? name : path + '/' + name;
      const ObjectId object(H5Oopen(id, name.c_str(), H5P_DEFAULT));
      APEX_CHECK_H5(object.get());
      switch (H5Iget_type(object.get())) {
        case H5I_GROUP: group(object.get(), child, depth + 1); break;
        case H5I_DATASET: dataset(object.get(), child); break;
        default: damaged(child, "is neither a group nor a dataset");
      }
    }
  }

  std::vector<std::string> link_names(hid_t id, const std::string& path) const {
    H5G_info_t info;
    APEX_CHECK_H5(H5Gget_info(id, &info));
    if (info.nlinks > kMaxObjects) damaged(path, "holds too many objects");
    std::vector<std::string> names;
    names.reserve(info.nlinks);
    const auto note = [](hid_t, const char* name, const H5L_info_t* link, void* out) -> herr_t {
      if (link->type != H5L_TYPE_HARD || std::strlen(name) > kMaxPathBytes) return -1;
      static_cast<std::vector<std::string>*>(out)->emplace_back(name);
      return 0;
    };
    hsize_t position = 0;
    if (H5Literate(id, H5_INDEX_NAME, H5_ITER_INC, &position, note, &names) < 0)
      damaged(path, "holds a link that this program does not write");
    return names;
  }

  Attributes attributes(hid_t object, const std::string& path) const {
    H5O_info_t info;
    APEX_CHECK_H5(H5Oget_info2(object, &info, H5O_INFO_NUM_ATTRS));
    if (info.num_attrs > kMaxAttributes) damaged(path, "has too many attributes");
    Attributes result;
    for (hsize_t i = 0; i < info.num_attrs; ++i) {
      const AttributeId id(H5Aopen_by_idx(object, ".", H5_INDEX_NAME, H5_ITER_INC, i, H5P_DEFAULT, H5P_DEFAULT));
      APEX_CHECK_H5(id.get());
      char name[kMaxPathBytes + 1] = {};
      const auto length = H5Aget_name(id.get(), sizeof name, name);
      APEX_CHECK_H5(length);
      result[name] = attribute_value(id.get(), concat(path, "@", name));
    }
    return result;
  }

  AttributeValue attribute_value(hid_t id, const std::string& where) const {
    const TypeId type(H5Aget_type(id));
    const SpaceId space(H5Aget_space(id));
    APEX_CHECK_H5(type.get());
    APEX_CHECK_H5(space.get());
    const auto points = H5Sget_simple_extent_npoints(space.get());
    const int rank = H5Sget_simple_extent_ndims(space.get());
    // Values lie among the metadata, so they are no larger; an element of a list takes at least one byte there.
    if (points < 0 || points > seal_.metadata_bytes || rank < 0 || rank > 1) damaged(where, "has an unknown shape");
    if (rank == 0 && points != 1) damaged(where, "holds no value");
    const auto count = static_cast<std::size_t>(points);
    const bool scalar = rank == 0;
    if (is_bool(type.get())) {
      const auto values = read<std::int8_t>(id, type.get(), count);
      if (scalar) return values.at(0) != 0;
      return std::vector<bool>(values.begin(), values.end());
    }
    switch (H5Tget_class(type.get())) {
      case H5T_INTEGER: return one_or_list(read<std::int64_t>(id, H5T_NATIVE_INT64, count), scalar);
      case H5T_FLOAT: return one_or_list(read<double>(id, H5T_NATIVE_DOUBLE, count), scalar);
      case H5T_STRING: return one_or_list(strings(id, type.get(), space.get(), count, where), scalar);
      default: damaged(where, "is of a type that this program does not write");
    }
  }

  template <class T>
  static AttributeValue one_or_list(std::vector<T> values, bool scalar) {
    if (scalar) return std::move(values.at(0));
    return values;
  }

  template <class T>
  static std::vector<T> read(hid_t id, hid_t memory_type, std::size_t count) {
    std::vector<T> values(count);
    if (count) APEX_CHECK_H5(H5Aread(id, memory_type, values.data()));
    return values;
  }

  std::vector<std::string> strings(hid_t id, hid_t type, hid_t space, std::size_t count,
                                   const std::string& where) const {
    std::vector<std::string> result;
    if (count == 0) return result;
    if (H5Tis_variable_str(type) > 0) {
      std::vector<char*> pointers(count);
      APEX_CHECK_H5(H5Aread(id, variable_string_type().get(), pointers.data()));
      for (const char* text : pointers) result.emplace_back(text ? text : "");
      H5Dvlen_reclaim(variable_string_type().get(), space, H5P_DEFAULT, pointers.data());
      return result;
    }
    const std::size_t width = H5Tget_size(type);
    if (width > static_cast<std::size_t>(seal_.metadata_bytes) / count)
      damaged(where, "holds strings larger than its metadata");
    std::vector<char> bytes(width * count);
    APEX_CHECK_H5(H5Aread(id, type, bytes.data()));
    for (std::size_t i = 0; i < count; ++i) {
      const char* text = bytes.data() + i * width;
      result.emplace_back(text, strnlen(text, width));
    }
    return result;
  }

  void dataset(hid_t id, const std::string& path) {
    const TypeId type(H5Dget_type(id));
    const SpaceId space(H5Dget_space(id));
    const PropertyId creation(H5Dget_create_plist(id));
    APEX_CHECK_H5(type.get());
    APEX_CHECK_H5(space.get());
    APEX_CHECK_H5(creation.get());
    if (H5Pget_layout(creation.get()) != H5D_CONTIGUOUS || H5Pget_external_count(creation.get()) != 0)
      damaged(path, "is not stored as one block of this file");
    ParsedDataset parsed;
    auto& info = parsed.info;
    info.sizes = sizes(space.get(), path);
    info.strings = H5Tget_class(type.get()) == H5T_STRING;
    std::size_t element = 0;
    if (info.strings) {
      element = parsed.string_width = H5Tget_size(type.get());
      if (H5Tis_variable_str(type.get()) > 0 || element > kMaxStringBytes || info.sizes.size() != 1)
        damaged(path, "holds strings in an unknown form");
    } else {
      if (!dtype_of(type.get(), info.dtype)) damaged(path, "is of a type that this program does not write");
      element = size_of(info.dtype);
    }
    std::int64_t count = 1;
    for (const auto s : info.sizes)
      if (__builtin_mul_overflow(count, s, &count)) damaged(path, "is larger than its file");
    if (__builtin_mul_overflow(count, static_cast<std::int64_t>(element), &info.bytes))
      damaged(path, "is larger than its file");
    info.attributes = attributes(id, path);
    const auto hash = info.attributes.find("xxh64");
    if (hash == info.attributes.end()) damaged(path, "has no sum (attribute xxh64)");
    info.xxh64 = stored_hash(id, path);
    info.attributes.erase(hash);
    parsed.offset = info.bytes ? static_cast<std::int64_t>(H5Dget_offset(id)) : 0;
    result_.datasets[path] = info;
    result_.layout[path] = std::move(parsed);
  }

  // Read on its own: a sum above 2^63 would be clipped on its way through a signed integer.
  std::uint64_t stored_hash(hid_t dataset, const std::string& path) const {
    const AttributeId id(H5Aopen(dataset, "xxh64", H5P_DEFAULT));
    APEX_CHECK_H5(id.get());
    const SpaceId space(H5Aget_space(id.get()));
    const TypeId type(H5Aget_type(id.get()));
    if (H5Sget_simple_extent_npoints(space.get()) != 1 || H5Tget_class(type.get()) != H5T_INTEGER)
      damaged(path, "has an attribute xxh64 that is not one integer");
    return read<std::uint64_t>(id.get(), H5T_NATIVE_UINT64, 1)[0];
  }

  Dims sizes(hid_t space, const std::string& path) const {
    const int rank = H5Sget_simple_extent_ndims(space);
    if (rank < 0 || rank > kMaxRank) damaged(path, concat("has more than ", kMaxRank, " dimensions"));
    hsize_t dims[kMaxRank] = {};
    APEX_CHECK_H5(H5Sget_simple_extent_dims(space, dims, nullptr));
    Dims result;
    for (int i = 0; i < rank; ++i) {
      if (dims[i] > static_cast<hsize_t>(INT64_MAX)) damaged(path, "is larger than its file");
      result.push_back(static_cast<std::int64_t>(dims[i]));
    }
    return result;
  }

  /// The data fill [metadata_bytes, file_bytes) without gap or overlap.
  void check_layout() const {
    std::vector<std::pair<std::int64_t, const std::string*>> order;
    for (const auto& [path, d] : result_.layout)
      if (d.info.bytes) order.emplace_back(d.offset, &path);
    std::sort(order.begin(), order.end());
    std::int64_t next = seal_.metadata_bytes;
    for (const auto& [offset, path] : order) {
      const auto& d = result_.layout.find(*path)->second;
      if (offset != next || d.info.bytes > seal_.file_bytes - next) damaged(*path, "does not lie where it should");
      next += d.info.bytes;
    }
    if (next != seal_.file_bytes) damaged("", "leaves bytes of the file unaccounted for");
  }

  std::string_view file_;
  const Seal& seal_;
  ParsedMetadata result_;
};

/// The caller holds hdf5_mutex().
ParsedMetadata parse(std::vector<std::byte> bytes, const Seal& seal, std::string_view file) {
  MemoryFile memory;
  memory.bytes = std::move(bytes);
  memory.size = static_cast<std::uint64_t>(seal.file_bytes);
  try {
    const auto access = memory_access(memory);
    const FileId id(H5Fopen("checkpoint", H5F_ACC_RDONLY, access.get()));
    APEX_CHECK_H5(id.get());
    const GroupId root(H5Gopen2(id.get(), "/", H5P_DEFAULT));
    APEX_CHECK_H5(root.get());
    return Parser(file, seal).parse(root.get());
  } catch (const Error& e) {
    if (e.domain() != Domain::hdf5) throw;
    fail(Kind::damaged, concat(file, ": damaged: HDF5 cannot read its metadata"));
  }
}

/// Far above what HDF5 takes for metadata of that size.
unsigned cpu_seconds_for(std::size_t bytes) { return 2 + static_cast<unsigned>(bytes >> 18); }

}  // namespace

ParsedMetadata parse_metadata(std::vector<std::byte> bytes, const Seal& seal, std::string_view file, bool in_child) {
  // Held while the process is copied: nobody is inside HDF5 then, and the child needs no lock.
  const std::lock_guard lock(hdf5_mutex());
  silence();
  if (in_child) try_in_child([&] { parse(bytes, seal, file); }, cpu_seconds_for(bytes.size()), file);
  return parse(std::move(bytes), seal, file);
}

}  // namespace apex::io
