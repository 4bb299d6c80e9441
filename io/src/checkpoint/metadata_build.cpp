// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstring>

#include "apex/io/hdf5_lock.hpp"
#include "h5.hpp"
#include "metadata.hpp"

namespace apex::io {
namespace {

using namespace h5;

// An object header message holds less than 64 KiB in the earliest format.
constexpr std::size_t kMaxAttributeBytes = 64000;

SpaceId simple_space(std::size_t count) {
  const hsize_t size = count;
  SpaceId space(H5Screate_simple(1, &size, nullptr));
  APEX_CHECK_H5(space.get());
  return space;
}

SpaceId scalar_space() {
  SpaceId space(H5Screate(H5S_SCALAR));
  APEX_CHECK_H5(space.get());
  return space;
}

void create_attribute(hid_t object, const std::string& name, hid_t type, const SpaceId& space, const void* data,
                      std::size_t count) {
  const std::size_t bytes = count * H5Tget_size(type);
  if (bytes > kMaxAttributeBytes)
    fail(Kind::argument, concat("checkpoint: attribute '", name, "' would take ", bytes, " bytes, at most ",
                                kMaxAttributeBytes, " fit; store it as a dataset"));
  AttributeId attribute(H5Acreate2(object, name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT));
  APEX_CHECK_H5(attribute.get());
  if (count) APEX_CHECK_H5(H5Awrite(attribute.get(), type, data));
}

struct AttributeWriter {
  hid_t object;
  const std::string& name;

  void operator()(bool v) const { create_attribute(object, name, bool_type().get(), scalar_space(), &v, 1); }
  void operator()(std::int64_t v) const { create_attribute(object, name, H5T_STD_I64LE, scalar_space(), &v, 1); }
  void operator()(double v) const { create_attribute(object, name, H5T_IEEE_F64LE, scalar_space(), &v, 1); }
  void operator()(const std::string& v) const {
    const char* text = checked(v);
    create_attribute(object, name, variable_string_type().get(), scalar_space(), &text, 1);
  }
  void operator()(const std::vector<bool>& v) const {
    const std::vector<std::int8_t> bytes(v.begin(), v.end());
    create_attribute(object, name, bool_type().get(), simple_space(v.size()), bytes.data(), v.size());
  }
  void operator()(const std::vector<std::int64_t>& v) const {
    create_attribute(object, name, H5T_STD_I64LE, simple_space(v.size()), v.data(), v.size());
  }
  void operator()(const std::vector<double>& v) const {
    create_attribute(object, name, H5T_IEEE_F64LE, simple_space(v.size()), v.data(), v.size());
  }
  void operator()(const std::vector<std::string>& v) const {
    std::vector<const char*> texts;
    for (const auto& s : v) texts.push_back(checked(s));
    create_attribute(object, name, variable_string_type().get(), simple_space(v.size()), texts.data(), v.size());
  }

 private:
  const char* checked(const std::string& text) const {
    if (text.size() > kMaxStringBytes || text.find('\0') != text.npos)
      fail(Kind::argument, concat("checkpoint: a string of attribute '", name, "' holds a NUL or more than ",
                                  kMaxStringBytes, " bytes"));
    return text.c_str();
  }
};

void create_attributes(hid_t object, const Attributes& attributes) {
  for (const auto& [name, value] : attributes) {
    if (name.empty() || name.size() > kMaxPathBytes || name.find('\0') != name.npos)
      fail(Kind::argument, "checkpoint: an attribute has an empty or overlong name");
    std::visit(AttributeWriter{object, name}, value);
  }
}

PropertyId utf8_names() {
  PropertyId list(H5Pcreate(H5P_LINK_CREATE));
  APEX_CHECK_H5(list.get());
  APEX_CHECK_H5(H5Pset_char_encoding(list.get(), H5T_CSET_UTF8));
  return list;
}

PropertyId without_times(hid_t list_class) {
  PropertyId list(H5Pcreate(list_class));
  APEX_CHECK_H5(list.get());
  APEX_CHECK_H5(H5Pset_obj_track_times(list.get(), false));
  return list;
}

void create_groups(hid_t file, const Tree& tree, hid_t links) {
  const auto creation = without_times(H5P_GROUP_CREATE);
  for (const auto& [path, attributes] : tree.groups()) {
    GroupId group(path.empty() ? H5Gopen2(file, "/", H5P_DEFAULT)
                               : H5Gcreate2(file, path.c_str(), links, creation.get(), H5P_DEFAULT));
    APEX_CHECK_H5(group.get());
    create_attributes(group.get(), attributes);
  }
}

DatasetId create_dataset(hid_t file, const std::string& path, const TreeDataset& dataset, std::uint64_t hash,
                         hid_t links) {
  // Late allocation: the data follow once all metadata have their place.
  const auto creation = without_times(H5P_DATASET_CREATE);
  APEX_CHECK_H5(H5Pset_layout(creation.get(), H5D_CONTIGUOUS));
  APEX_CHECK_H5(H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_LATE));
  APEX_CHECK_H5(H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER));
  const bool strings = dataset.holds_strings();
  const auto type = strings ? fixed_string_type(string_width(dataset.strings)) : file_type(dataset.tensor.dtype());
  SpaceId space;
  if (strings) {
    space = simple_space(dataset.strings.size());
  } else if (dataset.tensor.dim() == 0) {
    space = scalar_space();
  } else {
    const auto sizes = dataset.tensor.sizes();
    const std::vector<hsize_t> dims(sizes.begin(), sizes.end());
    space = SpaceId(H5Screate_simple(sizes.size(), dims.data(), nullptr));
    APEX_CHECK_H5(space.get());
  }
  DatasetId id(H5Dcreate2(file, path.c_str(), type.get(), space.get(), links, creation.get(), H5P_DEFAULT));
  APEX_CHECK_H5(id.get());
  create_attributes(id.get(), dataset.attributes);
  create_attribute(id.get(), "xxh64", H5T_STD_U64LE, scalar_space(), &hash, 1);
  return id;
}

