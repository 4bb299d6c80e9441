// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/batch_norm.hpp"

#include "apex/kernels/elementwise.hpp"
#include "batch_norm_impl.hpp"
#include "checks.hpp"

namespace apex::kernels {
namespace {

constexpr const char* kOp = "batch_norm";

/// The input, given, floating, of rank 2 to 5 and dense with channels innermost or behind the batch.
void check_input(const Context& ctx, const ConstView& x) {
  check_given(kOp, ctx, "x", x);
  check_floating(kOp, "x", x);
  if (x.rank() < 2 || x.rank() > 5)
    fail(Kind::argument, concat(kOp, ": x has sizes ", x.sizes, ", wanted rank 2 to 5"));
  if (x.is_contiguous()) return;
  std::int64_t expected = x.size(1);
  bool last = x.size(1) == 1 || x.stride(1) == 1;
  for (int d = x.rank() - 1; d >= 0; --d) {
    if (d == 1) continue;
    last = last && (x.sizes[d] == 1 || x.strides[d] == expected);
    expected *= x.sizes[d];
  }
  if (!last)
    fail(Kind::argument, concat(kOp, ": x of sizes ", x.sizes, " and strides ", x.strides,
                                " is neither row-major nor channels-last; copy it first"));
}

void check_like_input(const Context& ctx, const char* name, const ConstView& v, const ConstView& x) {
  check_given(kOp, ctx, name, v);
  check_sizes(kOp, name, v, x.sizes);
  check_dtype(kOp, name, v, x.dtype);
  if (!same_strides(v, x))
    fail(Kind::argument, concat(kOp, ": ", name, " has strides ", v.strides, ", x has ", x.strides, "; copy it first"));
}

void check_like_input_if_given(const Context& ctx, const char* name, const ConstView& v, const ConstView& x) {
  if (v.defined()) check_like_input(ctx, name, v, x);
}

/// [C] in the accumulation type.
void check_statistic(const Context& ctx, const char* name, const ConstView& v, const ConstView& x) {
  check_given(kOp, ctx, name, v);
  check_vector(kOp, name, v, x.size(1));
  check_dtype(kOp, name, v, accum_dtype(x.dtype));
}

/// [C] in x's type or the accumulation type, or not given.
void check_parameter(const Context& ctx, const char* name, const ConstView& v, const ConstView& x) {
  check_optional(kOp, ctx, name, v);
  if (!v.defined()) return;
  check_vector(kOp, name, v, x.size(1));
  check_dtype(kOp, name, v, {x.dtype, accum_dtype(x.dtype)});
}

void check_eps(double eps) {
  if (!(eps > 0)) fail(Kind::argument, concat(kOp, ": eps is ", eps, ", wanted more than 0"));
}

void check_running(const Context& ctx, const ConstView& mean, const ConstView& var, const ConstView& x) {
  if (mean.defined() != var.defined())
    fail(Kind::argument, concat(kOp, ": running_mean and running_var go together, only one is given"));
  check_parameter(ctx, "running_mean", mean, x);
  check_parameter(ctx, "running_var", var, x);
}

/// One i64, or not given.
void check_counter(const Context& ctx, const ConstView& v) {
  check_optional(kOp, ctx, "batches_tracked", v);
  if (!v.defined()) return;
  check_dtype(kOp, "batches_tracked", v, DType::i64);
  if (v.numel() != 1)
    fail(Kind::argument, concat(kOp, ": batches_tracked has sizes ", v.sizes, ", wanted one element"));
}

/// What all backward functions take alike.
void check_backward(const Context& ctx, const View& dresidual, const ConstView& dy, const ConstView& y,
                    const ConstView& x, const ConstView& weight, const ConstView& bias, bool relu) {
  check_input(ctx, x);
  check_like_input(ctx, "dy", dy, x);
  check_like_input_if_given(ctx, "dresidual", dresidual, x);
  if (relu) check_like_input_if_given(ctx, "y", y, x);
  check_parameter(ctx, "weight", weight, x);
  check_parameter(ctx, "bias", bias, x);
}

}  // namespace

void batch_norm_forward(const Context& ctx, View y, View mean, View inv_std, View running_mean, View running_var,
                        ConstView x, ConstView weight, ConstView bias, ConstView residual, double momentum,
                        const BatchNormOptions& options) {
  check_input(ctx, x);
  check_like_input(ctx, "y", y, x);
  check_like_input_if_given(ctx, "residual", residual, x);
  check_statistic(ctx, "mean", mean, x);
  check_statistic(ctx, "inv_std", inv_std, x);
  check_running(ctx, running_mean, running_var, x);
  check_parameter(ctx, "weight", weight, x);
  check_parameter(ctx, "bias", bias, x);
  check_counter(ctx, options.batches_tracked);
  if (options.cumulative && !options.batches_tracked.defined())
    fail(Kind::argument, concat(kOp, ": a cumulative average needs batches_tracked, which is not given"));
  check_eps(options.eps);
  if (x.numel() == x.size(1) && x.numel() > 0)
    fail(Kind::argument, concat(kOp, ": training needs more than one value per channel, x has sizes ", x.sizes));
  switch (ctx.device.kind) {
    case DeviceKind::cpu:
      return cpu::batch_norm_forward(ctx, y, mean, inv_std, running_mean, running_var, x, weight, bias, residual,
                                     momentum, options);
    case DeviceKind::cuda:
      if constexpr (has_cuda)
        return cuda::batch_norm_forward(ctx, y, mean, inv_std, running_mean, running_var, x, weight, bias, residual,
                                        momentum, options);
  }
  throw_not_built(kOp, ctx.device);
}

void batch_norm_inference(const Context& ctx, View y, ConstView x, ConstView running_mean, ConstView running_var,
                          ConstView weight, ConstView bias, ConstView residual, const BatchNormOptions& options) {
  check_input(ctx, x);
  check_like_input(ctx, "y", y, x);
  check_like_input_if_given(ctx, "residual", residual, x);
  check_given(kOp, ctx, "running_mean", running_mean);
  check_running(ctx, running_mean, running_var, x);
  check_parameter(ctx, "weight", weight, x);
  check_parameter(ctx, "bias", bias, x);
  check_eps(options.eps);
  switch (ctx.device.kind) {
    case DeviceKind::cpu:
      return cpu::batch_norm_inference(ctx, y, x, running_mean, running_var, weight, bias, residual, options);
    case DeviceKind::cuda:
      if constexpr (has_cuda)
        return cuda::batch_norm_inference(ctx, y, x, running_mean, running_var, weight, bias, residual, options);
  }
  throw_not_built(kOp, ctx.device);
}

namespace {

/// Both terms of the gradient in one, for backward ops that take one.
struct SummedGradient {
  Workspace memory;
  View sum;
  BatchNormOptions options;

