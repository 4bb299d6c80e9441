// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/random.hpp"

#include "checks.hpp"
#include "random_impl.hpp"

namespace apex::kernels {
namespace {

void check_drawn(const char* op, const Context& ctx, const char* name, const View& v, bool floating) {
  check_given(op, ctx, name, v);
  if (floating) check_floating(op, name, v);
  check_writable(op, name, v);
}

void check_probability(const char* op, double p) {
  if (!(p >= 0 && p <= 1)) fail(Kind::argument, concat(op, ": probability ", p, " is not between 0 and 1"));
}

}  // namespace

void uniform(const Context& ctx, View out, double low, double high, const RandomState& state) {
  check_drawn("uniform", ctx, "out", out, true);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::uniform(ctx, out, low, high, state);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::uniform(ctx, out, low, high, state);
  }
  throw_not_built("uniform", ctx.device);
}

void normal(const Context& ctx, View out, double mean, double std, const RandomState& state) {
  check_drawn("normal", ctx, "out", out, true);
  if (!(std >= 0)) fail(Kind::argument, concat("normal: std is ", std, ", wanted 0 or more"));
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::normal(ctx, out, mean, std, state);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::normal(ctx, out, mean, std, state);
  }
  throw_not_built("normal", ctx.device);
}

void bernoulli(const Context& ctx, View out, double p, const RandomState& state) {
  check_drawn("bernoulli", ctx, "out", out, false);
  check_probability("bernoulli", p);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::bernoulli(ctx, out, p, state);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::bernoulli(ctx, out, p, state);
  }
  throw_not_built("bernoulli", ctx.device);
}

void dropout(const Context& ctx, View y, View mask, ConstView x, double p, const RandomState& state) {
  check_drawn("dropout", ctx, "y", y, true);
  check_given("dropout", ctx, "x", x);
  check_sizes("dropout", "x", x, y.sizes);
  check_dtype("dropout", "x", x, y.dtype);
  check_optional("dropout", ctx, "mask", mask);
  if (mask.defined()) {
    check_sizes("dropout", "mask", mask, y.sizes);
    check_dtype("dropout", "mask", mask, DType::boolean);
    check_writable("dropout", "mask", mask);
  }
  check_probability("dropout", p);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::dropout(ctx, y, mask, x, p, state);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::dropout(ctx, y, mask, x, p, state);
  }
  throw_not_built("dropout", ctx.device);
}

}  // namespace apex::kernels
