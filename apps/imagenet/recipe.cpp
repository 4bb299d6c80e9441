// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "recipe.hpp"

#include "apex/contrib/clip_grad.hpp"
#include "apex/contrib/optimizers/distributed_fused_adam.hpp"
#include "apex/contrib/optimizers/distributed_fused_lamb.hpp"
#include "apex/optimizers/fused_adagrad.hpp"
#include "apex/optimizers/fused_adam.hpp"
#include "apex/optimizers/fused_lamb.hpp"
#include "apex/optimizers/fused_novograd.hpp"
#include "apex/optimizers/fused_sgd.hpp"

namespace imagenet {
namespace {

namespace optim = apex::optimizers;

/// One group, or two: what decays, and biases and batch norm, which do not.
std::vector<optim::ParamGroup> parameter_groups(const apex::nn::Module& model, const Options& options) {
  if (!options.no_norm_decay) return {{.params = model.parameters()}};
  optim::ParamGroup decayed, plain{.params = {}, .hyper = {{"weight_decay", 0.0}}};
  for (const auto& p : model.parameters()) (p.dim() > 1 ? decayed : plain).params.push_back(p);
  return {decayed, plain};
}

namespace sharded = apex::contrib::optimizers;

double eps_of(const Options& o, double own) { return o.eps >= 0 ? o.eps : own; }

std::unique_ptr<sharded::ShardedOptimizer> make_sharded(std::vector<optim::ParamGroup> groups, const Options& o) {
  const auto& train = o.train;
  const sharded::ShardingOptions spread{.bucket_cap_mb = train.bucket_cap_mb};
  if (o.optimizer == "zero-lamb") {
    const optim::LambOptions own;
    return std::make_unique<sharded::DistributedFusedLAMB>(
        std::move(groups),
        sharded::DistributedFusedLAMBOptions{.lr = train.lr,
                                             .bias_correction = !o.no_bias_correction,
                                             .beta1 = o.beta1,
                                             .beta2 = o.beta2,
                                             .eps = eps_of(o, own.eps),
                                             .weight_decay = train.weight_decay,
                                             .max_grad_norm = o.clip_grad >= 0 ? o.clip_grad : own.max_grad_norm,
                                             .sharding = spread});
  }
  return std::make_unique<sharded::DistributedFusedAdam>(
      std::move(groups), sharded::DistributedFusedAdamOptions{.lr = train.lr,
                                                              .bias_correction = !o.no_bias_correction,
                                                              .beta1 = o.beta1,
                                                              .beta2 = o.beta2,
                                                              .eps = eps_of(o, optim::AdamOptions{}.eps),
                                                              .adam_w_mode = o.optimizer == "zero-adamw",
                                                              .weight_decay = train.weight_decay,
                                                              .sharding = spread});
}

std::unique_ptr<optim::Optimizer> make_optimizer(std::vector<optim::ParamGroup> groups, const Options& o,
                                                 bool masters) {
  const auto& train = o.train;
  if (o.optimizer == "adam" || o.optimizer == "adamw")
    return std::make_unique<optim::FusedAdam>(std::move(groups),
                                              optim::AdamOptions{.lr = train.lr,
                                                                 .bias_correction = !o.no_bias_correction,
                                                                 .beta1 = o.beta1,
                                                                 .beta2 = o.beta2,
                                                                 .eps = eps_of(o, optim::AdamOptions{}.eps),
                                                                 .adam_w_mode = o.optimizer == "adamw",
                                                                 .weight_decay = train.weight_decay,
                                                                 .master_weights = masters});
  if (o.optimizer == "lamb") {
    const optim::LambOptions own;
    return std::make_unique<optim::FusedLAMB>(
        std::move(groups), optim::LambOptions{.lr = train.lr,
                                              .bias_correction = !o.no_bias_correction,
                                              .beta1 = o.beta1,
                                              .beta2 = o.beta2,
                                              .eps = eps_of(o, own.eps),
                                              .weight_decay = train.weight_decay,
                                              .max_grad_norm = o.clip_grad >= 0 ? o.clip_grad : own.max_grad_norm,
                                              .master_weights = masters});
  }
  if (o.optimizer == "novograd")
    return std::make_unique<optim::FusedNovoGrad>(std::move(groups),
                                                  optim::NovoGradOptions{.lr = train.lr,
                                                                         .bias_correction = !o.no_bias_correction,
                                                                         .beta1 = o.beta1,
                                                                         .beta2 = o.beta2,
                                                                         .eps = eps_of(o, optim::NovoGradOptions{}.eps),
                                                                         .weight_decay = train.weight_decay,
                                                                         .master_weights = masters});
  if (o.optimizer == "adagrad")
    return std::make_unique<optim::FusedAdagrad>(std::move(groups),
                                                 optim::AdagradOptions{.lr = train.lr,
                                                                       .eps = eps_of(o, optim::AdagradOptions{}.eps),
                                                                       .weight_decay = train.weight_decay,
                                                                       .master_weights = masters});
  return std::make_unique<optim::FusedSGD>(std::move(groups), optim::SGDOptions{.lr = train.lr,
                                                                                .momentum = train.momentum,
                                                                                .weight_decay = train.weight_decay,
                                                                                .nesterov = o.nesterov,
                                                                                .master_weights = masters});
}

}  // namespace

Recipe::Recipe(const apex::nn::Module& model, const Options& options, bool masters) {
  if (options.optimizer.starts_with("zero-")) {
    auto spread = make_sharded(parameter_groups(model, options), options);
    sharded_ = spread.get();
    optimizer_ = std::move(spread);
    if (options.optimizer != "zero-lamb") most_ = options.clip_grad;
    return;
  }
  optimizer_ = make_optimizer(parameter_groups(model, options), options, masters);
  if (options.optimizer == "larc-sgd")
    larc_ = std::make_unique<apex::parallel::LARC>(
        *optimizer_, apex::parallel::LARCOptions{.trust_coefficient = options.trust_coefficient,
                                                 .eps = eps_of(options, apex::parallel::LARCOptions{}.eps)});
  if (options.clip_grad <= 0 || options.optimizer == "lamb") return;  // LAMB clips by itself
  clipped_ = model.parameters();
  most_ = options.clip_grad * apex::train::loss_scale_of(options.train);
}

void Recipe::step(const apex::optimizers::StepScaling& scaling) {
  if (sharded_ != nullptr && most_ > 0) {
    if (scaling.inv_scale.defined()) sharded_->unscale_grads(scaling.inv_scale);
    sharded_->clip_grad_norm(most_);
  }
  if (!clipped_.empty()) apex::contrib::clip_grad::clip_grad_norm_(clipped_, most_);
  if (larc_)
    larc_->step(scaling);
  else
    optimizer_->step(scaling);
}

}  // namespace imagenet
