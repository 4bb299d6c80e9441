// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <vector>

#include "apex/autograd.hpp"
#include "apex/core/tensor.hpp"
#include "apex/optimizers/optimizer.hpp"
#include "apex/tensor_ops.hpp"
#include "lib/support.hpp"

// Data of the acceptance cases OPT-10, and what their tests share.

namespace apex::test {

inline const std::vector<double> kP = {1, -2, 0.5, 3};
inline const std::vector<std::vector<double>> kGrads = {
    {0.1, -0.2, 0.3, -0.4}, {0.05, 0.1, -0.15, 0.2}, {-0.3, 0, 0.6, 0.01}};

/// The parameter of the acceptance cases: whole, at an address off by one element, or cut in four tensors.
struct Layout {
  const char* name;
  bool misaligned, split;
};
inline constexpr Layout kLayouts[] = {{"whole", false, false}, {"misaligned", true, false}, {"split", false, true}};

inline std::vector<Tensor> parameters(const Layout& layout, DType dtype = DType::f32) {
  if (layout.split) {
    std::vector<Tensor> parts;
    for (const double p : kP) parts.push_back(leaf(vector_of({p}, dtype)));
    return parts;
  }
  if (!layout.misaligned) return {leaf(vector_of(kP, dtype))};
  const Tensor t = views::narrow(test::empty({5}, dtype), 0, 1, 4);
  for (int i = 0; i < 4; ++i) set_element(t, i, kP[static_cast<std::size_t>(i)]);
  return {leaf(t)};
}

inline void set_gradients(const std::vector<Tensor>& params, const std::vector<double>& g) {
  for (std::size_t i = 0, at = 0; i < params.size(); ++i) {
    const auto n = static_cast<std::size_t>(params[i].numel());
    set_grad(params[i],
             vector_of({g.begin() + static_cast<std::ptrdiff_t>(at), g.begin() + static_cast<std::ptrdiff_t>(at + n)},
                       params[i].dtype()));
    at += n;
  }
}

inline std::vector<double> joined(const std::vector<Tensor>& params) {
  std::vector<double> all;
  for (const auto& p : params)
    for (const double v : values(p)) all.push_back(v);
  return all;
}

inline void expect_close(const std::vector<double>& got, const std::vector<double>& want, double rtol = 2e-6,
                         double atol = 1e-7) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], rtol * std::abs(want[i]) + atol) << i;
}

/// A copy of `t` in another dtype, outside of any tape.
inline Tensor converted(const Tensor& t, DType dtype) {
  const NoGradGuard no_grad;
  const Tensor out = apex::empty_like(t, dtype);
  copy_(out, t);
  return out;
}

inline Tensor state(const optimizers::Optimizer& o, const Tensor& p, const char* key) { return o.state_of(p).at(key); }

}  // namespace apex::test
