// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>

#include "apex/nn/module.hpp"
#include "apex/train/task.hpp"

namespace apex::train {

struct ClassifierOptions {
  std::vector<double> mean, stddev;  ///< per channel, of pixels scaled to 0..1
  double label_smoothing = 0;        ///< in training; evaluation has none
  double loss_scale = 1;             ///< gradients come out multiplied by it; a power of two changes no bits
  DType dtype = DType::f32;
  Device device = kCpu;
  MemoryFormat format = MemoryFormat::channels_last;
};

/// Images to classes by cross entropy: pixels are normalised, laid out and converted in one pass on the device; the
/// accuracies are the percentage of samples whose label is among the 1 and the 5 largest outputs. Loss and accuracies
/// are formed where the outputs are.
class Classifier : public Task {
 public:
  /// @param model    whose mode is set; evaluation calls it directly
  /// @param forward  what training calls: the model, or its DistributedDataParallel
  Classifier(std::shared_ptr<nn::Module> model, std::function<Tensor(const Tensor&)> forward,
             ClassifierOptions options);

  std::vector<std::string> metrics() const override { return {"prec1", "prec5"}; }
  void train_step(const io::Batch& batch, double weight, const Tensor& sums) override;
  void evaluate(const io::Batch& batch, const Tensor& sums) override;
  void set_training(bool on) override { model_->train(on); }

 private:
  Tensor prepare(const Tensor& images) const;

  std::shared_ptr<nn::Module> model_;
  std::function<Tensor(const Tensor&)> forward_;
  ClassifierOptions options_;
  std::vector<float> mean_, stddev_;  // in units of a pixel
};

}  // namespace apex::train
