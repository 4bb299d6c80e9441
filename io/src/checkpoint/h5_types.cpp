// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <array>
#include <cstring>

#include "h5.hpp"

namespace apex::io::h5 {
namespace {

TypeId copy_of(hid_t type) {
  TypeId copy(H5Tcopy(type));
  APEX_CHECK_H5(copy.get());
  return copy;
}

// HDF5 1.10 has no 16-bit float: made from the 32-bit one. Fields move before the precision and the size shrink.
TypeId half_type(std::size_t exponent_bits, std::size_t bias) {
  auto type = copy_of(H5T_IEEE_F32LE);
  const std::size_t mantissa_bits = 15 - exponent_bits;
  APEX_CHECK_H5(H5Tset_fields(type.get(), 15, mantissa_bits, exponent_bits, 0, mantissa_bits));
  APEX_CHECK_H5(H5Tset_precision(type.get(), 16));
  APEX_CHECK_H5(H5Tset_size(type.get(), 2));
  APEX_CHECK_H5(H5Tset_ebias(type.get(), bias));
  return type;
}

}  // namespace

void silence() {
  static const bool done = [] {
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    return true;
  }();
  (void)done;
}

TypeId bool_type() {
  TypeId type(H5Tenum_create(H5T_STD_I8LE));
  APEX_CHECK_H5(type.get());
  const std::int8_t no = 0, yes = 1;
  APEX_CHECK_H5(H5Tenum_insert(type.get(), "FALSE", &no));
  APEX_CHECK_H5(H5Tenum_insert(type.get(), "TRUE", &yes));
  return type;
}

bool is_bool(hid_t type) { return H5Tget_class(type) == H5T_ENUM && H5Tequal(type, bool_type().get()) > 0; }

TypeId fixed_string_type(std::size_t width) {
  auto type = copy_of(H5T_C_S1);
  APEX_CHECK_H5(H5Tset_size(type.get(), width));
  APEX_CHECK_H5(H5Tset_strpad(type.get(), H5T_STR_NULLPAD));
  APEX_CHECK_H5(H5Tset_cset(type.get(), H5T_CSET_UTF8));
  return type;
}

TypeId variable_string_type() {
  auto type = copy_of(H5T_C_S1);
  APEX_CHECK_H5(H5Tset_size(type.get(), H5T_VARIABLE));
  APEX_CHECK_H5(H5Tset_cset(type.get(), H5T_CSET_UTF8));
  return type;
}

TypeId file_type(DType dtype) {
  switch (dtype) {
    case DType::f64: return copy_of(H5T_IEEE_F64LE);
    case DType::f32: return copy_of(H5T_IEEE_F32LE);
    case DType::f16: return half_type(5, 15);
    case DType::bf16: return half_type(8, 127);
    case DType::i64: return copy_of(H5T_STD_I64LE);
    case DType::i32: return copy_of(H5T_STD_I32LE);
    case DType::u8: return copy_of(H5T_STD_U8LE);
    case DType::boolean: return bool_type();
  }
  throw_unsupported("checkpoint", dtype);
}

// By fields, not by id: later versions of HDF5 have 16-bit floats of their own.
bool dtype_of(hid_t type, DType& dtype) {
  constexpr std::array kAll = {DType::f64, DType::f32, DType::f16, DType::bf16,
                               DType::i64, DType::i32, DType::u8,  DType::boolean};
  for (const DType candidate : kAll) {
    if (H5Tequal(type, file_type(candidate).get()) > 0) {
      dtype = candidate;
      return true;
    }
  }
  return false;
}

}  // namespace apex::io::h5
