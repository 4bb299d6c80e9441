// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "resnet_run.hpp"

#include <cmath>

#include "apex/autograd.hpp"
#include "apex/core/error.hpp"
#include "apex/models/resnet.hpp"
#include "apex/nn/functional.hpp"
#include "apex/nn/layers.hpp"
#include "apex/tensor_ops.hpp"

namespace apex::conformance {
namespace {

namespace F = nn::functional;

constexpr std::size_t kFirst = 8;  // recorded elements of each first gradient

/// The elements in logical row-major order, whatever the strides and the device.
std::vector<double> values_of(const Tensor& t) {
  const NoGradGuard no_grad;
  const Tensor host = empty(t.sizes(), DType::f64);
  copy_(host, F::to(t, kCpu));
  const double* first = host.data<double>();
  return {first, first + host.numel()};
}

void assign(const Tensor& t, const std::vector<double>& values) {
  const NoGradGuard no_grad;
  copy_(t, F::to(from_values<double>(t.sizes(), values), t.device()));
}

double moved(double value, std::size_t i, Weights weights) {
  switch (weights) {
    case Weights::exact: return value;
    case Weights::one_ulp_off: return value * (1 + (i % 2 == 0 ? 1 : -1) * std::ldexp(1.0, -52));
    case Weights::rounded_to_f32: return static_cast<double>(static_cast<float>(value));
  }
  return value;
}

/// b + a sin(0.7 i + 1.3 k) for element i of parameter k.
void fill_with_wave(const Tensor& parameter, std::size_t k, bool is_bias, Weights weights) {
  double amplitude = 0.1, offset = is_bias ? 0 : 1;
  if (parameter.dim() == 4) {
    const auto fan = static_cast<double>(parameter.size(0) * parameter.size(2) * parameter.size(3));
    amplitude = std::sqrt(2 / fan) * std::sqrt(2.0);
    offset = 0;
  } else if (parameter.dim() == 2) {
    amplitude = 0.05;
    offset = 0;
  }
  std::vector<double> values(static_cast<std::size_t>(parameter.numel()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] =
        moved(offset + amplitude * std::sin(0.7 * static_cast<double>(i) + 1.3 * static_cast<double>(k)), i, weights);
  assign(parameter, values);
}

/// x[n, c, h, w] = cos(0.01 i + 0.3 n), i the flat index over the whole batch.
Tensor make_images(const ResnetRecipe& r, Device device, DType dtype, MemoryFormat format) {
  const std::int64_t per_image = 3 * r.image * r.image;
  std::vector<double> values(static_cast<std::size_t>(r.batch * per_image));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto n = static_cast<double>(static_cast<std::int64_t>(i) / per_image);
    values[i] = std::cos(0.01 * static_cast<double>(i) + 0.3 * n);
  }
  const Tensor images = empty({r.batch, 3, r.image, r.image}, dtype, device, format);
  assign(images, values);
  return images;
}

Tensor make_labels(const ResnetRecipe& r, Device device) {
  std::vector<std::int64_t> labels(static_cast<std::size_t>(r.batch));
  for (std::size_t n = 0; n < labels.size(); ++n) labels[n] = 3 * static_cast<std::int64_t>(n) % r.classes;
  return F::to(from_values<std::int64_t>({r.batch}, labels), device);
}

std::vector<std::string> names_of(const std::vector<nn::NamedTensor>& list) {
  std::vector<std::string> names;
  for (const auto& entry : list) names.push_back(entry.name);
  return names;
}

double sum_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return sum;
}

}  // namespace

ResnetRun::ResnetRun(const ResnetRecipe& recipe, Device device, DType dtype, MemoryFormat format, Weights weights)
    : recipe_(recipe),
      network_(models::create(recipe.arch, {.num_classes = recipe.classes})),
      images_(make_images(recipe, device, dtype, format)),
      labels_(make_labels(recipe, device)) {
  network_->to(device, dtype, format);
  const auto parameters = network_->named_parameters();
  for (std::size_t k = 0; k < parameters.size(); ++k)
    fill_with_wave(parameters[k].tensor, k, parameters[k].name.ends_with("bias"), weights);
  network_->apply([&](nn::Module& module) {
    if (auto* norm = dynamic_cast<nn::BatchNorm*>(&module)) norm->set_momentum(recipe.bn_momentum);
  });
  network_->train();
  optimizer_.emplace(
      network_->parameters(),
      optimizers::SGDOptions{.lr = recipe.lr, .momentum = recipe.momentum, .weight_decay = recipe.weight_decay});
}

std::vector<std::string> ResnetRun::parameter_names() const { return names_of(network_->named_parameters()); }
std::vector<std::string> ResnetRun::buffer_names() const { return names_of(network_->named_buffers()); }

/// Forward and backward; the update is left to the caller. Returns the logits.
Tensor ResnetRun::step() {
  const Tensor logits = (*network_)(images_);
  const Tensor loss = F::cross_entropy(logits, labels_, {.label_smoothing = recipe_.label_smoothing});
  losses_.push_back(loss.item());
  optimizer_->zero_grad();
  backward(loss);
  return logits;
}

void ResnetRun::first_step() {
  results_["logits_train_step0"] = values_of(step());
  note_gradients();
  optimizer_->step();
}

void ResnetRun::remaining_steps() {
  for (std::int64_t i = 1; i < recipe_.steps; ++i) {
    step();
    optimizer_->step();
  }
  results_["losses"] = losses_;
  note_end();
}

void ResnetRun::note_gradients() {
  std::vector<double> norms, firsts;
  for (const Tensor& parameter : network_->parameters()) {
    const Tensor gradient = grad(parameter);
    if (!gradient) fail(Kind::state, concat("a parameter of ", recipe_.arch, " got no gradient"));
    auto values = values_of(gradient);
    double squares = 0;
    for (const double v : values) squares += v * v;
    norms.push_back(std::sqrt(squares));
    values.resize(kFirst, 0.0);
    firsts.insert(firsts.end(), values.begin(), values.end());
  }
  results_["grad_norm_step0"] = norms;
  results_["grad_first8_step0"] = firsts;
}

void ResnetRun::note_end() {
  std::vector<double> sums, absolute_sums, buffer_sums;
  for (const Tensor& parameter : network_->parameters()) {
    auto values = values_of(parameter);
    sums.push_back(sum_of(values));
    for (double& v : values) v = std::abs(v);
    absolute_sums.push_back(sum_of(values));
  }
  for (const Tensor& buffer : network_->buffers()) buffer_sums.push_back(sum_of(values_of(buffer)));
  results_["param_sum_end"] = sums;
  results_["param_abs_sum_end"] = absolute_sums;
  results_["buffer_sum_end"] = buffer_sums;

  const NoGradGuard no_grad;
  network_->eval();
  results_["logits_eval_end"] = values_of((*network_)(images_));
}

}  // namespace apex::conformance