/// Writes one element (into nothing: see MemoryFile), which makes HDF5 give the dataset its place in the file.
void allocate(hid_t dataset) {
  const SpaceId space(H5Dget_space(dataset));
  const TypeId type(H5Dget_type(dataset));
  APEX_CHECK_H5(space.get());
  APEX_CHECK_H5(type.get());
  const int rank = H5Sget_simple_extent_ndims(space.get());
  APEX_CHECK_H5(rank);
  if (rank > 0) {
    const std::vector<hsize_t> first(static_cast<std::size_t>(rank), 0);
    APEX_CHECK_H5(H5Sselect_elements(space.get(), H5S_SELECT_SET, 1, first.data()));
  }
  const std::vector<std::byte> element(H5Tget_size(type.get()));
  APEX_CHECK_H5(H5Dwrite(dataset, type.get(), scalar_space().get(), space.get(), H5P_DEFAULT, element.data()));
}

std::int64_t bytes_of(const TreeDataset& dataset) {
  return dataset.holds_strings() ? static_cast<std::int64_t>(string_width(dataset.strings) * dataset.strings.size())
                                 : static_cast<std::int64_t>(dataset.tensor.bytes());
}

/// Creates everything, and sets where the data begin. Their places are checked: they follow each other without a gap.
void fill_file(hid_t file, MemoryFile& memory, const Tree& tree, std::span<const std::uint64_t> hashes) {
  const auto links = utf8_names();
  create_groups(file, tree, links.get());
  std::vector<std::pair<DatasetId, std::int64_t>> filled;
  std::size_t i = 0;
  for (const auto& [path, dataset] : tree.datasets()) {
    auto id = create_dataset(file, path, dataset, hashes[i++], links.get());
    if (const auto bytes = bytes_of(dataset)) filled.emplace_back(std::move(id), bytes);
  }
  APEX_CHECK_H5(H5Fflush(file, H5F_SCOPE_GLOBAL));
  memory.data_begin = memory.allocated;
  auto next = static_cast<std::int64_t>(memory.data_begin);
  for (const auto& [id, bytes] : filled) {
    allocate(id.get());
    const auto offset = static_cast<std::int64_t>(H5Dget_offset(id.get()));
    if (offset != next) fail(Kind::state, concat("checkpoint: HDF5 placed data at ", offset, " instead of ", next));
    next += bytes;
  }
}

/// HDF5 notes the root group's place in the superblock when a file is first opened for writing. It does so now, so that
/// whoever later changes data in place (h5py "r+") leaves the metadata as they are and is told which dataset is wrong.
void settle_superblock(MemoryFile& memory, hid_t access) {
  memory.size = memory.allocated;
  FileId file(H5Fopen("checkpoint", H5F_ACC_RDWR, access));
  APEX_CHECK_H5(file.get());
  const GroupId root(H5Gopen2(file.get(), "/", H5P_DEFAULT));
  APEX_CHECK_H5(root.get());
}

}  // namespace

std::vector<std::byte> build_metadata(const Tree& tree, std::span<const std::uint64_t> hashes) {
  const std::lock_guard lock(hdf5_mutex());
  silence();
  MemoryFile memory;
  {
    const auto access = memory_access(memory);
    // Data are placed one behind the other, not out of a pool that small ones share.
    APEX_CHECK_H5(H5Pset_small_data_block_size(access.get(), 0));
    const auto creation = without_times(H5P_FILE_CREATE);
    APEX_CHECK_H5(H5Pset_userblock(creation.get(), kUserBlockBytes));
    FileId file(H5Fcreate("checkpoint", H5F_ACC_TRUNC, creation.get(), access.get()));
    APEX_CHECK_H5(file.get());
    fill_file(file.get(), memory, tree, hashes);
    APEX_CHECK_H5(H5Fclose(file.release()));
    settle_superblock(memory, access.get());
  }
  const auto data_begin = static_cast<std::int64_t>(memory.data_begin);
  std::int64_t data_bytes = 0;
  for (const auto& [path, dataset] : tree.datasets()) data_bytes += bytes_of(dataset);
  if (static_cast<std::int64_t>(memory.allocated) != data_begin + data_bytes ||
      memory.bytes.size() > static_cast<std::size_t>(data_begin))
    fail(Kind::state, "checkpoint: HDF5 placed metadata behind the data");
  memory.bytes.resize(static_cast<std::size_t>(data_begin));

  Seal seal{.file_bytes = data_begin + data_bytes, .metadata_bytes = data_begin, .metadata_hash = 0};
  seal.metadata_hash = hash_bytes(std::span(memory.bytes).subspan(kUserBlockBytes));
  const auto block = encode(seal);
  std::copy(block.begin(), block.end(), memory.bytes.begin());
  return std::move(memory.bytes);
}

}  // namespace apex::io
