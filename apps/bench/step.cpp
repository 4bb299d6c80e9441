// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "step.hpp"

#include <omp.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>

#include "apex/autograd.hpp"
#include "apex/models/resnet.hpp"
#include "apex/nn/functional.hpp"
#include "apex/nn/layers.hpp"
#include "apex/optimizers/fused_sgd.hpp"
#include "apex/random.hpp"

namespace bench {
namespace {

using apex::Tensor;

/// Our side of the comparison: model, optimizer, one fixed batch.
class Step {
 public:
  explicit Step(const StepCase& c)
      : model_(make(c)), optimizer_(model_->parameters(), {.lr = 0.01, .momentum = 0.9, .weight_decay = 1e-4}) {
    x_ = apex::empty({c.batch, c.channels, c.image, c.image}, apex::DType::f32, apex::kCpu,
                     apex::MemoryFormat::channels_last);
    apex::nn::init::normal(x_, 0, 1);
    labels_ = apex::empty({c.batch}, apex::DType::i64);
    for (int i = 0; i < c.batch; ++i) labels_.data<std::int64_t>()[i] = i % c.classes;
  }

  double operator()() {
    optimizer_.zero_grad(true);
    const Tensor loss = apex::nn::functional::cross_entropy((*model_)(x_), labels_);
    apex::backward(loss);
    optimizer_.step();
    return loss.item();
  }

  Timing run(int steps) {
    Timing out;
    for (int i = 0; i < steps; ++i) {
      const auto start = std::chrono::steady_clock::now();
      last_loss_ = (*this)();
      out.ms.push_back(1e3 * std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    out.peak_kib = usage.ru_maxrss;
    return out;
  }
  double last_loss() const { return last_loss_; }

 private:
  static std::shared_ptr<apex::nn::Module> make(const StepCase& c) {
    apex::manual_seed(0);
    auto model = apex::models::create(c.arch, {.num_classes = c.classes, .in_channels = c.channels});
    model->to(apex::MemoryFormat::channels_last);
    return model;
  }

  std::shared_ptr<apex::nn::Module> model_;
  apex::optimizers::FusedSGD optimizer_;
  Tensor x_, labels_;
  double last_loss_ = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace

void run_step(const StepCase& c, const StepOptions& options) {
  omp_set_num_threads(c.threads);
  Step step(c);
  const double first = step();
  std::unique_ptr<TorchPeer> peer;
  if (options.peer) peer = std::make_unique<TorchPeer>(options.python, c);
  step.run(1);
  if (peer) peer->run(1);

  std::vector<double> ours, theirs, ratios;
  long our_peak = 0, their_peak = 0;
  for (int round = 0; round < options.rounds; ++round) {
    const auto a = step.run(options.steps);
    ours.push_back(median(a.ms));
    our_peak = a.peak_kib;
    if (!peer) continue;
    const auto b = peer->run(options.steps);
    theirs.push_back(median(b.ms));
    their_peak = b.peak_kib;
    ratios.push_back(ours.back() / theirs.back());
  }
  // A step that does not learn is not the step that was asked for: one batch again and again must be learnt.
  const bool learnt = std::isfinite(step.last_loss()) && step.last_loss() < first;
  std::printf("step %s %dx%dx%d batch %d f32 %d threads: ours %.1f ms, peak %.0f MiB", c.arch.c_str(), c.channels,
              c.image, c.image, c.batch, c.threads, median(ours), static_cast<double>(our_peak) / 1024);
  if (peer)
    std::printf(" | torch %s %.1f ms, peak %.0f MiB | ratio %.3f (%.3f to %.3f), memory %.3f", peer->version().c_str(),
                median(theirs), static_cast<double>(their_peak) / 1024, median(ratios),
                *std::min_element(ratios.begin(), ratios.end()), *std::max_element(ratios.begin(), ratios.end()),
                static_cast<double>(our_peak) / static_cast<double>(their_peak));
  std::printf(" | loss %.4f -> %.4f\n", first, step.last_loss());
  if (!learnt) apex::fail(apex::Kind::numerical, "the loss did not fall: the timing is void");
}

}  // namespace bench
