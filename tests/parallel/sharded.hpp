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
