// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstring>
#include <new>

#include "h5.hpp"

namespace apex::io::h5 {
namespace {

struct DriverInfo {
  MemoryFile* file;
};

// HDF5 reads and writes the first member of what `open` returns.
struct Handle {
  H5FD_t base;
  MemoryFile* file;
};

MemoryFile& file_of(const H5FD_t* handle) { return *reinterpret_cast<const Handle*>(handle)->file; }

H5FD_t* open_file(const char*, unsigned, hid_t access, haddr_t) {
  const auto* info = static_cast<const DriverInfo*>(H5Pget_driver_info(access));
  if (!info) return nullptr;
  auto* handle = new (std::nothrow) Handle{};
  if (!handle) return nullptr;
  handle->file = info->file;
  return &handle->base;
}

herr_t close_file(H5FD_t* handle) {
  delete reinterpret_cast<Handle*>(handle);
  return 0;
}

// Without aggregation every block of metadata is allocated behind the one before: no gaps.
herr_t query(const H5FD_t*, unsigned long* flags) {
  if (flags) *flags = H5FD_FEAT_IGNORE_DRVRINFO | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
  return 0;
}

haddr_t end_of_allocation(const H5FD_t* handle, H5FD_mem_t) { return file_of(handle).allocated; }

herr_t set_end_of_allocation(H5FD_t* handle, H5FD_mem_t, haddr_t end) {
  file_of(handle).allocated = end;
  return 0;
}

haddr_t end_of_file(const H5FD_t* handle, H5FD_mem_t) {
  const auto& file = file_of(handle);
  return file.size ? file.size : file.allocated;
}

herr_t read_bytes(H5FD_t* handle, H5FD_mem_t, hid_t, haddr_t address, std::size_t size, void* out) {
  const auto& bytes = file_of(handle).bytes;
  const std::size_t have = address < bytes.size() ? std::min<std::size_t>(size, bytes.size() - address) : 0;
  if (have) std::memcpy(out, bytes.data() + address, have);
  std::memset(static_cast<std::byte*>(out) + have, 0, size - have);
  return 0;
}

// The type cannot tell metadata from data: HDF5 calls global heaps (strings of attributes) data too.
herr_t write_bytes(H5FD_t* handle, H5FD_mem_t, hid_t, haddr_t address, std::size_t size, const void* data) {
  auto& file = file_of(handle);
  if (address >= file.data_begin) return 0;
  try {
    if (file.bytes.size() < address + size) file.bytes.resize(address + size);
  } catch (const std::bad_alloc&) {
    return -1;
  }
  std::memcpy(file.bytes.data() + address, data, size);
  return 0;
}

herr_t truncate(H5FD_t*, hid_t, hbool_t) { return 0; }

hid_t driver() {
  static const hid_t id = [] {
    H5FD_class_t driver_class{};
    driver_class.name = "apex_memory";
    driver_class.maxaddr = static_cast<haddr_t>(INT64_MAX);
    driver_class.fc_degree = H5F_CLOSE_STRONG;
    driver_class.fapl_size = sizeof(DriverInfo);
    driver_class.open = open_file;
    driver_class.close = close_file;
    driver_class.query = query;
    driver_class.get_eoa = end_of_allocation;
    driver_class.set_eoa = set_end_of_allocation;
    driver_class.get_eof = end_of_file;
    driver_class.read = read_bytes;
    driver_class.write = write_bytes;
    driver_class.truncate = truncate;
    // Space that metadata give back is never used for data, which must follow all of them.
    const H5FD_mem_t map[] = H5FD_FLMAP_DICHOTOMY;
    std::copy(std::begin(map), std::end(map), driver_class.fl_map);
    return H5FDregister(&driver_class);
  }();
  APEX_CHECK_H5(id);
  return id;
}

}  // namespace

PropertyId memory_access(MemoryFile& file) {
  PropertyId access(H5Pcreate(H5P_FILE_ACCESS));
  APEX_CHECK_H5(access.get());
  const DriverInfo info{&file};
  APEX_CHECK_H5(H5Pset_driver(access.get(), driver(), &info));
  return access;
}

}  // namespace apex::io::h5
