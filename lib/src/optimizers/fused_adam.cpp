// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/optimizers/fused_adam.hpp"

#include "apex/autograd.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/kernels/elementwise.hpp"
#include "apex/tensor_ops.hpp"
#include "common.hpp"

namespace apex::optimizers {

namespace {

HyperMap defaults_from(const AdamOptions& o) {
  return {{"lr", o.lr},
          {"beta1", o.beta1},
          {"beta2", o.beta2},
          {"eps", o.eps},
          {"weight_decay", o.weight_decay},
          {"bias_correction", o.bias_correction},
          {"adam_w_mode", o.adam_w_mode},
          {"maximize", o.maximize}};
}

}  // namespace

FusedAdam::FusedAdam(std::vector<Tensor> params, const AdamOptions& options)
    : FusedAdam(std::vector<ParamGroup>{{.params = std::move(params)}}, options) {}

FusedAdam::FusedAdam(std::vector<ParamGroup> groups, const AdamOptions& o)
    : Optimizer(defaults_from(o), {.set_grad_none = o.set_grad_none,
                                   .master_weights = o.master_weights,
                                   .capturable = o.capturable,
                                   .group_step = o.group_step}),
      moment_dtype_(o.moment_dtype),
      write_unscaled_grads_(o.write_unscaled_grads) {
  refuse_amsgrad("FusedAdam", o.amsgrad);
  if (moment_dtype_ != DType::f32 && !is_16bit(moment_dtype_))
    fail(Kind::argument, concat("FusedAdam: moment_dtype ", moment_dtype_, " is none of f32, bf16, f16"));
  check_hyper(defaults_from(o));
  for (auto& group : groups) add_param_group(std::move(group));
}

HyperMap FusedAdam::options() const {
  auto out = Optimizer::options();
  out["write_unscaled_grads"] = write_unscaled_grads_;
  out["moment_bits"] = static_cast<std::int64_t>(8 * size_of(moment_dtype_));
  return out;
}

bool FusedAdam::takes_type(std::string_view name) const { return name == type() || name == "Adam" || name == "AdamW"; }

void FusedAdam::check_hyper(const HyperMap& hyper) const {
  check_not_negative("FusedAdam", hyper, {"lr", "eps", "weight_decay"});
  check_betas("FusedAdam", hyper);
}

std::vector<Optimizer::StateKey> FusedAdam::state_keys(const Tensor& param) const {
  const DType dtype = param.dtype() == DType::f64 ? DType::f64 : moment_dtype_;
  return {{.name = "exp_avg", .dtype = dtype}, {.name = "exp_avg_sq", .dtype = dtype}};
}

void FusedAdam::update(const Bucket& bucket, const ParamGroup& group) {
  kernels::AdamOptions options;
  options.in = inputs_of(bucket);
  options.lr = group.number("lr");
  options.beta1 = group.number("beta1");
  options.beta2 = group.number("beta2");
  options.eps = group.number("eps");
  options.weight_decay = group.number("weight_decay");
  options.mode = group.flag("adam_w_mode") ? kernels::AdamMode::decoupled : kernels::AdamMode::l2;
  options.bias_correction = group.flag("bias_correction");
  options.maximize = group.flag("maximize");
  options.step = bucket.step;
  kernels::multi_tensor_adam(Context::current(bucket.device), bucket.weights, bucket.state[0], bucket.state[1],
                             bucket.copies, bucket.grads, bucket.steps, options);
  if (write_unscaled_grads_ && bucket.scaling.inv_scale.defined()) unscale(bucket);
}

/// grad *= inv_scale unless the step is skipped, which only the device may know.
void FusedAdam::unscale(const Bucket& bucket) const {
  const auto& ctx = Context::current(bucket.device);
  Tensor factor = bucket.scaling.inv_scale;
  if (const Tensor& found = bucket.scaling.found_inf; found.defined()) {
    const Tensor zero = zeros({1}, found.dtype(), bucket.device), skipped = empty({1}, DType::boolean, bucket.device);
    const Tensor one = ones({1}, DType::f32, bucket.device), chosen = empty({1}, DType::f32, bucket.device);
    const Tensor flag = views::reshape(found, {1});
    kernels::compare(ctx, skipped.view(), flag.view(), zero.view(), kernels::CompareOp::ne);
    kernels::where(ctx, chosen.view(), skipped.view(), one.view(), views::reshape(factor, {1}).view());
    factor = chosen;
  }
  for (const auto& p : bucket.params) {
    const Tensor g = gradient_of(p);
    // Through f32: 1 / 65536 is not a normal f16.
    const DType dtype = g.dtype() == DType::f64 ? DType::f64 : DType::f32;
    const Tensor wide = empty_like(g, dtype), by = empty({1}, dtype, bucket.device);
    kernels::copy(ctx, wide.view(), g.view());
    kernels::copy(ctx, by.view(), views::reshape(factor, {1}).view());
    const Tensor stretched = views::expand(views::reshape(by, Dims::filled(g.dim(), 1)), g.sizes());
    kernels::binary(ctx, wide.view(), wide.view(), stretched.view(), kernels::BinaryOp::mul);
    kernels::copy(ctx, g.view(), wide.view());
    g.raise_version();
  }
}

}  // namespace apex::optimizers
