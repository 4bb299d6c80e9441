// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <hdf5.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace apex::test {

/// A folder of this test's own, gone at the end.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "apex-conformance-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = pattern;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline hid_t valid(hid_t id) {
  if (id < 0) throw std::runtime_error("HDF5 call failed");
  return id;
}
inline void done(herr_t status) { valid(status); }

/// Opens a file for writing (a new one if `create`) and closes it after `edit`.
inline void edit_file(const std::string& path, bool create, const std::function<void(hid_t)>& edit) {
  const hid_t file = valid(create ? H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT)
                                  : H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
  edit(file);
  done(H5Fclose(file));
}

inline hid_t string_type() {
  const hid_t type = valid(H5Tcopy(H5T_C_S1));
  done(H5Tset_size(type, H5T_VARIABLE));
  done(H5Tset_cset(type, H5T_CSET_UTF8));
  return type;
}

inline void put_attribute(hid_t file, const char* object, const char* name, hid_t type, const void* value) {
  if (H5Aexists_by_name(file, object, name, H5P_DEFAULT) > 0) done(H5Adelete_by_name(file, object, name, H5P_DEFAULT));
  const hid_t space = valid(H5Screate(H5S_SCALAR));
  const hid_t attribute =
      valid(H5Acreate_by_name(file, object, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  done(H5Awrite(attribute, type, value));
  done(H5Aclose(attribute));
  done(H5Sclose(space));
}
inline void put_attribute(hid_t file, const char* object, const char* name, const std::string& value) {
  const hid_t type = string_type();
  const char* text = value.c_str();
  put_attribute(file, object, name, type, &text);
  done(H5Tclose(type));
}
inline void put_attribute(hid_t file, const char* object, const char* name, double value) {
  put_attribute(file, object, name, H5T_NATIVE_DOUBLE, &value);
}
inline void put_attribute(hid_t file, const char* object, const char* name, std::int64_t value) {
  put_attribute(file, object, name, H5T_NATIVE_INT64, &value);
}

/// A dataset of `stored` type from doubles; chunked, shuffled and compressed if `packed`.
inline void put_dataset(hid_t file, const char* path, hid_t stored, const std::vector<hsize_t>& sizes,
                        const std::vector<double>& values, bool packed = false) {
  const hid_t space = valid(sizes.empty() ? H5Screate(H5S_SCALAR)
                                          : H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr));
  const hid_t create = valid(H5Pcreate(H5P_DATASET_CREATE));
  if (packed) {
    done(H5Pset_chunk(create, static_cast<int>(sizes.size()), sizes.data()));
    done(H5Pset_shuffle(create));
    done(H5Pset_deflate(create, 6));
  }
  const hid_t links = valid(H5Pcreate(H5P_LINK_CREATE));
  done(H5Pset_create_intermediate_group(links, 1));
  const hid_t data = valid(H5Dcreate2(file, path, stored, space, links, create, H5P_DEFAULT));
  done(H5Dwrite(data, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
  for (const hid_t property : {create, links}) done(H5Pclose(property));
  done(H5Dclose(data));
  done(H5Sclose(space));
}

/// A list of fixed-length strings, padded with zeros.
inline void put_strings(hid_t file, const char* path, const std::vector<std::string>& values) {
  std::size_t width = 1;
  for (const auto& value : values) width = std::max(width, value.size());
  std::vector<char> bytes(width * values.size(), '\0');
  for (std::size_t i = 0; i < values.size(); ++i) values[i].copy(&bytes[i * width], width);
  const hid_t type = valid(H5Tcopy(H5T_C_S1));
  done(H5Tset_size(type, width));
  done(H5Tset_strpad(type, H5T_STR_NULLPAD));
  const hsize_t size = values.size();
  const hid_t space = valid(H5Screate_simple(1, &size, nullptr));
  const hid_t data = valid(H5Dcreate2(file, path, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  done(H5Dwrite(data, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()));
  done(H5Dclose(data));
  done(H5Sclose(space));
  done(H5Tclose(type));
}

inline std::vector<double> get_dataset(hid_t file, const char* path) {
  const hid_t data = valid(H5Dopen2(file, path, H5P_DEFAULT));
  const hid_t space = valid(H5Dget_space(data));
  std::vector<double> values(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
  done(H5Dread(data, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
  done(H5Sclose(space));
  done(H5Dclose(data));
  return values;
}

inline void set_dataset(hid_t file, const char* path, const std::vector<double>& values) {
  const hid_t data = valid(H5Dopen2(file, path, H5P_DEFAULT));
  done(H5Dwrite(data, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
  done(H5Dclose(data));
}

}  // namespace apex::test
