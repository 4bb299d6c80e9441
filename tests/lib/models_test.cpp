// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include "apex/fp16_utils.hpp"
#include "apex/models/resnet.hpp"
#include "apex/nn/layers.hpp"
#include "apex/optimizers/fused_sgd.hpp"
#include "apex/tensor_ops.hpp"
#include "lib/support.hpp"

namespace apex {
namespace {

using test::expect_error;
using test::values;
using test::wave;

std::int64_t parameter_count(const nn::Module& model) {
  std::int64_t n = 0;
  for (const auto& p : model.parameters()) n += p.numel();
  return n;
}

TEST(Models, ParameterCounts) {
  const std::pair<const char*, std::int64_t> published[] = {{"resnet18", 11689512},
                                                            {"resnet34", 21797672},
                                                            {"resnet50", 25557032},
                                                            {"resnet101", 44549160},
                                                            {"resnet152", 60192808}};
  for (const auto& [name, count] : published) EXPECT_EQ(parameter_count(*models::create(name)), count) << name;
  // 269,722 with option A shortcuts; two 1x1 convolutions (16x32, 32x64) with their batch norms come on top.
  EXPECT_EQ(parameter_count(*models::resnet20({.num_classes = 10})), 269722 + 512 + 64 + 2048 + 128);
}

TEST(Models, TorchvisionNamesInOrder) {
  std::vector<std::string> names;
  for (const auto& p : models::resnet18()->named_parameters()) names.push_back(p.name);
  ASSERT_EQ(names.size(), 62u);
  const std::vector<std::string> start = {"conv1.weight",          "bn1.weight",          "bn1.bias",
                                          "layer1.0.conv1.weight", "layer1.0.bn1.weight", "layer1.0.bn1.bias",
                                          "layer1.0.conv2.weight"};
  EXPECT_TRUE(std::equal(start.begin(), start.end(), names.begin()));
  const std::vector<std::string> middle = {"layer2.0.bn2.bias", "layer2.0.downsample.0.weight",
                                           "layer2.0.downsample.1.weight", "layer2.0.downsample.1.bias",
                                           "layer2.1.conv1.weight"};
  EXPECT_NE(std::search(names.begin(), names.end(), middle.begin(), middle.end()), names.end());
  EXPECT_EQ(names[60], "fc.weight");
  EXPECT_EQ(names[61], "fc.bias");

  names.clear();
  for (const auto& p : models::resnet50()->named_parameters()) names.push_back(p.name);
  ASSERT_EQ(names.size(), 161u);
  const std::vector<std::string> block = {"layer1.0.conv1.weight",       "layer1.0.bn1.weight", "layer1.0.bn1.bias",
                                          "layer1.0.conv2.weight",       "layer1.0.bn2.weight", "layer1.0.bn2.bias",
                                          "layer1.0.conv3.weight",       "layer1.0.bn3.weight", "layer1.0.bn3.bias",
                                          "layer1.0.downsample.0.weight"};
  EXPECT_EQ(std::search(names.begin(), names.end(), block.begin(), block.end()) - names.begin(), 3);
  std::vector<std::string> buffers;
  for (const auto& b : models::resnet18()->named_buffers()) buffers.push_back(b.name);
  ASSERT_EQ(buffers.size(), 60u);
  EXPECT_EQ(buffers[0], "bn1.running_mean");
  EXPECT_EQ(buffers[1], "bn1.running_var");
  EXPECT_EQ(buffers[2], "bn1.num_batches_tracked");
}

TEST(Models, VersionOnePointFiveStridesInThe3x3) {
  const auto model = models::resnet50();
  for (const auto& [path, module] : model->named_modules()) {
    const auto* conv = dynamic_cast<const nn::Conv2d*>(module);
    if (path == "layer2.0.conv1") {
      EXPECT_EQ(conv->options().stride[0], 1);
    }
    if (path == "layer2.0.conv2") {
      EXPECT_EQ(conv->options().stride[0], 2);
    }
    if (path == "layer2.0.downsample.0") {
      EXPECT_EQ(conv->options().stride[0], 2);
    }
  }
}

TEST(Models, RegistryAndOptions) {
  EXPECT_EQ(models::list(),
            (std::vector<std::string>{"resnet101", "resnet152", "resnet18", "resnet20", "resnet34", "resnet50"}));
  expect_error(Kind::argument, "known are resnet101", [] { models::create("vgg16"); });
  expect_error(Kind::argument, "0 classes", [] { models::resnet20({.num_classes = 0}); });
  expect_error(Kind::argument, "0 channels", [] { models::resnet20({.in_channels = 0}); });
  EXPECT_EQ(models::default_image_size("resnet20"), 32);
  EXPECT_EQ(models::default_image_size("resnet50"), 224);
  const auto zero = models::resnet18({.num_classes = 3, .zero_init_residual = true});
  for (const auto& p : zero->named_parameters()) {
    if (p.name == "layer1.0.bn2.weight") {
      EXPECT_EQ(values(p.tensor), std::vector<double>(64, 0.0));
    }
    if (p.name == "layer1.0.bn1.weight") {
      EXPECT_EQ(values(p.tensor), std::vector<double>(64, 1.0));
    }
  }
}

TEST(Models, SeedDecidesTheWeights) {
  Generator a{9, 0}, b{9, 0}, c{10, 0};
  const auto x = models::resnet20({.num_classes = 10}, a), y = models::resnet20({.num_classes = 10}, b),
             z = models::resnet20({.num_classes = 10}, c);
  EXPECT_EQ(values(x->parameters()[0]), values(y->parameters()[0]));
  EXPECT_NE(values(x->parameters()[0]), values(z->parameters()[0]));
}

TEST(Models, ChannelsLastFlowsThroughAndAgrees) {
  Generator g{4, 0};
  const auto model = models::resnet20({.num_classes = 5, .in_channels = 1}, g);
  model->to(test::device(), DType::f64, MemoryFormat::contiguous);
  model->eval();
  const Tensor x = wave({2, 1, 12, 12});
  NoGradGuard no_grad;
  const auto plain = values((*model)(x));
  model->to(MemoryFormat::channels_last);
  const Tensor input = to_format(x, MemoryFormat::channels_last);
  EXPECT_EQ(input.memory_format(), MemoryFormat::channels_last) << "one channel";
  const auto last = values((*model)(input));
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(plain[i], last[i], 1e-11);
}

/// Loss of the network for one small change of a parameter must match its gradient.
TEST(Models, GradientOfTheWholeNetwork) {
  Generator g{6, 0};
  const auto model = models::resnet20({.num_classes = 4, .in_channels = 3}, g);
  model->to(test::device(), DType::f64, MemoryFormat::channels_last);
  const Tensor x = wave({3, 3, 8, 8}, 1, 1, 0, DType::f64, MemoryFormat::channels_last);
  const Tensor labels = test::from_values<std::int64_t>({3}, {0, 3, 1});
  const auto loss = [&] { return nn::cross_entropy((*model)(x), labels, {.label_smoothing = 0.1}); };
  backward(loss());
  for (const auto& p : model->named_parameters()) {
    const Tensor& t = p.tensor;
    ASSERT_TRUE(grad(t).defined()) << p.name;
    EXPECT_EQ(grad(t).strides(), t.strides()) << p.name;
    if (p.name.find("conv1.weight") == std::string::npos && p.name.find("downsample") == std::string::npos &&
        p.name.find("fc") == std::string::npos)
      continue;
    const std::int64_t at = t.numel() / 3;
    const double before = values(t)[at];
    NoGradGuard no_grad;
    test::set_element(t, at, before + 1e-6);
    const double above = loss().item();
    test::set_element(t, at, before - 1e-6);
    const double below = loss().item();
    test::set_element(t, at, before);
    const double want = (above - below) / 2e-6;
    EXPECT_NEAR(values(grad(t))[at], want, 1e-6 * std::max(1.0, std::abs(want))) << p.name;
  }
}

TEST(Models, LearnsASmallBatch) {
  Generator g{8, 0};
  const auto model = models::resnet20({.num_classes = 4, .in_channels = 1}, g);
  model->to(test::device(), MemoryFormat::channels_last);
  optimizers::FusedSGD optimizer(model->parameters(), {.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-4});
  const Tensor x = wave({8, 1, 16, 16}, 1, 1, 0, DType::f32, MemoryFormat::channels_last);
  const Tensor labels = test::from_values<std::int64_t>({8}, {0, 1, 2, 3, 0, 1, 2, 3});
  double first = 0, last = 0;
  for (int step = 0; step < 30; ++step) {
    const Tensor loss = nn::cross_entropy((*model)(x), labels);
    backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    (step == 0 ? first : last) = loss.item();
  }
  EXPECT_GT(first, 1.0);
  EXPECT_LT(last, 0.1);
}

/// The 16-bit recipe by hand: 16-bit weights and activations, f32 batch norms, masters and momentum; f16 with a scale.
TEST(Models, LearnsASmallBatchIn16Bits) {
  for (const DType half : {DType::bf16, DType::f16}) {
    SCOPED_TRACE(name_of(half));
    Generator g{8, 0};
    const auto model = models::resnet20({.num_classes = 4, .in_channels = 1}, g);
    model->to(test::device(), MemoryFormat::channels_last);
    fp16_utils::convert_network(*model, half);
    const auto parameters = model->parameters();
    optimizers::FusedSGD optimizer(parameters,
                                   {.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-4, .master_weights = true});
    const Tensor x = wave({8, 1, 16, 16}, 1, 1, 0, half, MemoryFormat::channels_last);
    const Tensor labels = test::from_values<std::int64_t>({8}, {0, 1, 2, 3, 0, 1, 2, 3});
    const double loss_scale = half == DType::f16 ? 128 : 1;
    const Tensor inv_scale = test::full({1}, 1 / loss_scale);
    double first = 0, last = 0;
    for (int step = 0; step < 30; ++step) {
      const Tensor loss = nn::cross_entropy((*model)(x), labels);
      EXPECT_EQ(loss.dtype(), DType::f32);
      backward(scale(loss, loss_scale));
      optimizer.step({.inv_scale = inv_scale});
      optimizer.zero_grad();
      (step == 0 ? first : last) = loss.item();
    }
    EXPECT_GT(first, 1.0);
    EXPECT_LT(last, 0.1);
    for (const auto& p : model->named_parameters()) {
      const bool norm = p.name.find("bn") != std::string::npos || p.name.find("downsample.1") != std::string::npos;
      EXPECT_EQ(p.tensor.dtype(), norm ? DType::f32 : half) << p.name;
      const auto& state = optimizer.state_of(p.tensor);
      EXPECT_EQ(state.at("momentum_buffer").dtype(), DType::f32) << p.name;
      ASSERT_EQ(state.contains("master"), !norm) << p.name;
      if (!norm) {
        EXPECT_EQ(values(cast(state.at("master"), half)), values(p.tensor)) << p.name;
      }
    }
  }
}

/// What one step of training gives: loss, all gradients one after another, all running statistics.
struct StepResult {
  double loss;
  std::vector<double> gradients, statistics;
};

StepResult first_step(DType weights, DType run_in) {
  Generator g{8, 0};
  const auto model = models::resnet20({.num_classes = 4, .in_channels = 3}, g);
  fp16_utils::convert_network(*model, weights);
  model->to(test::device(), MemoryFormat::channels_last);
  if (run_in == DType::f32) model->to(DType::f32);
  const Tensor x = cast(
      cast(test::uniform({16, 3, 16, 16}, DType::f32, test::device(), 3, -2, 2, MemoryFormat::channels_last), weights),
      run_in);
  const Tensor labels =
      test::on_device(from_values<std::int64_t>({16}, {0, 1, 2, 3, 0, 1, 2, 3, 3, 3, 1, 0, 1, 2, 0, 2}));
  const Tensor loss = nn::cross_entropy((*model)(x), labels);
  backward(loss);
  StepResult result{loss.item(), {}, {}};
  for (const auto& p : model->parameters()) {
    EXPECT_EQ(grad(p).dtype(), p.dtype());
    for (const double v : values(grad(p))) result.gradients.push_back(v);
  }
  for (const auto& b : model->buffers())
    for (const double v : values(b)) result.statistics.push_back(v);
  return result;
}

double cosine(const std::vector<double>& a, const std::vector<double>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += a[i] * b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
  }
  return ab / std::sqrt(aa * bb);
}

/// One 16-bit step against f32 from the same (rounded) weights and images.
TEST(Models, A16BitStepFollowsTheF32One) {
  for (const DType half : {DType::bf16, DType::f16}) {
    SCOPED_TRACE(name_of(half));
    const StepResult narrow = first_step(half, half), wide = first_step(half, DType::f32);
    const bool bf16 = half == DType::bf16;
    ASSERT_EQ(narrow.gradients.size(), wide.gradients.size());
    EXPECT_NEAR(narrow.loss, wide.loss, (bf16 ? 2e-2 : 3e-3) * wide.loss);
    EXPECT_GE(cosine(narrow.gradients, wide.gradients), bf16 ? 0.93 : 0.99);
    ASSERT_EQ(narrow.statistics.size(), wide.statistics.size());
    for (std::size_t i = 0; i < wide.statistics.size(); ++i)
      EXPECT_NEAR(narrow.statistics[i], wide.statistics[i],
                  (bf16 ? 2e-2 : 3e-3) * (std::abs(wide.statistics[i]) + 0.1));
  }
}

}  // namespace
}  // namespace apex
