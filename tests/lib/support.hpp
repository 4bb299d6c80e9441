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

namespace apex::test {

/// The elements in logical row-major order, as double.
inline std::vector<double> values(const Tensor& t) {
  std::vector<double> out;
  const auto n = t.numel();
  Dims index = Dims::filled(t.dim(), 0);
  for (std::int64_t i = 0; i < n; ++i) {
    Tensor one = t.detach();
    for (int d = 0; d < t.dim(); ++d) one = views::select(one, 0, index[d]);
    out.push_back(one.item());
    for (int d = t.dim() - 1; d >= 0; --d) {
      if (++index[d] < t.sizes()[d]) break;
      index[d] = 0;
    }
  }
  return out;
}

/// Writes element i (logical row-major order) of an f64 or f32 tensor.
inline void set_element(const Tensor& t, std::int64_t i, double value) {
  std::int64_t offset = 0;
  for (int d = t.dim() - 1; d >= 0; --d) {
    offset += i % t.sizes()[d] * t.strides()[d];
    i /= t.sizes()[d];
  }
  if (t.dtype() == DType::f64) {
    t.data<double>()[offset] = value;
  } else {
    t.data<float>()[offset] = static_cast<float>(value);
  }
}

/// f64 (or f32) values without ties and away from 0: b + a * sin(0.7 i + 1.3 k).
inline Tensor wave(const Dims& sizes, int k = 0, double a = 1.0, double b = 0.0, DType dtype = DType::f64,
                   MemoryFormat format = MemoryFormat::contiguous) {
  Tensor t = empty(sizes, dtype, kCpu, format);
  for (std::int64_t i = 0; i < t.numel(); ++i)
    set_element(t, i, b + a * std::sin(0.7 * static_cast<double>(i) + 1.3 * k + 0.1));
  return t;
}

inline Tensor vector_of(const std::vector<double>& v, DType dtype = DType::f32) {
  Tensor t = empty({static_cast<std::int64_t>(v.size())}, dtype);
  for (std::size_t i = 0; i < v.size(); ++i) set_element(t, static_cast<std::int64_t>(i), v[i]);
  return t;
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
  Tensor dy = empty(y.sizes(), y.dtype());
  for (std::int64_t i = 0; i < dy.numel(); ++i) set_element(dy, i, std::cos(0.9 * static_cast<double>(i) + 0.3));
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