  SummedGradient(const Context& ctx, const ConstView& dy, const ConstView& x, const BatchNormOptions& given)
      : options(given) {
    check_like_input(ctx, "dy", dy, x);
    check_like_input(ctx, "more_dy", given.more_dy, x);
    memory = ctx.workspace(static_cast<std::size_t>(dy.numel()) * size_of(dy.dtype));
    sum.data = memory.data();
    sum.dtype = dy.dtype;
    sum.device = dy.device;
    sum.sizes = dy.sizes;
    sum.strides = dy.strides;
    sum.present = true;
    binary(ctx, sum, dy, given.more_dy, BinaryOp::add);
    options.more_dy = {};
  }
};

}  // namespace

void batch_norm_backward(const Context& ctx, View dx, View dresidual, View dweight, View dbias, ConstView dy,
                         ConstView y, ConstView x, ConstView weight, ConstView bias, ConstView mean, ConstView inv_std,
                         const BatchNormOptions& options) {
  if (options.more_dy.defined()) {
    const bool in_one_pass = ctx.device.is_cuda() && options.relu && y.defined() && dresidual.defined();
    if (!in_one_pass) {
      const SummedGradient g(ctx, dy, x, options);
      return batch_norm_backward(ctx, dx, dresidual, dweight, dbias, g.sum, y, x, weight, bias, mean, inv_std,
                                 g.options);
    }
    check_like_input(ctx, "more_dy", options.more_dy, x);
  }
  check_backward(ctx, dresidual, dy, y, x, weight, bias, options.relu);
  check_like_input_if_given(ctx, "dx", dx, x);
  check_parameter(ctx, "dweight", dweight, x);
  check_parameter(ctx, "dbias", dbias, x);
  check_statistic(ctx, "mean", mean, x);
  check_statistic(ctx, "inv_std", inv_std, x);
  switch (ctx.device.kind) {
    case DeviceKind::cpu:
      return cpu::batch_norm_backward(ctx, dx, dresidual, dweight, dbias, dy, y, x, weight, bias, mean, inv_std,
                                      options);
    case DeviceKind::cuda:
      if constexpr (has_cuda)
        return cuda::batch_norm_backward(ctx, dx, dresidual, dweight, dbias, dy, y, x, weight, bias, mean, inv_std,
                                         options);
  }
  throw_not_built(kOp, ctx.device);
}

void batch_norm_inference_backward(const Context& ctx, View dx, View dresidual, View dweight, View dbias, ConstView dy,
                                   ConstView y, ConstView x, ConstView weight, ConstView bias, ConstView running_mean,
                                   ConstView running_var, const BatchNormOptions& options) {
  if (options.more_dy.defined()) {
    const SummedGradient g(ctx, dy, x, options);
    return batch_norm_inference_backward(ctx, dx, dresidual, dweight, dbias, g.sum, y, x, weight, bias, running_mean,
                                         running_var, g.options);
  }
  check_backward(ctx, dresidual, dy, y, x, weight, bias, options.relu);
  check_like_input_if_given(ctx, "dx", dx, x);
  check_parameter(ctx, "dweight", dweight, x);
  check_parameter(ctx, "dbias", dbias, x);
  check_given(kOp, ctx, "running_mean", running_mean);
  check_running(ctx, running_mean, running_var, x);
  check_eps(options.eps);
  switch (ctx.device.kind) {
    case DeviceKind::cpu:
      return cpu::batch_norm_inference_backward(ctx, dx, dresidual, dweight, dbias, dy, y, x, weight, bias,
                                                running_mean, running_var, options);
    case DeviceKind::cuda:
      if constexpr (has_cuda)
        return cuda::batch_norm_inference_backward(ctx, dx, dresidual, dweight, dbias, dy, y, x, weight, bias,
                                                   running_mean, running_var, options);
  }
  throw_not_built(kOp, ctx.device);
}

void batch_norm_statistics(const Context& ctx, View mean, View var, ConstView x) {
  check_input(ctx, x);
  check_statistic(ctx, "mean", mean, x);
  check_statistic(ctx, "var", var, x);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::batch_norm_statistics(ctx, mean, var, x);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::batch_norm_statistics(ctx, mean, var, x);
  }
  throw_not_built(kOp, ctx.device);
}

