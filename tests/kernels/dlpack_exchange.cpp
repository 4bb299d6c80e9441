// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// Our side of dlpack_exchange.py: tensors by number, made, read and written element by element, and what DLPack hands
// over as a bare pointer. A function that fails returns -1, or null, and leaves its message in exchange_error().
#include <cmath>
#include <exception>
#include <map>
#include <string>

#include "apex/core/dlpack.hpp"
#include "apex/core/error.hpp"

namespace {

using apex::Tensor;

std::map<int, Tensor> tensors;
int next_number = 0;
std::string message;

int keep(Tensor t) {
  tensors.emplace(next_number, std::move(t));
  return next_number++;
}

template <class R, class F>
R guarded(R failed, F&& f) {
  try {
    return f();
  } catch (const std::exception& e) {
    message = e.what();
    return failed;
  }
}

/// Calls f<T>(pointer) for the element that is `flat` in row-major order.
template <class F>
void with_element(const Tensor& t, std::int64_t flat, F&& f) {
  std::int64_t at = 0;
  for (int d = t.dim() - 1; d >= 0; --d) {
    at += flat % t.size(d) * t.strides()[d];
    flat /= t.size(d);
  }
  apex::visit_any(t.dtype(), "element", [&]<class T>() { f(static_cast<T*>(t.raw_data()) + at); });
}

void set(const Tensor& t, std::int64_t flat, double value) {
  with_element(t, flat, [&]<class T>(T* p) { *p = static_cast<T>(value); });
}

}  // namespace

extern "C" {

const char* exchange_error() { return message.c_str(); }
int exchange_versioned() { return apex::has_versioned_dlpack() ? 1 : 0; }

/// 2 x 3 x 4 elements 0, 1, 2, ... (booleans alternate); strided: the last dimension first, and of it the middle two.
int exchange_make(const char* dtype, int strided) {
  return guarded(-1, [&] {
    Tensor t = apex::empty({2, 3, 4}, apex::parse_dtype(dtype).value());
    for (int i = 0; i < 24; ++i) set(t, i, t.dtype() == apex::DType::boolean ? i % 2 : i);
    if (strided != 0) t = apex::views::narrow(apex::views::permute(t, {2, 0, 1}), 0, 1, 2);
    return keep(t);
  });
}
void exchange_drop(int number) { tensors.erase(number); }
int exchange_owners(int number) { return static_cast<int>(tensors.at(number).storage().use_count()); }
std::int64_t exchange_address(int number) { return reinterpret_cast<std::int64_t>(tensors.at(number).raw_data()); }
const char* exchange_dtype(int number) { return apex::name_of(tensors.at(number).dtype()); }
int exchange_dim(int number) { return tensors.at(number).dim(); }
std::int64_t exchange_size(int number, int d) { return tensors.at(number).size(d); }
std::int64_t exchange_stride(int number, int d) { return tensors.at(number).strides()[d]; }
double exchange_get(int number, std::int64_t flat) {
  double out = std::nan("");
  with_element(tensors.at(number), flat, [&]<class T>(T* p) { out = static_cast<double>(*p); });
  return out;
}
void exchange_set(int number, std::int64_t flat, double value) { set(tensors.at(number), flat, value); }

void* exchange_give(int number, int versioned) {
  return guarded<void*>(nullptr, [&]() -> void* {
    const Tensor& t = tensors.at(number);
    if (versioned != 0) return apex::to_dlpack_versioned(t);
    return apex::to_dlpack(t);
  });
}
int exchange_take(void* managed, int versioned) {
  return guarded(-1, [&] {
    return keep(versioned != 0 ? apex::from_dlpack_versioned(static_cast<DLManagedTensorVersioned*>(managed))
                               : apex::from_dlpack(static_cast<DLManagedTensor*>(managed)));
  });
}

}  // extern "C"
