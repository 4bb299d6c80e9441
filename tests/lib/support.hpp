// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "apex/autograd.hpp"
#include "apex/core/tensor.hpp"
#include "apex/tensor_ops.hpp"
#include "support/tensors.hpp"

namespace apex::test {

// Everything here is made on test::device(), and read from wherever it lies.

inline Tensor empty(const Dims& sizes, DType dtype = DType::f32, MemoryFormat format = MemoryFormat::contiguous) {
  return apex::empty(sizes, dtype, device(), format);
}
inline Tensor full(const Dims& sizes, double value, DType dtype = DType::f32) {
  return apex::full(sizes, value, dtype, device());
}
inline Tensor ones(const Dims& sizes, DType dtype = DType::f32) { return test::full(sizes, 1.0, dtype); }
inline Tensor zeros(const Dims& sizes, DType dtype = DType::f32) { return test::full(sizes, 0.0, dtype); }
template <class T>
Tensor from_values(const Dims& sizes, std::initializer_list<T> values) {
  return on_device(apex::from_values<T>(sizes, values));
}

/// The elements in logical row-major order, as double.
inline std::vector<double> values(const Tensor& t) { return to_f64(t); }

/// Writes element i (logical row-major order) of a floating tensor.
inline void set_element(const Tensor& t, std::int64_t i, double value) {
  const Tensor host = on_host(t);
  std::int64_t offset = 0;
  for (int d = t.dim() - 1; d >= 0; --d) {
    offset += i % t.sizes()[d] * t.strides()[d];
    i /= t.sizes()[d];
  }
  visit_floating(t.dtype(), "set_element", [&]<class T>() { host.data<T>()[offset] = static_cast<T>(value); });
  write_back(t, host);
}

/// f64 (or f32) values without ties and away from 0: b + a * sin(0.7 i + 1.3 k).
inline Tensor wave(const Dims& sizes, int k = 0, double a = 1.0, double b = 0.0, DType dtype = DType::f64,
                   MemoryFormat format = MemoryFormat::contiguous) {
  return from_function(
      sizes, dtype, device(),
      [=](std::int64_t i) { return b + a * std::sin(0.7 * static_cast<double>(i) + 1.3 * k + 0.1); }, format);
}

inline Tensor vector_of(const std::vector<double>& v, DType dtype = DType::f32) {
  return from_list({static_cast<std::int64_t>(v.size())}, dtype, v);
}

inline Tensor leaf(const Tensor& t) { return set_requires_grad(t); }

inline void expect_values(const Tensor& got, const std::vector<double>& want, double tolerance) {
  ASSERT_TRUE(got.defined());
  const auto v = values(got);
  ASSERT_EQ(v.size(), want.size());
  for (std::size_t i = 0; i < v.size(); ++i)
    EXPECT_NEAR(v[i], want[i], tolerance * std::max(1.0, std::abs(want[i]))) << i;
}

/// The call must throw apex::Error of that kind with `text` in its message.
inline void expect_error(Kind kind, const std::string& text, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "nothing thrown; wanted: " << text;
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
  }
}

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

/// Sum of the elements of f(inputs) times fixed weights, in plain loops.
inline double weighted(const Function& f, const std::vector<Tensor>& inputs) {
  NoGradGuard no_grad;
  const auto v = values(f(inputs));
  double total = 0;
  for (std::size_t i = 0; i < v.size(); ++i) total += v[i] * std::cos(0.9 * static_cast<double>(i) + 0.3);
  return total;
}

/// Compares backward through f with central differences in every element of every f64 input.
inline void check_gradient(const Function& f, const std::vector<Tensor>& inputs, double tolerance = 2e-7) {
  for (const auto& t : inputs) leaf(t);
  const Tensor y = f(inputs);
  const Tensor dy = from_function(y.sizes(), y.dtype(), y.device(),
                                  [](std::int64_t i) { return std::cos(0.9 * static_cast<double>(i) + 0.3); });
  backward(y, dy);
  constexpr double kStep = 1e-5;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const Tensor& x = inputs[k];
    ASSERT_TRUE(grad(x).defined()) << "input " << k;
    const auto got = values(grad(x)), at = values(x);
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const double before = at[static_cast<std::size_t>(i)];
      set_element(x, i, before + kStep);
      const double above = weighted(f, inputs);
      set_element(x, i, before - kStep);
      const double below = weighted(f, inputs);
      set_element(x, i, before);
      const double want = (above - below) / (2 * kStep);
      EXPECT_NEAR(got[static_cast<std::size_t>(i)], want, tolerance * std::max(1.0, std::abs(want)))
          << "input " << k << ", element " << i;
    }
  }
}

}  // namespace apex::test
