// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
// The gradients of a first step of ResNet-20 in f32: a GPU's against the CPU's, the CPU's against those in f64.
#include <gtest/gtest.h>

#include <cmath>

#include "apex/autograd.hpp"
#include "apex/models/resnet.hpp"
#include "apex/nn/functional.hpp"
#include "apex/tensor_ops.hpp"
#include "support/tensors.hpp"

namespace apex::train {
namespace {

struct Gradients {
  double loss;
  std::vector<std::string> names;
  std::vector<std::vector<double>> values;
};

// Small: among many values behind a relu one would be close enough to 0 to pass on one device only.
Gradients first_step(Device device, DType dtype, MemoryFormat format) {
  manual_seed(7);
  const auto model = models::create("resnet20", {.num_classes = 10, .in_channels = 3});
  model->to(device, dtype, format);
  const Tensor images = test::uniform({16, 3, 8, 8}, DType::f32, kCpu, 1, -1, 1),
               labels = test::uniform({16}, DType::i64, kCpu, 2, 0, 10);
  const Tensor x = nn::functional::contiguous(nn::functional::cast(nn::functional::to(images, device), dtype), format);
  const Tensor loss = nn::functional::cross_entropy(model->forward(x), nn::functional::to(labels, device));
  backward(loss);
  Gradients out{.loss = loss.item()};
  for (const auto& [name, p] : model->named_parameters()) {
    out.names.push_back(name);
    out.values.push_back(test::to_f64(grad(p)));
  }
  return out;
}

TEST(DeviceMatch, FirstGradientsOfResNet20) {
  const auto want = first_step(kCpu, test::on_cuda() ? DType::f32 : DType::f64, MemoryFormat::contiguous);
  EXPECT_NEAR(want.loss, std::log(10.0), 1.5);
  for (const auto format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const auto got = first_step(test::device(), DType::f32, format);
    EXPECT_NEAR(got.loss, want.loss, 1e-5 * want.loss);
    ASSERT_EQ(got.names, want.names);
    for (std::size_t i = 0; i < want.names.size(); ++i) {
      ASSERT_EQ(got.values[i].size(), want.values[i].size());
      double difference = 0, norm = 0;
      for (std::size_t k = 0; k < want.values[i].size(); ++k) {
        difference += std::pow(got.values[i][k] - want.values[i][k], 2);
        norm += std::pow(want.values[i][k], 2);
      }
      EXPECT_GT(norm, 0.0) << want.names[i];
      EXPECT_LE(std::sqrt(difference), 1e-4 * std::sqrt(norm))
          << want.names[i] << (format == MemoryFormat::channels_last ? ", channels-last" : "");
    }
  }
}

}  // namespace
}  // namespace apex::train
