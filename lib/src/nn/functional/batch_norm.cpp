// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/kernels/batch_norm.hpp"

#include "common.hpp"

namespace apex::nn::functional {

namespace {

/// What backward needs. `y` is kept only where the ReLU mask cannot be had from x.
struct Kept {
  Tensor x, weight, bias, mean, spread, y;  ///< spread: inverse standard deviation, or the running variance
  bool training;
  kernels::BatchNormOptions options;
};

Gradients batch_norm_gradients(const Kept& kept, BackwardCall& call) {
  Tensor dy = std::move(call.grads[0]);
  Tensor more = call.more.empty() ? Tensor() : std::move(call.more[0]);
  if (dy.strides() != kept.x.strides()) dy = with_strides_of(dy, kept.x);
  if (more.defined() && more.strides() != kept.x.strides()) more = with_strides_of(more, kept.x);
  const auto context = dy.context();
  Tensor dx, dresidual, dweight, dbias;
  const bool reuse = exclusive(dy);  // the masked or the whole gradient may then overwrite dy
  if (call.needs[3]) dresidual = reuse ? dy : empty_like(dy);
  if (call.needs[0]) dx = reuse && !call.needs[3] ? dy : more.defined() && exclusive(more) ? more : empty_like(dy);
  if (call.needs[1]) dweight = empty_like(kept.weight);
  if (call.needs[2]) dbias = empty_like(kept.bias);
  kernels::BatchNormOptions options = kept.options;
  options.more_dy = more.view();
  const auto backward = kept.training ? kernels::batch_norm_backward : kernels::batch_norm_inference_backward;
  backward(context, dx.view(), dresidual.view(), dweight.view(), dbias.view(), dy.view(), kept.y.view(), kept.x.view(),
           kept.weight.view(), kept.bias.view(), kept.mean.view(), kept.spread.view(), options);
  dy = Tensor();
  return {std::move(dx), std::move(dweight), std::move(dbias), std::move(dresidual)};
}

void check_arguments(const OpScope& op, const Tensor& x, const BatchNormArguments& a) {
  if (x.dim() < 2 || x.dim() > 5)
    fail(Kind::argument, concat(op.row().name, ": x of sizes ", x.sizes(), " has rank ", x.dim(), ", not 2 to 5"));
  if (!a.training && !(a.running_mean.defined() && a.running_var.defined()))
    fail(Kind::argument, concat(op.row().name, ": evaluation needs running_mean and running_var"));
}

Tensor batch_norm_op(Op which, Tensor x_in, Tensor residual_in, BatchNormArguments a, bool relu) {
  OpScope op(which, {&x_in, &a.weight, &a.bias, &a.running_mean, &a.running_var, &a.num_batches_tracked, &residual_in});
  check_arguments(op, x_in, a);
  const Tensor weight = a.weight, bias = a.bias;  // as given: what gradients are for
  if (weight.defined()) a.weight = dense(weight);
  if (bias.defined()) a.bias = dense(bias);
  const Tensor x = dense(x_in);
  const Tensor residual = residual_in.defined() ? with_strides_of(residual_in, x) : Tensor();
  const auto context = x.context();
  const kernels::BatchNormOptions options{.eps = a.eps, .relu = relu};
  Tensor y = empty_like(x), mean, spread;
  if (a.training) {
    mean = empty({x.size(1)}, accum_dtype(x.dtype()), x.device());
    spread = empty_like(mean);
    kernels::BatchNormOptions counting = options;
    counting.batches_tracked = a.num_batches_tracked.view();
    counting.cumulative = !a.momentum && a.running_mean.defined();
    kernels::batch_norm_forward(context, y.view(), mean.view(), spread.view(), a.running_mean.view(),
                                a.running_var.view(), x.view(), a.weight.view(), a.bias.view(), residual.view(),
                                a.momentum.value_or(0.0), counting);
    for (const Tensor* changed : {&a.running_mean, &a.running_var, &a.num_batches_tracked})
      if (changed->defined()) changed->raise_version();
  } else {
    mean = a.running_mean;
    spread = a.running_var;
    kernels::batch_norm_inference(context, y.view(), x.view(), mean.view(), spread.view(), a.weight.view(),
                                  a.bias.view(), residual.view(), options);
  }
  const Tensor kept_y = relu && residual.defined() ? y.detach() : Tensor();
  return op.record(
      y, {x_in, weight, bias, residual_in},
      {{"x", x},
       {"weight", a.weight},
       {"bias", relu ? a.bias : Tensor()},
       {"mean", mean},
       {"variance", spread},
       {"output", kept_y}},
      [kept = Kept{x, a.weight, a.bias, mean, spread, kept_y, a.training, options}](BackwardCall& call) {
        return batch_norm_gradients(kept, call);
      },
      true);
}

}  // namespace

Tensor batch_norm(const Tensor& x, const BatchNormArguments& arguments) {
  return batch_norm_op(Op::batch_norm, x, {}, arguments, false);
}
Tensor batch_norm_relu(const Tensor& x, const BatchNormArguments& arguments) {
  return batch_norm_op(Op::batch_norm_relu, x, {}, arguments, true);
}
Tensor batch_norm_add_relu(const Tensor& x, const Tensor& residual, const BatchNormArguments& arguments) {
  if (!residual.defined() || residual.sizes() != x.sizes())
    fail(Kind::argument, concat("batch_norm_add_relu: x of sizes ", x.sizes(), " and residual of ",
                                residual.defined() ? to_string(residual.sizes()) : "no sizes", " differ"));
  return batch_norm_op(Op::batch_norm_add_relu, x, residual, arguments, true);
}

}  // namespace apex::nn::functional
