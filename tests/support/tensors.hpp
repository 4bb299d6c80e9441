// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "apex/core/tensor.hpp"
#ifdef APEX_HAS_CUDA
#include "apex/core/cuda.hpp"
#endif
#include "support/tolerance.hpp"

// Tensors for tests, made and read element by element without any kernel.

namespace apex::test {

/// The device this run of the test program is for: APEX_TEST_DEVICE ("cpu", "cuda", "cuda:N"), the CPU unless set. The
/// same cases are run once for each device, a process each.
inline Device device() {
  static const Device chosen = [] {
    const char* name = std::getenv("APEX_TEST_DEVICE");
    const auto parsed = parse_device(name == nullptr ? "cpu" : name);
    if (!parsed) throw std::runtime_error("APEX_TEST_DEVICE is no device");
    return *parsed;
  }();
  return chosen;
}
/// The devices a case runs on that loops over them by itself.
inline std::vector<Device> devices() { return {device()}; }
inline bool on_cuda() { return device().is_cuda(); }
inline Context context() { return Context::current(device()); }

/// A host copy of the same sizes and strides; t itself on the CPU.
inline Tensor on_host(const Tensor& t) {
  if (t.device().is_cpu()) return t;
  const Dims& sizes = t.sizes();
  std::int64_t last = 0;
  for (int d = 0; d < sizes.size(); ++d) last += (sizes[d] > 0 ? sizes[d] - 1 : 0) * t.strides()[d];
  const std::int64_t span = t.numel() == 0 ? 0 : last + 1;
  const Tensor block = empty(Dims{span}, t.dtype(), kCpu);
#ifdef APEX_HAS_CUDA
  const Context ctx = t.context();
  APEX_CHECK(cudaMemcpyAsync(block.raw_data(), t.raw_data(), static_cast<std::size_t>(span) * size_of(t.dtype()),
                             cudaMemcpyDeviceToHost, cuda::stream_of(ctx)));
  cuda::synchronize(ctx);
#endif
  return views::as_strided(block, sizes, t.strides(), 0);
}

/// Writes all that on_host gave back to t.
inline void write_back(const Tensor& t, [[maybe_unused]] const Tensor& host) {
  if (t.device().is_cpu() || t.numel() == 0) return;
#ifdef APEX_HAS_CUDA
  const Context ctx = t.context();
  APEX_CHECK(cudaMemcpyAsync(t.raw_data(), host.raw_data(), host.storage()->bytes(), cudaMemcpyHostToDevice,
                             cuda::stream_of(ctx)));
  cuda::synchronize(ctx);
#endif
}
/// A copy of t on the tests' device, strides and all.
inline Tensor on_device(const Tensor& t) {
  if (t.device() == device()) return t;
  const Tensor out = empty_like(t, t.dtype(), device());
  write_back(out, t);
  return out;
}

/// Calls f(offset) for every element in row-major order; offset in elements from the tensor's first.
template <class F>
void for_each_offset(const Dims& sizes, const Dims& strides, F&& f) {
  const std::int64_t n = element_count(sizes);
  for (std::int64_t flat = 0; flat < n; ++flat) {
    std::int64_t rest = flat, offset = 0;
    for (int d = sizes.size() - 1; d >= 0; --d) {
      offset += rest % sizes[d] * strides[d];
      rest /= sizes[d];
    }
    f(offset);
  }
}

/// All elements as double, in row-major order.
inline std::vector<double> to_f64(const Tensor& where_it_is) {
  const Tensor t = on_host(where_it_is);
  std::vector<double> out;
  out.reserve(static_cast<std::size_t>(t.numel()));
  visit_any(t.dtype(), "to_f64", [&]<class T>() {
    const T* data = static_cast<const T*>(t.raw_data());
    for_each_offset(t.sizes(), t.strides(), [&](std::int64_t at) { out.push_back(static_cast<double>(data[at])); });
  });
  return out;
}

/// Sets all elements in row-major order, each converted from double.
inline void assign(const Tensor& where_it_is, const std::function<double(std::int64_t)>& value) {
  const Tensor t = on_host(where_it_is);
  visit_any(t.dtype(), "assign", [&]<class T>() {
    T* data = static_cast<T*>(t.raw_data());
    std::int64_t flat = 0;
    for_each_offset(t.sizes(), t.strides(), [&](std::int64_t at) { data[at] = static_cast<T>(value(flat++)); });
  });
  write_back(where_it_is, t);
}

inline Tensor from_function(const Dims& sizes, DType dtype, Device device,
                            const std::function<double(std::int64_t)>& value,
                            MemoryFormat format = MemoryFormat::contiguous) {
  Tensor t = empty(sizes, dtype, device, format);
  assign(t, value);
  return t;
}

inline Tensor from_list(const Dims& sizes, DType dtype, const std::vector<double>& values,
                        MemoryFormat format = MemoryFormat::contiguous) {
  EXPECT_EQ(static_cast<std::int64_t>(values.size()), element_count(sizes));
  return from_function(
      sizes, dtype, device(), [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; }, format);
}

/// splitmix64: a small generator of the tests' own.
inline double unit(std::uint64_t seed, std::uint64_t i) {
  std::uint64_t z = (seed * 0x9E3779B97F4A7C15ull) + (i + 1) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/// Uniform in [low, high).
inline Tensor uniform(const Dims& sizes, DType dtype, Device device, std::uint64_t seed, double low = -1,
                      double high = 1, MemoryFormat format = MemoryFormat::contiguous) {
  return from_function(
      sizes, dtype, device,
      [=](std::int64_t i) { return low + (high - low) * unit(seed, static_cast<std::uint64_t>(i)); }, format);
}

/// The same values where every second element of a larger block is skipped and the data pointer is off by one element:
/// neither contiguous nor aligned.
inline Tensor spread_out(const Tensor& t) {
  Dims wide = t.sizes();
  wide.push_back(2);
  const Tensor block = empty(Dims{element_count(wide) + 1}, t.dtype(), t.device());
  Dims strides = strides_for(t.sizes());
  for (auto& s : strides) s *= 2;
  const Tensor out = views::as_strided(block, t.sizes(), strides, 1);
  const auto values = to_f64(t);
  assign(out, [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
  return out;
}

/// The same values and strides, one element past an aligned address.
inline Tensor misaligned(const Tensor& t) {
  const Tensor block = empty(Dims{t.numel() + 1}, t.dtype(), t.device());
  const Tensor out = views::as_strided(block, t.sizes(), t.strides(), 1);
  const auto values = to_f64(t);
  assign(out, [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
  return out;
}

/// Fills with NaN, so that an element that is not written shows.
inline Tensor poisoned(Tensor t) {
  if (is_floating(t.dtype())) assign(t, [](std::int64_t) { return std::nan(""); });
  return t;
}
inline Tensor fresh(const Dims& sizes, DType dtype, MemoryFormat format = MemoryFormat::contiguous) {
  return poisoned(empty(sizes, dtype, device(), format));
}
inline Tensor fresh_like(const Tensor& t) { return poisoned(empty_like(t)); }

/// All of got within the tolerance of want; NaN equals NaN, infinities equal themselves.
inline ::testing::AssertionResult close(const std::vector<double>& got, const std::vector<double>& want, Tolerance t) {
  if (got.size() != want.size())
    return ::testing::AssertionFailure() << got.size() << " values, wanted " << want.size();
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool same = got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]));
    if (!same && !(std::abs(got[i] - want[i]) <= t.bound(want[i])))
      return ::testing::AssertionFailure()
             << "element " << i << " is " << got[i] << ", wanted " << want[i] << " (off by "
             << std::abs(got[i] - want[i]) << ", allowed " << t.bound(want[i]) << ')';
  }
  return ::testing::AssertionSuccess();
}
inline ::testing::AssertionResult close(const Tensor& got, const std::vector<double>& want, Tolerance t) {
  return close(to_f64(got), want, t);
}
inline ::testing::AssertionResult equal(const Tensor& got, const std::vector<double>& want) {
  return close(to_f64(got), want, {});
}

/// `gradient` against central differences of `loss` over every element of x (f64).
inline ::testing::AssertionResult gradient_matches(const Tensor& x, const Tensor& gradient,
                                                   const std::function<double()>& loss,
                                                   Tolerance t = kDifferenceTolerance, double step = 1e-6) {
  const auto values = to_f64(x), g = to_f64(gradient);
  if (g.size() != values.size()) return ::testing::AssertionFailure() << "sizes differ";
  std::vector<double> differences;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto moved = [&](double by) {
      assign(x, [&](std::int64_t k) {
        return values[static_cast<std::size_t>(k)] + (k == static_cast<std::int64_t>(i) ? by : 0);
      });
      return loss();
    };
    differences.push_back((moved(step) - moved(-step)) / (2 * step));
  }
  assign(x, [&](std::int64_t k) { return values[static_cast<std::size_t>(k)]; });
  return close(g, differences, t);
}

/// A fixed weighting that turns any result into one number with a known gradient.
inline double weight_at(std::int64_t i) { return std::sin(1.3 * static_cast<double>(i) + 0.5); }
inline Tensor weights_like(const Tensor& t) {
  Tensor w = empty_like(t);
  assign(w, weight_at);
  return w;
}
inline double weighted_sum(const Tensor& t) {
  double sum = 0;
  const auto values = to_f64(t);
  for (std::size_t i = 0; i < values.size(); ++i) sum += values[i] * weight_at(static_cast<std::int64_t>(i));
  return sum;
}

/// The call throws Error of this kind and says so in one line that contains `text`.
template <class F>
::testing::AssertionResult throws(Kind kind, const std::string& text, F&& call) {
  try {
    call();
  } catch (const Error& e) {
    const std::string what = e.what();
    if (e.kind() != kind) return ::testing::AssertionFailure() << "kind " << to_string(e.kind()) << ": " << what;
    if (what.find(text) == std::string::npos)
      return ::testing::AssertionFailure() << "no '" << text << "' in: " << what;
    if (what.find('\n') != std::string::npos) return ::testing::AssertionFailure() << "more than one line: " << what;
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "nothing was thrown, wanted " << to_string(kind) << " with '" << text << "'";
}

}  // namespace apex::test
