// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <hdf5.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "apex/core/dtype.hpp"
#include "apex/core/error.hpp"

namespace apex::io::h5 {

/// An HDF5 return value: ids, herr_t and htri_t all say failure by a negative number.
struct Status {
  std::int64_t value;
};

}  // namespace apex::io::h5

template <>
struct apex::StatusTraits<apex::io::h5::Status> {
  static constexpr Domain domain = Domain::hdf5;
  static bool ok(io::h5::Status s) { return s.value >= 0; }
  static int code(io::h5::Status s) { return static_cast<int>(s.value); }
  static std::string text(io::h5::Status) { return "HDF5 error"; }
  static Kind kind(io::h5::Status) { return Kind::state; }
};

#define APEX_CHECK_H5(call) ::apex::check(::apex::io::h5::Status{(call)}, #call)

namespace apex::io::h5 {

/// Owns one HDF5 id.
template <herr_t (*Close)(hid_t)>
class Id {
 public:
  Id() = default;
  explicit Id(hid_t id) noexcept : id_(id) {}
  Id(Id&& other) noexcept : id_(std::exchange(other.id_, -1)) {}
  Id& operator=(Id other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~Id() {
    if (id_ >= 0) Close(id_);
  }
  hid_t get() const noexcept { return id_; }
  hid_t release() noexcept { return std::exchange(id_, -1); }

 private:
  hid_t id_ = -1;
};
using FileId = Id<H5Fclose>;
using GroupId = Id<H5Gclose>;
using DatasetId = Id<H5Dclose>;
using ObjectId = Id<H5Oclose>;
using AttributeId = Id<H5Aclose>;
using TypeId = Id<H5Tclose>;
using SpaceId = Id<H5Sclose>;
using PropertyId = Id<H5Pclose>;

/// Stops HDF5 from printing its error stack; the caller holds hdf5_mutex().
void silence();

/// The file type of a dtype: little-endian, with hand-made 16-bit floats and h5py's enum for bool.
TypeId file_type(DType dtype);
/// The dtype whose file type has the same fields, if there is one.
bool dtype_of(hid_t type, DType& dtype);
/// h5py's bool: an 8-bit enum FALSE=0, TRUE=1.
TypeId bool_type();
bool is_bool(hid_t type);
/// Zero-padded UTF-8 of `width` bytes, or of variable length.
TypeId fixed_string_type(std::size_t width);
TypeId variable_string_type();

/// A file that lives in memory, for HDF5's metadata alone: what lies at or behind `data_begin` is neither kept nor read
/// (data pass beside HDF5), and no call can fail for lack of disk.
struct MemoryFile {
  std::vector<std::byte> bytes;
  std::uint64_t size = 0;       ///< of the file, when it is read
  std::uint64_t allocated = 0;  ///< how far HDF5 has given out addresses
  std::uint64_t data_begin = UINT64_MAX;
};
/// An access list for `file`, which must outlive every id opened with it.
PropertyId memory_access(MemoryFile& file);

}  // namespace apex::io::h5
