// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/nn/layers.hpp"

#include <cmath>

#include "apex/tensor_ops.hpp"

namespace apex::nn {

namespace {

/// +-1 / sqrt(fan_in): what kaiming_uniform with slope sqrt(5) comes to, used for weight and bias alike.
double default_bound(const Tensor& weight) { return 1.0 / std::sqrt(static_cast<double>(init::fans(weight).in)); }

void check_conv(const Conv2d::Options& o) {
  if (o.in_channels < 1 || o.out_channels < 1 || o.groups < 1 || o.kernel[0] < 1 || o.kernel[1] < 1)
    fail(Kind::argument,
         concat("Conv2d: ", o.in_channels, " to ", o.out_channels, " channels in ", o.groups,
                " groups with a kernel of ", o.kernel[0], " x ", o.kernel[1], "; all must be positive"));
  if (o.in_channels % o.groups != 0 || o.out_channels % o.groups != 0)
    fail(Kind::argument,
         concat("Conv2d: ", o.groups, " groups do not divide ", o.in_channels, " and ", o.out_channels, " channels"));
  for (int i = 0; i < 2; ++i)
    if (o.stride[i] < 1 || o.padding[i] < 0 || o.dilation[i] < 1)
      fail(Kind::argument, concat("Conv2d: stride ", o.stride[i], " and dilation ", o.dilation[i],
                                  " must be positive and padding ", o.padding[i], " not negative"));
}

}  // namespace

Conv2d::Conv2d(const Options& options, Generator& generator) : options_(options) {
  check_conv(options);
  weight_ = register_parameter("weight", empty({options.out_channels, options.in_channels / options.groups,
                                                options.kernel[0], options.kernel[1]}));
  const double bound = default_bound(weight_);
  if (options.draw) init::uniform(weight_, -bound, bound, generator);
  if (!options.bias) return;
  bias_ = register_parameter("bias", empty({options.out_channels}));
  if (options.draw) init::uniform(bias_, -bound, bound, generator);
}

Tensor Conv2d::forward(const Tensor& x) {
  return functional::conv2d(x, weight_, bias_,
                            {.stride = options_.stride,
                             .padding = options_.padding,
                             .dilation = options_.dilation,
                             .groups = options_.groups});
}

Linear::Linear(std::int64_t in_features, std::int64_t out_features, bool bias, Generator& generator) {
  if (in_features < 1 || out_features < 1)
    fail(Kind::argument, concat("Linear: ", in_features, " to ", out_features, " features; both must be positive"));
  weight_ = register_parameter("weight", empty({out_features, in_features}));
  const double bound = default_bound(weight_);
  init::uniform(weight_, -bound, bound, generator);
  if (!bias) return;
  bias_ = register_parameter("bias", empty({out_features}));
  init::uniform(bias_, -bound, bound, generator);
}

Tensor Linear::forward(const Tensor& x) { return functional::linear(x, weight_, bias_); }

Embedding::Embedding(std::int64_t entries, std::int64_t features, std::optional<std::int64_t> padding_idx,
                     Generator& generator)
    : padding_idx_(padding_idx) {
  if (entries < 1 || features < 1)
    fail(Kind::argument, concat("Embedding: ", entries, " entries of ", features, " features; both must be positive"));
  if (padding_idx_ && *padding_idx_ < 0) *padding_idx_ += entries;
  if (padding_idx_ && (*padding_idx_ < 0 || *padding_idx_ >= entries))
    fail(Kind::argument, concat("Embedding: padding_idx ", *padding_idx, " is outside of ", entries, " entries"));
  weight_ = register_parameter("weight", empty({entries, features}));
  init::normal(weight_, 0.0, 1.0, generator);
  if (padding_idx_) init::constant(views::select(weight_, 0, *padding_idx_), 0.0);
}

Tensor Embedding::forward(const Tensor& indices) { return functional::embedding(indices, weight_, padding_idx_); }

namespace {
void check_momentum(std::optional<double> momentum) {
  if (momentum && !(*momentum >= 0.0 && *momentum <= 1.0))
    fail(Kind::argument, concat("BatchNorm2d: momentum ", *momentum, " is not in [0, 1]"));
}
}  // namespace

BatchNorm2d::BatchNorm2d(std::int64_t num_features, const Options& options)
    : features_(num_features), options_(options) {
  if (num_features < 1)
    fail(Kind::argument, concat("BatchNorm2d: ", num_features, " features; at least one is needed"));
  if (!(options.eps > 0.0)) fail(Kind::argument, concat("BatchNorm2d: eps ", options.eps, " must be positive"));
  check_momentum(options.momentum);
  if (options.affine) {
    weight_ = register_parameter("weight", ones({num_features}));
    bias_ = register_parameter("bias", zeros({num_features}));
  }
  if (options.track_running_stats) {
    running_mean_ = register_buffer("running_mean", zeros({num_features}));
    running_var_ = register_buffer("running_var", ones({num_features}));
    num_batches_tracked_ = register_buffer("num_batches_tracked", zeros({}, DType::i64));
  }
}

void BatchNorm2d::set_momentum(std::optional<double> momentum) {
  check_momentum(momentum);
  options_.momentum = momentum;
}

functional::BatchNormArguments BatchNorm2d::arguments() const {
  const bool tracking = options_.track_running_stats;
  functional::BatchNormArguments a{.weight = weight_, .bias = bias_, .eps = options_.eps};
  a.training = !tracking || (is_training() && !frozen_);
  if (!tracking) return a;
  a.running_mean = running_mean_;
  a.running_var = running_var_;
  if (!a.training) return a;
  a.num_batches_tracked = num_batches_tracked_;
  a.momentum = options_.momentum ? *options_.momentum : 1.0 / (num_batches_tracked_.item() + 1.0);
  return a;
}

Tensor BatchNorm2d::forward(const Tensor& x) { return functional::batch_norm(x, arguments()); }
Tensor BatchNorm2d::forward_relu(const Tensor& x) { return functional::batch_norm_relu(x, arguments()); }
Tensor BatchNorm2d::forward_add_relu(const Tensor& x, const Tensor& residual) {
  return functional::batch_norm_add_relu(x, residual, arguments());
}

Tensor ReLU::forward(const Tensor& x) { return functional::relu(x); }
Tensor MaxPool2d::forward(const Tensor& x) { return functional::max_pool2d(x, options_); }
Tensor AvgPool2d::forward(const Tensor& x) { return functional::avg_pool2d(x, options_); }
Tensor AdaptiveAvgPool2d::forward(const Tensor& x) { return functional::adaptive_avg_pool2d(x, output_); }
Tensor Flatten::forward(const Tensor& x) { return functional::flatten(x, start_, end_); }

Dropout::Dropout(double p, Generator& generator) : p_(p), generator_(&generator) {
  if (!(p >= 0.0 && p <= 1.0)) fail(Kind::argument, concat("Dropout: p = ", p, " is not in [0, 1]"));
}
Tensor Dropout::forward(const Tensor& x) { return functional::dropout(x, p_, is_training(), *generator_); }

void Sequential::push_back(std::shared_ptr<Module> module) {
  register_module(std::to_string(children().size()), std::move(module));
}

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (const auto& child : children()) y = (*child.module)(y);
  return y;
}

}  // namespace apex::nn
