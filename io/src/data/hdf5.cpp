// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "hdf5.hpp"

#include "apex/io/hdf5_lock.hpp"

namespace apex::io {
namespace {
constexpr std::size_t kLongestAttribute = 65536;  // what the default format can hold

H5Id open_attribute(hid_t file, const char* name) {
  if (H5Aexists(file, name) <= 0) return {};
  return {H5Aopen(file, name, H5P_DEFAULT), H5Aclose};
}

hssize_t points_of(const H5Id& attribute) {
  const H5Id space(H5Aget_space(attribute.get()), H5Sclose);
  return space ? H5Sget_simple_extent_npoints(space.get()) : -1;
}

bool write(hid_t file, const char* name, hid_t type, const H5Id& space, const void* value) {
  if (!space) return false;
  const H5Id attribute(H5Acreate2(file, name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  return attribute && H5Awrite(attribute.get(), type, value) >= 0;
}
}  // namespace

Hdf5Session::Hdf5Session() : lock_(hdf5_mutex()) {
  H5Eget_auto2(H5E_DEFAULT, &print_, &print_data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Hdf5Session::~Hdf5Session() { H5Eset_auto2(H5E_DEFAULT, print_, print_data_); }

H5Id h5_access_without_locks() {
  H5Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_file_locking(access.get(), false, true);
  return access;
}

bool h5_exists(hid_t file, const std::string& path) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1))
    if (H5Lexists(file, path.substr(0, slash).c_str(), H5P_DEFAULT) <= 0) return false;
  return H5Lexists(file, path.c_str(), H5P_DEFAULT) > 0;
}

std::optional<std::string> h5_string_attribute(hid_t file, const char* name) {
  const H5Id attribute = open_attribute(file, name);
  if (!attribute || points_of(attribute) != 1) return std::nullopt;
  const H5Id type(H5Aget_type(attribute.get()), H5Tclose);
  if (!type || H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) != 0) return std::nullopt;
  const std::size_t size = H5Tget_size(type.get());
  if (size > kLongestAttribute) return std::nullopt;
  std::string value(size, '\0');
  if (H5Aread(attribute.get(), type.get(), value.data()) < 0) return std::nullopt;
  return value.substr(0, value.find('\0'));
}

std::optional<std::int64_t> h5_integer_attribute(hid_t file, const char* name) {
  const H5Id attribute = open_attribute(file, name);
  if (!attribute || points_of(attribute) != 1) return std::nullopt;
  const H5Id type(H5Aget_type(attribute.get()), H5Tclose);
  if (!type || H5Tget_class(type.get()) != H5T_INTEGER) return std::nullopt;
  std::int64_t value = 0;
  if (H5Aread(attribute.get(), H5T_NATIVE_INT64, &value) < 0) return std::nullopt;
  return value;
}

std::optional<std::vector<double>> h5_double_attribute(hid_t file, const char* name) {
  const H5Id attribute = open_attribute(file, name);
  if (!attribute) return std::nullopt;
  const hssize_t count = points_of(attribute);
  const H5Id type(H5Aget_type(attribute.get()), H5Tclose);
  if (count < 0 || count > 64 || !type || H5Tget_class(type.get()) != H5T_FLOAT) return std::nullopt;
  std::vector<double> values(static_cast<std::size_t>(count));
  if (H5Aread(attribute.get(), H5T_NATIVE_DOUBLE, values.data()) < 0) return std::nullopt;
  return values;
}

bool h5_write_attribute(hid_t file, const char* name, const std::string& value) {
  const H5Id type(H5Tcopy(H5T_C_S1), H5Tclose);
  if (!type || H5Tset_size(type.get(), value.size() + 1) < 0 || H5Tset_cset(type.get(), H5T_CSET_UTF8) < 0)
    return false;
  return write(file, name, type.get(), H5Id(H5Screate(H5S_SCALAR), H5Sclose), value.c_str());
}

bool h5_write_attribute(hid_t file, const char* name, std::int64_t value) {
  return write(file, name, H5T_STD_I64LE, H5Id(H5Screate(H5S_SCALAR), H5Sclose), &value);
}

bool h5_write_attribute(hid_t file, const char* name, std::span<const double> values) {
  const hsize_t count = values.size();
  return write(file, name, H5T_IEEE_F64LE, H5Id(H5Screate_simple(1, &count, nullptr), H5Sclose), values.data());
}

}  // namespace apex::io
