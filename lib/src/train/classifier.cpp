// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/train/classifier.hpp"

#include "apex/autograd.hpp"
#include "apex/kernels/image.hpp"
#include "apex/nn/functional.hpp"
#include "apex/random.hpp"
#include "apex/train/meters.hpp"

namespace apex::train {
namespace F = nn::functional;

Classifier::Classifier(std::shared_ptr<nn::Module> model, std::function<Tensor(const Tensor&)> forward,
                       ClassifierOptions options)
    : model_(std::move(model)), forward_(std::move(forward)), options_(std::move(options)) {
  for (const double m : options_.mean) mean_.push_back(static_cast<float>(m * 255));
  for (const double s : options_.stddev) stddev_.push_back(static_cast<float>(s * 255));
}

Tensor Classifier::prepare(const Tensor& images) const {
  Tensor x = empty(images.sizes(), options_.dtype, options_.device, options_.format);
  kernels::image_normalize(x.context(), x.view(), images.view(), mean_, stddev_);
  return x;
}

Sums Classifier::train_step(const io::Batch& batch, double weight) {
  const SampleRowsGuard rows({batch.first, batch.stride});
  const Tensor logits = forward_(prepare(batch.images));
  const Tensor loss = F::cross_entropy(logits, batch.labels, {.label_smoothing = options_.label_smoothing});
  const double mean_loss = loss.item();
  const auto n = static_cast<double>(batch.valid);
  const Sums sums = {mean_loss * n, n, static_cast<double>(count_top_k(logits, batch.labels, 1, batch.valid)),
                     static_cast<double>(count_top_k(logits, batch.labels, 5, batch.valid))};
  backward(weight == 1.0 ? loss : F::scale(loss, weight));
  return sums;
}

Sums Classifier::evaluate(const io::Batch& batch) {
  if (batch.valid == 0) return {0, 0, 0, 0};
  const NoGradGuard no_grad;
  const Tensor images = views::narrow(batch.images, 0, 0, batch.valid);
  const Tensor labels = views::narrow(batch.labels, 0, 0, batch.valid);
  const Tensor logits = model_->forward(prepare(images));
  const Tensor loss = F::cross_entropy(logits, labels);
  const auto n = static_cast<double>(batch.valid);
  return {loss.item() * n, n, static_cast<double>(count_top_k(logits, labels, 1, batch.valid)),
          static_cast<double>(count_top_k(logits, labels, 5, batch.valid))};
}

}  // namespace apex::train
