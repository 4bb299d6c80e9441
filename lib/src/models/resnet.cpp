// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/models/resnet.hpp"

#include <algorithm>
#include <array>

#include "apex/nn/layers.hpp"

namespace apex::models {

namespace {

using nn::BatchNorm2d;
using nn::Conv2d;

std::shared_ptr<Conv2d> conv(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                             Generator& g) {
  auto layer = std::make_shared<Conv2d>(Conv2d::Options{.in_channels = in,
                                                        .out_channels = out,
                                                        .kernel = {kernel, kernel},
                                                        .stride = {stride, stride},
                                                        .padding = {kernel / 2, kernel / 2},
                                                        .bias = false,
                                                        .draw = false},
                                        g);
  nn::init::kaiming_normal_fan_out(layer->weight(), g);
  return layer;
}

std::shared_ptr<nn::Module> shortcut(std::int64_t in, std::int64_t out, std::int64_t stride, Generator& g) {
  if (in == out && stride == 1) return nullptr;
  return std::make_shared<nn::Sequential>(conv(in, out, 1, stride, g), std::make_shared<BatchNorm2d>(out));
}

class BasicBlock : public nn::Module {
 public:
  static constexpr std::int64_t kExpansion = 1;

  BasicBlock(std::int64_t in, std::int64_t width, std::int64_t stride, bool zero_last, Generator& g) {
    conv1_ = conv(in, width, 3, stride, g);
    bn1_ = std::make_shared<BatchNorm2d>(width);
    conv2_ = conv(width, width, 3, 1, g);
    bn2_ = std::make_shared<BatchNorm2d>(width);
    downsample_ = shortcut(in, width, stride, g);
    register_module("conv1", conv1_);
    register_module("bn1", bn1_);
    register_module("conv2", conv2_);
    register_module("bn2", bn2_);
    if (downsample_) register_module("downsample", downsample_);
    if (zero_last) nn::init::constant(bn2_->weight(), 0.0);
  }
  std::string_view kind() const override { return "BasicBlock"; }

  Tensor forward(const Tensor& x) override {
    const Tensor y = conv2_->forward(bn1_->forward_relu(conv1_->forward(x)));
    return bn2_->forward_add_relu(y, downsample_ ? downsample_->forward(x) : x);
  }

 private:
  std::shared_ptr<nn::Module> conv1_, conv2_, downsample_;
  std::shared_ptr<BatchNorm2d> bn1_, bn2_;
};

class Bottleneck : public nn::Module {
 public:
  static constexpr std::int64_t kExpansion = 4;

  Bottleneck(std::int64_t in, std::int64_t width, std::int64_t stride, bool zero_last, Generator& g) {
    const std::int64_t out = width * kExpansion;
    conv1_ = conv(in, width, 1, 1, g);
    bn1_ = std::make_shared<BatchNorm2d>(width);
    conv2_ = conv(width, width, 3, stride, g);
    bn2_ = std::make_shared<BatchNorm2d>(width);
    conv3_ = conv(width, out, 1, 1, g);
    bn3_ = std::make_shared<BatchNorm2d>(out);
    downsample_ = shortcut(in, out, stride, g);
    register_module("conv1", conv1_);
    register_module("bn1", bn1_);
    register_module("conv2", conv2_);
    register_module("bn2", bn2_);
    register_module("conv3", conv3_);
    register_module("bn3", bn3_);
    if (downsample_) register_module("downsample", downsample_);
    if (zero_last) nn::init::constant(bn3_->weight(), 0.0);
  }
  std::string_view kind() const override { return "Bottleneck"; }

  Tensor forward(const Tensor& x) override {
    Tensor y = bn1_->forward_relu(conv1_->forward(x));
    y = conv3_->forward(bn2_->forward_relu(conv2_->forward(y)));
    return bn3_->forward_add_relu(y, downsample_ ? downsample_->forward(x) : x);
  }