void batch_norm_finish_statistics(const Context& ctx, View inv_std, View running_mean, View running_var, ConstView mean,
                                  ConstView var, double n, double momentum, double eps) {
  check_given(kOp, ctx, "mean", mean);
  check_wide_floating(kOp, "mean", mean);
  check_rank(kOp, "mean", mean, 1);
  for (const auto& [name, v] : {std::pair<const char*, ConstView>{"mean", mean}, {"var", var}, {"inv_std", inv_std}}) {
    check_given(kOp, ctx, name, v);
    check_vector(kOp, name, v, mean.size(0));
    check_dtype(kOp, name, v, mean.dtype);
  }
  if (running_mean.defined() != running_var.defined())
    fail(Kind::argument, concat(kOp, ": running_mean and running_var go together, only one is given"));
  if (running_mean.defined())
    for (const auto& [name, v] :
         {std::pair<const char*, ConstView>{"running_mean", running_mean}, {"running_var", running_var}}) {
      check_given(kOp, ctx, name, v);
      check_vector(kOp, name, v, mean.size(0));
      check_floating(kOp, name, v);
    }
  check_eps(eps);
  switch (ctx.device.kind) {
    case DeviceKind::cpu:
      return cpu::batch_norm_finish_statistics(ctx, inv_std, running_mean, running_var, mean, var, n, momentum, eps);
    case DeviceKind::cuda:
      if constexpr (has_cuda)
        return cuda::batch_norm_finish_statistics(ctx, inv_std, running_mean, running_var, mean, var, n, momentum, eps);
  }
  throw_not_built(kOp, ctx.device);
}

