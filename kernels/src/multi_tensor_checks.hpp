// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "apex/core/view.hpp"
#include "checks.hpp"

// Checks of the ops over lists of tensors.

namespace apex::kernels::lists {

inline std::string place(const char* op, const char* list, std::size_t i) {
  return concat(op, ": ", list, '[', i, ']');
}

/// Every tensor given, floating (or u8), dense and on the device.
template <class V>
void check_list(const char* op, const Context& ctx, const char* name, std::span<const V> list, bool bytes = false) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    const ConstView v(list[i]);
    if (!v.defined()) fail(Kind::argument, place(op, name, i) + " is not given");
    if (v.device != ctx.device)
      fail(Kind::argument, concat(place(op, name, i), " is on ", v.device, ", the operation runs on ", ctx.device));
    if (!is_floating(v.dtype) && !(bytes && v.dtype == DType::u8))
      fail(Kind::unsupported, concat(place(op, name, i), " is ", v.dtype, "; only floating types are supported"));
    if (!is_non_overlapping_and_dense(v.sizes, v.strides))
      fail(Kind::argument,
           concat(place(op, name, i), " of sizes ", v.sizes, " and strides ", v.strides, " is not dense"));
  }
}

template <class V>
void check_one_dtype(const char* op, const char* name, std::span<const V> list) {
  for (std::size_t i = 1; i < list.size(); ++i)
    if (list[i].dtype != list[0].dtype)
      fail(Kind::argument, concat(place(op, name, i), " is ", list[i].dtype, ", ", name, "[0] is ", list[0].dtype));
}

/// As many tensors as `model`, with equal element counts in equal order.
template <class V, class M>
void check_matches(const char* op, const char* name, std::span<const V> list, const char* model_name,
                   std::span<const M> model) {
  if (list.size() != model.size())
    fail(Kind::argument, concat(op, ": ", list.size(), " ", name, " and ", model.size(), " ", model_name));
  for (std::size_t i = 0; i < list.size(); ++i) {
    const ConstView v(list[i]), m(model[i]);
    if (v.numel() != m.numel())
      fail(Kind::argument,
           concat(place(op, name, i), " has sizes ", v.sizes, ", ", model_name, '[', i, "] has ", m.sizes));
    const bool both_rows = v.is_contiguous() && m.is_contiguous();
    if (!both_rows && (v.sizes != m.sizes || !same_strides(v, m)))
      fail(Kind::argument,
           concat(place(op, name, i), " has strides ", v.strides, ", ", model_name, '[', i, "] has ", m.strides));
  }
}

template <class V>
void check_whole_list(const char* op, const Context& ctx, const char* name, std::span<const V> list) {
  check_list(op, ctx, name, list);
  check_one_dtype(op, name, list);
}

inline void check_flag(const char* op, const Context& ctx, const ConstView& flag) {
  check_optional(op, ctx, "flag", flag);
  if (!flag.defined()) return;
  check_dtype(op, "flag", flag, DType::i32);
  if (flag.numel() != 1) fail(Kind::argument, concat(op, ": flag has sizes ", flag.sizes, ", wanted one element"));
}

inline void check_scalar(const char* op, const Context& ctx, const char* name, const ConstView& v,
                         DType dtype = DType::f32) {
  check_optional(op, ctx, name, v);
  if (!v.defined()) return;
  check_dtype(op, name, v, dtype);
  if (v.numel() != 1) fail(Kind::argument, concat(op, ": ", name, " has sizes ", v.sizes, ", wanted one element"));
}

inline void check_chunk(const char* op, std::int64_t chunk_size) {
  if (chunk_size < 1) fail(Kind::argument, concat(op, ": chunk_size is ", chunk_size, ", wanted at least 1"));
}

/// f64 goes with f64 only.
template <class V, class M>
void check_precision(const char* op, const char* name, std::span<const V> list, std::span<const M> model) {
  if (!list.empty() && (list[0].dtype == DType::f64) != (model[0].dtype == DType::f64))
    fail(Kind::argument,
         concat(op, ": ", name, " are ", list[0].dtype, " beside ", model[0].dtype, "; f64 goes with f64 only"));
}

}  // namespace apex::kernels::lists