 private:
  std::shared_ptr<nn::Module> conv1_, conv2_, conv3_, downsample_;
  std::shared_ptr<BatchNorm2d> bn1_, bn2_, bn3_;
};

struct Plan {
  std::vector<int> blocks;  ///< per stage
  std::int64_t width;       ///< of the stem and the first stage; each stage doubles it
  bool small_pictures;      ///< a 3x3 stem of stride 1 and no max pooling
};

template <class Block>
class ResNet : public nn::Module {
 public:
  ResNet(const Plan& plan, const ModelOptions& options, Generator& g) : pool_(!plan.small_pictures) {
    if (options.num_classes < 1 || options.in_channels < 1)
      fail(Kind::argument, concat("resnet: ", options.num_classes, " classes and ", options.in_channels,
                                  " channels; both must be positive"));
    conv1_ = plan.small_pictures ? conv(options.in_channels, plan.width, 3, 1, g)
                                 : conv(options.in_channels, plan.width, 7, 2, g);
    bn1_ = std::make_shared<BatchNorm2d>(plan.width);
    register_module("conv1", conv1_);
    register_module("bn1", bn1_);
    std::int64_t in = plan.width, width = plan.width;
    stages_.resize(plan.blocks.size());
    for (std::size_t s = 0; s < stages_.size(); ++s, width *= 2) {
      auto stage = std::make_shared<nn::Sequential>();
      for (int b = 0; b < plan.blocks[s]; ++b) {
        const std::int64_t stride = s > 0 && b == 0 ? 2 : 1;
        stage->push_back(std::make_shared<Block>(in, width, stride, options.zero_init_residual, g));
        in = width * Block::kExpansion;
      }
      stages_[s] = stage;
      register_module("layer" + std::to_string(s + 1), stages_[s]);
    }
    fc_ = std::make_shared<nn::Linear>(in, options.num_classes, true, g);
    register_module("fc", fc_);
  }
  std::string_view kind() const override { return "ResNet"; }

  Tensor forward(const Tensor& x) override {
    Tensor y = bn1_->forward_relu(conv1_->forward(x));
    if (pool_) y = nn::functional::max_pool2d(y, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
    for (const auto& stage : stages_) y = stage->forward(y);
    return fc_->forward(nn::functional::flatten(nn::functional::adaptive_avg_pool2d(y, {1, 1}), 1));
  }

 private:
  bool pool_;
  std::shared_ptr<nn::Module> conv1_, fc_;
  std::shared_ptr<BatchNorm2d> bn1_;
  std::vector<std::shared_ptr<nn::Module>> stages_;
};

using Factory = std::shared_ptr<nn::Module> (*)(const ModelOptions&, Generator&);
struct Entry {
  std::string_view name;
  Factory make;
  int image;
};
constexpr Entry kModels[] = {
    {"resnet101", resnet101, 224}, {"resnet152", resnet152, 224}, {"resnet18", resnet18, 224},
    {"resnet20", resnet20, 32},    {"resnet34", resnet34, 224},   {"resnet50", resnet50, 224},
};

const Entry& find(std::string_view name) {
  for (const auto& entry : kModels)
    if (entry.name == name) return entry;
  std::string known;
  for (const auto& entry : kModels) known += (known.empty() ? "" : ", ") + std::string(entry.name);
  fail(Kind::argument, concat("unknown model '", name, "'; known are ", known));
}

}  // namespace

std::shared_ptr<nn::Module> resnet18(const ModelOptions& options, Generator& g) {
  return std::make_shared<ResNet<BasicBlock>>(Plan{{2, 2, 2, 2}, 64, false}, options, g);
}
std::shared_ptr<nn::Module> resnet34(const ModelOptions& options, Generator& g) {
  return std::make_shared<ResNet<BasicBlock>>(Plan{{3, 4, 6, 3}, 64, false}, options, g);
}
std::shared_ptr<nn::Module> resnet50(const ModelOptions& options, Generator& g) {
  return std::make_shared<ResNet<Bottleneck>>(Plan{{3, 4, 6, 3}, 64, false}, options, g);
}
std::shared_ptr<nn::Module> resnet101(const ModelOptions& options, Generator& g) {
  return std::make_shared<ResNet<Bottleneck>>(Plan{{3, 4, 23, 3}, 64, false}, options, g);
}
std::shared_ptr<nn::Module> resnet152(const ModelOptions& options, Generator& g) {
  return std::make_shared<ResNet<Bottleneck>>(Plan{{3, 8, 36, 3}, 64, false}, options, g);
}
std::shared_ptr<nn::Module> resnet20(const ModelOptions& options, Generator& g) {
  return std::make_shared<ResNet<BasicBlock>>(Plan{{3, 3, 3}, 16, true}, options, g);
}

std::vector<std::string> list() {
  std::vector<std::string> names;
  for (const auto& entry : kModels) names.emplace_back(entry.name);
  return names;
}

std::shared_ptr<nn::Module> create(std::string_view name, const ModelOptions& options, Generator& generator) {
  return find(name).make(options, generator);
}

int default_image_size(std::string_view name) { return find(name).image; }

}  // namespace apex::models
