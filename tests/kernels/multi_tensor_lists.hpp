// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "support/on_device.hpp"

// Lists of tensors as the multi-tensor ops take them, and what their tests start from.

namespace apex::test {

/// Tensors and their views, as the ops take them.
struct List {
  std::vector<Tensor> tensors;
  std::vector<View> views;
  std::vector<ConstView> const_views;

  List() = default;
  List(std::initializer_list<Tensor> t) {
    for (const auto& x : t) add(x);
  }
  void add(const Tensor& t) {
    tensors.push_back(t);
    views.push_back(t.view());
    const_views.emplace_back(t.view());
  }
  std::vector<double> joined() const {
    std::vector<double> out;
    for (const auto& t : tensors)
      for (const double v : to_f64(t)) out.push_back(v);
    return out;
  }
};

// The data of the acceptance cases.
inline const std::vector<double> kP = {1, -2, 0.5, 3}, kQ = {0.2, -0.1};
inline const std::vector<double> kG[] = {{0.1, -0.2, 0.3, -0.4}, {0.05, 0.1, -0.15, 0.2}, {-0.3, 0, 0.6, 0.01}};
inline const std::vector<double> kH[] = {{2, -1}, {0.5, 0.5}, {0, -0.2}};

/// `all` as one tensor or as one-element tensors, aligned or not.
inline List parts_of(const std::vector<double>& all, DType dtype, bool split, bool odd) {
  List out;
  const std::size_t length = split ? 1 : all.size();
  for (std::size_t at = 0; at < all.size(); at += length) {
    const auto from = all.begin() + static_cast<std::ptrdiff_t>(at);
    const Tensor t =
        from_list({static_cast<std::int64_t>(length)}, dtype, {from, from + static_cast<std::ptrdiff_t>(length)});
    out.add(odd ? misaligned(t) : t);
  }
  return out;
}
inline Tensor zeros(const Dims& sizes, DType dtype = DType::f32) {
  return from_function(sizes, dtype, device(), [](std::int64_t) { return 0.0; });
}
inline List zeros_like(const List& like, DType dtype) {
  List out;
  for (const auto& t : like.tensors) out.add(zeros(t.sizes(), dtype));
  return out;
}

/// Tensors of awkward sizes: chunk boundaries of the GPU, none, one, misaligned, channels-last.
inline List awkward(DType dtype, std::uint64_t seed, double low = -1, double high = 1) {
  List out;
  for (const std::int64_t n : {1500, 0, 33, 1, 4096, 4097, 9001}) {
    const Tensor t = uniform({n}, dtype, device(), seed + static_cast<std::uint64_t>(n), low, high);
    out.add(n == 33 || n == 9001 ? misaligned(t) : t);
  }
  out.add(uniform({2, 3, 4, 5}, dtype, device(), seed, low, high, MemoryFormat::channels_last));
  return out;
}
inline List fresh_like(const List& like, DType dtype) {
  List out;
  for (const auto& t : like.tensors) {
    Tensor made = uniform(t.sizes(), dtype, device(), 99, -1, 1,
                          t.sizes().size() == 4 ? MemoryFormat::channels_last : MemoryFormat::contiguous);
    out.add(poisoned(made));
  }
  return out;
}
using Values = std::vector<std::vector<double>>;
inline Values values_of(const List& l) {
  Values out;
  for (const auto& t : l.tensors) out.push_back(to_f64(t));
  return out;
}
inline ::testing::AssertionResult all_close(const List& got, const Values& want, Tolerance t) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    const auto one = close(got.tensors[i], want[i], t);
    if (!one) return ::testing::AssertionFailure() << "tensor " << i << ": " << one.message();
  }
  return ::testing::AssertionSuccess();
}
/// A result that was formed in f32 and rounded to `dtype`.
inline Tolerance rounded(DType dtype) {
  const auto t = optimizer_tolerance(dtype);
  return dtype == DType::f64 ? Tolerance{1e-13, 1e-14} : Tolerance{t.rtol + 4e-6, t.atol + 1e-6};
}

}  // namespace apex::test
