// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>

#include "apex/autograd.hpp"
#include "apex/core/error.hpp"
#include "apex/models/resnet.hpp"
#include "apex/nn/functional.hpp"
#include "apex/nn/layers.hpp"
#include "apex/optimizers/fused_sgd.hpp"
#include "apex/tensor_ops.hpp"
#include "ops.hpp"

namespace apex::conformance {
namespace {

namespace F = nn::functional;

constexpr std::int64_t kFirst = 8;  // recorded elements of each first gradient

/// A recorded training: torchvision's network in float64, some steps of SGD on one batch. Everything the run needs is a
/// formula, so only results are stored.
struct Recorded {
  std::string arch;
  std::int64_t classes, image, batch, steps;
  double label_smoothing, lr, momentum, weight_decay, bn_momentum;
  std::vector<std::string> parameter_names, buffer_names;
  std::vector<double> losses, logits_train, logits_eval, grad_norm, grad_first, param_sum, param_abs_sum, buffer_sum;
};

Recorded read(const Case& c) {
  if (c.text("source") != "torch64 torchvision")
    fail(Kind::data,
         concat(c.op, "/", c.name, ": recorded from '", c.text("source"), "', not from 'torch64 torchvision'"));
  Recorded r;
  r.arch = c.text("arch");
  r.classes = c.integer("classes");
  r.image = c.integer("image");
  r.batch = c.integer("batch");
  r.steps = c.integer("steps");
  r.label_smoothing = c.number("label_smoothing");
  r.lr = c.number("lr");
  r.momentum = c.number("momentum");
  r.weight_decay = c.number("weight_decay");
  r.bn_momentum = c.number("bn_momentum");
  for (const auto& [name, value] : {std::pair("classes", r.classes), std::pair("image", r.image),
                                    std::pair("batch", r.batch), std::pair("steps", r.steps)})
    if (value < 1 || value > 4096) fail(Kind::data, concat(c.op, "/", c.name, ": ", name, " is ", value));

  r.parameter_names = c.strings("parameter_names");
  r.buffer_names = c.strings("buffer_names");
  const auto params = static_cast<std::int64_t>(r.parameter_names.size());
  const auto buffers = static_cast<std::int64_t>(r.buffer_names.size());
  r.losses = c.numbers("losses", {r.steps});
  r.logits_train = c.numbers("logits_train_step0", {r.batch, r.classes});
  r.logits_eval = c.numbers("logits_eval_end", {r.batch, r.classes});
  r.grad_norm = c.numbers("grad_norm_step0", {params});
  r.grad_first = c.numbers("grad_first8_step0", {params, kFirst});
  r.param_sum = c.numbers("param_sum_end", {params});
  r.param_abs_sum = c.numbers("param_abs_sum_end", {params});
  r.buffer_sum = c.numbers("buffer_sum_end", {buffers});
  c.require_all_read();
  return r;
}

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
  copy_(t, from_values<double>(t.sizes(), values));
}

/// b + a sin(0.7 i + 1.3 k) for element i of parameter k.
void fill_with_wave(const Tensor& parameter, std::size_t k, bool is_bias) {
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
    values[i] = offset + amplitude * std::sin(0.7 * static_cast<double>(i) + 1.3 * static_cast<double>(k));
  assign(parameter, values);
}

Tensor make_images(const Recorded& r, Device device, DType dtype, MemoryFormat format) {
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

Tensor make_labels(const Recorded& r, Device device) {
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

std::shared_ptr<nn::Module> make_network(const Recorded& r, Device device, DType dtype, MemoryFormat format) {
  auto network = models::create(r.arch, {.num_classes = r.classes});
  network->to(device, dtype, format);
  const auto parameters = network->named_parameters();
  for (std::size_t k = 0; k < parameters.size(); ++k)
    fill_with_wave(parameters[k].tensor, k, parameters[k].name.ends_with("bias"));
  network->apply([&](nn::Module& module) {
    if (auto* norm = dynamic_cast<nn::BatchNorm2d*>(&module)) norm->set_momentum(r.bn_momentum);
  });
  network->train();
  return network;
}

/// Norm and first elements of each parameter's gradient.
void compare_gradients(const Recorded& r, const nn::Module& network, bool first_elements, double tolerance,
                       const std::string& note, Comparison& comparison) {
  std::vector<double> norms, firsts;
  for (const Tensor& parameter : network.parameters()) {
    const Tensor gradient = grad(parameter);
    if (!gradient) fail(Kind::state, concat("a parameter of ", r.arch, " got no gradient"));
    auto values = values_of(gradient);
    double squares = 0;
    for (const double v : values) squares += v * v;
    norms.push_back(std::sqrt(squares));
    values.resize(kFirst, 0.0);
    firsts.insert(firsts.end(), values.begin(), values.end());
  }
  comparison.numbers("grad_norm_step0", r.grad_norm, norms, tolerance, note);
  if (first_elements) comparison.numbers("grad_first8_step0", r.grad_first, firsts, tolerance, note);
}

void compare_end(const Recorded& r, nn::Module& network, const Tensor& images, const std::string& note,
                 Comparison& comparison) {
  std::vector<double> sums, absolute_sums, buffer_sums;
  for (const Tensor& parameter : network.parameters()) {
    auto values = values_of(parameter);
    sums.push_back(sum_of(values));
    for (double& v : values) v = std::abs(v);
    absolute_sums.push_back(sum_of(values));
  }
  for (const Tensor& buffer : network.buffers()) buffer_sums.push_back(sum_of(values_of(buffer)));
  comparison.numbers("param_sum_end", r.param_sum, sums, 1e-9, note);
  comparison.numbers("param_abs_sum_end", r.param_abs_sum, absolute_sums, 1e-9, note);
  comparison.numbers("buffer_sum_end", r.buffer_sum, buffer_sums, 1e-9, note);

  const NoGradGuard no_grad;
  network.eval();
  // Running statistics of so few and small batches make these logits huge.
  comparison.numbers("logits_eval_end", r.logits_eval, values_of(network(images)), 1e-6, note);
}

void train(const Recorded& r, Device device, DType dtype, MemoryFormat format, Comparison& comparison) {
  const bool exact = dtype == DType::f64;
  const double tolerance = exact ? 1e-9 : 2e-3;
  const std::string note = format == MemoryFormat::channels_last ? "channels last" : "";
  const auto network = make_network(r, device, dtype, format);
  comparison.strings("parameter_names", r.parameter_names, names_of(network->named_parameters()));
  comparison.strings("buffer_names", r.buffer_names, names_of(network->named_buffers()));
  if (!comparison.passed()) return;  // other names: the rest would compare unlike things

  const Tensor images = make_images(r, device, dtype, format), labels = make_labels(r, device);
  optimizers::FusedSGD optimizer(network->parameters(),
                                 {.lr = r.lr, .momentum = r.momentum, .weight_decay = r.weight_decay});
  std::vector<double> losses;
  for (std::int64_t step = 0; step < r.steps; ++step) {
    const Tensor logits = (*network)(images);
    const Tensor loss = F::cross_entropy(logits, labels, {.label_smoothing = r.label_smoothing});
    losses.push_back(loss.item());
    optimizer.zero_grad();
    backward(loss);
    if (step == 0) {
      comparison.numbers("logits_train_step0", r.logits_train, values_of(logits), tolerance, note);
      compare_gradients(r, *network, exact, tolerance, note, comparison);
    }
    optimizer.step();
  }
  std::vector<double> loss_tolerances(losses.size(), exact ? 1e-9 : 2e-2);
  loss_tolerances.front() = tolerance;
  comparison.numbers("losses", r.losses, losses, loss_tolerances, note);
  if (exact) compare_end(r, *network, images, note, comparison);
}

}  // namespace

void run_resnet_training(const Case& recorded, Device device, DType dtype, Comparison& comparison) {
  const Recorded r = read(recorded);
  const auto known = models::list();
  if (std::find(known.begin(), known.end(), r.arch) == known.end())
    fail(Kind::data, concat(recorded.op, "/", recorded.name, ": no architecture '", r.arch, "'"));
  train(r, device, dtype, MemoryFormat::contiguous, comparison);
  if (comparison.passed()) train(r, device, dtype, MemoryFormat::channels_last, comparison);
}

}  // namespace apex::conformance
