// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/elementwise.hpp"

#include "checks.hpp"
#include "elementwise_impl.hpp"

namespace apex::kernels {
namespace {

void check_output(const char* op, const Context& ctx, const View& out) {
  check_given(op, ctx, "out", out);
  check_writable(op, "out", out);
}

/// Given, of out's dtype, and broadcasting to out.
void check_operand(const char* op, const Context& ctx, const char* name, const ConstView& v, const View& out) {
  check_given(op, ctx, name, v);
  check_dtype(op, name, v, out.dtype);
  check_broadcasts(op, name, v, out.sizes);
}

bool is_integer_op(UnaryOp op) {
  return op == UnaryOp::neg || op == UnaryOp::abs || op == UnaryOp::sign || op == UnaryOp::square ||
         op == UnaryOp::relu;
}

}  // namespace

const char* name_of(BinaryOp op) noexcept {
  switch (op) {
    case BinaryOp::add: return "add";
    case BinaryOp::sub: return "sub";
    case BinaryOp::mul: return "mul";
    case BinaryOp::div: return "div";
    case BinaryOp::minimum: return "minimum";
    case BinaryOp::maximum: return "maximum";
    case BinaryOp::pow: return "pow";
  }
  return "unknown";
}

const char* name_of(UnaryOp op) noexcept {
  switch (op) {
    case UnaryOp::neg: return "neg";
    case UnaryOp::abs: return "abs";
    case UnaryOp::sign: return "sign";
    case UnaryOp::exp: return "exp";
    case UnaryOp::log: return "log";
    case UnaryOp::sqrt: return "sqrt";
    case UnaryOp::rsqrt: return "rsqrt";
    case UnaryOp::reciprocal: return "reciprocal";
    case UnaryOp::square: return "square";
    case UnaryOp::tanh: return "tanh";
    case UnaryOp::sigmoid: return "sigmoid";
    case UnaryOp::relu: return "relu";
    case UnaryOp::erf: return "erf";
  }
  return "unknown";
}

Saves saves_of(UnaryOp op) noexcept {
  switch (op) {
    case UnaryOp::neg:
    case UnaryOp::sign: return Saves::nothing;
    case UnaryOp::abs:
    case UnaryOp::erf:
    case UnaryOp::log:
    case UnaryOp::square: return Saves::input;
    default: return Saves::output;
  }
}

void binary(const Context& ctx, View out, ConstView a, ConstView b, BinaryOp op) {
  const char* name = name_of(op);
  check_output(name, ctx, out);
  check_operand(name, ctx, "a", a, out);
  check_operand(name, ctx, "b", b, out);
  if (out.dtype == DType::boolean || ((op == BinaryOp::div || op == BinaryOp::pow) && !is_floating(out.dtype)))
    throw_unsupported(name, out.dtype);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::binary(ctx, out, a, b, op);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::binary(ctx, out, a, b, op);
  }
  throw_not_built(name, ctx.device);
}

void compare(const Context& ctx, View out, ConstView a, ConstView b, CompareOp op) {
  check_output("compare", ctx, out);
  check_dtype("compare", "out", out, DType::boolean);
  check_given("compare", ctx, "a", a);
  check_given("compare", ctx, "b", b);
  check_dtype("compare", "b", b, a.dtype);
  check_broadcasts("compare", "a", a, out.sizes);
  check_broadcasts("compare", "b", b, out.sizes);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::compare(ctx, out, a, b, op);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::compare(ctx, out, a, b, op);
  }
  throw_not_built("compare", ctx.device);
}

void unary(const Context& ctx, View out, ConstView x, UnaryOp op) {
  const char* name = name_of(op);
  check_output(name, ctx, out);
  check_operand(name, ctx, "x", x, out);
  const bool integer = out.dtype == DType::i64 || out.dtype == DType::i32;
  if (!is_floating(out.dtype) && !(integer && is_integer_op(op))) throw_unsupported(name, out.dtype);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::unary(ctx, out, x, op);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::unary(ctx, out, x, op);
  }
  throw_not_built(name, ctx.device);
}

void unary_backward(const Context& ctx, View dx, ConstView dy, ConstView saved, UnaryOp op) {
  const std::string name = std::string(name_of(op)) + "_backward";
  check_output(name.c_str(), ctx, dx);
  check_floating(name.c_str(), "dx", dx);
  check_operand(name.c_str(), ctx, "dy", dy, dx);
  if (saves_of(op) != Saves::nothing) check_operand(name.c_str(), ctx, "saved", saved, dx);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::unary_backward(ctx, dx, dy, saved, op);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::unary_backward(ctx, dx, dy, saved, op);
  }
  throw_not_built(name.c_str(), ctx.device);
}

void relu_backward(const Context& ctx, View dx, ConstView dy, ConstView y) {
  check_output("relu_backward", ctx, dx);
  check_floating("relu_backward", "dx", dx);
  check_operand("relu_backward", ctx, "dy", dy, dx);
  check_operand("relu_backward", ctx, "y", y, dx);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::relu_backward(ctx, dx, dy, y);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::relu_backward(ctx, dx, dy, y);
  }
  throw_not_built("relu_backward", ctx.device);
}

void scale_shift(const Context& ctx, View out, ConstView x, double scale, double shift) {
  check_output("scale_shift", ctx, out);
  check_floating("scale_shift", "out", out);
  check_operand("scale_shift", ctx, "x", x, out);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::scale_shift(ctx, out, x, scale, shift);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::scale_shift(ctx, out, x, scale, shift);
  }
  throw_not_built("scale_shift", ctx.device);
}

void add_scaled(const Context& ctx, View out, ConstView a, double alpha, ConstView b) {
  check_output("add_scaled", ctx, out);
  check_floating("add_scaled", "out", out);
  check_operand("add_scaled", ctx, "a", a, out);
  check_operand("add_scaled", ctx, "b", b, out);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::add_scaled(ctx, out, a, alpha, b);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::add_scaled(ctx, out, a, alpha, b);
  }
  throw_not_built("add_scaled", ctx.device);
}

void accumulate(const Context& ctx, View dst, ConstView src) {
  check_given("accumulate", ctx, "dst", dst);
  check_writable("accumulate", "dst", dst);
  check_floating("accumulate", "dst", dst);
  check_given("accumulate", ctx, "src", src);
  check_floating("accumulate", "src", src);
  check_broadcasts("accumulate", "src", src, dst.sizes);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::accumulate(ctx, dst, src);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::accumulate(ctx, dst, src);
  }
  throw_not_built("accumulate", ctx.device);
}

void where(const Context& ctx, View out, ConstView condition, ConstView a, ConstView b) {
  check_output("where", ctx, out);
  check_given("where", ctx, "condition", condition);
  check_dtype("where", "condition", condition, {DType::boolean, DType::u8});
  check_broadcasts("where", "condition", condition, out.sizes);
  check_operand("where", ctx, "a", a, out);
  check_operand("where", ctx, "b", b, out);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::where(ctx, out, condition, a, b);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::where(ctx, out, condition, a, b);
  }
  throw_not_built("where", ctx.device);
}

}  // namespace apex::kernels
