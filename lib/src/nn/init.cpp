// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>

#include "apex/kernels/random.hpp"
#include "apex/nn/layers.hpp"
#include "apex/tensor_ops.hpp"

namespace apex::nn::init {

void uniform(const Tensor& t, double low, double high, Generator& generator) {
  kernels::uniform(t.context(), t.view(), low, high, {.seed = generator.seed, .offset = generator.next()});
  t.raise_version();
}

void normal(const Tensor& t, double mean, double stddev, Generator& generator) {
  kernels::normal(t.context(), t.view(), mean, stddev, {.seed = generator.seed, .offset = generator.next()});
  t.raise_version();
}

void constant(const Tensor& t, double value) {
  NoGradGuard no_grad;
  fill_(t, value);
}

Fans fans(const Tensor& weight) {
  if (weight.dim() < 2)
    fail(Kind::argument, concat("init: a weight of sizes ", weight.sizes(), " has no fan; rank 2 is needed"));
  std::int64_t window = 1;
  for (int d = 2; d < weight.dim(); ++d) window *= weight.size(d);
  return {weight.size(1) * window, weight.size(0) * window};
}

void kaiming_uniform(const Tensor& weight, double slope, Generator& generator) {
  const double gain = std::sqrt(2.0 / (1.0 + slope * slope));
  const double bound = gain * std::sqrt(3.0 / static_cast<double>(fans(weight).in));
  uniform(weight, -bound, bound, generator);
}

void kaiming_normal_fan_out(const Tensor& weight, Generator& generator) {
  normal(weight, 0.0, std::sqrt(2.0 / static_cast<double>(fans(weight).out)), generator);
}

}  // namespace apex::nn::init
