// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/cross_entropy.hpp"

#include "checks.hpp"
#include "cross_entropy_impl.hpp"

namespace apex::kernels {
namespace {

constexpr const char* kOp = "cross_entropy";

/// Logits, labels and options; returns the dtype of loss and lse.
DType check_problem(const Context& ctx, const ConstView& logits, const ConstView& labels,
                    const CrossEntropyOptions& options) {
  check_given(kOp, ctx, "logits", logits);
  check_floating(kOp, "logits", logits);
  check_rank(kOp, "logits", logits, 2);
  if (logits.size(1) < 1) fail(Kind::argument, concat(kOp, ": logits of sizes ", logits.sizes, " have no class"));
  check_given(kOp, ctx, "labels", labels);
  check_dtype(kOp, "labels", labels, DType::i64);
  check_sizes(kOp, "labels", labels, {logits.size(0)});
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1))
    fail(Kind::argument, concat(kOp, ": label_smoothing is ", options.label_smoothing, ", wanted 0 to 1"));
  return accum_dtype(logits.dtype);
}

void check_loss(const Context& ctx, const char* name, const ConstView& loss, const ConstView& logits, DType dtype,
                Reduction reduction) {
  check_given(kOp, ctx, name, loss);
  check_dtype(kOp, name, loss, dtype);
  if (reduction == Reduction::none) return check_sizes(kOp, name, loss, {logits.size(0)});
  if (loss.numel() != 1 || loss.rank() > 1)
    fail(Kind::argument, concat(kOp, ": ", name, " has sizes ", loss.sizes, ", wanted one element"));
}

void check_lse(const Context& ctx, const ConstView& lse, const ConstView& logits, DType dtype) {
  check_given(kOp, ctx, "lse", lse);
  check_dtype(kOp, "lse", lse, dtype);
  check_vector(kOp, "lse", lse, logits.size(0));
}

}  // namespace

void cross_entropy(const Context& ctx, View loss, View lse, ConstView logits, ConstView labels,
                   const CrossEntropyOptions& options) {
  const DType dtype = check_problem(ctx, logits, labels, options);
  check_loss(ctx, "loss", loss, logits, dtype, options.reduction);
  check_writable(kOp, "loss", loss);
  if (lse.defined()) check_lse(ctx, lse, logits, dtype);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::cross_entropy(ctx, loss, lse, logits, labels, options);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::cross_entropy(ctx, loss, lse, logits, labels, options);
  }
  throw_not_built(kOp, ctx.device);
}

void cross_entropy_backward(const Context& ctx, View dlogits, ConstView dloss, ConstView logits, ConstView lse,
                            ConstView labels, const CrossEntropyOptions& options) {
  const DType dtype = check_problem(ctx, logits, labels, options);
  check_given(kOp, ctx, "dlogits", dlogits);
  check_sizes(kOp, "dlogits", dlogits, logits.sizes);
  check_dtype(kOp, "dlogits", dlogits, logits.dtype);
  check_writable(kOp, "dlogits", dlogits);
  check_loss(ctx, "dloss", dloss, logits, dtype, options.reduction);
  check_lse(ctx, lse, logits, dtype);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::cross_entropy_backward(ctx, dlogits, dloss, logits, lse, labels, options);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::cross_entropy_backward(ctx, dlogits, dloss, logits, lse, labels, options);
  }
  throw_not_built(kOp, ctx.device);
}

}  // namespace apex::kernels
