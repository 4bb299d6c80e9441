// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/nn/layers.hpp"

#include <cmath>
#include <type_traits>

#include "apex/tensor_ops.hpp"

namespace apex::nn {

namespace {

/// +-1 / sqrt(fan_in): what kaiming_uniform with slope sqrt(5) comes to, used for weight and bias alike.
double default_bound(const Tensor& weight) { return 1.0 / std::sqrt(static_cast<double>(init::fans(weight).in)); }

/// The options that all kinds of convolution share; sizes along one dimension, or along both.
template <class Options>
void check_conv(const char* kind, const Options& o) {
  const auto all = [](const auto& sizes, std::int64_t least) {
    if constexpr (std::is_integral_v<std::remove_cvref_t<decltype(sizes)>>)
      return sizes >= least;
    else
      return sizes[0] >= least && sizes[1] >= least;
  };
  const auto text = [](const auto& sizes) {
    if constexpr (std::is_integral_v<std::remove_cvref_t<decltype(sizes)>>)
      return concat(sizes);
    else
      return concat(sizes[0], " x ", sizes[1]);
  };
  if (o.in_channels < 1 || o.out_channels < 1 || o.groups < 1 || !all(o.kernel, 1))
    fail(Kind::argument, concat(kind, ": ", o.in_channels, " to ", o.out_channels, " channels in ", o.groups,
                                " groups with a kernel of ", text(o.kernel), "; all must be positive"));
  if (o.in_channels % o.groups != 0 || o.out_channels % o.groups != 0)
    fail(Kind::argument,
         concat(kind, ": ", o.groups, " groups do not divide ", o.in_channels, " and ", o.out_channels, " channels"));
  if (!all(o.stride, 1) || !all(o.padding, 0) || !all(o.dilation, 1))
    fail(Kind::argument, concat(kind, ": stride ", text(o.stride), " and dilation ", text(o.dilation),
                                " must be positive and padding ", text(o.padding), " not negative"));
}

/// Along one dimension of a transposed convolution.
void check_output_padding(const char* kind, std::int64_t more, std::int64_t stride, std::int64_t dilation) {
  if (more < 0 || (more >= stride && more >= dilation))
    fail(Kind::argument, concat(kind, ": output_padding ", more, " is not at least 0 and less than stride ", stride,
                                " or dilation ", dilation));
}

/// The weight of a convolution and, where it has one, its bias, as PyTorch draws them. keep(name, tensor) registers.
template <class Options, class Keep>
void draw_parameters(const Options& options, bool draw, const Dims& sizes, Tensor& weight, Tensor& bias,
                     Generator& generator, Keep&& keep) {
  weight = keep("weight", empty(sizes));
  const double bound = default_bound(weight);
  if (draw) init::uniform(weight, -bound, bound, generator);
  if (!options.bias) return;
  bias = keep("bias", empty({options.out_channels}));
  if (draw) init::uniform(bias, -bound, bound, generator);
}

}  // namespace

Conv2d::Conv2d(const Options& options, Generator& generator) : options_(options) {
  check_conv("Conv2d", options);
  draw_parameters(options, options.draw,
                  {options.out_channels, options.in_channels / options.groups, options.kernel[0], options.kernel[1]},
                  weight_, bias_, generator,
                  [this](const char* name, const Tensor& t) { return register_parameter(name, t); });
}

Tensor Conv2d::forward(const Tensor& x) {
  return functional::conv2d(x, weight_, bias_,
                            {.stride = options_.stride,
                             .padding = options_.padding,
                             .dilation = options_.dilation,
                             .groups = options_.groups});
}

ConvTranspose2d::ConvTranspose2d(const Options& options, Generator& generator) : options_(options) {
  check_conv("ConvTranspose2d", options);
  for (std::size_t i = 0; i < 2; ++i)
    check_output_padding("ConvTranspose2d", options.output_padding[i], options.stride[i], options.dilation[i]);
  draw_parameters(options, options.draw,
                  {options.in_channels, options.out_channels / options.groups, options.kernel[0], options.kernel[1]},
                  weight_, bias_, generator,
                  [this](const char* name, const Tensor& t) { return register_parameter(name, t); });
}

Tensor ConvTranspose2d::forward(const Tensor& x) {
  return functional::conv_transpose2d(x, weight_, bias_,
                                      {.stride = options_.stride,
                                       .padding = options_.padding,
                                       .output_padding = options_.output_padding,
                                       .dilation = options_.dilation,
                                       .groups = options_.groups});
}

Conv1d::Conv1d(const Options& options, Generator& generator) : options_(options) {
  check_conv("Conv1d", options);
  draw_parameters(options, true, {options.out_channels, options.in_channels / options.groups, options.kernel}, weight_,
                  bias_, generator, [this](const char* name, const Tensor& t) { return register_parameter(name, t); });
}

Tensor Conv1d::forward(const Tensor& x) {
  return functional::conv1d(x, weight_, bias_,
                            {.stride = options_.stride,
                             .padding = options_.padding,
                             .dilation = options_.dilation,
                             .groups = options_.groups});
}

ConvTranspose1d::ConvTranspose1d(const Options& options, Generator& generator) : options_(options) {
  check_conv("ConvTranspose1d", options);
  check_output_padding("ConvTranspose1d", options.output_padding, options.stride, options.dilation);
  draw_parameters(options, true, {options.in_channels, options.out_channels / options.groups, options.kernel}, weight_,
                  bias_, generator, [this](const char* name, const Tensor& t) { return register_parameter(name, t); });
}

Tensor ConvTranspose1d::forward(const Tensor& x) {
  return functional::conv_transpose1d(x, weight_, bias_,
                                      {.stride = options_.stride,
                                       .padding = options_.padding,
                                       .output_padding = options_.output_padding,
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
void check_momentum(const char* kind, std::optional<double> momentum) {
  if (momentum && !(*momentum >= 0.0 && *momentum <= 1.0))
    fail(Kind::argument, concat(kind, ": momentum ", *momentum, " is not in [0, 1]"));
}
}  // namespace

BatchNorm::BatchNorm(const char* kind, int least, int most, std::int64_t num_features, const Options& options)
    : kind_(kind), least_(least), most_(most), features_(num_features), options_(options) {
  if (num_features < 1) fail(Kind::argument, concat(kind, ": ", num_features, " features; at least one is needed"));
  if (!(options.eps > 0.0)) fail(Kind::argument, concat(kind, ": eps ", options.eps, " must be positive"));
  check_momentum(kind, options.momentum);
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

void BatchNorm::set_momentum(std::optional<double> momentum) {
  check_momentum(kind_, momentum);
  options_.momentum = momentum;
}

functional::BatchNormArguments BatchNorm::arguments(const Tensor& x) const {
  if (x.defined() && (x.dim() < least_ || x.dim() > most_))
    fail(Kind::argument, concat(kind_, ": x of sizes ", x.sizes(), " has rank ", x.dim(), ", wanted ", least_,
                                least_ == most_ ? std::string() : concat(" to ", most_)));
  const bool tracking = options_.track_running_stats;
  functional::BatchNormArguments a{.weight = weight_, .bias = bias_, .eps = options_.eps};
  a.training = !tracking || (is_training() && !frozen_);
  if (!tracking) return a;
  a.running_mean = running_mean_;
  a.running_var = running_var_;
  if (!a.training) return a;
  a.num_batches_tracked = num_batches_tracked_;
  a.momentum = options_.momentum;
  return a;
}

Tensor BatchNorm::forward(const Tensor& x) { return functional::batch_norm(x, arguments(x)); }
Tensor BatchNorm::forward_relu(const Tensor& x) { return functional::batch_norm_relu(x, arguments(x)); }
Tensor BatchNorm::forward_add_relu(const Tensor& x, const Tensor& residual) {
  return functional::batch_norm_add_relu(x, residual, arguments(x));
}

Tensor ReLU::forward(const Tensor& x) { return functional::relu(x); }
Tensor MaxPool2d::forward(const Tensor& x) { return functional::max_pool2d(x, options_); }
Tensor AvgPool2d::forward(const Tensor& x) { return functional::avg_pool2d(x, options_); }
Tensor AdaptiveAvgPool2d::forward(const Tensor& x) { return functional::adaptive_avg_pool2d(x, output_); }
Tensor Flatten::forward(const Tensor& x) { return functional::flatten(x, start_, end_); }

namespace {
double checked_probability(const char* layer, double p) {
  if (!(p >= 0.0 && p <= 1.0)) fail(Kind::argument, concat(layer, ": p = ", p, " is not in [0, 1]"));
  return p;
}
}  // namespace

Dropout::Dropout(double p, Generator& generator) : p_(checked_probability("Dropout", p)), generator_(&generator) {}
Tensor Dropout::forward(const Tensor& x) { return functional::dropout(x, p_, is_training(), *generator_); }

Dropout2d::Dropout2d(double p, Generator& generator)
    : p_(checked_probability("Dropout2d", p)), generator_(&generator) {}
Tensor Dropout2d::forward(const Tensor& x) { return functional::dropout2d(x, p_, is_training(), *generator_); }

void Sequential::push_back(std::shared_ptr<Module> module) {
  register_module(std::to_string(children().size()), std::move(module));
}

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (const auto& child : children()) y = (*child.module)(y);
  return y;
}

}  // namespace apex::nn
