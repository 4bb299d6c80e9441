// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apex/nn/module.hpp"
#include "apex/random.hpp"

namespace apex::models {

struct ModelOptions {
  std::int64_t num_classes = 1000;
  std::int64_t in_channels = 3;
  /// The last batch norm of each block starts at weight 0, so that blocks start as the identity (Goyal et al. 2017).
  bool zero_init_residual = false;
};

/// Residual networks (He et al. 2015, arXiv:1512.03385) for about 224x224 pixels, version 1.5: the stride of a
/// bottleneck sits in its 3x3 convolution. Parameters carry torchvision's names in its order; convolutions start as
/// kaiming_normal over fan_out, batch norms at 1 and 0, the classifier uniform in +-1 / sqrt(fan_in).
/// x [N, in_channels, H, W] -> logits [N, num_classes].
/// @throws Kind::argument for fewer than one class or channel
std::shared_ptr<nn::Module> resnet18(const ModelOptions& options = {}, Generator& generator = default_generator());
std::shared_ptr<nn::Module> resnet34(const ModelOptions& options = {}, Generator& generator = default_generator());
std::shared_ptr<nn::Module> resnet50(const ModelOptions& options = {}, Generator& generator = default_generator());
std::shared_ptr<nn::Module> resnet101(const ModelOptions& options = {}, Generator& generator = default_generator());
std::shared_ptr<nn::Module> resnet152(const ModelOptions& options = {}, Generator& generator = default_generator());

/// The small network of section 4.2 of the same paper for 28 to 32 pixels: a 3x3 stem of 16 channels, three stages of
/// three basic blocks with 16, 32 and 64 channels, global average pooling, a classifier. Shortcuts that change shape
/// are a 1x1 convolution with batch norm (the paper's option B). 0.27 million parameters.
std::shared_ptr<nn::Module> resnet20(const ModelOptions& options = {}, Generator& generator = default_generator());

/// Names `create` knows, in alphabetical order.
std::vector<std::string> list();
/// @throws Kind::argument listing the known names
std::shared_ptr<nn::Module> create(std::string_view name, const ModelOptions& options = {},
                                   Generator& generator = default_generator());
/// The side of the square pictures the model is usually trained on: 32 for resnet20, 224 for the others.
int default_image_size(std::string_view name);

}  // namespace apex::models
