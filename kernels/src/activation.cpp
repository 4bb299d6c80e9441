// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/activation.hpp"

#include <cmath>

#include "activation_impl.hpp"
#include "checks.hpp"

namespace apex::kernels {
namespace {

void check_parameters(const char* op, const Activation& f) {
  switch (f.kind) {
    case ActivationKind::leaky_relu:
    case ActivationKind::elu:
      if (!std::isfinite(f.a)) fail(Kind::argument, concat(op, ": the slope or scale is ", f.a, ", wanted a number"));
      return;
    case ActivationKind::softplus:
      if (!(f.a > 0 && std::isfinite(f.a))) fail(Kind::argument, concat(op, ": beta is ", f.a, ", wanted above 0"));
      if (std::isnan(f.b)) fail(Kind::argument, concat(op, ": the threshold is NaN"));
      return;
    case ActivationKind::clamp:
    case ActivationKind::hardtanh:
      if (!(f.a <= f.b))
        fail(Kind::argument, concat(op, ": the range from ", f.a, " to ", f.b, " is none; give low <= high"));
      return;
    default: return;
  }
}

void check_operands(const char* op, const Context& ctx, const char* out_name, const View& out, const ConstView& x,
                    const Activation& f) {
  check_given(op, ctx, out_name, out);
  check_floating(op, out_name, out);
  check_writable(op, out_name, out);
  check_given(op, ctx, "x", x);
  check_dtype(op, "x", x, out.dtype);
  check_broadcasts(op, "x", x, out.sizes);
  check_parameters(op, f);
}

}  // namespace

const char* name_of(ActivationKind kind) noexcept {
  switch (kind) {
    case ActivationKind::gelu: return "gelu";
    case ActivationKind::gelu_tanh: return "gelu_tanh";
    case ActivationKind::silu: return "silu";
    case ActivationKind::leaky_relu: return "leaky_relu";
    case ActivationKind::elu: return "elu";
    case ActivationKind::softplus: return "softplus";
    case ActivationKind::clamp: return "clamp";
    case ActivationKind::hardtanh: return "hardtanh";
    case ActivationKind::log_sigmoid: return "log_sigmoid";
  }
  return "unknown";
}

void activation(const Context& ctx, View y, ConstView x, const Activation& f) {
  const char* op = name_of(f.kind);
  check_operands(op, ctx, "y", y, x, f);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::activation(ctx, y, x, f);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::activation(ctx, y, x, f);
  }
  throw_not_built(op, ctx.device);
}

void activation_backward(const Context& ctx, View dx, ConstView dy, ConstView x, const Activation& f) {
  const std::string op = std::string(name_of(f.kind)) + "_backward";
  check_operands(op.c_str(), ctx, "dx", dx, x, f);
  check_given(op.c_str(), ctx, "dy", dy);
  check_dtype(op.c_str(), "dy", dy, dx.dtype);
  check_broadcasts(op.c_str(), "dy", dy, dx.sizes);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::activation_backward(ctx, dx, dy, x, f);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::activation_backward(ctx, dx, dy, x, f);
  }
  throw_not_built(op.c_str(), ctx.device);
}

}  // namespace apex::kernels
