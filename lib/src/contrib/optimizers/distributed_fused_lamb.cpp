// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/contrib/optimizers/distributed_fused_lamb.hpp"

#include <cmath>

#include "apex/kernels/copy.hpp"
#include "apex/kernels/indexing.hpp"
#include "apex/kernels/multi_tensor_optimizers.hpp"
#include "apex/nn/functional.hpp"
#include "apex/tensor_ops.hpp"

namespace apex::contrib::optimizers {
namespace {

constexpr const char* kName = "DistributedFusedLAMB";

apex::optimizers::HyperMap defaults_from(const DistributedFusedLAMBOptions& o) {
  return {{"lr", o.lr},
          {"beta1", o.beta1},
          {"beta2", o.beta2},
          {"eps", o.eps},
          {"weight_decay", o.weight_decay},
          {"bias_correction", o.bias_correction},
          {"adam_w_mode", o.adam_w_mode},
          {"grad_averaging", o.grad_averaging},
          {"use_nvlamb", o.use_nvlamb}};
}

/// Clipping before the sum needs the norm of all gradients first.
ShardingOptions sharding_of(const DistributedFusedLAMBOptions& o) {
  const auto refuse = [](const char* why) { fail(Kind::argument, concat(kName, ": ", why)); };
  ShardingOptions s = o.sharding;
  if (s.dtype != DType::f32) refuse("dtype must be f32");
  if (s.store_param_remainders) refuse("store_param_remainders is not supported");
  if (o.e5m2_allgather && (!s.store_params || s.contiguous_param_buffer))
    refuse("e5m2_allgather needs store_params and no contiguous_param_buffer");
  if (o.skip_allgather && (s.overlap_param_sync || s.contiguous_param_buffer || !s.store_params))
    refuse("skip_allgather needs store_params, and neither overlap_param_sync nor contiguous_param_buffer");
  if (std::isnan(o.max_grad_norm)) refuse("max_grad_norm is NaN");
  if (o.amsgrad) fail(Kind::unsupported, concat(kName, ": amsgrad true: there is no AMSGrad variant; leave it out"));
  if (!o.clip_after_ar) s.overlap_grad_sync = false;
  return s;
}

ShardedOptimizerWire wire_of(const DistributedFusedLAMBOptions& o) {
  return {.full_reduce = o.full_ar,
          .e5m2 = o.e5m2_allgather,
          .gather_late = o.skip_allgather,
          .clip_own = !o.clip_after_ar && o.max_grad_norm > 0 ? o.max_grad_norm : 0.0};
}

}  // namespace

DistributedFusedLAMB::DistributedFusedLAMB(std::vector<Tensor> params, const DistributedFusedLAMBOptions& options)
    : DistributedFusedLAMB(std::vector<apex::optimizers::ParamGroup>{{.params = std::move(params)}}, options) {}

DistributedFusedLAMB::DistributedFusedLAMB(std::vector<apex::optimizers::ParamGroup> groups,
                                           const DistributedFusedLAMBOptions& options)
    : ShardedOptimizer(defaults_from(options), sharding_of(options), kName, false, wire_of(options)),
      max_grad_norm_(options.max_grad_norm),
      clip_after_(options.clip_after_ar) {
  check_hyper(defaults_from(options));
  for (auto& group : groups) add_param_group(std::move(group));
  start();
}

void DistributedFusedLAMB::check_hyper(const apex::optimizers::HyperMap& hyper) const { check_adam_hyper(hyper); }

void DistributedFusedLAMB::update_parts(const std::vector<Parts>& parts, const StepScaling& scaling, double factor) {
  const Context ctx = Context::current(device());
  Tensor norm;
  if (clip_after_ && max_grad_norm_ > 0) norm = grad_norm();
  std::vector<std::int64_t> places;
  std::vector<kernels::LambOptions> options(parts.size());
  for (std::size_t g = 0; g < parts.size(); ++g) {
    places.insert(places.end(), parts[g].param_index.begin(), parts[g].param_index.end());
    const auto& group = groups()[g];
    auto& o = options[g];
    o.in = inputs(group, scaling, factor);
    o.lr = group.number("lr");
    o.beta1 = group.number("beta1");
    o.beta2 = group.number("beta2");
    o.eps = group.number("eps");
    o.weight_decay = group.number("weight_decay");
    o.bias_correction = group.flag("bias_correction");
    o.adam_w_mode = group.flag("adam_w_mode");
    o.grad_averaging = group.flag("grad_averaging");
    o.use_nvlamb = group.flag("use_nvlamb");
    o.max_grad_norm = norm.defined() ? max_grad_norm_ : 0.0;
    o.grad_norm = norm.view();
  }
  const auto count = static_cast<std::int64_t>(places.size());
  if (places != places_ || !index_.defined()) {
    const Tensor index = empty({count, 2}, DType::i64);
    for (std::int64_t i = 0; i < count; ++i)
      for (int k = 0; k < 2; ++k) index.data<std::int64_t>()[2 * i + k] = places[static_cast<std::size_t>(i)];
    index_ = nn::functional::to(index, device());
    places_ = places;
  }

  // ||p||^2 and ||u||^2 of the parts, then of whole parameters.
  const Tensor squares = zeros({count, 2}, DType::f64, device());
  std::int64_t first = 0;
  const auto rows_of = [&](std::size_t g) {
    const auto n = static_cast<std::int64_t>(parts[g].params.size());
    return views::narrow(squares, 0, std::exchange(first, first + n), n);
  };
  for (std::size_t g = 0; g < parts.size(); ++g) {
    const Parts& p = parts[g];
    const Tensor rows = rows_of(g);
    if (p.params.empty()) continue;
    const std::vector<ConstView> weights(p.params.begin(), p.params.end());
    kernels::multi_tensor_lamb_moments(ctx, rows.view(), weights, p.exp_avg, p.exp_avg_sq, p.grads, p.steps,
                                       options[g]);
  }
  const Tensor whole = zeros({std::max<std::int64_t>(param_count(), 1), 2}, DType::f64, device());
  if (count > 0) kernels::scatter_add(ctx, whole.view(), {}, squares.view(), index_.view(), 0);
  if (distributed_group().size() > 1)
    distributed_group().in_stream().all_reduce(whole, dist::ReduceOp::sum, "norms of parameters and updates").wait();
  if (count == 0) return;
  kernels::gather(ctx, squares.view(), whole.view(), index_.view(), 0);
  first = 0;
  for (std::size_t g = 0; g < parts.size(); ++g) {
    const Parts& p = parts[g];
    const Tensor rows = rows_of(g);
    if (p.params.empty()) continue;
    const std::vector<ConstView> m(p.exp_avg.begin(), p.exp_avg.end()), v(p.exp_avg_sq.begin(), p.exp_avg_sq.end());
    kernels::multi_tensor_lamb_apply(ctx, p.params, p.copies, m, v, p.grads, p.steps, rows.view(), options[g]);
  }
}

}  // namespace apex::contrib::optimizers