void batch_norm_apply(const Context& ctx, View y, ConstView x, ConstView mean, ConstView inv_std, ConstView weight,
                      ConstView bias, ConstView residual, bool relu) {
  check_input(ctx, x);
  check_like_input(ctx, "y", y, x);
  check_like_input_if_given(ctx, "residual", residual, x);
  check_statistic(ctx, "mean", mean, x);
  check_statistic(ctx, "inv_std", inv_std, x);
  check_parameter(ctx, "weight", weight, x);
  check_parameter(ctx, "bias", bias, x);
  switch (ctx.device.kind) {
    case DeviceKind::cpu: return cpu::batch_norm_apply(ctx, y, x, mean, inv_std, weight, bias, residual, relu);
    case DeviceKind::cuda:
      if constexpr (has_cuda) return cuda::batch_norm_apply(ctx, y, x, mean, inv_std, weight, bias, residual, relu);
  }
  throw_not_built(kOp, ctx.device);
}

void batch_norm_backward_reduce(const Context& ctx, View sum_dy, View sum_dy_xmu, View dresidual, ConstView dy,
                                ConstView y, ConstView x, ConstView weight, ConstView bias, ConstView mean,
                                ConstView inv_std, bool relu) {
  check_backward(ctx, dresidual, dy, y, x, weight, bias, relu);
  check_statistic(ctx, "mean", mean, x);
  check_statistic(ctx, "inv_std", inv_std, x);
  check_statistic(ctx, "sum_dy", sum_dy, x);
  check_statistic(ctx, "sum_dy_xmu", sum_dy_xmu, x);
  switch (ctx.device.kind) {
    case DeviceKind::cpu:
      return cpu::batch_norm_backward_reduce(ctx, sum_dy, sum_dy_xmu, dresidual, dy, y, x, weight, bias, mean, inv_std,
                                             relu);
    case DeviceKind::cuda:
      if constexpr (has_cuda)
        return cuda::batch_norm_backward_reduce(ctx, sum_dy, sum_dy_xmu, dresidual, dy, y, x, weight, bias, mean,
                                                inv_std, relu);
  }
  throw_not_built(kOp, ctx.device);
}

void batch_norm_backward_apply(const Context& ctx, View dx, ConstView dy, ConstView y, ConstView x, ConstView weight,
                               ConstView bias, ConstView mean, ConstView inv_std, ConstView sum_dy,
                               ConstView sum_dy_xmu, double n, bool relu) {
  check_backward(ctx, View{}, dy, y, x, weight, bias, relu);
  check_like_input(ctx, "dx", dx, x);
  check_statistic(ctx, "mean", mean, x);
  check_statistic(ctx, "inv_std", inv_std, x);
  check_statistic(ctx, "sum_dy", sum_dy, x);
  check_statistic(ctx, "sum_dy_xmu", sum_dy_xmu, x);
  switch (ctx.device.kind) {
    case DeviceKind::cpu:
      return cpu::batch_norm_backward_apply(ctx, dx, dy, y, x, weight, bias, mean, inv_std, sum_dy, sum_dy_xmu, n,
                                            relu);
    case DeviceKind::cuda:
      if constexpr (has_cuda)
        return cuda::batch_norm_backward_apply(ctx, dx, dy, y, x, weight, bias, mean, inv_std, sum_dy, sum_dy_xmu, n,
                                               relu);
  }
  throw_not_built(kOp, ctx.device);
}

}  // namespace apex::kernels
