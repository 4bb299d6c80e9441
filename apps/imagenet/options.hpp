// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "apex/train/options.hpp"

namespace imagenet {

/// The options of imagenet_train beside those of every training program.
struct Options {
  apex::train::TrainOptions train;
  std::string data;
  std::string arch = "resnet18";
  bool list_archs = false;
  std::string pretrained;
  bool zero_init_residual = false;
  bool freeze_bn = false;
  bool channels_last = false;
  bool contiguous = false;

  std::string optimizer = "sgd";
  bool nesterov = false;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = -1;  ///< below 0: the optimizer's own
  double trust_coefficient = 0.02;
  bool no_bias_correction = false;
  double clip_grad = -1;  ///< below 0: 1 for LAMB, no clipping for the others
  std::string lr_schedule = "step";
  double warmup_epochs = 0;
  bool no_norm_decay = false;
  double label_smoothing = 0;

  std::int64_t image_size = 0;  ///< 0: the data's own where small, else the model's
  std::int64_t channels = 0;
  std::string augment = "auto";
  std::string decode = "cpu";
  double val_split = 0;
  std::int64_t synthetic_size = 1280;
  std::int64_t synthetic_classes = 10;
};

void declare(apex::train::OptionSet& set, Options& options);
/// @throws apex::train::UsageError
void check(const apex::train::OptionSet& set, const Options& options);

}  // namespace imagenet
