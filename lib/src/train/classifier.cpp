// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/train/classifier.hpp"

#include <algorithm>

#include "apex/autograd.hpp"
#include "apex/kernels/copy.hpp"
#include "apex/kernels/elementwise.hpp"
#include "apex/kernels/image.hpp"
#include "apex/kernels/reduce.hpp"
#include "apex/nn/functional.hpp"
#include "apex/random.hpp"
#include "apex/train/meters.hpp"

namespace apex::train {
namespace F = nn::functional;
namespace {

constexpr std::int64_t kTop = 5;

void add_on_host(const Tensor& sums, const Tensor& loss, const Tensor& logits, const Tensor& labels) {
  const std::int64_t rows = labels.size(0);
  double* out = sums.data<double>();
  out[0] += loss.item() * static_cast<double>(rows);
  out[1] += static_cast<double>(rows);
  out[2] += static_cast<double>(count_top_k(logits, labels, 1, rows));
  out[3] += static_cast<double>(count_top_k(logits, labels, kTop, rows));
}

/// The same by kernels, so that nobody waits. An output that is NaN counts as largest here, its own label's included;
/// the loss is NaN then and the run ends.
void add_on_device(const Tensor& sums, const Tensor& loss, const Tensor& logits, const Tensor& labels) {
  const Context ctx = sums.context();
  const std::int64_t rows = labels.size(0), k = std::min(kTop, logits.size(1));
  const auto n = static_cast<double>(rows);
  const Tensor top = empty({rows, k}, DType::i64, ctx.device);
  kernels::topk(ctx, View(), top.view(), logits.view(), k, 1);
  const Tensor hit = empty({rows, k}, DType::boolean, ctx.device);
  kernels::compare(ctx, hit.view(), top.view(), views::unsqueeze(labels, 1).view(), kernels::CompareOp::eq);
  const Tensor hits = empty({2}, DType::i64, ctx.device);
  kernels::reduce(ctx, views::select(hits, 0, 0).view(), views::narrow(hit, 1, 0, 1).view(), {},
                  kernels::ReduceOp::sum);
  kernels::reduce(ctx, views::select(hits, 0, 1).view(), hit.view(), {}, kernels::ReduceOp::sum);

  const Tensor step = empty({4}, DType::f64, ctx.device);
  const Tensor loss_sum = views::narrow(step, 0, 0, 1);
  kernels::copy(ctx, loss_sum.view(), loss.view());
  kernels::scale_shift(ctx, loss_sum.view(), loss_sum.view(), n);
  kernels::fill(ctx, views::narrow(step, 0, 1, 1).view(), n);
  kernels::copy(ctx, views::narrow(step, 0, 2, 2).view(), hits.view());
  kernels::accumulate(ctx, sums.view(), step.view());
}

void add_figures(const Tensor& sums, const Tensor& loss, const Tensor& logits, const Tensor& labels) {
  if (sums.device().is_cpu())
    add_on_host(sums, loss, logits, labels);
  else
    add_on_device(sums, loss, logits, labels);
  sums.raise_version();
}

}  // namespace

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

void Classifier::train_step(const io::Batch& batch, double weight, const Tensor& sums) {
  const SampleRowsGuard rows({batch.first, batch.stride});
  const Tensor logits = forward_(prepare(batch.images));
  const Tensor loss = F::cross_entropy(logits, batch.labels, {.label_smoothing = options_.label_smoothing});
  add_figures(sums, loss, logits, batch.labels);
  const double factor = weight * options_.loss_scale;
  backward(factor == 1.0 ? loss : F::scale(loss, factor));
}

void Classifier::evaluate(const io::Batch& batch, const Tensor& sums) {
  if (batch.valid == 0) return;
  const NoGradGuard no_grad;
  const Tensor images = views::narrow(batch.images, 0, 0, batch.valid);
  const Tensor labels = views::narrow(batch.labels, 0, 0, batch.valid);
  const Tensor logits = model_->forward(prepare(images));
  add_figures(sums, F::cross_entropy(logits, labels), logits, labels);
}

}  // namespace apex::train
