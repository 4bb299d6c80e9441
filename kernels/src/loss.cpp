// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/loss.hpp"

#include <cmath>

#include "checks.hpp"
#include "loss_impl.hpp"

namespace apex::kernels {
namespace {

void check_one(const char* op, const char* name, const ConstView& v) {
  if (v.numel() != 1 || v.rank() > 1)
    fail(Kind::argument, concat(op, ": ", name, " has sizes ", v.sizes, ", wanted one element"));
}

/// One element or, unreduced, `sizes`; A of x's dtype.
void check_loss(const char* op, const Context& ctx, const char* name, const ConstView& loss, DType x, const Dims& sizes,
                Reduction reduction) {
  check_given(op, ctx, name, loss);
  check_dtype(op, name, loss, accum_dtype(x));
  if (reduction == Reduction::none)
    check_sizes(op, name, loss, sizes);
  else
    check_one(op, name, loss);
}

void check_weight(const char* op, const Context& ctx, const char* name, const ConstView& w, const ConstView& x,
                  bool allowed) {
  if (!w.defined()) return;
  if (!allowed) fail(Kind::argument, concat(op, ": takes no ", name));
  check_given(op, ctx, name, w);
  check_dtype(op, name, w, x.dtype);
  check_broadcasts(op, name, w, x.sizes);
}

void check_pair(const char* op, const Context& ctx, const ConstView& x, const ConstView& target,
                const ConstView& weight, const ConstView& pos_weight, const PointwiseLoss& o) {
  check_given(op, ctx, "x", x);
  check_floating(op, "x", x);
  check_given(op, ctx, "target", target);
  check_dtype(op, "target", target, x.dtype);
  check_sizes(op, "target", target, x.sizes);
  check_weight(op, ctx, "weight", weight, x, o.kind == LossKind::bce || o.kind == LossKind::bce_with_logits);
  check_weight(op, ctx, "pos_weight", pos_weight, x, o.kind == LossKind::bce_with_logits);
  if (o.kind == LossKind::smooth_l1 && !(o.delta >= 0 && std::isfinite(o.delta)))
    fail(Kind::argument, concat(op, ": beta is ", o.delta, ", wanted 0 or more"));
  if (o.kind == LossKind::huber && !(o.delta > 0 && std::isfinite(o.delta)))
    fail(Kind::argument, concat(op, ": delta is ", o.delta, ", wanted above 0"));
}

void check_gradient(const char* op, const Context& ctx, const char* name, const View& v, const ConstView& x) {
  check_given(op, ctx, name, v);
  check_dtype(op, name, v, x.dtype);
  check_sizes(op, name, v, x.sizes);
  check_writable(op, name, v);
}

constexpr const char* kNll = "nll_loss";

void check_nll(const Context& ctx, const char* name, const ConstView& x, const ConstView& labels,
               const ConstView& weight) {
  check_given(kNll, ctx, name, x);
  check_floating(kNll, name, x);
  if (x.rank() < 2) fail(Kind::argument, concat(kNll, ": ", name, " of sizes ", x.sizes, " is not [N, C, ...]"));
  if (x.size(1) < 1) fail(Kind::argument, concat(kNll, ": ", name, " of sizes ", x.sizes, " has no class"));
  check_given(kNll, ctx, "labels", labels);
  check_dtype(kNll, "labels", labels, DType::i64);
  check_sizes(kNll, "labels", labels, without_classes(x.sizes));
  if (!weight.defined()) return;
  check_given(kNll, ctx, "weight", weight);
  check_dtype(kNll, "weight", weight, x.dtype);
  check_vector(kNll, "weight", weight, x.size(1));
}

}  // namespace

const char* name_of(LossKind kind) noexcept {
  switch (kind) {
    case LossKind::mse: return "mse_loss";
    case LossKind::l1: return "l1_loss";
    case LossKind::smooth_l1: return "smooth_l1_loss";
    case LossKind::huber: return "huber_loss";
    case LossKind::bce: return "binary_cross_entropy";
    case LossKind::bce_with_logits: return "binary_cross_entropy_with_logits";
    case LossKind::kl_div: return "kl_div";
  }
  return "unknown";
}

void pointwise_loss(const Context& ctx, View loss, ConstView x, ConstView target, ConstView weight,
                    ConstView pos_weight, const PointwiseLoss& options) {
  const char* op = name_of(options.kind);
  check_pair(op, ctx, x, target, weight, pos_weight, options);
  check_loss(op, ctx, "loss", loss, x.dtype, x.sizes, options.reduction);
  check_writable(op, "loss", loss);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::pointwise_loss(ctx, loss, x, target, weight, pos_weight, options);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::pointwise_loss(ctx, loss, x, target, weight, pos_weight, options);
  }
  throw_not_built(op, ctx.device);
}

void pointwise_loss_backward(const Context& ctx, View dx, View dtarget, ConstView dloss, ConstView x, ConstView target,
                             ConstView weight, ConstView pos_weight, const PointwiseLoss& options) {
  const std::string name = std::string(name_of(options.kind)) + "_backward";
  const char* op = name.c_str();
  check_pair(op, ctx, x, target, weight, pos_weight, options);
  check_loss(op, ctx, "dloss", dloss, x.dtype, x.sizes, options.reduction);
  if (dx.defined()) check_gradient(op, ctx, "dx", dx, x);
  if (dtarget.defined()) check_gradient(op, ctx, "dtarget", dtarget, x);
  switch (ctx.device.kind) {
    case DeviceKind::cpu:
      return cpu::pointwise_loss_backward(ctx, dx, dtarget, dloss, x, target, weight, pos_weight, options);
    case DeviceKind::cuda:
      if constexpr (has_cuda)
        return cuda::pointwise_loss_backward(ctx, dx, dtarget, dloss, x, target, weight, pos_weight, options);
  }
  throw_not_built(op, ctx.device);
}

void nll_loss(const Context& ctx, View loss, View total_weight, ConstView x, ConstView labels, ConstView weight,
              const NllOptions& options) {
  check_nll(ctx, "x", x, labels, weight);
  check_loss(kNll, ctx, "loss", loss, x.dtype, labels.sizes, options.reduction);
  check_writable(kNll, "loss", loss);
  if (total_weight.defined()) check_loss(kNll, ctx, "total_weight", total_weight, x.dtype, {}, Reduction::sum);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::nll_loss(ctx, loss, total_weight, x, labels, weight, options);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::nll_loss(ctx, loss, total_weight, x, labels, weight, options);
  }
  throw_not_built(kNll, ctx.device);
}

void nll_loss_backward(const Context& ctx, View dx, ConstView dloss, ConstView labels, ConstView weight,
                       ConstView total_weight, const NllOptions& options) {
  check_nll(ctx, "dx", dx, labels, weight);
  check_writable(kNll, "dx", dx);
  check_loss(kNll, ctx, "dloss", dloss, dx.dtype, labels.sizes, options.reduction);
  if (options.reduction == Reduction::mean || total_weight.defined())
    check_loss(kNll, ctx, "total_weight", total_weight, dx.dtype, {}, Reduction::sum);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::nll_loss_backward(ctx, dx, dloss, labels, weight, total_weight, options);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::nll_loss_backward(ctx, dx, dloss, labels, weight, total_weight, options);
  }
  throw_not_built(kNll, ctx.device);
}

}  // namespace apex::kernels
