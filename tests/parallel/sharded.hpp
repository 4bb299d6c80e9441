// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <bit>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "apex/autograd.hpp"
#include "apex/collectives/session.hpp"
#include "apex/contrib/optimizers/distributed_fused_adam.hpp"
#include "apex/contrib/optimizers/distributed_fused_lamb.hpp"
#include "apex/nn/functional.hpp"
#include "apex/tensor_ops.hpp"
#include "support/tensors.hpp"

// What the tests of sharded optimizers share.

namespace apex::test {

using contrib::optimizers::DistributedFusedAdam;
using contrib::optimizers::DistributedFusedAdamOptions;
using contrib::optimizers::DistributedFusedLAMB;
using contrib::optimizers::DistributedFusedLAMBOptions;
using contrib::optimizers::ShardedOptimizer;
using contrib::optimizers::ShardingOptions;

inline dist::ProcessGroup world() { return dist::ProcessGroup::world(); }

inline Tensor parameter(const Dims& sizes, const std::function<double(std::int64_t)>& value, DType dtype = DType::f32,
                        MemoryFormat format = MemoryFormat::contiguous) {
  const Tensor t = empty(sizes, dtype, device(), format);
  copy_(t, from_function(sizes, dtype, device(), value));
  return set_requires_grad(t);
}

inline Tensor listed(const std::vector<double>& values, DType dtype = DType::f32) {
  return parameter(
      {static_cast<std::int64_t>(values.size())}, [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; },
      dtype);
}

/// An output (f64, one element) whose backward hands `gradient` to the parameter; `then` runs before it does.
inline Tensor hand(const Tensor& parameter, const Tensor& gradient, const std::function<void()>& then = {}) {
  return record(full({1}, 0.0, DType::f64, device()),
                {.name = "hand", .inputs = {parameter}, .backward = [gradient, then](const Tensor&) -> Gradients {
                   if (then) then();
                   return {clone(gradient)};
                 }});
}

/// A backward that gives these gradients, those of the last parameter first.
inline void run_backward(const std::vector<std::pair<Tensor, Tensor>>& given) {
  Tensor loss = full({1}, 0.0, DType::f64, device());
  for (const auto& [p, g] : given) loss = nn::functional::add(loss, hand(p, g));
  if (!given.empty()) backward(loss);
}

/// A tensor like the parameter, in its dtype and layout.
inline Tensor gradient_of(const Tensor& parameter, const std::function<double(std::int64_t)>& value) {
  const Tensor g = empty_like(parameter);
  NoGradGuard no_grad;
  copy_(g, from_function(parameter.sizes(), parameter.dtype(), device(), value));
  return g;
}

/// Parameters of several shapes, one of them empty and one channels-last.
inline std::vector<Tensor> some_parameters(DType dtype) {
  const auto value = [](std::int64_t seed) {
    return [seed](std::int64_t i) { return static_cast<double>((i * 37 + seed * 11) % 101 - 50) / 64.0; };
  };
  return {parameter({3, 5, 3, 3}, value(1), dtype, MemoryFormat::channels_last), parameter({1}, value(2), dtype),
          parameter({0, 4}, value(3), dtype), parameter({33, 29}, value(4), dtype), parameter({257}, value(5), dtype)};
}

/// Sums of these over four ranks are exact, so that all orders of adding give the same bits.
inline double gradient_at(std::int64_t i, int rank, std::size_t param, int step) {
  return static_cast<double>((i * 13 + rank * 7 + static_cast<std::int64_t>(param) * 5 + step * 3) % 31 - 15) / 16.0;
}

/// What FusedAdam is given: the average over ranks, rounded as the kernel rounds it.
inline double mean_at(std::int64_t i, std::size_t param, int step) {
  float sum = 0;
  for (int r = 0; r < world().size(); ++r) sum += static_cast<float>(gradient_at(i, r, param, step));
  return sum * static_cast<float>(1.0 / world().size());
}

inline Tensor f32_gradient(const Tensor& p, const std::function<double(std::int64_t)>& value) {
  const Tensor g = empty_like(p, DType::f32);
  copy_(g, from_function(p.sizes(), DType::f32, device(), value));
  return g;
}

inline void give_gradients(const std::vector<Tensor>& params, int step) {
  std::vector<std::pair<Tensor, Tensor>> grads;
  for (std::size_t k = 0; k < params.size(); ++k)
    grads.emplace_back(params[k],
                       gradient_of(params[k], [&, k](auto i) { return gradient_at(i, world().rank(), k, step); }));
  run_backward(grads);
}

inline std::vector<float> floats(const Tensor& t) {
  const auto wide = to_f64(t);
  return {wide.begin(), wide.end()};
}

/// Whether all ranks hold the same values.
inline bool same_everywhere(const Tensor& t) {
  const auto values = to_f64(t);
  const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double));
  bool same = true;
  for (const auto& other : world().all_gather(bytes)) same = same && other == bytes;
  return same;
}

inline std::string error_of(const std::function<void()>& body, Kind kind) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    return e.what();
  }
  return "nothing was thrown";
}

}  // namespace apex::test
