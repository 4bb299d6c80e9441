// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "checks.hpp"

namespace apex::kernels {

void check_given(const char* op, const Context& ctx, const char* name, const ConstView& v) {
  if (!v.defined()) fail(Kind::argument, concat(op, ": ", name, " is not given"));
  check_optional(op, ctx, name, v);
}

void check_optional(const char* op, const Context& ctx, const char* name, const ConstView& v) {
  if (v.defined() && v.device != ctx.device)
    fail(Kind::argument, concat(op, ": ", name, " is on ", v.device, ", the operation runs on ", ctx.device));
}

void check_sizes(const char* op, const char* name, const ConstView& v, const Dims& wanted) {
  if (v.sizes != wanted) fail(Kind::argument, concat(op, ": ", name, " has sizes ", v.sizes, ", wanted ", wanted));
}

void check_rank(const char* op, const char* name, const ConstView& v, int rank) {
  if (v.rank() != rank) fail(Kind::argument, concat(op, ": ", name, " has sizes ", v.sizes, ", wanted rank ", rank));
}

void check_dtype(const char* op, const char* name, const ConstView& v, DType wanted) {
  if (v.dtype != wanted) fail(Kind::argument, concat(op, ": ", name, " is ", v.dtype, ", wanted ", wanted));
}

void check_dtype(const char* op, const char* name, const ConstView& v, std::initializer_list<DType> wanted) {
  for (const auto dtype : wanted)
    if (v.dtype == dtype) return;
  std::ostringstream list;
  const char* separator = "";
  for (const auto dtype : wanted) {
    list << separator << dtype;
    separator = " or ";
  }
  fail(Kind::argument, concat(op, ": ", name, " is ", v.dtype, ", wanted ", list.str()));
}

void check_floating(const char* op, const char* name, const ConstView& v) {
  if (!is_floating(v.dtype))
    fail(Kind::unsupported, concat(op, ": ", name, " is ", v.dtype, "; only floating types are supported"));
}

void check_wide_floating(const char* op, const char* name, const ConstView& v) {
  if (v.dtype != DType::f32 && v.dtype != DType::f64)
    fail(Kind::unsupported, concat(op, ": ", name, " is ", v.dtype, "; only f32 and f64 are supported"));
}

void check_broadcasts(const char* op, const char* name, const ConstView& v, const Dims& target) {
  bool fits = v.rank() <= target.size();
  for (int i = 1; fits && i <= v.rank(); ++i) fits = v.size(-i) == 1 || v.size(-i) == target[target.size() - i];
  if (!fits) fail(Kind::argument, concat(op, ": ", name, " of sizes ", v.sizes, " does not broadcast to ", target));
}

void check_writable(const char* op, const char* name, const ConstView& v) {
  if (v.numel() == 0) return;
  for (int i = 0; i < v.rank(); ++i)
    if (v.strides[i] == 0 && v.sizes[i] > 1)
      fail(Kind::argument, concat(op, ": ", name, " of sizes ", v.sizes, " and strides ", v.strides,
                                  " is broadcast and cannot be written"));
}

void check_vector(const char* op, const char* name, const ConstView& v, std::int64_t n) {
  check_sizes(op, name, v, {n});
  if (n > 1 && v.strides[0] != 1)
    fail(Kind::argument, concat(op, ": ", name, " has stride ", v.strides[0], ", wanted 1; copy it first"));
}

MemoryFormat check_dense(const char* op, const char* name, const ConstView& v) {
  if (v.is_contiguous()) return MemoryFormat::contiguous;
  if (v.is_contiguous(MemoryFormat::channels_last)) return MemoryFormat::channels_last;
  fail(Kind::argument, concat(op, ": ", name, " of sizes ", v.sizes, " and strides ", v.strides,
                              " is neither row-major nor channels-last; copy it first"));
}

bool same_strides(const ConstView& a, const ConstView& b) noexcept {
  if (a.numel() == 0) return true;
  for (int i = 0; i < a.rank(); ++i)
    if (a.sizes[i] != 1 && a.strides[i] != b.strides[i]) return false;
  return true;
}

int check_dim(const char* op, int dim, int rank) {
  const int d = dim < 0 ? dim + rank : dim;
  if (d < 0 || d >= rank) fail(Kind::argument, concat(op, ": dimension ", dim, " of a tensor of rank ", rank));
  return d;
}

}  // namespace apex::kernels
